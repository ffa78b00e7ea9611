//! Events in which engines publish what their KV caches hold.
//!
//! An engine publishes over ZeroMQ which blocks it stores and removes. [`Zmtp`] reads messages off a connection, [`Message`] and [`Reply`] read the frames of
//! messages, a [`Tracker`] says what was missed and has to be replayed or dropped, a [`Batch`] reads the events of a
//! payload, and a [`Residency`] turns them into [`Change`]s: which [keys](Chain) of blocks which source holds, in which
//! [`Tier`].
//!
//! Nothing here has a socket, a clock or a task: inputs go in, actions come out. Publishers: vLLM
//! (`vllm/distributed/kv_events.py`), SGLang (`srt/disaggregation/kv_events.py`), and TensorRT-LLM
//! (TensorRT-LLM#17023), which has vLLM's events.
//!
//! Payloads are not trusted: lengths allocate nothing, an event that makes no sense costs only itself, and
//! what is kept has bounds.

mod batch;
mod cache_kind;
mod chain;
mod event;
mod frames;
mod msgpack;
mod residency;
mod skip;
mod tracker;
mod zmtp;

pub use batch::{Batch, BatchError, Dialect};
pub use cache_kind::CacheKind;
pub use chain::{Chain, prompt_keys};
pub use event::{BlockKeys, Event, ExtraKeys, Hashes, Removed, Stored, Tokens};
pub use frames::{Message, Reply, Topic, replay_request};
pub use residency::{Change, Media, Residency, Settings as ResidencySettings, SourceId, Summary, Tier};
pub use skip::Skip;
pub use tracker::{Action, Counts, Input, Settings as TrackerSettings, Tracker};
pub use zmtp::{Frames, Socket, Zmtp, ZmtpError};

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod testing;
