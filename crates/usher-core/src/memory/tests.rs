use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;

fn budget(limit: u64) -> Arc<Budget> {
    Arc::new(Budget::new(limit, limit / 3))
}

/// Priority of a request that may push out all others.
fn any() -> Option<i32> {
    Some(i32::MAX)
}

fn bodies(budget: &Arc<Budget>) -> Reservation {
    Reservation::new(budget, Kind::Bodies)
}

#[test]
fn reservation_counts_until_dropped() {
    let budget = budget(100);
    let (mut one, mut other) = (bodies(&budget), bodies(&budget));
    assert_eq!(one.grow_to(60, any), Ok(()));
    assert_eq!(one.grow_to(50, any), Ok(()), "less than it has is nothing more");
    assert_eq!(other.grow_to(41, any), Err(BudgetFull));
    assert_eq!((budget.used(Kind::Bodies), other.bytes()), (60, 0));
    assert_eq!(other.grow_to(40, any), Ok(()));
    assert!(budget.is_tight());
    drop(one);
    assert_eq!(budget.used(Kind::Bodies), 40);
    assert_eq!(other.grow_to(100, any), Ok(()));
}

#[test]
fn optional_reservations_leave_an_eighth_free() {
    let budget = budget(160);
    let (mut one, mut other) = (bodies(&budget), bodies(&budget));
    assert_eq!(one.grow_optional(141), Err(BudgetFull));
    assert_eq!((one.bytes(), budget.used(Kind::Bodies)), (0, 0));
    assert_eq!(one.grow_optional(140), Ok(()));
    assert_eq!(other.grow_optional(1), Err(BudgetFull));
    assert_eq!(other.grow_to(20, any), Ok(()), "a request has the rest");
    assert_eq!(one.grow_optional(10), Ok(()), "it has that");
    assert!(!budget.was_full());
}

#[test]
fn open_streams_may_slightly_exceed_the_limit() {
    let (limit, each) = (160 * Budget::STREAM, Budget::STREAM);
    let budget = budget(limit);
    let opened = (0..200).take_while(|_| budget.open_stream()).count() as u64;
    assert_eq!((opened, budget.used(Kind::Streams)), (165, 166 * each), "the last has to be refused");
    assert_eq!(budget.admit(|| None), Err(BudgetFull));
    assert_eq!(bodies(&budget).grow_to(1, any), Err(BudgetFull));
    (0..6).for_each(|_| budget.close_stream());
    assert_eq!(budget.admit(|| None), Ok(()), "as many as the limit says");
    (0..160).for_each(|_| budget.close_stream());
    assert_eq!(budget.used(Kind::Streams), 0);
}

/// However many streams come and are refused.
#[test]
fn running_request_has_memory_in_a_flood_of_streams() {
    let budget = budget(160 * Budget::STREAM);
    let refused: Vec<_> =
        (0..1000).filter(|_| !budget.open_stream()).map(|_| budget.refuse_stream()).collect();
    assert_eq!(refused.len(), 1000 - 165);
    // What was refused and is reset has left.
    let reset = refused.iter().filter(|one| one.end().is_cancelled()).count();
    (0..reset).for_each(|_| budget.close_stream());
    let mut message = bodies(&budget);
    assert_eq!(message.grow_over_limit(5 * Budget::STREAM, || Some(0)), Ok(()));
    assert_eq!(message.grow_over_limit(6 * Budget::STREAM, || Some(0)), Err(BudgetFull));
    assert_eq!(bodies(&budget).grow_to(1, any), Err(BudgetFull), "a new one has none");
}

const MI: u64 = 1 << 20;

#[test]
fn only_the_reply_window_scales_with_the_budget() {
    // budget, window for replies in KiB
    for (process, unsent) in [(16 * MI, 16), (64 * MI, 64), (1024 * MI, 256), (1 << 50, 256)] {
        let windows = Windows { unsent: unsent << 10, ..Windows::LARGEST };
        assert_eq!(Windows::within(process), windows, "{process}");
    }
}

/// A connection on which so much is unread that streams had time to read.
fn keeping(budget: &Arc<Budget>, unread: u64) -> ConnectionRoom {
    let mut room = ConnectionRoom::new(budget, Windows::LARGEST);
    room.unread().open();
    room.unread().add(unread as i64);
    room.settle(0);
    room
}

