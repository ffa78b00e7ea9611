//! Replays that wait for their turn.

use super::*;

#[test]
fn queued_time_does_not_count_as_replay_time() {
    // Two at a time, of three seconds each: the last one waits for longer than a replay may take.
    let mut benches: Vec<Bench> = (0..20).map(|_| Bench::connected(REPLAYING)).collect();
    for first in (0..20).step_by(2) {
        let turn = first..first + 2;
        benches[turn.clone()]
            .iter_mut()
            .for_each(|bench| drop(bench.input(Input::ReplayBegan { replay: 1 })));
        for sequence in 0..3 {
            benches[turn.clone()].iter_mut().for_each(|bench| drop(bench.replayed(1, 1, sequence)));
            benches.iter_mut().for_each(|bench| drop(bench.tick_after(1_000)));
        }
        for bench in &mut benches[turn] {
            assert_eq!(bench.input(Input::ReplayEnded { replay: 1 }), ["in sync"], "{first}");
        }
    }
    assert!(benches.iter().all(|bench| bench.tracker.counts().failed_replays == 0));
    // One whose turn never comes.
    let mut bench = Bench::connected(REPLAYING);
    bench.live(1, 30);
    assert!(bench.tick_after(59_999).is_empty());
    assert_eq!(bench.tick_after(1), ["stop replay", "reset 1", "apply 1/30 in 1", "in sync"]);
}

#[test]
fn replay_attempts_share_one_timeout() {
    let mut bench = Bench::at(REPLAYING, 1);
    bench.live(1, 40);
    for (attempt, sequence) in (2..).zip(0..6) {
        assert!(bench.tick_after(10_000).is_empty(), "waiting for its turn");
        bench.input(Input::ReplayBegan { replay: attempt });
        bench.now_ms += 1_900;
        bench.replayed(attempt, 1, sequence);
        bench.replayed(attempt, 1, sequence + 1);
        bench.now_ms += 1_000;
        let again = format!("replay {} from {} after 100", attempt + 1, sequence + 1);
        assert_eq!(bench.input(Input::ReplayEnded { replay: attempt }), [again]);
    }
    bench.input(Input::ReplayBegan { replay: 8 });
    bench.now_ms += 1_900;
    bench.replayed(8, 1, 6);
    assert!(bench.tick_after(99).is_empty());
    assert_eq!(bench.tick_after(1), ["stop replay", "reset 2", "apply 1/40 in 2", "in sync"]);
}
