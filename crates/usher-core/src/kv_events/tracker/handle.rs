//! Inputs of a tracker, but for replays.

use bytes::Bytes;
use rand::Rng;

use super::io::{Action, Input};
use super::state::{State, Tracker, Turn};

impl Tracker {
    /// Handles an input, and appends what is to be done. Times are in milliseconds of any clock that doesn't go back.
    pub fn handle(&mut self, input: Input, now_ms: u64, random: &mut dyn Rng, actions: &mut Vec<Action>) {
        let turn = &mut Turn { now_ms, random, actions };
        if self.state == State::Removed {
            return;
        }
        match input {
            Input::Connected { connection, same_process } if connection == self.connection => {
                self.connected(same_process, turn);
            }
            Input::Disconnected { connection } if connection == self.connection => {
                self.connect_again(self.backoff(turn), turn);
                self.failures = self.failures.saturating_add(1);
            }
            Input::Message { connection, sequence, payload }
                if connection == self.connection && self.state == State::Connected && sequence < u64::MAX =>
            {
                self.counts.messages += 1;
                self.alive(turn);
                self.failures = 0;
                self.silences = 0;
                self.live(sequence, payload, turn);
            }
            Input::ReplayBegan { replay } if self.is_replay(replay) => self.replay_began(turn),
            Input::Replayed { replay, sequence, payload }
                if self.is_replay(replay) && sequence < u64::MAX =>
            {
                self.alive(turn);
                self.replayed(sequence, payload, turn);
            }
            Input::ReplayEnded { replay } if self.is_replay(replay) => {
                self.alive(turn);
                self.replay_ended(turn);
            }
            Input::ReplayFailed { replay } if self.is_replay(replay) => self.attempt_failed(turn),
            Input::Restarted => {
                self.note_restart(turn);
                self.forget(turn);
                self.connect_again(0, turn);
            }
            Input::Asleep if self.asleep.is_none() => {
                self.asleep = Some(0);
                self.reset(true, turn);
            }
            Input::Awake => self.awake(turn),
            Input::Unreadable { epoch } if epoch == self.epoch => self.reset(false, turn),
            Input::Served { requests } => self.served = self.served.saturating_add(requests),
            Input::Removed => {
                self.forget(turn);
                self.set_in_sync(false, turn);
                self.state = State::Removed;
                turn.actions.push(Action::Close);
            }
            Input::Tick => self.tick(turn),
            _ => {}
        }
    }

    fn connected(&mut self, same_process: bool, turn: &mut Turn<'_>) {
        if self.state == State::Connecting {
            self.state = State::Connected;
            self.alive(turn);
            self.continuous = same_process && self.next.is_some();
            if self.may_replay(turn) {
                self.begin_replay(turn);
            }
        }
    }

    /// Handles the end of a sleep: a message left out during it may belong to the time after it.
    fn awake(&mut self, turn: &mut Turn<'_>) {
        if self.asleep.take().is_some_and(|left_out| left_out > 0) {
            self.reset(false, turn);
        }
    }

    /// A live message.
    fn live(&mut self, sequence: u64, payload: Bytes, turn: &mut Turn<'_>) {
        let first_held = self.held.front().map(|(first, _)| *first);
        if self.next.or(first_held).is_some_and(|known| sequence < known) {
            if self.recent.has(sequence, &payload) {
                self.counts.duplicates += 1;
                return;
            }
            self.note_restart(turn);
            self.forget(turn);
        } else if self.held.back().is_some_and(|(last, _)| sequence <= *last) {
            // It comes late, and the replay brings it.
            self.counts.duplicates += 1;
            return;
        }
        let is_in_turn = self.continuous && self.next == Some(sequence);
        if self.replays_beside() {
            if is_in_turn {
                return self.accept_beside(sequence, payload, turn);
            }
            // What is missing now comes first.
            self.stop_replay(turn);
            self.drop_held();
        }
        if self.replay.is_some() {
            self.hold(sequence, payload);
            return;
        }
        match self.next {
            Some(_) if is_in_turn => {}
            None if sequence == 0 => self.reset(true, turn),
            next => {
                if next.is_some_and(|next| sequence > next) {
                    self.counts.gaps += 1;
                }
                if self.may_replay(turn) {
                    self.hold(sequence, payload);
                    return self.begin_replay(turn);
                }
                self.reset(false, turn);
            }
        }
        self.accept(sequence, payload, turn);
        self.set_in_sync(true, turn);
    }

    fn tick(&mut self, turn: &mut Turn<'_>) {
        self.check_replay(turn);
        // Blocks of an engine that is silent, or can't be asked for what was missed, are no better than none.
        let lost_ms = turn.now_ms.saturating_sub(self.lost_ms);
        let is_lost = !self.in_sync && self.replay.is_none() && lost_ms >= self.settings.silent_ms;
        if is_lost && self.next.is_some() {
            self.forget(turn);
        }
        let quiet_ms = turn.now_ms.saturating_sub(self.heard_ms);
        let silent_ms = self.settings.silent_ms.saturating_mul(1 << self.silences.min(6));
        let is_silent = quiet_ms >= silent_ms && self.served >= self.settings.silent_requests;
        let is_replaying = self.replay.is_some() && !self.replays_beside();
        if self.state == State::Connected && !is_replaying && is_silent {
            self.counts.silences += 1;
            self.silences = self.silences.saturating_add(1);
            self.served = 0;
            self.connect_again(0, turn);
        }
    }
}
