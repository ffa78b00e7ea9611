//! An engine behind channels that lose, repeat and reorder, read by a tracker into a residency.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;

use bytes::Bytes;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::testing::{Engine, Step};
use super::{
    Action, Batch, Chain, Change, Dialect, Input, Media, Residency, ResidencySettings, SourceId, Tracker,
    TrackerSettings,
};

/// Next event of the model.
#[derive(Clone, Debug)]
enum Event {
    Engine(Step),
    /// Its process ends, and with it the connection.
    Restart,
    /// The engine drops its cache and publishes no event.
    Sleep,
    Wake,
    /// Messages in flight are lost, the next one arrives twice, or behind the one after it.
    Lose(usize),
    Repeat,
    Swap,
    /// Delivers this many live messages, or replies.
    Deliver(usize),
    Reply(usize),
    /// The engine has no room for its next message, and uses its number.
    Discard(Step),
    /// The connection ends, and later there is another one.
    Disconnect,
    Connect,
    /// The replay fails.
    FailReplay,
    /// Milliseconds go by.
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        12 => prop::collection::vec(0..3u8, 1..6).prop_map(|path| Event::Engine(Step::Compute(path))),
        10 => (any::<usize>(), 0..2u8).prop_map(|(at, tier)| Event::Engine(Step::Evict(at, tier))),
        3 => any::<usize>().prop_map(|at| Event::Engine(Step::Offload(at))),
        1 => Just(Event::Engine(Step::Clear)),
        1 => Just(Event::Restart),
        1 => Just(Event::Sleep),
        2 => Just(Event::Wake),
        1 => (1..4usize).prop_map(Event::Lose),
        1 => Just(Event::Repeat),
        1 => Just(Event::Swap),
        16 => (1..4usize).prop_map(Event::Deliver),
        6 => (1..9usize).prop_map(Event::Reply),
        1 => prop::collection::vec(0..3u8, 1..6).prop_map(|path| Event::Discard(Step::Compute(path))),
        1 => any::<usize>().prop_map(|at| Event::Discard(Step::Evict(at, 0))),
        1 => Just(Event::Disconnect),
        4 => Just(Event::Connect),
        1 => Just(Event::FailReplay),
        2 => prop_oneof![Just(50u64), Just(2_500), Just(40_000)].prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 0..160)
}

/// Calls this so many times, as long as it does something.
fn while_some(times: usize, mut call: impl FnMut() -> bool) {
    let _ = (0..times).all(|_| call());
}

/// Everything between an engine and what is known of it.
struct World {
    engine: Engine,
    asleep: bool,
    /// Live messages on their way.
    live: VecDeque<(u64, Bytes)>,
    /// Replies on their way; `None` is the end.
    replies: VecDeque<Option<(u64, Bytes)>>,
    replay: Option<u64>,
    connection: u64,
    connected: bool,
    /// The process that the next connection leads to sent the last message.
    same_process: bool,
    /// The process start time is known.
    knows_process: bool,
    tracker: Tracker,
    random: StdRng,
    now_ms: u64,
    residency: Residency,
    source: SourceId,
    model: Chain,
    held: BTreeMap<u64, u8>,
}

impl World {
    fn new(engine: Engine, block_tokens: u16, replays: bool, knows_process: bool) -> Self {
        let settings = TrackerSettings { replays, held_messages: 6, ..TrackerSettings::default() };
        let (tracker, _) = Tracker::new(settings);
        let block_tokens = NonZeroU16::new(block_tokens).unwrap();
        let settings = ResidencySettings { block_tokens, ..ResidencySettings::default() };
        let mut residency = Residency::new(settings, Media::default());
        let source = residency.add_source();
        let mut world = Self {
            engine,
            asleep: false,
            live: VecDeque::new(),
            replies: VecDeque::new(),
            replay: None,
            connection: 1,
            connected: false,
            same_process: false,
            knows_process,
            tracker,
            random: StdRng::seed_from_u64(3),
            now_ms: 5,
            residency,
            source,
            model: Chain::of_model(b"m"),
            held: BTreeMap::new(),
        };
        world.connect();
        world
    }

    fn input(&mut self, input: Input) {
        let mut actions = Vec::new();
        self.tracker.handle(input, self.now_ms, &mut self.random, &mut actions);
        for action in actions {
            let Self { residency, source, model, held, .. } = self;
            let mut sink = |change: Change| {
                let tier = change.tier.map(|tier| tier.number());
                let before = match tier {
                    Some(tier) => held.insert(change.key, tier),
                    None => held.remove(&change.key),
                };
                assert_ne!(before, tier, "a change that is none");
            };
            match action {
                Action::Reset { epoch, complete } => residency.reset(*source, epoch, complete, &mut sink),
                Action::Apply { epoch, payload, .. } => {
                    let batch = Batch::decode(&payload, Dialect::Vllm).unwrap();
                    for event in batch.events() {
                        // Blocks of which only the host's copy is published are not known after a reset.
                        let _ = residency.apply(*source, epoch, *model, event, &mut sink);
                    }
                }
                Action::Connect { connection, .. } => {
                    self.connection = connection;
                    self.connected = false;
                    self.live.clear();
                }
                Action::Replay { replay, from, .. } => {
                    let buffer = self.engine.buffer.iter();
                    self.replies =
                        buffer.filter(|(at, _)| *at >= from).cloned().map(Some).chain([None]).collect();
                    self.replay = Some(replay);
                    self.began();
                }
                Action::StopReplay => self.replay = None,
                Action::InSync(_) | Action::Close => {}
            }
        }
    }

