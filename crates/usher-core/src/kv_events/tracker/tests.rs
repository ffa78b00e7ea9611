//! Scripts of inputs, with the actions that they lead to.

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;

mod optional;
mod turns;

/// A tracker at a time.
struct Bench {
    tracker: Tracker,
    now_ms: u64,
    random: StdRng,
    connection: u64,
}

const PLAIN: Settings = Settings {
    replays: false,
    held_messages: 4,
    held_bytes: 1000,
    replay_idle_ms: 2_000,
    replay_total_ms: 20_000,
    replay_wait_ms: 60_000,
    replay_attempts: 3,
    replay_backoff_ms: 100,
    replay_cooldown_ms: 30_000,
    reconnect_ms: 100,
    max_reconnect_ms: 5_000,
    silent_requests: 10,
    silent_ms: 10_000,
};

const REPLAYING: Settings = Settings { replays: true, ..PLAIN };

/// The message with a number, of a process.
fn payload(process: u64, sequence: u64) -> Bytes {
    format!("{process}/{sequence}").into()
}

fn text(action: &Action) -> String {
    match action {
        Action::Connect { connection, .. } => format!("connect {connection}"),
        Action::Close => "close".to_owned(),
        Action::Reset { epoch, complete: true } => format!("reset {epoch} complete"),
        Action::Reset { epoch, complete: false } => format!("reset {epoch}"),
        Action::Apply { epoch, sequence, payload } => {
            format!("apply {} in {epoch}", std::str::from_utf8(payload).unwrap())
                + if payload.ends_with(sequence.to_string().as_bytes()) { "" } else { " MISNUMBERED" }
        }
        Action::Replay { replay, from, after_ms } => format!("replay {replay} from {from} after {after_ms}"),
        Action::StopReplay => "stop replay".to_owned(),
        Action::InSync(true) => "in sync".to_owned(),
        Action::InSync(false) => "out of sync".to_owned(),
    }
}

impl Bench {
    fn new(settings: Settings) -> Self {
        let (tracker, first) = Tracker::new(settings);
        assert_eq!(first, Action::Connect { connection: 1, after_ms: 0 });
        Self { tracker, now_ms: 1_000_000, random: StdRng::seed_from_u64(1), connection: 1 }
    }

    /// A connected one.
    fn connected(settings: Settings) -> Self {
        let mut bench = Self::new(settings);
        bench.input(Input::Connected { connection: 1, same_process: false });
        bench
    }

    /// One that has applied the messages before this number, from the start of process 1 on.
    fn at(settings: Settings, next: u64) -> Self {
        let mut bench = Self::connected(settings);
        if settings.replays {
            bench.input(Input::ReplayEnded { replay: 1 });
        }
        (0..next).for_each(|sequence| drop(bench.live(1, sequence)));
        bench
    }

    fn input(&mut self, input: Input) -> Vec<String> {
        let mut actions = Vec::new();
        self.tracker.handle(input, self.now_ms, &mut self.random, &mut actions);
        for action in &actions {
            if let Action::Connect { connection, .. } = action {
                self.connection = *connection;
            }
        }
        actions.iter().map(text).collect()
    }

    fn live(&mut self, process: u64, sequence: u64) -> Vec<String> {
        let payload = payload(process, sequence);
        self.input(Input::Message { connection: self.connection, sequence, payload })
    }

    fn replayed(&mut self, replay: u64, process: u64, sequence: u64) -> Vec<String> {
        self.input(Input::Replayed { replay, sequence, payload: payload(process, sequence) })
    }

    fn reconnect(&mut self, same_process: bool) -> Vec<String> {
        self.input(Input::Disconnected { connection: self.connection });
        self.input(Input::Connected { connection: self.connection, same_process })
    }

    fn tick_after(&mut self, ms: u64) -> Vec<String> {
        self.now_ms += ms;
        self.input(Input::Tick)
    }
}

#[test]
fn first_message_starts_in_sync() {
    let mut bench = Bench::connected(PLAIN);
    assert_eq!(bench.live(1, 0), ["reset 1 complete", "apply 1/0 in 1", "in sync"]);
    assert_eq!(bench.live(1, 1), ["apply 1/1 in 1"]);
}

#[test]
fn late_first_message_makes_the_cache_partial() {
    let mut bench = Bench::connected(PLAIN);
    assert_eq!(bench.live(1, 7), ["reset 1", "apply 1/7 in 1", "in sync"]);
    assert_eq!(bench.live(1, 8), ["apply 1/8 in 1"]);
    assert_eq!(bench.tracker.counts().gaps, 0);
}

