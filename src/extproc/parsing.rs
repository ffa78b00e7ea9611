//! Durations of parsers, as `plugin_duration_seconds` has it for every plugin.

use std::time::Duration;

use crate::metrics::Timing;
use crate::request::ParserKind;
use crate::schedule::SchedulerMetrics;

/// The durations of every parser, looked up once.
#[derive(Debug)]
pub struct Parsing {
    parsers: Vec<Durations>,
}

#[derive(Debug)]
struct Durations {
    of: ParserKind,
    requests: Timing,
    responses: Timing,
}

impl Parsing {
    /// The durations in the scheduler's family.
    pub fn new(metrics: &SchedulerMetrics) -> Self {
        let durations = |of: ParserKind| Durations {
            of,
            requests: metrics.elsewhere("RequestParsing", of.plugin_type()),
            responses: metrics.elsewhere("ResponseParsing", of.plugin_type()),
        };
        Self { parsers: ParserKind::ALL.map(durations).into() }
    }

    /// A request took so long, all its messages together.
    pub fn request(&self, kind: ParserKind, taken: Duration) {
        if let Some(durations) = self.parsers.iter().find(|durations| durations.of == kind) {
            durations.requests.observe(taken);
        }
    }

    /// A message of a response took so long.
    pub fn response(&self, kind: ParserKind, taken: Duration) {
        if let Some(durations) = self.parsers.iter().find(|durations| durations.of == kind) {
            durations.responses.observe(taken);
        }
    }
}
