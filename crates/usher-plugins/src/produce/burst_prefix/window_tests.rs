use proptest::prelude::*;
use usher_core::endpoints::{EndpointSpec, Store};

use super::*;

const MAX_AGE: Duration = Duration::from_secs(2);
const NOW: u64 = 10_000;
const LENGTH: Duration = Duration::from_millis(100);

fn store(names: &[&str]) -> Store {
    let store = Store::default();
    let spec = |(index, name): (u8, &&str)| EndpointSpec::new(*name, ([10, 0, 0, index], 8000));
    store.replace((1..).zip(names).map(spec).collect());
    store
}

fn window(capacity: usize) -> Arc<Window> {
    Arc::new(Window::new(LENGTH, capacity, Rules { per_replica: usize::MAX, colocate: 0 }))
}

fn blocks(prompt: u64) -> Blocks {
    Blocks::from_prompts([[prompt]])
}

fn name(endpoint: Option<Arc<Endpoint>>) -> Option<String> {
    endpoint.map(|endpoint| endpoint.name().to_owned())
}

#[test]
fn requests_within_the_window_share_a_batch() {
    let (window, all, start) = (window(99), store(&["a", "b"]).snapshot().all(), Instant::now());
    let join = |after: u64, prompt: u64| {
        window.join(start + Duration::from_millis(after), &all, &blocks(prompt), 1).unwrap()
    };
    let (first, second, last) = (join(0, 1), join(50, 2), join(99, 1));
    assert_eq!([&first, &second, &last].map(|seat| seat.ends() - start), [LENGTH; 3]);
    // The next batch begins with whoever comes next.
    let late = join(100, 1);
    assert_eq!(late.ends() - start, 2 * LENGTH);
    assert_eq!(name(last.end(NOW, MAX_AGE)).as_deref(), Some("a"));
    assert_eq!(name(first.end(NOW, MAX_AGE)).as_deref(), Some("a"));
    assert_eq!(name(second.end(NOW, MAX_AGE)), None, "it has nothing in common with anybody");
    assert_eq!(name(late.end(NOW, MAX_AGE)), None);
}

#[test]
fn requests_with_other_candidates_are_another_batch() {
    let store = store(&["a", "b", "c"]);
    let (window, start, all) = (window(99), Instant::now(), store.snapshot().all());
    let join = |candidates: &Candidates| window.join(start, candidates, &blocks(1), 1).unwrap();
    let (one, other) = (join(&all), join(&all.narrowed(&[1, 2])));
    assert_eq!((name(one.end(NOW, MAX_AGE)), name(other.end(NOW, MAX_AGE))), (None, None));
    // The same candidates in another list are the same.
    let (one, other) = (join(&all.narrowed(&[1, 2])), join(&all.narrowed(&[1, 2])));
    assert_eq!(name(one.end(NOW, MAX_AGE)).as_deref(), Some("b"));
    assert_eq!(name(other.end(NOW, MAX_AGE)).as_deref(), Some("b"));
    // Another pool has other positions.
    let before = join(&all);
    store.replace(vec![EndpointSpec::new("d", ([10, 0, 0, 9], 8000))]);
    let after = join(&store.snapshot().all());
    assert_eq!((name(before.end(NOW, MAX_AGE)), name(after.end(NOW, MAX_AGE))), (None, None));
}

#[test]
fn full_window_admits_no_request_until_one_leaves() {
    let (window, all, now) = (window(2), store(&["a"]).snapshot().all(), Instant::now());
    let join = |prompt| window.join(now, &all, &blocks(prompt), 1);
    let (first, second) = (join(1).unwrap(), join(1).unwrap());
    assert!(join(1).is_none());
    drop(first);
    let third = join(1).unwrap();
    assert_eq!(name(second.end(NOW, MAX_AGE)).as_deref(), Some("a"));
    assert!(join(1).is_none(), "they are held until they go on");
    drop((second, third));
    assert!(join(1).is_some());
    assert!(window.open().batches.is_empty(), "who has gone leaves nothing behind");
}

