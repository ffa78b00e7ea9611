//! Owns what engines hold: follows endpoints, applies their events and writes the index.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use usher_core::endpoints::{Clock, Slot, Store};
use usher_core::kv_events::{Input, Residency, ResidencySettings, SourceId, Tracker, TrackerSettings};
use usher_core::memory::{IndexShare, Kind, Reservation};
use usher_core::prefix::EngineStatus;
use usher_plugins::KvEventsSource;

use super::central::{self, Peers};
use super::event::{self, Queued, Sender, queue};
use super::metrics::{EndpointNumbers, Numbers, Totals};
use super::replay::MAX_REPLAYS;
use super::share::{WEIGHT, limit, share};
use super::skipped::Skipped;
use super::source::Source;
use super::writes::Writes;

/// Interval at which deadlines are looked at.
const TICK: Duration = Duration::from_millis(100);

/// The writer of an index.
pub(super) struct Driver {
    pub(super) config: KvEventsSource,
    pub(super) topic: Arc<str>,
    store: Arc<Store>,
    pub(super) clock: Clock,
    pub(super) residency: Residency,
    /// By a number that is used once.
    pub(super) sources: BTreeMap<u64, Source>,
    /// Slots of the sources.
    pub(super) slots: HashMap<SourceId, Arc<Slot>>,
    next: u64,
    pub(super) replays: Arc<Semaphore>,
    /// Connections that engines made by themselves.
    pub(super) peers: Peers,
    pub(super) sender: Sender,
    events: mpsc::Receiver<Queued>,
    pub(super) random: StdRng,
    held: Reservation,
    share: IndexShare,
    /// Blocks that were indexed.
    pub(super) admitted: u64,
    /// Events of endpoints that are gone that were not applied.
    skipped: Skipped,
    /// Messages of engines that connected by themselves and are no endpoint.
    unknown_pods: u64,
    numbers: Arc<Numbers>,
}

impl Driver {
    pub(super) fn new(
        config: KvEventsSource,
        store: Arc<Store>,
        clock: Clock,
        numbers: Arc<Numbers>,
    ) -> Self {
        let of_index = IndexShare::new(config.caches.budget(), WEIGHT);
        let settings = ResidencySettings {
            block_tokens: config.settings.block_tokens,
            bytes: share(&of_index),
            ..ResidencySettings::default()
        };
        let (sender, events) = queue(config.caches.budget());
        Self {
            topic: config.settings.topic.as_str().into(),
            residency: Residency::new(settings, config.settings.media.clone()),
            sources: BTreeMap::new(),
            slots: HashMap::new(),
            next: 0,
            replays: Arc::new(Semaphore::new(MAX_REPLAYS)),
            peers: Peers::default(),
            sender,
            events,
            random: StdRng::from_rng(&mut rand::rng()),
            held: Reservation::new(config.caches.budget(), Kind::PrefixIndex),
            share: of_index,
            admitted: 0,
            skipped: Skipped::new(),
            unknown_pods: 0,
            config,
            store,
            clock,
            numbers,
        }
    }

