//! Simulated vLLM servers, for the demo, the tests and the benchmarks; their metrics may
//! be those of other engines ([`Dialect`]).
//!
//! A request's way: [`server`](start) accepts it, [`faults`](Fault) may break it,
//! `openai` reads it, the [`Engine`] decides when each of its tokens exists, and
//! `response` writes them. The engine is a state machine that knows neither sockets
//! nor a clock, so a replay runs it in virtual time; [`start`] drives the same
//! engine by tokio's clock. How it schedules and what a step costs is its [`EngineModel`]'s
//! to say. One engine may compute a prompt and another decode
//! ([`Kind`]); what moves between them takes the time that [`Links`] say.
//!
//! Every response names its server (`x-inference-pod`, `x-inference-port`) and says what
//! it received: `x-sim-body-bytes`, `x-sim-body-xxh64` (16 hexadecimal digits, seed 0),
//! and, when there were any, `x-sim-request-trailers` as `name=value` joined by commas.
//! With `x-sim-trailers: 1` in the request it ends with the trailer `x-sim-trailer`, the
//! server's name (over HTTP/1.1 only if the request has `te: trailers`).
//!
//! A response is as long as the request's limit lets it be, or ends by itself after
//! `x-sim-output-tokens` (a header, so that pickers don't know). Its text follows from the
//! prompt; its blocks stay in the KV cache, and a later prompt that repeats it, as a message
//! of the assistant or behind the prompt of a completion, finds them.
//!
//! A request with `x-prefiller-host-port`, the address of another server, has its prompt
//! computed there: the server sends it on with `x-sim-stage: prefill`, waits, waits for
//! the keys and values as long as [`Links`] say, and decodes. With `x-encoder-hosts-ports`
//! it has images encoded there before that (`x-sim-stage: encode`). What another does not
//! do, or may not be asked ([`DisaggConfig::peers`]), the server does itself, and counts
//! it. Responses name who computed the prompt: `x-sim-prefilled-by`.
//!
//! With [`KvEventsConfig`] a server publishes which blocks come and go, as vLLM does: `kv_events`. Four bytes of a prompt are
//! a token; `/v1/completions/render`, `/v1/chat/completions/render` and `/tokenize` return a prompt's.
//!
//! `GET /admin/state` shows what the engine is doing and which request came last,
//! `GET`, `POST` and `DELETE` of `/admin/fault` are described at [`Fault`].

mod body;
mod config;
mod disagg;
mod error;
mod faults;
mod http_stats;
mod io;
mod kv;
mod kv_events;
mod link;
mod live;
mod metrics;
mod model;
mod openai;
mod record;
mod remote;
mod response;
mod server;
mod service;
mod stats;
mod timer;

pub use config::{Dialect, EngineConfig, SimConfig};
pub use disagg::{DisaggConfig, Peer, Role};
pub use error::ConfigError;
pub use faults::{Fault, KvEventsFault, MetricsFault};
pub use kv::{KvCache, KvChange, Lease, block_hashes};
pub use kv_events::{Form, KvEventsConfig, SocketError, Target};
pub use link::{KV_BYTES_PER_TOKEN, Layer, Links, Place, Transfer};
pub use model::{
    ChunkedPrefill, Engine, EngineModel, EngineState, Finish, Kind, ModelKind, Output, PrefillFirst,
    Rejected, SimRequest,
};
pub(crate) use openai::RESPONSE_ROLE;
pub use server::{SimHandle, StartError, start};
pub use stats::{Histogram, Stats};
pub(crate) use timer::Timer;

/// The text of a chat's prompt, as servers read it.
#[cfg(test)]
pub(crate) fn read_chat(body: &[u8]) -> Result<Vec<u8>, String> {
    openai::parse(openai::Api::Chat, body).map(|call| call.prompt)
}
