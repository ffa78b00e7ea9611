//! `usher replay --recording`: what a recording gives to a replay.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::replay::{Arrival, Constants, Fit, Fixed, Interconnect, Recording, RequestOutcomes, Server, fit};
use crate::sim::EngineConfig;
use usher_terminal::{line, paragraph};

/// Servers that differ whose factors the report has.
const MOST_SLOWER: usize = 20;

/// Measured outcomes, and the engines that were fitted to them.
#[derive(Debug, Serialize)]
pub struct Fitted {
    /// The fit.
    #[serde(flatten)]
    pub fit: Fit,
    /// Sentences about the recording.
    pub notes: Vec<String>,
    /// Measured outcomes, in the order of arrival.
    #[serde(skip)]
    pub outcomes: RequestOutcomes,
}

impl Fitted {
    /// Time that requests take outside of servers.
    pub fn delay(&self) -> Duration {
        Duration::try_from_secs_f64(self.fit.constants.delay_ms / 1e3).unwrap_or_default()
    }
}

/// A recording to read, and what is said of its engines.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Files of the recording.
    pub files: &'a [PathBuf],
    /// Requests that are read at most.
    pub limit: usize,
    /// Engines, where nothing is fitted.
    pub engine: &'a EngineConfig,
    /// Time that requests take outside of servers, where that isn't fitted.
    pub delay: Duration,
    /// Constants that are given.
    pub fixed: Fixed,
    /// Links that prompts move over.
    pub interconnect: &'a Interconnect,
    /// Seed of the texts.
    pub seed: u64,
}

impl Wanted<'_> {
    /// Reads it, and fits engines to it. Returns the servers, the requests, and what was measured.
    ///
    /// # Errors
    /// One line that names the file and its mistake.
    pub fn read(&self) -> Result<(Vec<Server>, Vec<Arrival>, Fitted), String> {
        let mut recording = Recording::read(self.files).map_err(|error| error.to_string())?;
        recording.requests.truncate(self.limit);
        if recording.members.is_empty() {
            return Err("the recording names no endpoint, so there is nothing to replay on".to_owned());
        }
        let given = Constants {
            prefill_rate: self.engine.prefill_tokens_per_second,
            decode_step_ms: self.engine.decode_step.as_secs_f64() * 1e3,
            batch_factor: self.engine.batch_factor,
            delay_ms: self.delay.as_secs_f64() * 1e3,
        };
        let mut servers = recording.servers(self.engine);
        let fit = fit(&recording, &mut servers, self.interconnect, given, self.fixed);
        let (arrivals, outcomes) = (recording.arrivals(self.seed), recording.outcomes());
        let mut notes = recording.notes;
        let all = outcomes.requests.iter().filter(|outcome| !outcome.refused).count();
        let measured =
            outcomes.requests.iter().filter(|outcome| !outcome.refused && outcome.first.is_some()).count();
        if measured < all {
            notes.push(format!(
                "recorded: {measured} of {all} responses have a measured TTFT; the others are left out of the times of its row, and count as not good"
            ));
        }
        Ok((servers, arrivals, Fitted { fit, notes, outcomes }))
    }
}

impl Display for Fitted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Fit { measured, replayed, refused, constants, slower, unfitted, is_poor, .. } = &self.fit;
        let Constants { prefill_rate, decode_step_ms, batch_factor, delay_ms } = constants;
        if unfitted.is_none() {
            line(
                f,
                "engines",
                format_args!(
                    "fitted to {measured} responses: {prefill_rate:.0} prompt tokens per second, {decode_step_ms:.2} ms per decode step, batch factor {batch_factor:.4}, delay {delay_ms:.1} ms"
                ),
            )?;
        }
        for each in slower.iter().take(MOST_SLOWER) {
            line(f, "", format_args!("{} takes {:.2} times as long", each.server, each.slower))?;
        }
        if let Some(more) = slower.len().checked_sub(MOST_SLOWER).filter(|more| *more > 0) {
            line(f, "", format_args!("and {more} more differ"))?;
        }
        if *replayed > 0 {
            let percent = |error: Option<f64>| {
                error.map_or("not known".to_owned(), |error| format!("{:.0} %", error * 100.0))
            };
            let (ttft, tpot) = (percent(self.fit.ttft_error), percent(self.fit.tpot_error));
            let verdict = if *is_poor { ": poor" } else { "" };
            line(
                f,
                "error",
                format_args!("TTFT {ttft}, TPOT {tpot} (medians, of the recorded picks replayed){verdict}"),
            )?;
        }
        for note in unfitted.iter().chain(&self.notes) {
            paragraph(f, format_args!("note: {note}"))?;
        }
        if unfitted.is_none() && *refused > 0 {
            paragraph(
                f,
                format_args!(
                    "note: the engines refused {refused} of {replayed} recorded picks, as larger than their KV caches, which counts as an endless error"
                ),
            )?;
        }
        if *is_poor && unfitted.is_none() {
            paragraph(
                f,
                format_args!(
                    "note: the engines are far from what was measured, so a small difference of two configurations says nothing: real ones work in another way, or had work that isn't in the recording"
                ),
            )?;
        }
        Ok(())
    }
}
