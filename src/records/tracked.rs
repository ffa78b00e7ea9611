//! Follows the response of a recorded request.

use std::sync::Arc;
use std::time::Instant;

use usher_core::endpoints::health::ResponseStatus;
use usher_core::recording;
use usher_core::request::Served;
use usher_core::request::usage::Usage;

use super::outcome::{Ending, Outcome};
use super::record::RecordRef;
use super::ring::Records;
use super::text::bounded;
use crate::recorder::{Ended, UnderWay};

/// Characters of an address that are kept.
const ADDRESS: usize = 64;

/// Facts of a response at its end.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    /// Tokens, as the server counted them.
    pub usage: Usage,
    /// Generated tokens that passed, as it looked.
    pub generated: u64,
    /// `true` if it came token by token.
    pub is_stream: bool,
    /// End of the response.
    pub ending: Ending,
}

/// A recorded request that is under way.
#[derive(Debug)]
pub struct Tracked {
    kept: Option<(Arc<Records>, RecordRef)>,
    recorded: Option<UnderWay>,
    decided: Instant,
    status: Option<u16>,
    grpc_status: Option<u32>,
    served: Option<Box<str>>,
    first_token: Option<Instant>,
}

impl Tracked {
    pub(super) fn new(
        kept: Option<(Arc<Records>, RecordRef)>,
        recorded: Option<UnderWay>,
        decided: Instant,
    ) -> Self {
        Self { kept, recorded, decided, status: None, grpc_status: None, served: None, first_token: None }
    }

    /// The headers of the response have come.
    pub fn begins(&mut self, status: ResponseStatus, served: &Served) {
        (self.status, self.grpc_status) = (status.http, status.grpc);
        if let Served::By(address) = served {
            self.served = Some(bounded(address, ADDRESS));
        }
    }

    /// The first token has passed, or the first bytes of a body without tokens.
    pub fn first_token(&mut self, now: Instant) {
        self.first_token.get_or_insert(now);
    }

    /// The request has ended.
    pub fn ends(self, response: &Response, now: Instant) {
        let Response { usage, generated, is_stream, ending } = *response;
        let since = |at: Instant| at.saturating_duration_since(self.decided).as_secs_f64();
        let first_token = self.first_token.filter(|_| is_stream);
        let tokens = usage.completion_tokens.filter(|tokens| is_stream && *tokens > 1);
        let per_token = first_token
            .zip(tokens)
            .map(|(first, tokens)| now.saturating_duration_since(first).as_secs_f64() / (tokens - 1) as f64);
        let outcome = Outcome {
            ending,
            status: self.status,
            grpc_status: self.grpc_status,
            served: self.served,
            first_token: first_token.map(since),
            total: since(now),
            per_token: per_token.filter(|_| ending == Ending::Complete),
            prompt_tokens: usage.prompt_tokens,
            output_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
        };
        if let Some(recorded) = self.recorded {
            recorded.ended(ended(&outcome, generated));
        }
        if let Some((records, kept)) = self.kept {
            records.end(&kept, outcome, now);
        }
    }
}

/// An outcome as a recording keeps it.
fn ended(outcome: &Outcome, generated: u64) -> Ended {
    Ended {
        ending: match outcome.ending {
            Ending::Complete => recording::Ending::Complete,
            Ending::CutOff => recording::Ending::CutOff,
            Ending::Unseen => recording::Ending::Unseen,
        },
        status: outcome.status,
        grpc_status: outcome.grpc_status,
        served: outcome.served.clone(),
        first_token: outcome.first_token,
        total: outcome.total,
        prompt_tokens: outcome.prompt_tokens,
        cached_tokens: outcome.cached_tokens,
        output_tokens: outcome.output_tokens,
        seen_tokens: generated,
    }
}
