//! Events by which engines tell what their KV caches hold.
//!
//! An engine publishes over ZeroMQ which blocks it stores and removes. [`Message`] and [`Reply`] read the frames of
//! messages, a [`Tracker`] says what was missed and has to be replayed or dropped.
//!
//! Nothing here has a socket, a clock or a task: inputs go in, actions come out. Publishers: vLLM
//! (`vllm/distributed/kv_events.py`), SGLang (`srt/disaggregation/kv_events.py`), and TensorRT-LLM
//! (TensorRT-LLM#17023), which has vLLM's events.

mod frames;
mod tracker;

pub use frames::{Message, Reply, Topic, replay_request};
pub use tracker::{Action, Counts, Input, Settings as TrackerSettings, Tracker};
