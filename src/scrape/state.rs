//! Start and sleep of an engine, on its pages.
//!
//! Followers of KV events need them at once, so every page is searched, but only if there are some.

use crate::endpoints::EngineState;

use super::exposition::{Line, MetricSpec, Scanner, Wanted};

/// Positions of the metrics: the first is a time, the others are 1 while the engine sleeps.
const STARTED: usize = 0;

/// Metrics to look for, compiled.
pub(super) fn wanted() -> Wanted {
    // Both levels of vLLM's sleep give up the KV cache. An engine that is only paused is neither, and keeps it.
    let asleep = |state: &str| MetricSpec {
        labels: vec![("sleep_state".to_owned(), state.to_owned())],
        ..MetricSpec::named("vllm:engine_sleep_state")
    };
    let started = MetricSpec::named("process_start_time_seconds");
    Wanted::new(vec![started, asleep("weights_offloaded"), asleep("discard_all")])
}

/// Reads every page.
pub(super) struct StateReader<'a> {
    wanted: &'a Wanted,
    scanner: Scanner<'a>,
    found: Found,
}

/// Content of a page so far.
#[derive(Clone, Copy, Default)]
struct Found {
    started: Option<f64>,
    /// Any engine of the process sleeps. They do so together.
    asleep: Option<bool>,
}

impl<'a> StateReader<'a> {
    pub(super) fn new(wanted: &'a Wanted) -> Self {
        Self { wanted, scanner: Scanner::new(wanted), found: Found::default() }
    }

    /// Metrics that it looks for.
    pub(super) fn wanted(&self) -> &'a Wanted {
        self.wanted
    }

    /// Takes a piece of a page.
    pub(super) fn feed(&mut self, piece: &[u8]) {
        let found = &mut self.found;
        self.scanner.feed(piece, &mut |metric, line| found.take(metric, &line));
    }

    /// Writes what the page said, now that it is complete. What it didn't say stays.
    pub(super) fn finish(&mut self, state: &EngineState) {
        let found = &mut self.found;
        self.scanner.finish(&mut |metric, line| found.take(metric, &line));
        if let Some(started) = self.found.started {
            state.set_started(started);
        }
        if let Some(asleep) = self.found.asleep {
            state.set_asleep(asleep);
        }
        self.restart();
    }

    /// Forgets a page that didn't become complete.
    pub(super) fn restart(&mut self) {
        self.scanner.restart();
        self.found = Found::default();
    }
}

impl Found {
    fn take(&mut self, metric: usize, line: &Line<'_>) {
        let Line::Sample { value, .. } = line else { return };
        if !(value.is_finite() && *value >= 0.0) {
            return;
        }
        if metric == STARTED {
            // Several processes behind one port: the youngest.
            self.started = Some(self.started.map_or(*value, |known| known.max(*value)));
        } else {
            self.asleep = Some(self.asleep.unwrap_or(false) || *value > 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(state: &EngineState, page: &str) -> (Option<f64>, bool) {
        let wanted = wanted();
        let mut reader = StateReader::new(&wanted);
        page.as_bytes().chunks(7).for_each(|piece| reader.feed(piece));
        reader.finish(state);
        (state.started(), state.is_asleep())
    }

    fn page(awake: u8, weights_offloaded: u8, discard_all: u8) -> String {
        format!(
            r#"# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="awake"}} {awake}
vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="weights_offloaded"}} {weights_offloaded}
vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="discard_all"}} {discard_all}
"#
        )
    }

    #[test]
    fn sleep_that_drops_the_kv_cache_counts() {
        let state = EngineState::default();
        assert_eq!((state.started(), state.is_asleep()), (None, false));
        // awake, weights_offloaded, discard_all
        for (states, asleep) in
            [([1, 0, 0], false), ([0, 1, 0], true), ([1, 0, 0], false), ([0, 0, 1], true), ([0, 0, 0], false)]
        {
            let [awake, offloaded, discarded] = states;
            assert_eq!(read(&state, &page(awake, offloaded, discarded)), (Some(1.7e9), asleep), "{states:?}");
        }
    }

    #[test]
    fn fields_missing_on_a_page_keep_their_value() {
        let state = EngineState::default();
        read(&state, &page(0, 1, 0));
        assert_eq!(read(&state, "vllm:num_requests_waiting 1\n"), (Some(1.7e9), true));
        assert_eq!(read(&state, "process_start_time_seconds NaN\n"), (Some(1.7e9), true));
        assert_eq!(read(&state, "process_start_time_seconds 1.8e9\n"), (Some(1.8e9), true));
    }

    #[test]
    fn truncated_page_changes_nothing() {
        let (wanted, state) = (wanted(), EngineState::default());
        let mut reader = StateReader::new(&wanted);
        reader.feed(page(0, 1, 0).as_bytes());
        reader.restart();
        reader.finish(&state);
        assert_eq!((state.started(), state.is_asleep()), (None, false));
    }
}
