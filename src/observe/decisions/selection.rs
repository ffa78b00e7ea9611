//! The query of the page of decisions.

use crate::endpoints::EndpointName;
use crate::observe::query::parameters;
use crate::records::{DecisionRecord, bounded};

/// Decisions on a page where the query doesn't say how many.
const USUAL: usize = 20;

/// Most decisions on a page.
const MOST: usize = 1000;

/// Characters of an id that are compared: as many as a record keeps.
const ID: usize = 128;

/// Decisions that a query asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    last: Option<usize>,
    since: Option<u64>,
    id: Option<Box<str>>,
    model: Option<String>,
    endpoint: Option<String>,
    number: Option<u64>,
    search: Option<String>,
    only_slow: bool,
    only_failed: bool,
    is_brief: bool,
}

impl Selection {
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let mut selection = Self::default();
        for (name, value) in parameters(query)? {
            match name.as_str() {
                "last" => selection.last = Some(count(&value)?),
                "since" => {
                    let number =
                        value.parse().map_err(|_| "since has to be a sequence: a whole number".to_owned())?;
                    selection.since = Some(number);
                }
                "id" => selection.id = Some(bounded(&value, ID)),
                "model" => selection.model = Some(value),
                "endpoint" => selection.endpoint = Some(value),
                "number" => {
                    let number = value.parse().map_err(|_| "number has to be a whole number".to_owned())?;
                    selection.number = Some(number);
                }
                "search" => selection.search = Some(value.to_lowercase()).filter(|text| !text.is_empty()),
                "brief" => selection.is_brief = is_set("brief", &value)?,
                "slow" => selection.only_slow = is_set("slow", &value)?,
                "failed" => selection.only_failed = is_set("failed", &value)?,
                other => {
                    let other = bounded(other, 40);
                    return Err(format!(
                        "the query has no parameter {other:?}; known are last, since, id, number, model, endpoint, search, slow, failed and brief"
                    ));
                }
            }
        }
        Ok(selection)
    }

    /// Number of decisions at most.
    pub(super) fn last(&self) -> usize {
        self.last.unwrap_or(if self.since.is_some() || self.id.is_some() { MOST } else { USUAL })
    }

    /// Sequence after which something has to have changed.
    pub(super) fn since(&self) -> Option<u64> {
        self.since
    }

    /// Returns `true` if a line of each decision is enough.
    pub(super) fn is_brief(&self) -> bool {
        self.is_brief
    }

    /// Returns `true` if a record is asked for whose last change had this sequence.
    pub(super) fn matches(&self, record: &DecisionRecord, sequence: u64) -> bool {
        let is_model = |model: &String| {
            model == record.model() || record.target_model().is_some_and(|target| target == model)
        };
        self.since.is_none_or(|since| sequence > since)
            && self.id.as_ref().is_none_or(|id| **id == *record.request_id())
            && self.number.is_none_or(|number| number == record.number)
            && self.search.as_ref().is_none_or(|text| mentions(record, text))
            && self.model.as_ref().is_none_or(is_model)
            && self.endpoint.as_ref().is_none_or(|endpoint| picked(record, endpoint))
            && (!self.only_slow || record.is_slow())
            && (!self.only_failed || record.is_failed())
    }
}

/// Returns `true` if the id, the model, the reason of a refusal or an endpoint that was picked or served contains a
/// text, which is in lower case.
fn mentions(record: &DecisionRecord, text: &str) -> bool {
    let contains = |name: &str| name.to_lowercase().contains(text);
    let served = record.outcome().and_then(|outcome| outcome.served.as_deref());
    let reason = record.refusal.as_ref().and_then(|refusal| refusal.reason);
    let names = [Some(record.request_id()), Some(record.model()), record.target_model(), served, reason];
    let firsts = record.profiles.iter().filter_map(|profile| record.row(*profile.picks.first()?));
    names.into_iter().flatten().any(contains)
        || firsts.map(|row| record.name(row)).any(|name| contains(&name.id) || contains(&name.address))
}

/// Returns `true` if a profile picked the endpoint, or it served the request. It is named by its address, its id
/// or its name.
fn picked(record: &DecisionRecord, endpoint: &str) -> bool {
    let served = record.outcome().and_then(|outcome| outcome.served.as_deref());
    let is_named = |row: &crate::records::Row| {
        let EndpointName { id, address } = record.name(row);
        **address == *endpoint
            || **id == *endpoint
            || id.split_once('/').is_some_and(|(_, name)| name == endpoint)
    };
    let firsts = record.profiles.iter().filter_map(|profile| profile.picks.first());
    served == Some(endpoint) || firsts.filter_map(|pick| record.row(*pick)).any(is_named)
}

fn count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST).contains(number));
    number.ok_or_else(|| format!("last has to be a whole number from 1 to {MOST}"))
}

fn is_set(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "" | "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("{name} has to be true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_select_decisions() {
        let all = Selection::parse(
            "last=5&since=9&id=a&number=7&model=m&endpoint=e&search=Big&slow&failed=true&brief",
        )
        .unwrap();
        let expected = Selection {
            last: Some(5),
            since: Some(9),
            id: Some("a".into()),
            model: Some("m".into()),
            endpoint: Some("e".into()),
            number: Some(7),
            search: Some("big".into()),
            only_slow: true,
            only_failed: true,
            is_brief: true,
        };
        assert_eq!(all, expected);
        assert_eq!(
            [Selection::parse("").unwrap().last(), Selection::parse("id=x").unwrap().last()],
            [20, 1000]
        );
    }

    #[test]
    fn wrong_queries_are_refused_with_a_sentence() {
        for query in [
            "last=0",
            "last=x",
            "number=x",
            "brief=2",
            "last=1001",
            "since=-1",
            "slow=maybe",
            "<b>=1",
            "%1b[31m",
        ] {
            let error = Selection::parse(query).unwrap_err();
            assert!(error.len() < 200 && !error.chars().any(char::is_control), "{query}: {error}");
        }
    }
}