    /// Follows the endpoints of the store until it is told to stop.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut generations = self.store.subscribe();
        let listen = self.config.settings.bind.clone().map(|address| {
            let (topic, peers, store) =
                (Arc::clone(&self.topic), self.peers.clone(), Arc::clone(&self.store));
            let listen = central::listen(address, topic, (peers, store), self.sender.clone());
            AbortOnDropHandle::new(tokio::spawn(listen))
        });
        self.follow();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = generations.changed() => match changed {
                    Ok(()) => self.follow(),
                    Err(_) => break,
                },
                _ = ticks.tick() => self.tick(),
                Some(queued) = self.events.recv() => self.event(queued),
            }
        }
        drop(listen);
        let all: Vec<u64> = self.sources.keys().copied().collect();
        all.into_iter().for_each(|number| self.remove(number));
    }

    /// Follows the endpoints that came, and forgets those that are gone.
    fn follow(&mut self) {
        let snapshot = self.store.snapshot();
        let mut known: HashMap<u32, u64> =
            self.sources.iter().map(|(number, source)| (source.slot.number(), *number)).collect();
        for endpoint in snapshot.endpoints() {
            if let Some(number) = known.remove(&endpoint.slot().number()) {
                if let Some(source) = self.sources.get_mut(&number) {
                    source.endpoint = Arc::clone(endpoint);
                }
                continue;
            }
            let settings = TrackerSettings {
                replays: self.config.settings.replay_port.is_some(),
                ..TrackerSettings::default()
            };
            let (tracker, action) = Tracker::new(settings);
            let id = self.residency.add_source();
            self.slots.insert(id, Arc::clone(endpoint.slot()));
            let number = self.next;
            self.next += 1;
            self.sources.insert(number, Source::new(Arc::clone(endpoint), id, tracker));
            let mut inputs = VecDeque::new();
            self.act(number, action, &mut inputs);
            self.inputs(number, inputs);
        }
        known.into_values().for_each(|number| self.remove(number));
    }

    fn remove(&mut self, number: u64) {
        let Some(source) = self.sources.remove(&number) else { return };
        source.inbound.into_iter().for_each(|connection| self.peers.end(connection));
        let index = self.config.caches.index();
        let mut written = Writes::new(index, &self.slots, &mut self.admitted);
        self.residency.remove_source(source.id, &mut |change| written.push(change));
        drop(written);
        index.set_status(&source.slot, EngineStatus::Unknown);
        for (of, count) in source.skipped {
            *self.skipped.entry(of).or_default() += count;
        }
        self.slots.remove(&source.id);
    }

    fn event(&mut self, Queued { event, .. }: Queued) {
        match event {
            event::Event::Endpoint { source, input, model } => {
                if let Some(known) = self.sources.get_mut(&source)
                    && known.subscribed(&input)
                {
                    let renamed = known.renamed(&model, self.config.tokens.model());
                    known.serves(model);
                    known.watch(&input, self.config.settings.bind.is_some());
                    self.inputs(source, renamed.into_iter().chain([input]).collect());
                }
            }
            event::Event::Central { connection, from, pod, model, sequence, payload } => {
                // A pod speaks for itself only.
                let is_it = |source: &Source| {
                    source.endpoint.authority().as_bytes() == &pod[..]
                        && source.endpoint.ip().to_canonical() == from
                };
                let found = self.sources.iter_mut().find(|(_, source)| is_it(source));
                if let Some((number, source)) = found {
                    source.serves(model);
                    let connected = source.called(connection);
                    let (number, connection) = (*number, source.connection);
                    let message = Input::Message { connection, sequence, payload };
                    source.watch(&message, true);
                    self.inputs(number, connected.into_iter().chain([message]).collect());
                } else {
                    if self.unknown_pods == 0 {
                        let pod = String::from_utf8_lossy(pod.get(..64).unwrap_or(&pod)).into_owned();
                        tracing::warn!(
                            plugin = self.config.name, pod = %pod.escape_debug(), %from,
                            "KV events ignored: their topic has to name an endpoint as IP:port, at the IP address of the sender"
                        );
                    }
                    self.unknown_pods += 1;
                }
            }
            event::Event::CentralEnded { connection } => {
                let end = |(number, source): (&u64, &mut Source)| {
                    let input = source.hung_up(connection)?;
                    source.watch(&input, false);
                    Some((*number, input))
                };
                let ended: Vec<_> = self.sources.iter_mut().filter_map(end).collect();
                ended.into_iter().for_each(|(number, input)| self.inputs(number, [input].into()));
            }
        }
    }

    fn tick(&mut self) {
        let served = self.config.caches.take_served();
        let agreements = self.config.caches.take_agreements();
        let numbers: Vec<(u64, u32)> =
            self.sources.iter().map(|(number, source)| (*number, source.slot.number())).collect();
        for (number, slot) in numbers {
            let requests = served.get(slot as usize).copied().unwrap_or(0);
            let served = (requests > 0).then_some(Input::Served { requests: requests.into() });
            let Some(source) = self.sources.get_mut(&number) else { continue };
            source.agreement.add(agreements.get(slot as usize).copied().unwrap_or_default());
            let inputs = source.observe().chain(served).chain([Input::Tick]).collect();
            self.inputs(number, inputs);
        }
        self.config.caches.set_block_tokens(self.block_tokens());
        let index = self.config.caches.index();
        index.expire(self.clock.now_ms());
        let held: usize = self.sources.values().map(|source| source.tracker.held_bytes()).sum();
        self.held.set((self.residency.bytes() + index.bytes() + held) as u64);
        let has_room = self.share.budget().has_room_for_prefixes();
        self.residency.limit_bytes(limit(share(&self.share), self.residency.bytes(), has_room));
        let endpoints = self.sources.values().map(|source| self.numbers_of(source)).collect();
        let totals = Totals {
            admitted: self.admitted,
            depth: self.events.len(),
            unknown_pods: self.unknown_pods,
            skipped: self.skipped.clone(),
        };
        self.numbers.set(endpoints, totals);
    }

    /// Tokens of the engines' blocks, by slot.
    fn block_tokens(&self) -> Vec<u16> {
        let mut by_slot = Vec::new();
        for source in self.sources.values() {
            let slot = source.slot.number() as usize;
            if by_slot.len() <= slot {
                by_slot.resize(slot + 1, 0);
            }
            by_slot[slot] = self.residency.summary(source.id).map_or(0, |summary| summary.block_tokens);
        }
        by_slot
    }

    fn numbers_of(&self, source: &Source) -> EndpointNumbers {
        let summary = self.residency.summary(source.id);
        EndpointNumbers {
            endpoint: Arc::clone(source.endpoint.id()),
            counts: source.counts(),
            status: self.config.caches.index().status(source.slot.number()),
            blocks: summary.map_or(0, |summary| summary.blocks),
            held_bytes: source.tracker.held_bytes(),
            evicted: summary.map_or(0, |summary| summary.evicted),
            applied: source.applied,
            failed_connections: source.failed_connections,
            unreadable: source.unreadable,
            skipped: source.skipped.clone(),
            agreement: source.agreement,
            last_batch: source.last_batch,
        }
    }
}