#[test]
fn unread_data_counts_while_streams_do_not_read_it() {
    let budget = budget(u64::MAX);
    let mut room = ConnectionRoom::new(&budget, Windows::LARGEST);
    let unread = Arc::clone(room.unread());
    assert_eq!(budget.used(Kind::Connections), 32 << 10);
    unread.open();
    unread.add(300 << 10);
    room.settle(300 << 10);
    assert_eq!(budget.used(Kind::Unread), 0, "streams had no turn yet");
    room.settle(100 << 10);
    assert_eq!(budget.used(Kind::Unread), 256 << 10, "200 KiB in steps");
    unread.read(300 << 10);
    assert!(room.is_unsettled());
    room.settle(0);
    assert!(!room.is_unsettled());
    assert_eq!(budget.used(Kind::Unread), 0);
    // Data for a stream that had ended is forgotten with the last one.
    unread.add(70 << 10);
    unread.close();
    assert_eq!(unread.bytes(), 0);
    drop((room, keeping(&budget, 1)));
    assert_eq!((budget.used(Kind::Connections), budget.used(Kind::Unread)), (0, 0));
}

#[test]
fn the_connection_with_the_most_unread_data_is_closed() {
    let budget = Arc::new(Budget::of_process(128 * MI, None));
    let small: Vec<_> = (0..5).map(|_| keeping(&budget, 4 * MI)).collect();
    let large = keeping(&budget, 12 * MI);
    assert_eq!(budget.evicted(), 0, "twice an eighth");
    let mut last = keeping(&budget, 4 * MI);
    assert!(large.evicted().is_cancelled() && budget.evicted() == 1);
    last.unread().add(4 * MI as i64);
    last.settle(0);
    assert_eq!(budget.evicted(), 1, "when it is gone, there is room");
    last.unread().add(8 * MI as i64);
    last.settle(0);
    assert!(last.evicted().is_cancelled() && budget.evicted() == 2);
    assert!(small.iter().all(|room| !room.evicted().is_cancelled()));
    drop((large, last));
    // Where everything else is full there is less.
    let mut body = bodies(&budget);
    let used = Kind::ALL.iter().map(|kind| budget.used(*kind)).sum::<u64>();
    body.grow_to(budget.limit().unwrap() - used, any).unwrap();
    let _more = keeping(&budget, 1);
    assert_eq!(budget.evicted(), 3);
}

#[test]
fn kinds_share_the_budget() {
    let budget = budget(100);
    let mut index = Reservation::new(&budget, Kind::PrefixIndex);
    assert!(budget.has_room_for_prefixes());
    index.set(33);
    assert!(!budget.has_room_for_prefixes(), "its share is used");
    let mut body = bodies(&budget);
    assert_eq!(body.grow_to(68, any), Err(BudgetFull));
    assert_eq!(body.grow_to(67, any), Ok(()));
    index.set(40);
    assert_eq!(budget.used(Kind::PrefixIndex), 40, "what is there counts, also without room");
    index.set(3);
    assert!(!budget.is_tight() && budget.has_room_for_prefixes());
    drop((index, body));
    assert!(Kind::ALL.iter().all(|kind| budget.used(*kind) == 0));
}

#[test]
fn joined_reservations_count_as_one() {
    let budget = budget(100);
    let (mut held, mut other) = (bodies(&budget), bodies(&budget));
    held.grow_to(70, any).unwrap();
    other.grow_to(20, any).unwrap();
    held.join(other);
    assert_eq!((held.bytes(), budget.used(Kind::Bodies)), (90, 90));
    drop(held);
    assert_eq!(budget.used(Kind::Bodies), 0);
}

#[test]
fn part_of_the_process_memory_stays_unbudgeted() {
    const MI: u64 = 1 << 20;
    // budget, what is counted, of that for prefixes
    for (bytes, limit, prefixes) in [
        (16 * MI, 4 * MI, 4 * MI / 3),
        (64 * MI, 16 * MI, 16 * MI / 3),
        (96 * MI, 48 * MI, 16 * MI),
        (192 * MI, 144 * MI, 48 * MI),
        (2048 * MI, 1536 * MI, 512 * MI),
    ] {
        let budget = Budget::of_process(bytes, None);
        assert_eq!((budget.limit(), budget.prefix_index()), (Some(limit), prefixes));
        let budget = Budget::of_process(bytes, Some(u64::MAX));
        assert_eq!(budget.prefix_index(), limit / 2, "bodies need some");
        let budget = Budget::of_process(bytes, Some(0));
        assert_eq!(budget.prefix_index(), 0);
    }
    assert_eq!(Budget::unlimited(Some(1 << 40)).prefix_index(), 1 << 40);
    let budget = Budget::default();
    assert_eq!((budget.limit(), budget.prefix_index()), (None, 512 * MI));
    let mut held = bodies(&Arc::new(budget));
    assert_eq!(held.grow_to(1 << 50, any), Ok(()));
}