#[test]
fn gap_without_replay_drops_all_blocks() {
    let mut bench = Bench::at(PLAIN, 3);
    assert_eq!(bench.live(1, 4), ["reset 2", "apply 1/4 in 2"]);
    assert_eq!(bench.tracker.counts().gaps, 1);
    assert!(bench.tracker.is_in_sync());
}

#[test]
fn a_gap_is_replayed_from_the_last_known_message() {
    let mut bench = Bench::at(REPLAYING, 3);
    assert_eq!(bench.live(1, 5), ["replay 2 from 2 after 0", "out of sync"]);
    assert!(bench.live(1, 6).is_empty());
    assert!(bench.live(1, 6).is_empty());
    bench.input(Input::ReplayBegan { replay: 2 });
    assert!(bench.replayed(2, 1, 2).is_empty(), "the witness");
    assert_eq!(bench.replayed(2, 1, 3), ["apply 1/3 in 1"]);
    assert_eq!(bench.replayed(2, 1, 4), ["apply 1/4 in 1"]);
    assert_eq!(bench.replayed(2, 1, 5), ["apply 1/5 in 1"]);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 2 }), ["apply 1/6 in 1", "in sync"]);
    assert_eq!(bench.live(1, 7), ["apply 1/7 in 1"]);
    assert_eq!(bench.tracker.counts().duplicates, 1);
}

#[test]
fn inputs_of_stale_replays_and_connections_are_ignored() {
    let mut bench = Bench::at(REPLAYING, 3);
    bench.live(1, 5);
    for input in [
        Input::Replayed { replay: 1, sequence: 3, payload: payload(1, 3) },
        Input::ReplayEnded { replay: 1 },
        Input::ReplayFailed { replay: 3 },
        Input::ReplayBegan { replay: 1 },
        Input::Message { connection: 2, sequence: 0, payload: payload(2, 0) },
        Input::Message { connection: 1, sequence: u64::MAX, payload: payload(2, 0) },
        Input::Disconnected { connection: 7 },
        Input::Connected { connection: 1, same_process: false },
        Input::Unreadable { epoch: 0 },
        Input::Awake,
    ] {
        assert!(bench.input(input.clone()).is_empty(), "{input:?}");
    }
}

#[test]
fn duplicates_are_no_restart() {
    let mut bench = Bench::at(PLAIN, 3);
    for sequence in 0..3 {
        assert!(bench.live(1, sequence).is_empty());
    }
    assert_eq!((bench.tracker.counts().duplicates, bench.tracker.counts().restarts), (3, 0));
    assert_eq!(bench.live(1, 3), ["apply 1/3 in 1"]);
}

#[test]
fn lower_sequence_number_is_a_restart() {
    let mut bench = Bench::at(PLAIN, 3);
    let restarted = ["reset 2", "out of sync", "reset 3 complete", "apply 2/0 in 3", "in sync"];
    assert_eq!(bench.live(2, 0), restarted);
    assert_eq!(bench.live(2, 1), ["apply 2/1 in 3"]);
    assert_eq!(bench.tracker.counts().restarts, 1);
    let mut bench = Bench::at(REPLAYING, 3);
    assert_eq!(bench.live(2, 1), ["reset 2", "out of sync", "replay 2 from 0 after 0"]);
    assert_eq!(bench.replayed(2, 2, 0), ["reset 3 complete", "apply 2/0 in 3"]);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 2 }), ["apply 2/1 in 3", "in sync"]);
}

#[test]
fn a_restart_during_a_replay_is_seen() {
    let mut bench = Bench::at(REPLAYING, 5);
    bench.live(1, 7);
    assert_eq!(bench.live(2, 0), ["stop replay", "reset 2", "reset 3 complete", "apply 2/0 in 3", "in sync"]);
}

#[test]
fn replaced_engine_is_detected_by_its_last_message() {
    let mut bench = Bench::at(REPLAYING, 3);
    assert_eq!(bench.reconnect(false), ["replay 2 from 2 after 0"]);
    assert!(bench.live(2, 9).is_empty());
    assert_eq!(bench.replayed(2, 2, 2), ["reset 2", "replay 3 from 0 after 0"]);
    assert!(bench.replayed(2, 2, 3).is_empty());
    (0..9).for_each(|sequence| assert!(!bench.replayed(3, 2, sequence).is_empty()));
    assert_eq!(bench.input(Input::ReplayEnded { replay: 3 }), ["apply 2/9 in 3", "in sync"]);
    // One that has sent less has nothing from there on.
    let mut bench = Bench::at(REPLAYING, 3);
    bench.reconnect(false);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 2 }), ["reset 2", "replay 3 from 0 after 0"]);
    assert_eq!(bench.replayed(3, 2, 0), ["reset 3 complete", "apply 2/0 in 3"]);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 3 }), ["in sync"]);
}

