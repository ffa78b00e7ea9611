//! Replays of missed messages.

use bytes::Bytes;

use super::io::Action;
use super::state::{Replay, Stage, State, Tracker, Turn};

impl Tracker {
    pub(super) fn is_replay(&self, replay: u64) -> bool {
        self.replay.is_some_and(|current| current.id == replay)
    }

    /// Returns `true` while live messages go on beside a replay that has brought nothing yet, as none was missed.
    pub(super) fn replays_beside(&self) -> bool {
        self.replay.is_some_and(|replay| replay.is_optional)
    }

    /// Applies a message in turn beside a replay. Those from its request on are kept as well: it may not bring them.
    pub(super) fn accept_beside(&mut self, sequence: u64, payload: Bytes, turn: &mut Turn<'_>) {
        let may_lack_it = self.replay.is_some_and(|replay| replay.began_ms.is_some());
        self.accept(sequence, payload.clone(), turn);
        if may_lack_it && !self.hold(sequence, payload) {
            self.give_up(turn);
        }
    }

    /// Returns `true` if a replay may be asked for.
    pub(super) fn may_replay(&self, turn: &Turn<'_>) -> bool {
        self.settings.replays && self.state == State::Connected && turn.now_ms >= self.cooldown.until_ms
    }

    /// Requests messages after the last one, or all if none counts.
    pub(super) fn begin_replay(&mut self, turn: &mut Turn<'_>) {
        self.replay_from(self.next, false, turn);
    }

    fn replay_from(&mut self, next: Option<u64>, is_optional: bool, turn: &mut Turn<'_>) {
        let replay = Replay {
            id: 0,
            stage: Stage::Everything,
            asked_ms: turn.now_ms,
            began_ms: None,
            spent_ms: 0,
            heard_ms: None,
            attempts: 0,
            progressed: false,
            is_optional,
        };
        self.counts.replays += 1;
        self.ask(replay, next, 0, turn);
        if !is_optional {
            self.set_in_sync(false, turn);
        }
    }

    /// Sends the request of an attempt.
    fn ask(&mut self, mut replay: Replay, next: Option<u64>, after_ms: u64, turn: &mut Turn<'_>) {
        let last = next.and_then(|next| next.checked_sub(1));
        self.replay_ids += 1;
        replay.id = self.replay_ids;
        replay.stage = if last.is_some() { Stage::Witness } else { Stage::Everything };
        replay.asked_ms = turn.now_ms.saturating_add(after_ms);
        let took_ms = replay.began_ms.take().map_or(0, |began_ms| turn.now_ms.saturating_sub(began_ms));
        // Pauses count as well: attempts that take no time come to an end.
        replay.spent_ms = replay.spent_ms.saturating_add(took_ms).saturating_add(after_ms);
        replay.heard_ms = None;
        replay.progressed = false;
        self.replay = Some(replay);
        turn.actions.push(Action::Replay { replay: replay.id, from: last.unwrap_or(0), after_ms });
    }

    pub(super) fn replay_began(&mut self, turn: &Turn<'_>) {
        if let Some(replay) = &mut self.replay {
            replay.began_ms = Some(turn.now_ms);
            replay.heard_ms = Some(turn.now_ms);
        }
    }

    /// Returns `true` if a replay, or the wait for its turn, has timed out.
    fn is_over(&self, replay: &Replay, now_ms: u64) -> bool {
        let spent_ms = |began_ms| replay.spent_ms.saturating_add(now_ms.saturating_sub(began_ms));
        match replay.began_ms {
            Some(began_ms) => spent_ms(began_ms) >= self.settings.replay_total_ms,
            None => now_ms.saturating_sub(replay.asked_ms) >= self.settings.replay_wait_ms,
        }
    }

    /// A replayed message.
    pub(super) fn replayed(&mut self, sequence: u64, payload: Bytes, turn: &mut Turn<'_>) {
        let Some(replay) = &mut self.replay else { return };
        replay.heard_ms = Some(turn.now_ms);
        let next = self.next.unwrap_or(0);
        match replay.stage {
            Stage::Everything if replay.is_optional && self.first.is_some_and(|first| sequence >= first) => {
                // The engine keeps no more than is known.
                self.stop_replay(turn);
                self.drop_held();
                self.cooldown.unsatisfied = false;
                return;
            }
            Stage::Everything => {
                replay.stage = Stage::Running;
                // From here on what was known is gone, and the rest is needed.
                replay.is_optional = false;
                self.set_in_sync(false, turn);
                self.recent.clear();
                self.reset(sequence == 0, turn);
            }
            Stage::Witness if sequence.saturating_add(1) < next => return,
            Stage::Witness if sequence < next => {
                if !self.recent.has(sequence, &payload) {
                    return self.replay_of_another(turn);
                }
                replay.stage = Stage::Running;
                self.continuous = true;
                return;
            }
            // The last known message is not kept any more, and perhaps others behind it.
            Stage::Witness => {
                replay.stage = Stage::Running;
                self.reset(false, turn);
            }
            Stage::Running if sequence < next => {
                if !self.recent.has(sequence, &payload) {
                    self.replay_of_another(turn);
                }
                return;
            }
            Stage::Running => {
                if sequence > next {
                    self.counts.gaps += 1;
                    self.reset(false, turn);
                }
            }
        }
        self.accept(sequence, payload, turn);
        if let Some(replay) = &mut self.replay {
            replay.progressed = true;
        }
    }

