//! Decisions compared: a function of what was decided.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::load::decide::Decided;

/// The pairs of runs that are compared: the two pickers, and each with itself.
const PAIRS: [(usize, usize); 3] = [(0, 1), (0, 2), (1, 3)];

/// Comparison of the runs of two pickers.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// Requests that all runs decided.
    pub(super) requests: usize,
    /// Requests on which the pickers differ; the first one with itself; the other with itself.
    pub(super) differ: [usize; 3],
    /// Requests by what differs, in the same order. A request may differ in several ways.
    pub(super) kinds: BTreeMap<String, [usize; 3]>,
    /// The requests on which the pickers differ.
    pub(super) differences: Vec<Difference>,
}

/// A request on which the pickers differ.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Difference {
    /// Index of the request, from 0.
    pub(super) request: usize,
    /// Kinds of difference.
    pub(super) kinds: Vec<String>,
    /// `true` if each picker decided the same in both its runs.
    pub(super) beyond_chance: bool,
}

impl Tally {
    /// Compares four runs over the same requests: the pickers in turns, twice.
    pub(super) fn new(runs: &[Vec<Decided>]) -> Self {
        let requests = runs.iter().map(Vec::len).min().unwrap_or_default();
        let mut tally = Self { requests, differ: [0; 3], kinds: BTreeMap::new(), differences: Vec::new() };
        let decided = |run: usize, request: usize| &runs[run][request];
        for request in 0..requests {
            let kinds = PAIRS.map(|(one, other)| kinds(decided(one, request), decided(other, request)));
            for (pair, kinds) in kinds.iter().enumerate() {
                tally.differ[pair] += usize::from(!kinds.is_empty());
                for kind in kinds {
                    tally.kinds.entry(kind.clone()).or_default()[pair] += 1;
                }
            }
            let [between, own, others] = kinds;
            if !between.is_empty() {
                let beyond_chance = own.is_empty() && others.is_empty();
                tally.differences.push(Difference { request, kinds: between, beyond_chance });
            }
        }
        tally
    }

    /// Requests on which the pickers differ though each agrees with itself.
    pub(super) fn beyond_chance(&self) -> usize {
        self.differences.iter().filter(|difference| difference.beyond_chance).count()
    }
}

/// Kinds of difference between two decisions; empty if they are the same.
fn kinds(one: &Decided, other: &Decided) -> Vec<String> {
    if one.status != other.status {
        // What else differs follows from it.
        return vec!["status".to_owned()];
    }
    let mut kinds = Vec::new();
    let first =
        |decided: &Decided| decided.destination.split(',').next().unwrap_or_default().trim().to_owned();
    if first(one) != first(other) {
        kinds.push("destination".to_owned());
    } else if one.destination != other.destination {
        kinds.push("fallbacks".to_owned());
    }
    for (place, one, other) in [
        ("header", &one.headers, &other.headers),
        ("response's header", &one.response_headers, &other.response_headers),
    ] {
        let names: BTreeSet<_> = one.keys().chain(other.keys()).collect();
        let differing = names.into_iter().filter(|name| one.get(*name) != other.get(*name));
        kinds.extend(differing.map(|name| format!("{place} {name}")));
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(destination: &str) -> Decided {
        Decided { status: "routed".into(), destination: destination.into(), ..Decided::default() }
    }

    fn with(destination: &str, prefill: &str) -> Decided {
        let headers = [("x-prefiller-host-port".to_owned(), prefill.to_owned())].into();
        Decided { headers, ..to(destination) }
    }

    fn refused(status: &str) -> Decided {
        Decided { status: status.into(), ..Decided::default() }
    }

    #[test]
    fn kinds_of_difference_are_named() {
        let token = [("x-session-token".to_owned(), "b".to_owned())].into();
        let with_token = Decided { response_headers: token, ..to("a:1") };
        let table: [(Decided, Decided, &[&str]); 9] = [
            (to("a:1"), to("a:1"), &[]),
            (to("a:1"), to("b:1"), &["destination"]),
            (with_token, to("a:1"), &["response's header x-session-token"]),
            (to("a:1,b:1"), to("a:1"), &["fallbacks"]),
            (to("a:1,b:1"), to("b:1,a:1"), &["destination"]),
            (to("a:1"), refused("503"), &["status"]),
            (refused("503"), refused("429"), &["status"]),
            (with("a:1", "p"), to("a:1"), &["header x-prefiller-host-port"]),
            (with("a:1", "p"), with("b:1", "q"), &["destination", "header x-prefiller-host-port"]),
        ];
        for (one, other, expected) in table {
            assert_eq!(kinds(&one, &other), expected, "{one:?} {other:?}");
            assert_eq!(kinds(&other, &one), expected, "{other:?} {one:?}");
        }
    }

    #[test]
    fn differences_within_one_picker_count_as_chance() {
        let runs = [
            vec![to("a"), to("a"), to("a"), refused("503")],
            vec![to("a"), to("b"), to("b"), to("a")],
            vec![to("a"), to("a"), to("b"), refused("503")],
            vec![to("a"), to("b"), to("b"), to("b")],
        ];
        let tally = Tally::new(&runs);
        assert_eq!((tally.requests, tally.differ), (4, [3, 1, 1]));
        let steady: Vec<_> = tally.differences.iter().map(|one| (one.request, one.beyond_chance)).collect();
        assert_eq!(steady, [(1, true), (2, false), (3, false)]);
        assert_eq!(tally.beyond_chance(), 1);
        assert_eq!(tally.kinds["destination"], [2, 1, 1]);
        assert_eq!(tally.kinds["status"], [1, 0, 0]);
    }
}
