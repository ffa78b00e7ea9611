//! How long parsers take, as `plugin_duration_seconds` has it for every plugin.

use prometheus::Histogram;

use crate::request::ParserKind;
use crate::schedule::SchedulerMetrics;

/// The durations of every parser, looked up once.
#[derive(Debug)]
pub struct Parsing {
    parsers: Vec<(ParserKind, Histogram)>,
}

impl Parsing {
    /// The durations in the scheduler's family.
    pub fn new(metrics: &SchedulerMetrics) -> Self {
        let duration = |kind: ParserKind| (kind, metrics.elsewhere("RequestParsing", kind.plugin_type()));
        Self { parsers: ParserKind::ALL.map(duration).into() }
    }

    /// A request took so many seconds to parse.
    pub fn request(&self, kind: ParserKind, seconds: f64) {
        if let Some((_, duration)) = self.parsers.iter().find(|(of, _)| *of == kind) {
            duration.observe(seconds);
        }
    }
}
