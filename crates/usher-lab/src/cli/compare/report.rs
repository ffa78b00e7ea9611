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
use usher_terminal::{Column, line, paragraph, table};

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
        response_headers: headers(&decided.response_headers),
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
        for (title, picker) in [("usher", &self.usher), ("other", &self.peer)] {
            line(f, title, format_args!("{}, {}", picker.command, picker.config))?;
        }
        let pairs = ["usher and other", "usher and itself", "other and itself"];
        let row = |(pair, differ): (&str, usize)| {
            let share = format!("{:.1} %", percent(differ, self.requests));
            vec![pair.to_owned(), (self.requests - differ).to_string(), differ.to_string(), share]
        };
        let differ = [self.differ, self.usher_with_itself, self.peer_with_itself];
        let rows: Vec<Vec<String>> = pairs.into_iter().zip(differ).map(row).collect();
        let [agree, differ, share] = ["agree", "differ", ""].map(Column::number);
        write!(f, "\n{}\n", table(&[Column::text(""), agree, differ, share], &rows, f.width()))?;
        paragraph(
            f,
            format_args!(
                "A picker differs from itself by chance, as equals are picked at random. Beyond chance: {}, on \
                 which each picker decided the same in both its runs, and not as the other did.",
                self.beyond_chance
            ),
        )?;
        if !self.kinds.is_empty() {
            let [first, second, third] = pairs.map(Column::number);
            let columns = [Column::text("requests by what differs"), first, second, third];
            let row = |(kind, counts): (&String, &[usize; 3])| {
                std::iter::once(kind.clone()).chain(counts.iter().map(usize::to_string)).collect()
            };
            let rows: Vec<Vec<String>> = self.kinds.iter().map(row).collect();
            write!(f, "\n{}", table(&columns, &rows, f.width()))?;
        }
        self.list(f)?;
        for note in &self.notes {
            writeln!(f)?;
            paragraph(f, format_args!("note: {note}"))?;
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
        let columns = [
            Column::number("request"),
            Column::number("tokens"),
            Column::text("beyond chance"),
            Column::text("usher, then other"),
        ];
        let mut rows = Vec::new();
        for line in lines.iter().take(self.show) {
            let chance = if line.beyond_chance { "yes" } else { "" };
            let mut start = [line.request.to_string(), line.tokens.to_string(), chance.to_owned()];
            for kind in &line.kinds {
                let [usher, peer] = [&line.usher, &line.peer].map(|decided| line.value(kind, decided));
                let differs = format!("{kind}: {usher}; {peer}");
                rows.push(std::mem::take(&mut start).into_iter().chain([differs]).collect());
            }
        }
        write!(f, "\n{}", table(&columns, &rows, f.width()))?;
        if lines.len() > self.show {
            paragraph(
                f,
                format_args!(
                    "… and {} more; --show N lists more, --output json all",
                    lines.len() - self.show
                ),
            )?;
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
        } else if let Some(name) = kind.strip_prefix("response's header ") {
            header(&decided.response_headers, name)
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

#[cfg(test)]
mod tests {
    use usher_terminal::misfits;

    use super::*;

    fn decided(server: &str) -> Decided {
        Decided { status: "200".to_owned(), destination: server.to_owned(), ..Decided::default() }
    }

    #[test]
    fn the_report_fits_the_terminal() {
        let picker = |command: &str| Picker { command: command.to_owned(), config: "the default".to_owned() };
        let load = Load { waiting: 3, running: 7, kv_cache: 0.42 };
        let report = Report {
            requests: 500,
            trace: "tests/data/mooncake.jsonl".to_owned(),
            servers: 8,
            change_every: 10,
            seed: 0,
            usher: picker("target/release/usher serve"),
            peer: picker("another picker, with a few flags that make its command as long as commands are"),
            agree: 499,
            differ: 1,
            differ_percent: 0.2,
            beyond_chance: 1,
            usher_with_itself: 0,
            peer_with_itself: 0,
            kinds: [("destination".to_owned(), [1, 0, 0])].into(),
            differences: vec![Line {
                request: 12,
                tokens: 3456,
                kinds: vec!["destination".to_owned(), "status".to_owned()],
                beyond_chance: true,
                usher: decided("server-1"),
                peer: decided("server-2"),
                loads: ["server-1", "server-2"].map(|name| (name.to_owned(), load)).into(),
            }],
            notes: vec!["a sentence that is longer than a line of a narrow terminal is wide".to_owned()],
            show: 5,
        };
        assert_eq!(misfits(&report), Vec::<String>::new());
        let text = report.to_string();
        assert!(text.contains("\nusher and other     499       1  0.2 %\n"), "{text}");
        let row =
            "     12    3456  yes            destination: server-1 (waiting 3, running 7, KV cache 42 %); ";
        assert!(text.contains(row), "{text}");
        let narrow = format!("{report:60}");
        assert!(
            narrow.contains("\nrequest 12\n  tokens 3456, beyond chance yes, usher, then other"),
            "{narrow}"
        );
    }
}
