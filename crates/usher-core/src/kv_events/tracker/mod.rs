//! Sequence of a source's messages: what was missed, and how to get it.
//!
//! A source is one engine, of one data parallel rank: it numbers its messages from 0 and keeps some of the last ones
//! for replays. Publisher: vLLM's `ZmqEventPublisher` in `distributed/kv_events.py`; SGLang's and TensorRT-LLM's do the
//! same.
//!
//! A message in turn is applied. After a gap the missing ones are replayed, otherwise all entries are dropped, and
//! those that are published from then on are a part of what the engine holds. Numbers that go back, unless they are
//! duplicates, are those of a restarted engine. Its numbers may have overtaken the old ones unseen: so a replay starts
//! at the last message that is known, and only if that comes back unchanged it is the same engine.

mod handle;
mod io;
mod recent;
mod replay;
mod state;

pub use io::{Action, Counts, Input, Settings};
pub use state::Tracker;

#[cfg(test)]
mod tests;
