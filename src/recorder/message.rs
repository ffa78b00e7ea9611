//! Messages of deciding threads to the writer.

use std::sync::{Arc, Weak};
use std::time::Instant;

use usher_core::endpoints::Endpoint;
use usher_core::prefix::Blocks;
use usher_core::recording::{Ending, RequestLine};

/// A decision, or a request that was refused.
#[derive(Debug)]
pub struct Decided {
    /// Time of the decision.
    pub at: Instant,
    /// Time of the request's headers.
    pub received: Instant,
    /// Fields that are written as they are; blocks, flow, session, picks, refusal and outcome are filled in by the writer.
    pub line: RequestLine,
    /// Blocks of the prompt.
    pub blocks: Blocks,
    /// Hash of the flow's name; `None`: the default flow.
    pub flow: Option<u64>,
    /// Hash of the session's name.
    pub session: Option<u64>,
    /// Picks of each profile.
    pub profiles: Vec<ProfilePicked>,
    /// Reason why it went nowhere.
    pub refused: Option<Refused>,
}

impl Decided {
    /// Bytes that it takes, about.
    pub(super) fn size(&self) -> u64 {
        let text = self.line.model.len() + self.line.target_model.as_ref().map_or(0, |model| model.len());
        let picks: usize = self.profiles.iter().map(|run| 128 + run.picks.len() * size_of::<Picked>()).sum();
        (size_of::<Self>() + text + picks + self.blocks.len() * 16) as u64
    }
}

/// Picks of a profile.
#[derive(Debug)]
pub struct ProfilePicked {
    /// Name of the profile.
    pub profile: Box<str>,
    /// Endpoints that the gateway got.
    pub is_primary: bool,
    /// These compute the prompt for the primary ones.
    pub is_prefill: bool,
    /// The picks, best first.
    pub picks: Vec<Picked>,
}

/// A pick and its load at the decision.
#[derive(Debug)]
pub struct Picked {
    /// The endpoint.
    pub endpoint: Arc<Endpoint>,
    /// Requests of this picker in flight there, without the one that is decided.
    pub in_flight: u32,
}

/// A refusal.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// HTTP status.
    pub status: u16,
    /// Value of the header with the reason.
    pub reason: Option<&'static str>,
}

/// The end of a request.
#[derive(Clone, Debug)]
pub struct Ended {
    /// End of the request.
    pub ending: Ending,
    /// HTTP status of the response.
    pub status: Option<u16>,
    /// Status of a gRPC call that failed before its first message.
    pub grpc_status: Option<u32>,
    /// Address of the server that the gateway named.
    pub served: Option<Box<str>>,
    /// Seconds from the decision to the first token.
    pub first_token: Option<f64>,
    /// Seconds from the decision to the end.
    pub total: f64,
    /// Tokens of the prompt, as the server counted them.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the prompt that the server found in its cache.
    pub cached_tokens: Option<u64>,
    /// Generated tokens, as the server counted them.
    pub output_tokens: Option<u64>,
    /// Generated tokens that passed, as it looked.
    pub seen_tokens: u64,
}

/// A message to the writer.
#[derive(Debug)]
pub(super) enum Message {
    /// A decision under a number of its own; the stream of the request keeps `alive`.
    Decided { number: u64, decided: Box<Decided>, alive: Weak<()>, bytes: u64 },
    /// The end of the request with this number.
    Ended { number: u64, ended: Box<Ended> },
    /// Look whether to stop.
    Wake,
}
