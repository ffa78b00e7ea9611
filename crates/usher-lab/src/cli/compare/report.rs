//! Output of `usher compare`.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;

use serde::Serialize;

use super::args::Plan;
use super::servers::{Load, name};
use super::tally::Tally;
use crate::load::decide::Decided;
use crate::load::trace::Row;
use usher_terminal::line;

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    requests: usize,
    trace: String,
    servers: u16,
    change_every: usize,
    seed: u64,
    usher: Picker,
    peer: Picker,
    agree: usize,
    differ: usize,
    differ_percent: f64,
    /// Requests on which each picker decided the same in both its runs, and they differ.
    beyond_chance: usize,
    /// Requests on which a picker differs from itself.
    usher_with_itself: usize,
    peer_with_itself: usize,
    /// Requests by what differs: between the pickers, of Usher with itself, of llm-d-router with itself.
    kinds: BTreeMap<String, [usize; 3]>,
    differences: Vec<Line>,
    notes: Vec<String>,
    #[serde(skip)]
    show: usize,
}

#[derive(Debug, Serialize)]
struct Picker {
    command: String,
    config: String,
}

/// A request on which the pickers differ.
#[derive(Debug, Serialize)]
struct Line {
    request: usize,
    tokens: usize,
    kinds: Vec<String>,
    beyond_chance: bool,
    usher: Decided,
    peer: Decided,
    /// Loads in the servers' metrics, by the servers' names.
    loads: BTreeMap<String, Load>,
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        rows: &[Row],
        runs: &[Vec<Decided>],
        tally: Tally,
        addresses: &[SocketAddr],
        loads: impl Fn(usize) -> Vec<Load>,
        notes: Vec<String>,
    ) -> Self {
        let names: Vec<_> = addresses
            .iter()
            .enumerate()
            .map(|(number, address)| (address.to_string(), name(number)))
            .collect();
        let (beyond_chance, [differ, usher_with_itself, peer_with_itself]) =
            (tally.beyond_chance(), tally.differ);
        let lines = tally.differences.into_iter().map(|difference| {
            let [usher, peer] = [0, 1].map(|run| named(&runs[run][difference.request], &names));
            let loads = loads(difference.request).into_iter().enumerate();
            Line {
                request: difference.request,
                tokens: rows[difference.request].input_length,
                kinds: difference.kinds,
                beyond_chance: difference.beyond_chance,
                usher,
                peer,
                loads: loads.map(|(number, load)| (name(number), load)).collect(),
            }
        });
        Self {
            requests: tally.requests,
            trace: plan.trace.clone(),
            servers: plan.servers,
            change_every: plan.change_every,
            seed: plan.seed,
            usher: Picker { command: plan.usher.clone(), config: plan.config.name.clone() },
            peer: Picker { command: plan.peer.clone(), config: plan.peer_config.name.clone() },
            agree: tally.requests - differ,
            differ,
            differ_percent: percent(differ, tally.requests),
            beyond_chance,
            usher_with_itself,
            peer_with_itself,
            kinds: tally.kinds,
            differences: lines.collect(),
            notes,
            show: plan.show,
        }
    }
}

fn percent(part: usize, whole: usize) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// A decision with the servers' names in place of their addresses.
fn named(decided: &Decided, names: &[(String, String)]) -> Decided {
    let named = |text: &str| {
        text.split(',')
            .map(|part| {
                let found = names.iter().find(|(address, _)| address == part.trim());
                found.map_or(part, |(_, name)| name.as_str())
            })
            .collect::<Vec<_>>()
            .join(",")
    };
    let headers = |headers: &BTreeMap<String, String>| {
        headers.iter().map(|(name, value)| (name.clone(), named(value))).collect()
    };
    Decided {
        status: decided.status.clone(),
        destination: named(&decided.destination),
        headers: headers(&decided.headers),
        answer_headers: headers(&decided.answer_headers),
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let changes = match self.change_every {
            0 => "their load stays".to_owned(),
            every => format!("their load changes every {every} requests"),
        };
        line(f, "requests", format_args!("{} of {}", self.requests, self.trace))?;
        line(f, "servers", format_args!("{}, {changes} (seed {})", self.servers, self.seed))?;
        for (title, picker) in [("usher", &self.usher), ("peer", &self.peer)] {
            line(f, title, format_args!("{}, {}", picker.command, picker.config))?;
        }
        writeln!(f, "\n{:<36}{:>8} {:>8}", "", "agree", "differ")?;
        let pairs = ["usher and peer", "usher and itself", "peer and itself"];
        for (pair, differ) in
            pairs.into_iter().zip([self.differ, self.usher_with_itself, self.peer_with_itself])
        {
            let share = percent(differ, self.requests);
            writeln!(f, "{pair:<36}{:>8} {differ:>8} {share:>6.1} %", self.requests - differ)?;
        }
        writeln!(
            f,
            "\nA picker differs from itself by chance, as equals are picked at random. Beyond chance: {}, on\n\
             which each picker decided the same in both its runs, and not as the other did.",
            self.beyond_chance
        )?;
        if !self.kinds.is_empty() {
            let [first, second, third] = pairs;
            writeln!(f, "\n{:<36}{first:>16} {second:>18} {third:>17}", "requests by what differs")?;
            for (kind, [between, own, others]) in &self.kinds {
                writeln!(f, "{kind:<36}{between:>16} {own:>18} {others:>17}")?;
            }
        }
        self.list(f)?;
        for note in &self.notes {
            writeln!(f, "\nnote: {note}")?;
        }
        Ok(())
    }
}

impl Report {
    /// The differing decisions, those beyond chance first.
    fn list(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<_> = self.differences.iter().collect();
        lines.sort_by_key(|line| !line.beyond_chance);
        if lines.is_empty() || self.show == 0 {
            return Ok(());
        }
        writeln!(f, "\nrequest  tokens  beyond chance  what differs: usher, then peer")?;
        for line in lines.iter().take(self.show) {
            let chance = if line.beyond_chance { "yes" } else { "" };
            for (at, kind) in line.kinds.iter().enumerate() {
                let start = match at {
                    0 => format!("{:>7} {:>7}  {chance:<13}", line.request, line.tokens),
                    _ => " ".repeat(30),
                };
                let [usher, peer] = [&line.usher, &line.peer].map(|decided| line.value(kind, decided));
                writeln!(f, "{start}  {kind}: {usher}; {peer}")?;
            }
        }
        if lines.len() > self.show {
            writeln!(f, "… and {} more; --show N lists more, --output json all", lines.len() - self.show)?;
        }
        Ok(())
    }
}

impl Line {
    /// Value of a decision for this kind of difference; for a server, with the load in its metrics.
    fn value(&self, kind: &str, decided: &Decided) -> String {
        let header = |headers: &BTreeMap<String, String>, name: &str| match headers.get(name) {
            Some(value) => value.clone(),
            None => "none".to_owned(),
        };
        let value = if kind == "status" {
            decided.status.clone()
        } else if let Some(name) = kind.strip_prefix("header ") {
            header(&decided.headers, name)
        } else if let Some(name) = kind.strip_prefix("answer's header ") {
            header(&decided.answer_headers, name)
        } else {
            decided.destination.clone()
        };
        match self.loads.get(&value) {
            Some(Load { waiting, running, kv_cache }) => {
                format!("{value} (waiting {waiting}, running {running}, KV cache {:.0} %)", kv_cache * 100.0)
            }
            None => value,
        }
    }
}