/// Requests that wait, the least important first.
#[derive(Default)]
struct Waiting {
    held: Mutex<Vec<Reservation>>,
    /// Memory of requests that were refused, held for a moment longer.
    leaving: Mutex<Vec<Reservation>>,
    /// `true` if there is no such moment: theirs is given back while the others are refused.
    at_once: bool,
    asked: AtomicU64,
}

impl Waiting {
    /// Some of so many bytes each, whom the budget asks for room.
    fn start(budget: &Arc<Budget>, requests: u64, each: u64, at_once: bool) -> Arc<Self> {
        let waiting = Arc::new(Self { at_once, ..Self::default() });
        let weak = Arc::downgrade(&waiting);
        budget.shed_with(weak);
        let hold = |_| {
            let mut held = bodies(budget);
            held.grow_to(each, any).unwrap();
            held
        };
        waiting.held.lock().unwrap().extend((0..requests).map(hold));
        waiting
    }

    fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }
}

impl Sheddable for Waiting {
    fn shed(&self, bytes: u64, _: i32) -> u64 {
        self.asked.fetch_add(1, Relaxed);
        let (mut held, mut leaving) = (self.held.lock().unwrap(), self.leaving.lock().unwrap());
        let mut shed = 0;
        while shed < bytes && !held.is_empty() {
            let one = held.remove(0);
            shed += one.bytes();
            if !self.at_once {
                leaving.push(one);
            }
        }
        shed
    }
}

#[test]
fn queued_requests_are_shed_before_refusals() {
    let budget = budget(800);
    let waiting = Waiting::start(&budget, 7, 100, false);
    assert_eq!(budget.shed(), 0);
    let mut first = bodies(&budget);
    assert_eq!(first.grow_to(30, any), Ok(()));
    assert_eq!(budget.shed(), 100, "as many as bring it below seven eighths");
    assert_eq!(first.grow_to(90, any), Ok(()));
    assert_eq!((budget.shed(), waiting.asked()), (100, 1), "that is on its way");
    let mut second = bodies(&budget);
    assert_eq!(second.grow_to(30, any), Ok(()), "820 for a moment: 200 are on their way");
    assert_eq!(
        second.grow_to(70, any),
        Err(BudgetFull),
        "nothing was given back yet, and 860 would be too many"
    );
    assert_eq!(budget.shed(), 200);
    waiting.leaving.lock().unwrap().clear();
    assert_eq!(second.grow_to(70, any), Ok(()));
    assert_eq!((budget.used(Kind::Bodies), budget.shed()), (660, 200));
    // Whoever sheds may be gone.
    drop(waiting);
    assert_eq!(budget.used(Kind::Bodies), 160);
    assert_eq!(second.grow_to(700, any), Ok(()));
}

/// Requests that wait, with their priorities.
struct Ranked(Mutex<Vec<(i32, Reservation)>>);

impl Sheddable for Ranked {
    fn shed(&self, bytes: u64, highest: i32) -> u64 {
        let mut held = self.0.lock().unwrap();
        held.sort_by_key(|(priority, _)| *priority);
        let mut shed = 0;
        while shed < bytes && held.first().is_some_and(|(priority, _)| *priority <= highest) {
            shed += held.remove(0).1.bytes();
        }
        shed
    }
}

#[test]
fn only_lower_priorities_are_shed() {
    let budget = budget(800);
    let hold = |priority: i32| {
        let mut held = bodies(&budget);
        held.grow_to(100, any).unwrap();
        (priority, held)
    };
    let waiting = Arc::new(Ranked(Mutex::new([5, -1, 0, -1, 5, 0, 5].map(hold).into())));
    let weak = Arc::downgrade(&waiting);
    budget.shed_with(weak);
    let left = || waiting.0.lock().unwrap().iter().map(|(priority, _)| *priority).collect::<Vec<_>>();
    let mut low = bodies(&budget);
    assert_eq!(low.grow_to(100, || Some(-2)), Ok(()), "up to the limit there is room");
    assert_eq!(low.grow_to(101, || Some(-2)), Err(BudgetFull));
    assert_eq!(low.grow_to(101, || None), Err(BudgetFull), "nobody knows what it is");
    assert_eq!(left().len(), 7);
    assert_eq!(budget.admit(|| Some(-1)), Ok(()));
    assert_eq!(left(), [0, 0, 5, 5, 5]);
    // Of a higher priority each gets what it needs, at the cost of all below.
    let mut high = bodies(&budget);
    assert_eq!(high.grow_to(300, || Some(1)), Ok(()));
    assert_eq!(left(), [5, 5, 5]);
    assert_eq!(high.grow_to(500, || Some(1)), Err(BudgetFull));
    assert_eq!((left(), budget.shed()), (vec![5, 5, 5], 400));
}

