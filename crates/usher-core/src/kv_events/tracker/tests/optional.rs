//! Replays for more than is known, beside live messages in turn.

use super::*;

/// One that is in sync with what came from message 9 on, and asks for what was before.
fn asking() -> Bench {
    let mut bench = Bench::at(REPLAYING, 3);
    bench.live(1, 9);
    for replay in 2..5 {
        bench.input(Input::ReplayFailed { replay });
    }
    assert!(bench.tracker.is_in_sync());
    assert_eq!(bench.tick_after(30_000), ["replay 5 from 0 after 0"]);
    bench
}

#[test]
fn live_messages_apply_during_an_optional_replay() {
    for began in [false, true] {
        let mut bench = asking();
        if began {
            bench.input(Input::ReplayBegan { replay: 5 });
        }
        let mut stopped = 0;
        for sequence in 10..30 {
            let actions = bench.live(1, sequence);
            assert_eq!(actions[0], format!("apply 1/{sequence} in 2"), "{began}");
            stopped += actions[1..].iter().filter(|action| *action == "stop replay").count();
            assert_eq!(actions.len(), 1 + stopped.min(usize::from(sequence == 14)), "{began}: {actions:?}");
        }
        assert_eq!(stopped, usize::from(began), "four have room from the request on");
        let failed = bench.input(Input::ReplayFailed { replay: 5 });
        assert_eq!(failed, if began { vec![] } else { vec!["stop replay"] });
        assert!(bench.tracker.is_in_sync());
        assert_eq!((bench.tracker.counts().resets, bench.tracker.held_bytes()), (2, 0));
    }
}

#[test]
fn an_optional_replay_takes_over_with_its_first_message() {
    let mut bench = asking();
    bench.live(1, 10);
    bench.input(Input::ReplayBegan { replay: 5 });
    assert_eq!(bench.live(1, 11), ["apply 1/11 in 2"]);
    assert_eq!(bench.replayed(5, 1, 0), ["out of sync", "reset 3 complete", "apply 1/0 in 3"]);
    assert!(bench.live(1, 12).is_empty());
    (1..11).for_each(|sequence| drop(bench.replayed(5, 1, sequence)));
    let ended = ["apply 1/11 in 3", "apply 1/12 in 3", "in sync"];
    assert_eq!(bench.input(Input::ReplayEnded { replay: 5 }), ended);
    // One that breaks off has left a part.
    let mut bench = asking();
    bench.replayed(5, 1, 0);
    assert_eq!(bench.input(Input::ReplayFailed { replay: 5 }), ["replay 6 from 0 after 100"]);
    bench.input(Input::ReplayFailed { replay: 6 });
    bench.input(Input::ReplayFailed { replay: 7 });
    assert_eq!(bench.input(Input::ReplayFailed { replay: 8 }), ["stop replay"]);
    assert!(!bench.tracker.is_in_sync());
}

#[test]
fn a_shorter_optional_replay_is_ignored() {
    for first in [9, 12] {
        let mut bench = asking();
        (10..20).for_each(|sequence| drop(bench.live(1, sequence)));
        bench.input(Input::ReplayBegan { replay: 5 });
        assert_eq!(bench.replayed(5, 1, first), ["stop replay"]);
        assert_eq!(bench.live(1, 20), ["apply 1/20 in 2"]);
        assert!(bench.tracker.is_in_sync());
        assert_eq!((bench.tracker.counts().resets, bench.tracker.held_bytes()), (2, 0));
        assert_eq!(bench.tick_after(600_000), [""; 0], "the engine has no more");
    }
}

#[test]
fn a_gap_beside_an_optional_replay_is_replayed_instead() {
    let mut bench = asking();
    bench.input(Input::ReplayBegan { replay: 5 });
    bench.live(1, 10);
    assert_eq!(bench.live(1, 13), ["stop replay", "replay 6 from 10 after 0", "out of sync"]);
    bench.replayed(6, 1, 10);
    bench.replayed(6, 1, 11);
    bench.replayed(6, 1, 12);
    assert_eq!(bench.input(Input::ReplayEnded { replay: 6 }), ["apply 1/13 in 2", "in sync"]);
}

#[test]
fn silence_reconnects_during_an_optional_replay() {
    let mut bench = asking();
    bench.input(Input::Served { requests: 100 });
    assert_eq!(bench.tick_after(10_000), ["stop replay", "out of sync", "connect 2"]);
}
