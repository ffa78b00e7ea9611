//! State of a tracker, and the steps that all inputs share.

use std::collections::VecDeque;

use bytes::Bytes;
use rand::{Rng, RngExt};

use super::io::{Action, Counts, Settings};
use super::recent::RecentMessages;

/// Time after a restart for which decisions from before count for nothing: longer than an engine takes to publish again.
const AFTER_RESTART_MS: u64 = 30_000;

/// State machine of a source's messages, without I/O and clock.
#[derive(Debug)]
pub struct Tracker {
    pub(super) settings: Settings,
    pub(super) counts: Counts,
    pub(super) epoch: u64,
    /// Number of the connection that was asked for last.
    pub(super) connection: u64,
    pub(super) state: State,
    /// Times in a row that the connection ended without a message.
    pub(super) failures: u32,
    /// Time of the last restart.
    restarted_ms: Option<u64>,
    /// Number of the first message that counts since all entries were dropped.
    pub(super) first: Option<u64>,
    /// Number of the next message; `None` if no message counts.
    pub(super) next: Option<u64>,
    pub(super) recent: RecentMessages,
    /// The next message in turn is known to come from the engine that sent the last one.
    pub(super) continuous: bool,
    pub(super) in_sync: bool,
    /// Time since when it is not.
    pub(super) lost_ms: u64,
    /// Batches that were left out in this sleep; `None` while awake.
    pub(super) asleep: Option<u64>,
    /// Live messages that wait for the end of the replay.
    pub(super) held: VecDeque<(u64, Bytes)>,
    pub(super) held_bytes: usize,
    /// Some found no room.
    pub(super) overflowed: bool,
    pub(super) replay: Option<Replay>,
    /// Number of the request to replay that was sent last.
    pub(super) replay_ids: u64,
    pub(super) cooldown: Cooldown,
    /// Time of the last activity.
    pub(super) heard_ms: u64,
    /// Requests served since.
    pub(super) served: u64,
    /// Times in a row that a new connection brought no message.
    pub(super) silences: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Connecting,
    Connected,
    Removed,
}

/// Time after a failed replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cooldown {
    pub(super) until_ms: u64,
    /// Length of the next one.
    pub(super) next_ms: u64,
    /// `true` if blocks are missing that a replay might bring.
    pub(super) unsatisfied: bool,
}

/// Context of one input.
pub(super) struct Turn<'a> {
    pub(super) now_ms: u64,
    pub(super) random: &'a mut dyn Rng,
    pub(super) actions: &'a mut Vec<Action>,
}

/// A replay under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replay {
    pub(super) id: u64,
    pub(super) stage: Stage,
    /// Time at which this attempt was asked for.
    pub(super) asked_ms: u64,
    /// Time at which its request was sent.
    pub(super) began_ms: Option<u64>,
    /// Milliseconds that earlier attempts took.
    pub(super) spent_ms: u64,
    /// Time of the request of this attempt, or of the last reply.
    pub(super) heard_ms: Option<u64>,
    /// Attempts in a row without a reply that counts.
    pub(super) attempts: u32,
    /// `true` if this attempt brought events.
    pub(super) progressed: bool,
    /// Only more than is known is asked for, as there was no gap, and nothing of it has come yet.
    pub(super) is_optional: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// `true` if a full replay is asked for and has brought nothing yet.
    Everything,
    /// The last known message has to come back first.
    Witness,
    /// Messages come in turn.
    Running,
}

