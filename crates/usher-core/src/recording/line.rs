//! Lines of a recording.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Header;

/// A line of a recording. Times are in microseconds since the run's start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// Start of a file, or of a run that goes on in it.
    Header(Header),
    /// An endpoint joined, or its labels changed.
    Endpoint(EndpointLine),
    /// An endpoint left.
    Gone(Gone),
    /// A request that has ended, was refused, or was under way when the picker stopped.
    Request(Box<RequestLine>),
}

/// An endpoint of the pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointLine {
    /// Time of this line.
    pub at_us: u64,
    /// Number of the endpoint; not reused within a run.
    pub id: u32,
    /// `namespace/name`.
    pub name: Box<str>,
    /// `host:port`.
    pub address: Box<str>,
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Tokens of a block of its KV cache, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Blocks of its KV cache, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_blocks: Option<u32>,
}

/// An endpoint that left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// Time of this line.
    pub at_us: u64,
    /// Number of the endpoint.
    pub id: u32,
}

/// Load of an endpoint; `None` where nothing was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointLoad {
    /// Number of the endpoint.
    pub id: u32,
    /// Requests waiting there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<f32>,
    /// Requests running there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<f32>,
    /// Share of its KV cache in use, 0..=1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_usage: Option<f32>,
}

/// Blocks with consecutive numbers: the first number, and how many there are.
pub type BlockRun = (u64, u32);

/// A request: what its decision saw, the decision, and its outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestLine {
    /// Arrival.
    pub at_us: u64,
    /// Time from the arrival to the decision, in a queue for the most part.
    #[serde(default)]
    pub waited_us: u64,
    /// Model that the client named.
    pub model: Box<str>,
    /// Model that was asked for upstream, if it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_model: Option<Box<str>>,
    /// Priority.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// The client wanted a stream.
    #[serde(default)]
    pub stream: bool,
    /// Bytes of the body.
    #[serde(default)]
    pub body_bytes: u64,
    /// Tokens of the prompt as estimated; `None` where it wasn't read to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Blocks of the prompt, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<BlockRun>,
    /// The client's limit on generated tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// Number of its flow; `None`: the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<u64>,
    /// Number of its session, where it names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// Target for the first token, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_target_ms: Option<f64>,
    /// Target per output token after the first, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot_target_ms: Option<f64>,
    /// Endpoints of the pool.
    #[serde(default)]
    pub endpoints: u32,
    /// Endpoints that the gateway's subset hint left.
    #[serde(default)]
    pub offered: u32,
    /// Endpoints among which the profiles chose.
    #[serde(default)]
    pub candidates: u32,
    /// Picks of each profile that ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub picks: Vec<ProfilePicks>,
    /// Reason why it went nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// Outcome of the request; `None` if it went nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Picks of a profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfilePicks {
    /// Name of the profile.
    pub profile: Box<str>,
    /// Endpoints that the gateway got.
    #[serde(default)]
    pub is_primary: bool,
    /// These compute the prompt for the primary ones.
    #[serde(default)]
    pub is_prefill: bool,
    /// The picks, best first.
    pub picks: Vec<Pick>,
}

/// An endpoint that was picked, with its load at the decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pick {
    /// Load as it was read last.
    #[serde(flatten)]
    pub load: EndpointLoad,
    /// Requests of this picker in flight there, without this one.
    #[serde(default)]
    pub in_flight: u32,
}

/// A refusal by the picker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// Value of the header with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
}

/// End of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Complete response.
    #[default]
    Complete,
    /// Cut off.
    CutOff,
    /// The gateway didn't show its response.
    Unseen,
    /// Still running when the picker stopped.
    UnderWay,
}

/// Outcome of a request. Times count from its decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// End of the request.
    pub ending: Ending,
    /// HTTP status of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Status of a gRPC call that failed before its first message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<u32>,
    /// Endpoint that served it, where it isn't the first pick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<u32>,
    /// `true` if the server that served it is not in the pool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_served_elsewhere: bool,
    /// Time to the first token; `None` of a response that doesn't come token by token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_us: Option<u64>,
    /// Time to the end.
    #[serde(default)]
    pub total_us: u64,
    /// Tokens of the prompt, as the server counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens of the prompt that the server found in its cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Generated tokens, as the server counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Generated tokens that passed, as it looked: events of a stream.
    #[serde(default)]
    pub seen_tokens: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_as_they_were_written() {
        let request = RequestLine {
            at_us: 7,
            blocks: vec![(0, 3), (9, 1)],
            picks: vec![ProfilePicks {
                is_primary: true,
                picks: vec![Pick {
                    load: EndpointLoad { id: 4, running: Some(2.5), ..Default::default() },
                    in_flight: 1,
                }],
                ..ProfilePicks::default()
            }],
            outcome: Some(Outcome { first_token_us: Some(9), ..Outcome::default() }),
            ..RequestLine::default()
        };
        let lines = [Line::Request(Box::new(request)), Line::Gone(Gone { at_us: 1, id: 2 })];
        for line in lines {
            let text = serde_json::to_string(&line).unwrap();
            assert!(!text.contains('\n') && !text.contains("null"), "{text}");
            assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        }
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let line =
            r#"{"request":{"at_us":1,"model":"m","later":{"a":1},"outcome":{"ending":"cut_off","x":1}}}"#;
        let Ok(Line::Request(request)) = serde_json::from_str(line) else { panic!("no request") };
        assert_eq!(request.outcome.unwrap().ending, Ending::CutOff);
    }
}