#[test]
fn a_new_connection_without_replay_needs_the_same_process() {
    for (same_process, sequence, actions) in [
        (true, 3, &["apply 1/3 in 1", "in sync"] as &[&str]),
        (false, 3, &["reset 2", "apply 1/3 in 2", "in sync"]),
        (true, 4, &["reset 2", "apply 1/4 in 2", "in sync"]),
        (false, 4, &["reset 2", "apply 1/4 in 2", "in sync"]),
    ] {
        let mut bench = Bench::at(PLAIN, 3);
        assert!(bench.reconnect(same_process).is_empty());
        assert!(!bench.tracker.is_in_sync(), "something may have been missed");
        assert_eq!(bench.live(1, sequence), actions, "{same_process} {sequence}");
    }
}

#[test]
fn replay_with_a_gap_makes_the_cache_partial() {
    let mut bench = Bench::connected(REPLAYING);
    assert_eq!(bench.replayed(1, 1, 40), ["reset 1", "apply 1/40 in 1"]);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 1 }), ["in sync"]);
    bench.live(1, 45);
    assert_eq!(bench.replayed(2, 1, 42), ["reset 2", "apply 1/42 in 2"], "the last known message is gone");
    assert_eq!(bench.replayed(2, 1, 44), ["reset 3", "apply 1/44 in 3"], "a hole in it");
    assert!(bench.replayed(2, 1, 44).is_empty());
    assert_eq!(bench.input(Input::ReplayEnded { replay: 2 }), ["apply 1/45 in 3", "in sync"]);
}

#[test]
fn missing_replay_buffer_starts_with_live_messages() {
    let mut bench = Bench::connected(REPLAYING);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 1 }), ["in sync"]);
    assert_eq!(bench.live(1, 0), ["reset 1 complete", "apply 1/0 in 1"]);
    let mut bench = Bench::connected(REPLAYING);
    bench.live(1, 0);
    assert_eq!(
        bench.input(Input::ReplayEnded { replay: 1 }),
        ["reset 1 complete", "apply 1/0 in 1", "in sync"]
    );
    // The reply may be older than the message: it is asked for again, a few times.
    let mut bench = Bench::at(REPLAYING, 0);
    assert_eq!(bench.live(1, 8), ["replay 2 from 0 after 0", "out of sync"]);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 2 }), ["replay 3 from 0 after 100"]);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 3 }), ["replay 4 from 0 after 100"]);
    let given_up = ["stop replay", "reset 1", "apply 1/8 in 1", "in sync"];
    assert_eq!(bench.input(Input::ReplayEnded { replay: 4 }), given_up);
    assert_eq!(bench.live(1, 9), ["apply 1/9 in 1"]);
    assert_eq!(bench.tick_after(30_000), ["replay 5 from 0 after 0"]);
    assert!(bench.input(Input::ReplayEnded { replay: 5 }).is_empty());
    assert!(bench.tick_after(1_000_000).is_empty());
    // After a gap it can't be told from one that has restarted.
    bench.live(1, 11);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 6 }), ["reset 2", "replay 7 from 0 after 0"]);
}

#[test]
fn incomplete_replay_is_requested_again() {
    let mut bench = Bench::at(REPLAYING, 3);
    bench.live(1, 6);
    bench.replayed(2, 1, 2);
    bench.replayed(2, 1, 3);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 2 }), ["replay 3 from 3 after 100"]);
    bench.replayed(3, 1, 3);
    bench.replayed(3, 1, 4);
    bench.replayed(3, 1, 5);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 3 }), ["apply 1/6 in 1", "in sync"]);
}

