//! Extraction of data from the pages of one endpoint, by one extractor.

use std::sync::Arc;

use prometheus::IntCounter;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::endpoints::Endpoint;

use super::config::ScrapeConfig;
use super::engine::Engine;
use super::exposition::{Line, Scanner, Wanted};
use super::metrics::Counters;
use super::models::ModelPage;
use super::readings::{Problems, Readings};
use super::report::LoggedState;
use super::state::StateReader;
use super::times::{TimesReader, TimesSpec};

/// Takes a page piece by piece, and when it is whole, what it says goes to the endpoint.
pub(super) struct Extraction<'a> {
    endpoint: &'a Endpoint,
    /// Pages that lacked something.
    errors: &'a IntCounter,
    kind: Kind<'a>,
}

enum Kind<'a> {
    Metrics { engine: &'a Engine, scanner: Scanner<'a>, readings: Readings, problems: LoggedState<Problems> },
    Models { page: ModelPage, failing: LoggedState<bool> },
    Times(TimesReader<'a>),
    State(StateReader<'a>),
}

impl<'a> Extraction<'a> {
    /// Extractions of all extractors of a source, for one endpoint.
    pub(super) fn all(
        endpoint: &'a Endpoint,
        config: &'a ScrapeConfig,
        (times, state): (Option<&'a TimesSpec>, Option<&'a Wanted>),
        counters: &'a Counters,
    ) -> Vec<Self> {
        let metrics = config.engines.iter().zip(&counters.extract_errors).map(|(engines, errors)| {
            let engine = engines.of(endpoint);
            let (scanner, readings) =
                (Scanner::new(engine.wanted()), Readings::new(Arc::clone(engine)).of_endpoint(endpoint));
            let problems = LoggedState::new(Problems::default());
            Self { endpoint, errors, kind: Kind::Metrics { engine, scanner, readings, problems } }
        });
        let models = config.models.then(|| Self {
            endpoint,
            errors: &counters.models_errors,
            kind: Kind::Models { page: ModelPage::default(), failing: LoggedState::new(false) },
        });
        let times = times.map(|spec| Self {
            endpoint,
            errors: &counters.models_errors,
            kind: Kind::Times(TimesReader::new(spec)),
        });
        let state = state.map(|wanted| Self {
            endpoint,
            errors: &counters.models_errors,
            kind: Kind::State(StateReader::new(wanted)),
        });
        metrics.chain(models).chain(times).chain(state).collect()
    }

    /// Names of the metrics that it reads.
    pub(super) fn metrics(&self) -> impl Iterator<Item = &str> {
        let wanted = match &self.kind {
            Kind::Metrics { engine, .. } => Some(engine.wanted()),
            Kind::Times(reader) => Some(reader.wanted()),
            Kind::State(reader) => Some(reader.wanted()),
            Kind::Models { .. } => None,
        };
        wanted.into_iter().flat_map(Wanted::names)
    }

    /// Takes a piece of a page.
    pub(super) fn feed(&mut self, piece: &[u8]) {
        match &mut self.kind {
            Kind::Metrics { scanner, readings, .. } => {
                scanner.feed(piece, &mut |metric: usize, line: Line<'_>| readings.take(metric, line));
            }
            Kind::Models { page, .. } => page.feed(piece),
            Kind::Times(reader) => reader.feed(piece),
            Kind::State(reader) => reader.feed(piece),
        }
    }

    /// The page is complete: what it says goes to the endpoint, and what it doesn't say is
    /// counted and logged. Whether everything was there.
    pub(super) fn finish(&mut self, now: Instant, now_ms: u64) -> bool {
        let load = self.endpoint.load();
        let (complete, fine) = match &mut self.kind {
            Kind::Metrics { engine, scanner, readings, problems: logged } => {
                scanner.finish(&mut |metric: usize, line: Line<'_>| readings.take(metric, line));
                let problems = readings.apply(load, now_ms);
                if logged.changes_to(problems, now) {
                    log_problems(self.endpoint, engine, problems);
                }
                (problems.missing.is_empty(), problems.is_empty())
            }
            Kind::Models { page, failing } => {
                let result = page.apply(load, now_ms);
                if failing.changes_to(result.is_err(), now) {
                    let endpoint = self.endpoint.id();
                    match &result {
                        Ok(()) => info!(%endpoint, "models of the endpoint can be read again"),
                        Err(error) => warn!(%endpoint, %error, "models of the endpoint can't be read"),
                    }
                }
                (true, result.is_ok())
            }
            Kind::Times(reader) => {
                if let Some(times) = reader.finish(now) {
                    load.engine_times.set(times);
                }
                // Older engines have fewer of them.
                (true, true)
            }
            Kind::State(reader) => {
                reader.finish(&load.engine_state);
                // Other engines have no such metrics.
                (true, true)
            }
        };
        if !fine {
            self.errors.inc();
        }
        complete
    }

    /// Forgets a page that didn't become complete.
    pub(super) fn restart(&mut self) {
        match &mut self.kind {
            Kind::Metrics { scanner, readings, .. } => {
                scanner.restart();
                readings.restart();
            }
            Kind::Models { page, .. } => page.restart(),
            Kind::Times(reader) => reader.restart(),
            Kind::State(reader) => reader.restart(),
        }
    }
}

fn log_problems(endpoint: &Endpoint, engine: &Engine, problems: Problems) {
    let endpoint = endpoint.id();
    if problems.is_empty() {
        return info!(%endpoint, "metrics of the endpoint are complete again");
    }
    let [missing, refused] = [problems.missing, problems.refused].map(|fields| engine.names(fields));
    warn!(%endpoint, missing, refused, "metrics of the endpoint are incomplete");
}