    /// Another engine replies than the one that sent the last messages.
    fn replay_of_another(&mut self, turn: &mut Turn<'_>) {
        self.note_restart(turn);
        self.reset(false, turn);
        self.next = None;
        self.recent.clear();
        self.begin_replay(turn);
    }

    pub(super) fn replay_ended(&mut self, turn: &mut Turn<'_>) {
        let Some(replay) = self.replay.take() else { return };
        match replay.stage {
            // A restarted engine that has sent fewer messages.
            Stage::Witness => return self.replay_of_another(turn),
            // The engine keeps nothing.
            Stage::Everything if replay.is_optional && self.continuous => {}
            // It keeps nothing, or had sent nothing when it replied.
            Stage::Everything => match self.held.front() {
                Some((1.., _)) => {
                    self.replay = Some(Replay { attempts: replay.attempts + 1, ..replay });
                    return self.try_again(turn);
                }
                first => {
                    let first = first.map(|(first, _)| *first);
                    if first.or(self.next).is_some() {
                        self.reset(first == Some(0), turn);
                    }
                    self.recent.clear();
                    self.next = first;
                    self.continuous = true;
                }
            },
            Stage::Running => {}
        }
        while let Some((sequence, _)) = self.held.front() {
            let next = self.next.unwrap_or(0);
            if *sequence > next {
                self.counts.gaps += 1;
                let attempts = if replay.progressed { 0 } else { replay.attempts + 1 };
                self.replay = Some(Replay { attempts, ..replay });
                return self.try_again(turn);
            }
            let Some((sequence, payload)) = self.take_held() else { break };
            if sequence == next {
                self.accept(sequence, payload, turn);
            }
        }
        if std::mem::take(&mut self.overflowed) {
            return self.begin_replay(turn);
        }
        self.cooldown.next_ms = self.settings.replay_cooldown_ms;
        self.cooldown.unsatisfied = false;
        self.set_in_sync(true, turn);
    }

    /// The attempt failed.
    pub(super) fn attempt_failed(&mut self, turn: &mut Turn<'_>) {
        if let Some(replay) = &mut self.replay {
            replay.attempts = if replay.progressed { 0 } else { replay.attempts + 1 };
            self.try_again(turn);
        }
    }

    fn try_again(&mut self, turn: &mut Turn<'_>) {
        let Some(replay) = self.replay else { return };
        let attempts = if replay.is_optional { 1 } else { self.settings.replay_attempts };
        if replay.attempts >= attempts || self.is_over(&replay, turn.now_ms) {
            return self.give_up(turn);
        }
        let asked_for = if replay.stage == Stage::Everything { None } else { self.next };
        self.ask(replay, asked_for, self.settings.replay_backoff_ms, turn);
    }

    /// Goes on with the live messages. What they lack is asked for once more, later.
    fn give_up(&mut self, turn: &mut Turn<'_>) {
        let was_optional = self.replays_beside();
        self.stop_replay(turn);
        self.counts.failed_replays += 1;
        self.cooldown.until_ms = turn.now_ms.saturating_add(self.cooldown.next_ms);
        self.cooldown.next_ms =
            self.cooldown.next_ms.saturating_mul(2).min(self.settings.replay_cooldown_ms.saturating_mul(20));
        self.cooldown.unsatisfied = true;
        if was_optional {
            // All that was held was applied as it came.
            return self.drop_held();
        }
        let mut in_sync = false;
        while let Some((sequence, payload)) = self.take_held() {
            let next = self.next.filter(|_| self.continuous);
            if next.is_some_and(|next| sequence < next) {
                continue;
            }
            if next != Some(sequence) {
                self.reset(false, turn);
            }
            self.accept(sequence, payload, turn);
            in_sync = true;
        }
        if std::mem::take(&mut self.overflowed) {
            return self.forget(turn);
        }
        self.set_in_sync(in_sync, turn);
    }

    /// Gives up an attempt or a replay whose time is over, and begins one that is due.
    pub(super) fn check_replay(&mut self, turn: &mut Turn<'_>) {
        if let Some(replay) = self.replay {
            let quiet_ms = replay.heard_ms.map_or(0, |heard_ms| turn.now_ms.saturating_sub(heard_ms));
            if self.is_over(&replay, turn.now_ms) {
                self.give_up(turn);
            } else if quiet_ms >= self.settings.replay_idle_ms {
                self.attempt_failed(turn);
            }
        } else if self.cooldown.unsatisfied && self.may_replay(turn) {
            let (next, is_optional) = if self.in_sync { (None, true) } else { (self.next, false) };
            self.replay_from(next, is_optional, turn);
        }
    }
}
