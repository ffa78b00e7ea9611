//! Streams that stall, and those that go on.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use super::super::stream_state::SLOWEST;
use super::super::{ConnectionRoom, Reservation, Unsent, Windows, watch_uploads};
use super::*;

const MI: u64 = 1 << 20;
const EACH: u64 = 256 << 10;

type Stream = (Arc<StreamState>, tokio::task::JoinHandle<()>);

/// A new stream, on which so many bytes have arrived that it hasn't read.
fn stream(room: &ConnectionRoom, bytes: u64) -> Stream {
    // Of all connections together: the numbers of one rise.
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let (connection, number) = (room.unread(), NUMBER.fetch_add(2, Relaxed));
    connection.headers_arrived(number);
    connection.data_arrived(number, bytes as i64);
    let (stream, task) = (connection.begin_stream(), tokio::spawn(std::future::pending()));
    stream.runs(task.abort_handle());
    (stream, task)
}

/// Sets the unread bytes of the connection.
fn settle(room: &mut ConnectionRoom, bytes: u64) {
    let unread = Arc::clone(room.unread());
    unread.add(bytes as i64 - unread.bytes() as i64);
    room.settle(0);
}

/// Places of the streams that were reset.
fn reset(streams: &[Stream]) -> Vec<usize> {
    (0..streams.len()).filter(|place| streams[*place].0.is_reset()).collect()
}

#[tokio::test]
async fn stalled_streams_are_reset_before_the_connection() {
    let budget = Arc::new(Budget::of_process(128 * MI, None));
    let mut room = ConnectionRoom::new(&budget, Windows::LARGEST);
    let mut streams: Vec<_> = (0..68).map(|_| stream(&room, EACH)).collect();
    settle(&mut room, 68 * EACH);
    // The first waits for its request, the second goes on.
    streams[0].0.asked(true);
    for check in 0..3 {
        streams[1].0.asked(false);
        budget.check_replies();
        assert_eq!(budget.refused() > 0, check >= 1, "{check}");
    }
    // 17 MiB are unread, of which an eighth of the budget may be.
    assert_eq!((budget.refused(), budget.evicted()), (4, 0));
    assert_eq!(reset(&streams), [2, 3, 4, 5]);
    for (_, task) in streams.drain(2..6) {
        assert!(task.await.unwrap_err().is_cancelled());
    }
    settle(&mut room, 31 * MI);
    assert_eq!((budget.refused(), budget.evicted()), (4, 0));
    // More at once than the checks can keep up with. Those that stall have 15.5 MiB.
    settle(&mut room, 33 * MI);
    assert!(budget.refused() > 30 && budget.evicted() == 0, "{}", budget.refused());
    streams.truncate(2);
    settle(&mut room, 34 * MI);
    assert_eq!(budget.evicted(), 1, "none is left that stalls");
    drop(room);
    assert_eq!(budget.used(Kind::Unread), 0);
}

#[tokio::test]
async fn streams_with_the_most_unread_data_go_first() {
    let budget = Arc::new(Budget::of_process(64 * MI, None));
    let mut room = ConnectionRoom::new(&budget, Windows::LARGEST);
    // Of the third's data two thirds are read, and the fourth only takes its replies slowly.
    let mut streams: Vec<_> = [1, 6, 9, 0, 5].map(|part| stream(&room, part * MI)).into();
    streams[2].0.read(6 * MI as i64);
    settle(&mut room, 15 * MI);
    (0..2).for_each(|_| budget.check_replies());
    // 8 MiB may be unread.
    assert_eq!(reset(&streams), [1, 4]);
    budget.check_replies();
    assert_eq!(reset(&streams), [1, 4], "those are about to end");
    for place in [4, 1] {
        assert!(streams.remove(place).1.await.unwrap_err().is_cancelled());
    }
    settle(&mut room, 17 * MI);
    assert_eq!((reset(&streams), budget.evicted()), (vec![0, 1], 1), "the last has nothing unread");
}

#[tokio::test]
async fn resumed_stream_is_not_reset() {
    let budget = Arc::new(Budget::of_process(16 * MI, None));
    let mut room = ConnectionRoom::new(&budget, Windows::LARGEST);
    let streams = [stream(&room, EACH), stream(&room, EACH)];
    settle(&mut room, MI);
    (0..2).for_each(|_| budget.check_replies());
    // Asked since, and nobody looked.
    streams[0].0.asked(false);
    settle(&mut room, 5 * MI);
    assert_eq!(reset(&streams), [1]);
}

#[tokio::test(start_paused = true)]
async fn stalled_streams_reset_after_one_second() {
    // In milliseconds.
    for timeout in [Some(40), Some(1000), Some(30_000), None] {
        let budget = Arc::new(Budget::of_process(16 * MI, None));
        let mut room = ConnectionRoom::new(&budget, Windows::LARGEST);
        let streams = [stream(&room, EACH)];
        settle(&mut room, 3 * MI);
        let timeout = timeout.map(Duration::from_millis);
        let mut watch = pin!(watch_uploads(Arc::clone(&budget), timeout));
        let _goes_on = tokio::time::timeout(Duration::from_millis(950), watch.as_mut()).await;
        assert!(reset(&streams).is_empty(), "{timeout:?}");
        let _goes_on = tokio::time::timeout(Duration::from_millis(100), watch).await;
        assert_eq!(reset(&streams), [0], "{timeout:?}");
    }
}

