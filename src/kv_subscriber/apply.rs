//! Carries out what trackers ask for: connections, replays, batches.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;
use usher_core::kv_events::{Action, Batch, Change, Input, Residency};
use usher_core::prefix::EngineStatus;
use usher_plugins::KvEventsSource;

use super::driver::Driver;
use super::replay;
use super::skipped;
use super::source::Source;
use super::subscriber::{self, Subscription};
use super::writes::Writes;

impl Driver {
    /// Handles inputs of an endpoint, and what follows from them.
    pub(super) fn inputs(&mut self, number: u64, mut inputs: VecDeque<Input>) {
        let now_ms = self.clock.now_ms();
        while let Some(input) = inputs.pop_front() {
            let Some(source) = self.sources.get_mut(&number) else { return };
            let mut actions = Vec::new();
            source.tracker.handle(input, now_ms, &mut self.random, &mut actions);
            for action in actions {
                self.act(number, action, &mut inputs);
            }
        }
        let Some(source) = self.sources.get(&number) else { return };
        let is_complete = self.residency.summary(source.id).is_some_and(|summary| summary.complete);
        let status = match source.tracker.is_in_sync() {
            true if is_complete => EngineStatus::Complete,
            true => EngineStatus::Partial,
            false if source.tracker.has_restarted(now_ms) => EngineStatus::Restarted,
            false => EngineStatus::Unknown,
        };
        self.config.caches.index().set_status(&source.slot, status);
    }

    pub(super) fn act(&mut self, number: u64, action: Action, inputs: &mut VecDeque<Input>) {
        let Some(source) = self.sources.get_mut(&number) else { return };
        let settings = &self.config.settings;
        let index = self.config.caches.index();
        let (ip, rank) = (source.endpoint.ip(), u16::try_from(source.endpoint.rank()).ok());
        let socket = |port: u16| {
            let port = rank.and_then(|rank| port.checked_add(rank));
            port.map(|port| SocketAddr::new(ip, port))
        };
        match action {
            Action::Connect { connection, after_ms } => {
                source.inbound.into_iter().for_each(|inbound| self.peers.end(inbound));
                source.connects(connection);
                // Without such a port, the engine connects when it likes.
                if let Some(Some(address)) = settings.port.map(socket) {
                    let topic = Arc::clone(&self.topic);
                    let after = Duration::from_millis(after_ms);
                    let what = Subscription { source: number, connection, address, topic, after };
                    let task = tokio::spawn(subscriber::subscribe(what, self.sender.clone()));
                    source.live = Some(AbortOnDropHandle::new(task));
                }
            }
            Action::Close => {
                source.live = None;
                source.replay = None;
            }
            Action::Replay { replay, from, after_ms } => {
                source.replay = None;
                match settings.replay_port.and_then(socket) {
                    Some(address) => {
                        let after = Duration::from_millis(after_ms);
                        let request = replay::Request { source: number, replay, from, address, after };
                        let turns = Arc::clone(&self.replays);
                        let task = tokio::spawn(replay::replay(request, turns, self.sender.clone()));
                        source.replay = Some(AbortOnDropHandle::new(task));
                    }
                    None => inputs.push_back(Input::ReplayFailed { replay }),
                }
            }
            Action::StopReplay => source.replay = None,
            Action::Reset { epoch, complete } => {
                source.dropped();
                let mut written = Writes::new(index, &self.slots, &mut self.admitted);
                self.residency.reset(source.id, epoch, complete, &mut |change| written.push(change));
            }
            Action::Apply { epoch, payload, .. } => {
                let mut written = Writes::new(index, &self.slots, &mut self.admitted);
                let write = &mut |change| written.push(change);
                if !apply(source, &self.config, (epoch, &payload), &mut self.residency, write) {
                    inputs.push_back(Input::Unreadable { epoch });
                }
            }
            // Asked for when it counts.
            Action::InSync(_) => {}
        }
    }
}

/// Applies a batch. Returns `false` if blocks may be gone that are taken for held.
fn apply(
    source: &mut Source,
    config: &KvEventsSource,
    (epoch, payload): (u64, &[u8]),
    residency: &mut Residency,
    written: &mut impl FnMut(Change),
) -> bool {
    let batch = match Batch::decode(payload, config.settings.dialect) {
        Ok(batch) => batch,
        Err(error) => {
            source.unreadable += 1;
            tracing::debug!(endpoint = %source.endpoint.id(), %error, "batch of KV events can't be read");
            return false;
        }
    };
    source.batch(batch.timestamp());
    let model = source.chain(config.tokens.model());
    let mut is_sound = true;
    for event in batch.events() {
        match residency.apply(source.id, epoch, model, event, written) {
            Ok(()) => source.applied += 1,
            Err(skip) => {
                let event = event.as_ref().map_err(|skip| *skip);
                let cache = event.map(|event| residency.cache_kind(source.id, event)).unwrap_or_default();
                *source.skipped.entry((skipped::Kind::of(event), cache, skip)).or_default() += 1;
                is_sound &= !skip.may_miss_removals();
            }
        }
    }
    is_sound
}
