//! Inputs and actions of a tracker.

use bytes::Bytes;

/// Settings of a [`Tracker`](super::Tracker).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The engine has a replay socket.
    pub replays: bool,
    /// Live messages that wait for the end of a replay, at most. Those that find no room are replayed later.
    pub held_messages: usize,
    /// Bytes of these, at most.
    pub held_bytes: usize,
    /// Milliseconds without a reply after which an attempt to replay has failed.
    pub replay_idle_ms: u64,
    /// Milliseconds that a replay may take with all its attempts, from the request of each on.
    pub replay_total_ms: u64,
    /// Milliseconds that an attempt may wait before its request is sent: few run at a time. Meanwhile nothing counts that
    /// the engine published, and a part of it is better.
    pub replay_wait_ms: u64,
    /// Attempts in a row without any reply, after which a replay has failed.
    pub replay_attempts: u32,
    /// Milliseconds between attempts.
    pub replay_backoff_ms: u64,
    /// Milliseconds after a failed replay in which none is asked for; doubled with each failure up to 20 times this.
    pub replay_cooldown_ms: u64,
    /// Milliseconds before the first attempt to connect again; doubled with each failure.
    pub reconnect_ms: u64,
    /// The most of these.
    pub max_reconnect_ms: u64,
    /// Requests that an engine serves without any message before it may be taken for silent.
    pub silent_requests: u64,
    /// Milliseconds of that, at least; doubled each time that a new connection didn't help, up to 64 times this. Blocks
    /// of an engine are dropped when they may be out of date for so long.
    pub silent_ms: u64,
}

impl Default for Settings {
    /// No replay; its limits are those of llm-d-router. Few live messages are held, as engines keep what finds no room
    /// (vLLM the last 10,000).
    fn default() -> Self {
        Self {
            replays: false,
            held_messages: 1_000,
            held_bytes: 1 << 20,
            replay_idle_ms: 2_000,
            replay_total_ms: 120_000,
            replay_wait_ms: 600_000,
            replay_attempts: 3,
            replay_backoff_ms: 100,
            replay_cooldown_ms: 30_000,
            reconnect_ms: 100,
            max_reconnect_ms: 5_000,
            silent_requests: 32,
            silent_ms: 10_000,
        }
    }
}

/// Input of a tracker. Those of connections and replays that are over do nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The socket is connected and subscribed.
    Connected {
        /// Number of the [`Action::Connect`].
        connection: u64,
        /// The engine's process is known to be the one that sent the last message: its start time is the same. Then
        /// the next number in turn means that nothing was missed.
        same_process: bool,
    },
    /// The connection ended, or could not be made.
    Disconnected {
        /// Number of the connection.
        connection: u64,
    },
    /// A live message.
    Message {
        /// Number of the connection that it came over.
        connection: u64,
        /// Number of the message.
        sequence: u64,
        /// The batch.
        payload: Bytes,
    },
    /// The request to replay was sent; time without a reply counts from here.
    ReplayBegan {
        /// Number of the [`Action::Replay`].
        replay: u64,
    },
    /// A reply with a batch.
    Replayed {
        /// Number of the replay.
        replay: u64,
        /// Number of the message.
        sequence: u64,
        /// The batch.
        payload: Bytes,
    },
    /// The reply that ends a replay.
    ReplayEnded {
        /// Number of the replay.
        replay: u64,
    },
    /// The replay socket failed.
    ReplayFailed {
        /// Number of the replay.
        replay: u64,
    },
    /// The engine's process is another one: its start time changed.
    Restarted,
    /// The engine sleeps, for which it gives up its cache (`vllm:engine_sleep_state`).
    Asleep,
    /// The engine doesn't sleep any more.
    Awake,
    /// A batch of this epoch could not be read, or had an event after which [removals may be missing](super::super::Skip::may_miss_removals).
    Unreadable {
        /// The epoch that it was to be applied in.
        epoch: u64,
    },
    /// The endpoint served requests whose prompts have full blocks of the engine that it didn't hold: each leads to a
    /// message.
    Served {
        /// Number since the last output of this kind.
        requests: u64,
    },
    /// The endpoint is gone. Nothing has an effect any more.
    Removed,
    /// Time goes by: a few times a second.
    Tick,
}

/// Action that a tracker asks for, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Give up the connection, if any, and make a new one after this time.
    Connect {
        /// Number of the connection.
        connection: u64,
        /// Milliseconds from now.
        after_ms: u64,
    },
    /// Give up the connection for good.
    Close,
    /// Drop all that the source holds. Batches of earlier epochs are not to be applied any more.
    Reset {
        /// Epoch from here on.
        epoch: u64,
        /// From here on everything that the engine holds is published. Otherwise it may hold more.
        complete: bool,
    },
    /// Apply a batch.
    Apply {
        /// The epoch that it belongs to.
        epoch: u64,
        /// Sequence number of the batch.
        sequence: u64,
        /// The batch.
        payload: Bytes,
    },
    /// Give up the replay under way, if any, and ask for all messages from this number on, on a new connection.
    Replay {
        /// Number of the replay.
        replay: u64,
        /// First message.
        from: u64,
        /// Milliseconds from now.
        after_ms: u64,
    },
    /// Give up the replay under way.
    StopReplay,
    /// `true` if the source matches the engine's events; `false`: it may be out of date.
    InSync(bool),
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Live messages.
    pub messages: u64,
    /// Messages that had come before.
    pub duplicates: u64,
    /// Numbers that were left out.
    pub gaps: u64,
    /// Restarts of the engine, seen by their numbers or reported.
    pub restarts: u64,
    /// Replays that were begun.
    pub replays: u64,
    /// Replays that were given up.
    pub failed_replays: u64,
    /// Live messages that found no room during a replay.
    pub overflows: u64,
    /// Connections that were given up as the engine served and said nothing.
    pub silences: u64,
    /// Times that all entries were dropped.
    pub resets: u64,
}