#[test]
fn cancelled_request_does_not_count_in_its_batch() {
    let (window, all, now) = (window(9), store(&["a"]).snapshot().all(), Instant::now());
    let join = |prompt| window.join(now, &all, &blocks(prompt), 1).unwrap();
    let (first, second) = (join(1), join(1));
    drop(first);
    assert_eq!(name(second.end(NOW, MAX_AGE)), None, "it is the only one with its prompt");
}

#[test]
fn least_busy_of_equal_replicas_is_first() {
    let store = store(&["d", "c", "b", "a"]);
    let (window, now) = (window(9), Instant::now());
    let snapshot = store.snapshot();
    // d runs two, c one, b doesn't say and a's reading is old.
    for (index, running, at) in [(0, 2.0, NOW), (1, 1.0, NOW), (3, 0.0, NOW - 2001)] {
        snapshot.endpoints()[index].load().running.set(running, at);
    }
    let seats: Vec<Seat> = [1, 1, 2, 2, 3, 3, 4, 4]
        .map(|prompt| window.join(now, &snapshot.all(), &blocks(prompt), 1).unwrap())
        .into();
    let names: Vec<_> = seats.iter().map(|seat| name(seat.end(NOW, MAX_AGE)).unwrap()).collect();
    assert_eq!(names, ["c", "c", "d", "d", "a", "a", "b", "b"]);
}

/// Event in the life of a window.
#[derive(Clone, Debug)]
enum Event {
    Join { prompt: u64, subset: bool },
    Leave(prop::sample::Index),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0u64..3, any::<bool>()).prop_map(|(prompt, subset)| Event::Join { prompt, subset }),
        1 => any::<prop::sample::Index>().prop_map(Event::Leave),
        2 => (0u64..60).prop_map(Event::Pass),
    ]
}

proptest! {
    /// Requests that arrive and leave in any order are placed together exactly if they share a batch and a
    /// prompt with one that stays, and none is held beyond the window or the capacity.
    #[test]
    fn batches_hold_requests_that_arrived_together(
        events in prop::collection::vec(event(), 0..60),
        capacity in 1usize..12,
    ) {
        let (window, start) = (window(capacity), Instant::now());
        let all = store(&["a", "b"]).snapshot().all();
        let some = all.narrowed(&[1]);
        let mut now_ms = 0;
        // Seat, prompt, candidates, and the batch by when it ends.
        let mut held: Vec<(Seat, u64, bool, u64)> = Vec::new();
        let mut open: [Option<u64>; 2] = [None, None];
        for event in events {
            match event {
                Event::Join { prompt, subset } => {
                    let candidates = if subset { &some } else { &all };
                    let at = start + Duration::from_millis(now_ms);
                    let seat = window.join(at, candidates, &blocks(prompt), 1);
                    prop_assert_eq!(seat.is_some(), held.len() < capacity);
                    let Some(seat) = seat else { continue };
                    let batch = &mut open[usize::from(subset)];
                    let ends = batch.filter(|ends| now_ms < *ends).unwrap_or(now_ms + 100);
                    *batch = Some(ends);
                    prop_assert_eq!(seat.ends() - start, Duration::from_millis(ends));
                    held.push((seat, prompt, subset, ends));
                }
                Event::Leave(which) if !held.is_empty() => {
                    let gone = held.remove(which.index(held.len()));
                    let batch = &mut open[usize::from(gone.2)];
                    if held.iter().all(|other| (other.2, other.3) != (gone.2, gone.3)) && *batch == Some(gone.3) {
                        // The last one takes the batch with it.
                        *batch = None;
                    }
                }
                Event::Leave(_) => {}
                Event::Pass(passed) => {
                    now_ms += passed;
                    let (over, rest): (Vec<_>, Vec<_>) = held.into_iter().partition(|seat| seat.3 <= now_ms);
                    for (seat, prompt, subset, ends) in &over {
                        let alike = over.iter().filter(|other| (other.1, other.2, other.3) == (*prompt, *subset, *ends));
                        let expected = alike.count() > 1;
                        prop_assert_eq!(seat.end(NOW, MAX_AGE).is_some(), expected);
                    }
                    held = rest;
                }
            }
        }
        drop(held);
        let open = window.open();
        prop_assert_eq!((open.held, open.batches.len()), (0, 0));
    }
}
