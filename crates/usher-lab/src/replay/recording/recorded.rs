//! A recording as it was read.

use std::collections::BTreeMap;
use std::time::Duration;

use usher_core::recording::{BlockRun, Ending, Outcome};

/// An endpoint of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// `namespace/name`.
    pub name: String,
    /// `host:port`.
    pub address: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Tokens of a block of its KV cache, where it says so.
    pub block_size: Option<u32>,
    /// Blocks of its KV cache, where it says so.
    pub num_blocks: Option<u32>,
    /// Time since the first request when it was there first.
    pub joined: Duration,
    /// Time when it left, unless it stayed to the end.
    pub left: Option<Duration>,
}

/// A request of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// Time since the first request.
    pub at: Duration,
    /// Time in a queue before the decision.
    pub waited: Duration,
    /// Number of the run that numbers its blocks.
    pub run: usize,
    /// Parts of the prompt, of blocks with consecutive numbers. Two parts of one run are the same, or have no block in
    /// common.
    pub blocks: Vec<BlockRun>,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Tokens of the prompt as the picker estimates them: those of the simulation.
    pub prompt_tokens: u64,
    /// Targets for the first token and for each after it, if it named both.
    pub targets: Option<(Duration, Duration)>,
    /// Position of the endpoint that it was sent to, or that served it; `None` if it was refused, or another did.
    pub server: Option<usize>,
    /// Position of the endpoint that computed its prompt, if another one.
    pub prefiller: Option<usize>,
    /// Status of a refusal by the picker.
    pub refused: Option<u16>,
    /// Outcome, if it was sent on.
    pub outcome: Option<Outcome>,
}

impl Recorded {
    /// Generated tokens: as the server counted them, else as they passed; `None` where that isn't known.
    pub fn output_tokens(&self) -> Option<u64> {
        let outcome = self.outcome.as_ref()?;
        let seen = Some(outcome.seen_tokens).filter(|tokens| *tokens > 0);
        outcome.output_tokens.or(seen).filter(|tokens| *tokens > 0)
    }

    /// Returns `true` if it has a complete good response.
    pub fn is_answered(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| {
            outcome.ending == Ending::Complete
                && outcome.status.is_none_or(|status| status < 400)
                && outcome.grpc_status.is_none_or(|status| status == 0)
        })
    }

    /// Cached tokens of the prompt, in the tokens of the picker; `None` where the server doesn't say.
    pub fn cached_tokens(&self) -> Option<u64> {
        let outcome = self.outcome.as_ref()?;
        let (cached, counted) = (outcome.cached_tokens?, outcome.prompt_tokens?.max(1));
        let share = cached.min(counted) as f64 / counted as f64;
        Some((share * self.prompt_tokens as f64).round() as u64)
    }
}

/// A recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// Requests, by arrival.
    pub requests: Vec<Recorded>,
    /// Endpoints that were there.
    pub members: Vec<Member>,
    /// Sentences that the user should know.
    pub notes: Vec<String>,
}