#[test]
fn a_silent_replay_socket_does_not_stop_live_messages() {
    let mut bench = Bench::at(REPLAYING, 3);
    bench.live(1, 5);
    assert!(bench.tick_after(10_000).is_empty(), "not sent yet");
    bench.input(Input::ReplayBegan { replay: 2 });
    assert!(bench.tick_after(1_999).is_empty());
    assert_eq!(bench.tick_after(1), ["replay 3 from 2 after 100"]);
    assert_eq!(bench.input(Input::ReplayFailed { replay: 3 }), ["replay 4 from 2 after 100"]);
    bench.live(1, 6);
    let given_up = ["stop replay", "reset 2", "apply 1/5 in 2", "apply 1/6 in 2", "in sync"];
    assert_eq!(bench.input(Input::ReplayFailed { replay: 4 }), given_up);
    assert_eq!(bench.live(1, 7), ["apply 1/7 in 2"]);
    assert_eq!(bench.live(1, 9), ["reset 3", "apply 1/9 in 3"], "no replay for a while");
    assert!(bench.tick_after(29_999).is_empty());
    // Then all that there is is asked for, once; the live messages go on without a reset.
    assert_eq!(bench.tick_after(1), ["replay 5 from 0 after 0"]);
    assert_eq!(bench.live(1, 10), ["apply 1/10 in 3"]);
    assert_eq!(bench.input(Input::ReplayFailed { replay: 5 }), ["stop replay"]);
    assert!(bench.tick_after(59_999).is_empty());
    assert_eq!(bench.tick_after(1), ["replay 6 from 0 after 0"]);
    assert_eq!(bench.replayed(6, 1, 0), ["out of sync", "reset 4 complete", "apply 1/0 in 4"]);
    (1..10).for_each(|sequence| drop(bench.replayed(6, 1, sequence)));
    assert!(bench.live(1, 11).is_empty());
    bench.replayed(6, 1, 10);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 6 }), ["apply 1/11 in 4", "in sync"]);
    assert!(bench.tick_after(1_000_000).is_empty());
    assert_eq!(bench.tracker.counts().failed_replays, 2);
}

#[test]
fn endless_replay_is_aborted() {
    let mut bench = Bench::connected(REPLAYING);
    bench.input(Input::ReplayBegan { replay: 1 });
    for sequence in 0..20 {
        bench.replayed(1, 1, sequence);
        assert!(bench.tick_after(999).is_empty());
    }
    bench.live(1, 30);
    assert_eq!(bench.tick_after(100), ["stop replay", "reset 2", "apply 1/30 in 2", "in sync"]);
}

#[test]
fn live_messages_without_room_are_replayed_later() {
    let mut bench = Bench::at(REPLAYING, 3);
    (4..20).for_each(|sequence| drop(bench.live(1, sequence)));
    assert_eq!(bench.tracker.counts().overflows, 12, "four have room");
    bench.replayed(2, 1, 2);
    bench.replayed(2, 1, 3);
    let ended = bench.input(Input::ReplayEnded { replay: 2 });
    assert_eq!(ended[..4], [4, 5, 6, 7].map(|sequence| format!("apply 1/{sequence} in 1")));
    assert_eq!(ended[4..], ["replay 3 from 7 after 0"]);
    (7..20).for_each(|sequence| drop(bench.replayed(3, 1, sequence)));
    assert_eq!(bench.input(Input::ReplayEnded { replay: 3 }), ["in sync"]);
    assert_eq!(bench.live(1, 20), ["apply 1/20 in 1"]);
    // And where the replay fails, nothing is left that may be wrong.
    let mut bench = Bench::at(REPLAYING, 3);
    (4..20).for_each(|sequence| drop(bench.live(1, sequence)));
    bench.input(Input::ReplayBegan { replay: 2 });
    bench.tick_after(20_000);
    assert!(!bench.tracker.is_in_sync());
    assert_eq!(bench.live(1, 20).last().unwrap(), "in sync");
}

#[test]
fn blocks_of_a_sleeping_engine_are_dropped_at_once() {
    let mut bench = Bench::at(PLAIN, 3);
    assert_eq!(bench.input(Input::Asleep), ["reset 2 complete"]);
    assert!(bench.input(Input::Asleep).is_empty());
    assert!(bench.live(1, 3).is_empty(), "sent before it slept");
    assert_eq!(bench.input(Input::Awake), ["reset 3"]);
    assert_eq!(bench.live(1, 4), ["apply 1/4 in 3"]);
    bench.input(Input::Asleep);
    assert!(bench.input(Input::Awake).is_empty(), "nothing was left out");
}