impl Tracker {
    /// A tracker, and the first thing to do.
    pub fn new(settings: Settings) -> (Self, Action) {
        let tracker = Self {
            settings,
            counts: Counts::default(),
            epoch: 0,
            connection: 1,
            state: State::Connecting,
            failures: 0,
            restarted_ms: None,
            first: None,
            next: None,
            recent: RecentMessages::default(),
            continuous: false,
            in_sync: false,
            lost_ms: 0,
            asleep: None,
            held: VecDeque::new(),
            held_bytes: 0,
            overflowed: false,
            replay: None,
            replay_ids: 0,
            cooldown: Cooldown { until_ms: 0, next_ms: settings.replay_cooldown_ms, unsatisfied: false },
            heard_ms: 0,
            served: 0,
            silences: 0,
        };
        (tracker, Action::Connect { connection: 1, after_ms: 0 })
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns `true` if the source matches the engine's events.
    pub fn is_in_sync(&self) -> bool {
        self.in_sync
    }

    /// Bytes of live messages that wait for the end of a replay.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Returns `true` if the engine has lately restarted, and was not heard since: it holds nothing that it had before.
    pub fn has_restarted(&self, now_ms: u64) -> bool {
        let is_recent = |at: u64| now_ms.saturating_sub(at) < AFTER_RESTART_MS;
        !self.in_sync && self.restarted_ms.is_some_and(is_recent)
    }

    pub(super) fn note_restart(&mut self, turn: &Turn<'_>) {
        self.counts.restarts += 1;
        self.restarted_ms = Some(turn.now_ms);
    }

    /// The engine said something.
    pub(super) fn alive(&mut self, turn: &Turn<'_>) {
        self.heard_ms = turn.now_ms;
        self.served = 0;
    }

    /// Applies a message that comes behind the last one, or is the first that counts.
    pub(super) fn accept(&mut self, sequence: u64, payload: Bytes, turn: &mut Turn<'_>) {
        self.recent.push(sequence, &payload);
        self.first.get_or_insert(sequence);
        self.next = Some(sequence + 1);
        self.continuous = true;
        match &mut self.asleep {
            Some(left_out) => *left_out += 1,
            None => turn.actions.push(Action::Apply { epoch: self.epoch, sequence, payload }),
        }
    }

    /// Drops all entries; the next message may be any.
    pub(super) fn forget(&mut self, turn: &mut Turn<'_>) {
        self.stop_replay(turn);
        self.drop_held();
        self.reset(false, turn);
        self.next = None;
        self.continuous = false;
        self.recent.clear();
        self.set_in_sync(false, turn);
    }

    pub(super) fn reset(&mut self, complete: bool, turn: &mut Turn<'_>) {
        self.epoch += 1;
        self.first = None;
        self.counts.resets += 1;
        turn.actions.push(Action::Reset { epoch: self.epoch, complete });
    }

    pub(super) fn set_in_sync(&mut self, in_sync: bool, turn: &mut Turn<'_>) {
        if self.in_sync != in_sync {
            self.in_sync = in_sync;
            self.lost_ms = turn.now_ms;
            turn.actions.push(Action::InSync(in_sync));
        }
    }

    /// Gives up the connection; what it would have brought shows when there is another one.
    pub(super) fn connect_again(&mut self, after_ms: u64, turn: &mut Turn<'_>) {
        self.stop_replay(turn);
        self.drop_held();
        self.continuous = false;
        self.set_in_sync(false, turn);
        self.state = State::Connecting;
        self.connection += 1;
        turn.actions.push(Action::Connect { connection: self.connection, after_ms });
    }

    /// Time before the next connection: between half and all of what doubles with each failure.
    pub(super) fn backoff(&self, turn: &mut Turn<'_>) -> u64 {
        let doubled = self.settings.reconnect_ms.saturating_mul(1 << self.failures.min(20));
        let most = doubled.min(self.settings.max_reconnect_ms);
        most - turn.random.random_range(0..=most / 2)
    }

    pub(super) fn stop_replay(&mut self, turn: &mut Turn<'_>) {
        if self.replay.take().is_some() {
            turn.actions.push(Action::StopReplay);
        }
    }

    /// Keeps a live message for the end of the replay. Returns `false` if it finds no room.
    pub(super) fn hold(&mut self, sequence: u64, payload: Bytes) -> bool {
        let bytes = self.held_bytes + payload.len();
        let has_room = self.held.len() < self.settings.held_messages && bytes <= self.settings.held_bytes;
        if has_room {
            self.held_bytes = bytes;
            self.held.push_back((sequence, payload));
        } else {
            self.counts.overflows += 1;
            self.overflowed = true;
        }
        has_room
    }

    pub(super) fn take_held(&mut self) -> Option<(u64, Bytes)> {
        let (sequence, payload) = self.held.pop_front()?;
        self.held_bytes -= payload.len();
        Some((sequence, payload))
    }

    pub(super) fn drop_held(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
        self.overflowed = false;
    }
}