#[test]
fn queued_requests_are_shed_in_batches() {
    let budget = budget(1600);
    let waiting = Waiting::start(&budget, 1400, 1, true);
    assert_eq!(waiting.asked(), 0);
    let mut body = bodies(&budget);
    for bytes in 1..=1000 {
        assert_eq!(body.grow_to(bytes, any), Ok(()));
    }
    // Each time it gets a sixteenth more than it needs: once for every 101 bytes.
    assert_eq!((waiting.asked(), budget.shed()), (10, 1010));
}

#[test]
fn memory_freed_while_shedding_is_used_at_once() {
    let budget = budget(800);
    let waiting = Waiting::start(&budget, 7, 100, true);
    let mut body = bodies(&budget);
    // 730 are too many by 30, and then 710 by 10.
    for (bytes, asked, used) in [(30, 1, 630), (100, 1, 700), (110, 2, 610), (210, 3, 610)] {
        assert_eq!(body.grow_to(bytes, any), Ok(()));
        assert_eq!((waiting.asked(), budget.used(Kind::Bodies)), (asked, used), "{bytes}");
    }
}

proptest! {
    /// Reservations, refusals, joins and drops in any order keep the numbers of a plain list, never above
    /// the limit, and zero in the end.
    #[test]
    fn counters_match_the_held_reservations(
        steps in prop::collection::vec((0..6usize, 0..4u8, 0..400u64), 0..80),
    ) {
        let budget = budget(1000);
        let mut held: [Option<Reservation>; 6] = Default::default();
        let mut joined = bodies(&budget);
        for (which, action, bytes) in steps {
            let others: u64 = held.iter().enumerate().filter(|(at, _)| *at != which)
                .filter_map(|(_, held)| held.as_ref()).map(Reservation::bytes).sum::<u64>()
                + joined.bytes();
            match action {
                0 => held[which] = None,
                1 => if let Some(held) = held[which].take() {
                    joined.join(held);
                },
                2 => joined = bodies(&budget),
                _ => {
                    let one = held[which].get_or_insert_with(|| bodies(&budget));
                    let before = one.bytes();
                    let fits = others + before.max(bytes) <= 1000;
                    prop_assert_eq!(one.grow_to(bytes, any).is_ok(), fits || bytes <= before);
                    prop_assert_eq!(one.bytes(), if fits { before.max(bytes) } else { before });
                }
            }
            let sum: u64 = held.iter().flatten().map(Reservation::bytes).sum::<u64>()
                + joined.bytes();
            prop_assert_eq!(budget.used(Kind::Bodies), sum);
            prop_assert!(sum <= 1000);
        }
        drop((held, joined));
        prop_assert_eq!(budget.used(Kind::Bodies), 0);
    }
}

#[test]
fn threads_at_once_never_hold_more_than_the_limit() {
    const EACH: u64 = 60;
    let budget = budget(100);
    let held = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5000 {
                    let mut one = bodies(&budget);
                    if one.grow_to(EACH, any).is_ok() {
                        let now = held.fetch_add(EACH, Relaxed) + EACH;
                        assert!(now <= 100, "{now}");
                        held.fetch_sub(EACH, Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(budget.used(Kind::Bodies), 0);
}

#[test]
fn container_memory_limit_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let of = |groups: &str| cgroup::limit_in(groups, root);
    assert_eq!(of("0::/\n"), None, "nothing is there");
    write("memory.max", "max\n");
    assert_eq!(of("0::/\n"), None);
    write("pod/memory.max", "536870912\n");
    write("pod/app/memory.max", "max\n");
    assert_eq!(of("0::/pod/app\n"), Some(512 << 20), "the group around it counts");
    write("pod/app/memory.max", "1048576\n");
    assert_eq!(of("0::/pod/app\n"), Some(1 << 20));
    write("memory.max", "4096\n");
    assert_eq!(of("0::/kubepods/elsewhere\n"), Some(4096), "a path from outside the container");
    // Version 1.
    write("memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(of("11:cpu,cpuacct:/x\n4:memory:/x\n"), None);
    write("memory/x/memory.limit_in_bytes", "123456789\n");
    assert_eq!(of("11:cpu,cpuacct:/x\n4:memory:/x\n"), Some(123_456_789));
    for nonsense in ["", "x", "::", "0:", "0::"] {
        assert!(of(nonsense).is_none_or(|limit| limit == 4096), "{nonsense:?}");
    }
}