#[test]
fn silent_serving_engine_is_reconnected() {
    let mut bench = Bench::at(PLAIN, 3);
    bench.input(Input::Served { requests: 9 });
    assert!(bench.tick_after(20_000).is_empty(), "too few");
    bench.input(Input::Served { requests: 1 });
    assert_eq!(bench.input(Input::Tick), ["out of sync", "connect 2"]);
    bench.input(Input::Connected { connection: 2, same_process: true });
    bench.input(Input::Served { requests: 100 });
    assert_eq!(bench.tick_after(19_999), ["reset 2"], "connected to again after twice as long");
    assert_eq!(bench.tick_after(1), ["connect 3"]);
    bench.input(Input::Connected { connection: 3, same_process: true });
    assert_eq!(bench.live(1, 3), ["reset 3", "apply 1/3 in 3", "in sync"]);
    bench.input(Input::Served { requests: 100 });
    assert!(bench.tick_after(9_999).is_empty());
    assert_eq!(bench.tick_after(1), ["out of sync", "connect 4"]);
    assert_eq!(bench.tracker.counts().silences, 3);
}

#[test]
fn blocks_of_a_disconnected_engine_are_dropped() {
    for settings in [PLAIN, REPLAYING] {
        let mut bench = Bench::at(settings, 3);
        bench.input(Input::Disconnected { connection: bench.connection });
        assert!(bench.tick_after(5_000).is_empty());
        bench.input(Input::Disconnected { connection: bench.connection });
        assert!(bench.tick_after(4_999).is_empty());
        assert_eq!(bench.tick_after(1), ["reset 2"]);
        assert!(bench.tick_after(1_000_000).is_empty(), "once");
    }
    let mut bench = Bench::at(PLAIN, 3);
    bench.reconnect(false);
    assert_eq!(bench.tick_after(10_000), ["reset 2"], "connected, and not heard");
}

#[test]
fn replay_confirms_that_a_silent_engine_is_idle() {
    let mut bench = Bench::at(REPLAYING, 3);
    bench.input(Input::Served { requests: 100 });
    assert_eq!(bench.tick_after(10_000), ["out of sync", "connect 2"]);
    let connected = bench.input(Input::Connected { connection: 2, same_process: false });
    assert_eq!(connected, ["replay 2 from 2 after 0"]);
    bench.replayed(2, 1, 2);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 2 }), ["in sync"]);
}

#[test]
fn removed_endpoint_ignores_inputs() {
    let mut bench = Bench::at(REPLAYING, 3);
    bench.live(1, 5);
    assert_eq!(bench.input(Input::Removed), ["stop replay", "reset 2", "close"]);
    for input in [
        Input::Message { connection: 1, sequence: 3, payload: payload(1, 3) },
        Input::Replayed { replay: 2, sequence: 3, payload: payload(1, 3) },
        Input::ReplayEnded { replay: 2 },
        Input::Disconnected { connection: 1 },
        Input::Restarted,
        Input::Asleep,
        Input::Unreadable { epoch: 2 },
        Input::Tick,
        Input::Removed,
    ] {
        assert!(bench.input(input.clone()).is_empty(), "{input:?}");
    }
}

#[test]
fn unreadable_message_drops_all_blocks() {
    let mut bench = Bench::at(PLAIN, 3);
    assert_eq!(bench.input(Input::Unreadable { epoch: 1 }), ["reset 2"]);
    assert!(bench.input(Input::Unreadable { epoch: 1 }).is_empty(), "dropped since");
    assert_eq!(bench.live(1, 3), ["apply 1/3 in 2"]);
}

#[test]
fn reported_restart_ends_the_connection() {
    let mut bench = Bench::at(PLAIN, 3);
    assert_eq!(bench.input(Input::Restarted), ["reset 2", "out of sync", "connect 2"]);
    let late = Input::Message { connection: 1, sequence: 3, payload: payload(1, 3) };
    assert!(bench.input(late).is_empty(), "of the old process");
    bench.input(Input::Connected { connection: 2, same_process: false });
    assert_eq!(bench.live(2, 0), ["reset 3 complete", "apply 2/0 in 3", "in sync"]);
}

#[test]
fn reconnects_back_off_with_jitter() {
    let waits = |seed: u64| -> Vec<u64> {
        let mut bench = Bench::new(PLAIN);
        bench.random = StdRng::seed_from_u64(seed);
        let wait = |connection: u64| {
            let mut actions = Vec::new();
            bench.tracker.handle(Input::Disconnected { connection }, 0, &mut bench.random, &mut actions);
            let [Action::Connect { after_ms, .. }] = actions[..] else { panic!("{actions:?}") };
            after_ms
        };
        (1..80).map(wait).collect()
    };
    let (some, others) = (waits(1), waits(2));
    assert_ne!(some, others);
    for (failures, wait) in some.into_iter().enumerate() {
        let most = (100u64 << failures.min(20)).min(5_000);
        assert!((most / 2..=most).contains(&wait), "{wait} after {failures}");
    }
}