    fn began(&mut self) {
        if let Some(replay) = self.replay {
            self.input(Input::ReplayBegan { replay });
        }
    }

    fn connect(&mut self) {
        if !self.connected {
            self.connected = true;
            let same_process = self.same_process && self.knows_process;
            self.input(Input::Connected { connection: self.connection, same_process });
        }
    }

    fn disconnect(&mut self) {
        self.input(Input::Disconnected { connection: self.connection });
    }

    /// The engine does something, which nobody hears without a connection.
    fn step(&mut self, step: &Step) {
        let message = self.engine.step(step);
        self.live.extend(message.filter(|_| self.connected));
    }

    fn deliver(&mut self) -> bool {
        let Some((sequence, payload)) = self.live.pop_front() else { return false };
        self.same_process = true;
        self.input(Input::Message { connection: self.connection, sequence, payload });
        true
    }

    fn reply(&mut self) -> bool {
        let (Some(replay), Some(reply)) = (self.replay, self.replies.pop_front()) else { return false };
        match reply {
            Some((sequence, payload)) => {
                self.same_process = true;
                self.input(Input::Replayed { replay, sequence, payload });
            }
            None => {
                self.replay = None;
                self.input(Input::ReplayEnded { replay });
            }
        }
        true
    }

    fn fail_replay(&mut self) {
        if let Some(replay) = self.replay.take() {
            self.input(Input::ReplayFailed { replay });
        }
    }

    fn handle(&mut self, event: &Event) {
        match event {
            Event::Engine(step) if !self.asleep => self.step(step),
            Event::Discard(step) if !self.asleep => self.engine.discard(step),
            Event::Restart => {
                self.engine.restart();
                self.same_process = false;
                // Some of what the old process sent may still arrive before the end of the connection shows.
                self.live.truncate(self.live.len() / 2);
                while self.deliver() {}
                self.same_process = false;
                self.fail_replay();
                self.disconnect();
                if std::mem::take(&mut self.asleep) {
                    self.input(Input::Awake);
                }
            }
            Event::Sleep if !self.asleep => {
                self.asleep = true;
                self.engine.sleep();
                self.input(Input::Asleep);
            }
            Event::Wake if self.asleep => self.wake(),
            Event::Lose(messages) => self.live.truncate(self.live.len().saturating_sub(*messages)),
            Event::Repeat => {
                let first = self.live.front().cloned();
                first.into_iter().for_each(|first| self.live.push_front(first));
            }
            Event::Swap if self.live.len() > 1 => self.live.swap(0, 1),
            Event::Deliver(messages) => while_some(*messages, || self.deliver()),
            Event::Reply(replies) => while_some(*replies, || self.reply()),
            Event::Disconnect => self.disconnect(),
            Event::Connect => self.connect(),
            Event::FailReplay => self.fail_replay(),
            Event::Wait(ms) => {
                self.now_ms += ms;
                self.input(Input::Tick);
            }
            _ => {}
        }
    }

    /// An engine says that its cache is empty when it is awake.
    fn wake(&mut self) {
        self.asleep = false;
        self.input(Input::Awake);
        self.step(&Step::Clear);
    }

    /// Ends all faults and sends one more message: without it a lost last message would go unnoticed.
    fn come_to_rest(&mut self) {
        self.connect();
        if self.asleep {
            self.wake();
        }
        for path in [[7, 1, 1, 1], [8, 2, 2, 2]] {
            self.step(&Step::Compute(path.to_vec()));
            for _ in 0..8 {
                while self.deliver() || self.reply() {}
                self.now_ms += 700_000;
                self.input(Input::Tick);
            }
        }
        while self.deliver() || self.reply() {}
    }
}

proptest! {
    #[test]
    fn no_entry_outlives_its_block(
        events in events(),
        (size, block_tokens) in prop_oneof![Just((4, 4)), Just((2, 4)), Just((4, 2)), Just((3, 2)), Just((1, 3))],
        (replays, keep) in prop_oneof![Just((false, 0)), Just((true, 1000)), Just((true, 5)), Just((true, 0))],
        knows_process: bool,
        is_map: bool,
    ) {
        let engine = Engine::new(size, keep, is_map);
        let mut world = World::new(engine, block_tokens, replays, knows_process);
        for event in &events {
            world.handle(event);
        }
        world.come_to_rest();
        prop_assert!(world.tracker.is_in_sync(), "it never finds its place again");
        let truth = world.engine.keys(world.model, usize::from(block_tokens));
        for (key, tier) in &world.held {
            prop_assert!(truth.get(key).is_some_and(|truth| truth <= tier), "a ghost: {key} in {tier}");
        }
        let summary = world.residency.summary(world.source).unwrap();
        let is_all_kept = keep == 1000 && !events.iter().any(|event| matches!(event, Event::Discard(_)));
        if summary.complete || is_all_kept {
            prop_assert_eq!(&world.held, &truth);
        }
        prop_assert!(!world.held.is_empty(), "it saw the last messages");
    }

    /// Holds for any events in flight.
    #[test]
    fn removed_endpoint_holds_no_blocks(events in events(), at: prop::sample::Index, replays: bool) {
        let mut world = World::new(Engine::new(4, 100, true), 4, replays, true);
        let (before, after) = events.split_at(at.index(events.len() + 1));
        before.iter().for_each(|event| world.handle(event));
        world.input(Input::Removed);
        prop_assert!(world.held.is_empty());
        after.iter().for_each(|event| world.handle(event));
        prop_assert!(world.held.is_empty());
        prop_assert!(!world.tracker.is_in_sync());
    }
}