/// Replies of so many bytes that wait for the client of a stream.
fn unsent(stream: &Stream, bytes: u64) -> Unsent {
    let mut replies = Unsent::default();
    replies.wait(&stream.0, bytes);
    replies
}

#[tokio::test]
async fn full_memory_resets_streams_with_unread_replies() {
    let budget = Arc::new(Budget::of_process(64 * MI, None));
    let room = ConnectionRoom::new(&budget, Windows::LARGEST);
    let streams: Vec<_> = (0..4).map(|_| stream(&room, 0)).collect();
    let mut replies: Vec<_> =
        streams.iter().zip([3, 2, 1, 1]).map(|(to, size)| unsent(to, size * MI)).collect();
    // They wait for a message, and that of the last one's client comes.
    streams.iter().for_each(|(stream, _)| stream.asked(true));
    let mut held = Reservation::new(&budget, Kind::Bodies);
    held.set(budget.limit().unwrap());
    let check = |is_full: bool| {
        streams[3].0.written(SLOWEST as usize);
        // As a byte from time to time is no progress.
        streams[0].0.written(1);
        if is_full {
            let mut more = Reservation::new(&budget, Kind::Bodies);
            assert!(more.grow_to(1, || None).is_err());
        }
        budget.check_replies();
        reset(&streams)
    };
    (0..3).for_each(|_| assert!(check(false).is_empty(), "memory is only short"));
    // 2 MiB may be unsent now.
    assert_eq!(check(true), [0, 1]);
    replies.drain(..2);
    assert_eq!(check(true), [0, 1]);
    replies.push(unsent(&streams[2], MI));
    assert_eq!(check(true), [0, 1, 2]);
    replies.clear();
    assert!(streams.iter().all(|(stream, _)| stream.unsent() == 0));
}

#[tokio::test]
async fn a_connection_on_which_nothing_can_be_written_is_closed() {
    let budget = Arc::new(Budget::of_process(64 * MI, None));
    let rooms = [0, 1].map(|_| ConnectionRoom::new(&budget, Windows::LARGEST));
    let streams = rooms.each_ref().map(|room| stream(room, 0));
    let mut replies: Vec<_> = streams.iter().map(|stream| unsent(stream, 3 * MI)).collect();
    let mut held = Reservation::new(&budget, Kind::Bodies);
    held.set(budget.limit().unwrap());
    let check = || {
        let mut more = Reservation::new(&budget, Kind::Bodies);
        assert!(more.grow_to(1, || None).is_err());
        budget.check_replies();
    };
    (0..2).for_each(|_| check());
    assert_eq!(reset(&streams), [0, 1]);
    // HTTP/2 drops what the second stream had to send, and can't do so with the first.
    replies.pop();
    for (_, task) in streams {
        assert!(task.await.unwrap_err().is_cancelled());
    }
    assert_eq!(budget.evicted(), 0);
    check();
    assert_eq!(rooms.each_ref().map(|room| room.evicted().is_cancelled()), [true, false]);
    assert_eq!(budget.evicted(), 1);
}

#[tokio::test]
async fn stalled_streams_are_reset_without_a_budget() {
    let budget = Arc::new(Budget::default());
    let mut room = ConnectionRoom::new(&budget, Windows::LARGEST);
    let streams: Vec<_> = (0..33).map(|_| stream(&room, 4 * MI)).collect();
    settle(&mut room, 128 * MI);
    (0..3).for_each(|_| budget.check_replies());
    assert!(reset(&streams).is_empty());
    settle(&mut room, 132 * MI);
    budget.check_replies();
    assert_eq!(reset(&streams), [0]);
}

#[tokio::test]
async fn small_frames_reset_stalled_streams_first() {
    let budget = Arc::new(Budget::of_process(1024 * MI, None));
    let mut rooms = [0, 1].map(|_| ConnectionRoom::new(&budget, Windows::LARGEST));
    let streams: Vec<_> =
        rooms.iter().flat_map(|room| [stream(room, 7 * MI), stream(room, 7 * MI)]).collect();
    rooms.iter_mut().for_each(|room| settle(room, 14 * MI));
    // Frames of the first connection are large.
    rooms[1].unread().add_small(MOST_SMALL as i64);
    (0..3).for_each(|_| budget.check_replies());
    assert!(reset(&streams).is_empty());
    rooms[1].unread().add_small(1);
    budget.check_replies();
    assert_eq!(reset(&streams), [2]);
}

#[test]
fn log_of_closed_connections_is_bounded() {
    let budget = Arc::new(Budget::default());
    let rooms: Vec<_> = (0..1000).map(|_| ConnectionRoom::new(&budget, Windows::LARGEST)).collect();
    let counts: Vec<u64> = rooms.iter().filter_map(|room| budget.evict(room.unread())).collect();
    assert_eq!(counts, (0..10).map(|power| 1 << power).collect::<Vec<u64>>());
    assert_eq!(rooms.iter().filter_map(|room| budget.evict(room.unread())).count(), 0, "they are closed");
    assert_eq!(budget.evicted(), 1000);
}
