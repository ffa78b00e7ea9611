//! Connections without streams, and which of them make room for others.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, TryLockError};

use super::unread::Unread;
use super::{Budget, Kind};

/// Open connections where the limit on [open files](super::files) isn't lower. A gateway needs one per
/// worker thread, and another for every 100 requests in progress.
pub const MAX_CONNECTIONS: usize = 16_384;

/// A connection, as it is judged.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    peer: IpAddr,
    is_idle: bool,
    since: u64,
    number: u64,
    /// Bytes or places that closing it frees, by which of the two is short.
    weight: u64,
}

/// Reports the memory of a connection.
type Weight = fn(&Unread) -> u64;

impl Candidate {
    fn of(connection: &Arc<Unread>, weight: Weight) -> Self {
        let idle = &connection.idle;
        let (peer, number, weight) = (idle.peer, idle.number, weight(connection));
        Self { peer, is_idle: connection.is_idle(), since: idle.since.load(Relaxed), number, weight }
    }
}

/// Chooses idle connections that weigh `excess` together, or all of them: one after the other the
/// longest idle of the address that has the most connections left. Each address keeps `least`.
/// Returns their places.
fn choose(open: &[Candidate], excess: u64, least: usize) -> Vec<usize> {
    let mut peers: HashMap<IpAddr, (usize, Vec<usize>)> = HashMap::new();
    for (place, connection) in open.iter().enumerate() {
        let (count, idle) = peers.entry(connection.peer).or_default();
        *count += 1;
        if connection.is_idle {
            idle.push(place);
        }
    }
    let age = |place: usize| Reverse((open[place].since, open[place].number));
    // The longest idle is the last of its address, and first among addresses with as many.
    let mut next = BinaryHeap::new();
    for (count, mut idle) in peers.into_values() {
        idle.sort_unstable_by_key(|place| age(*place));
        if let Some(oldest) = idle.pop() {
            next.push((count, age(oldest), oldest, idle));
        }
    }
    let (mut chosen, mut freed) = (Vec::new(), 0);
    while freed < excess
        && let Some((count, _, oldest, mut idle)) = next.pop()
        && count > least
    {
        freed += open[oldest].weight;
        chosen.push(oldest);
        if let Some(oldest) = idle.pop() {
            next.push((count - 1, age(oldest), oldest, idle));
        }
    }
    chosen
}

/// Connections that are to end.
#[derive(Debug, Default)]
struct Retiring {
    /// Connections that are closed gracefully from now on.
    chosen: Vec<Arc<Unread>>,
    /// Idle ones that were closed gracefully before and have no more time.
    late: Vec<Arc<Unread>>,
}

impl Retiring {
    /// The idle ones among these connections that have to go so that all others weigh less than
    /// `most`, where those that are `open` and new ones weigh `used`. A sixteenth less: it isn't to be done
    /// for every one that comes. Each address keeps `least`.
    fn of(open: &[Arc<Unread>], weight: Weight, used: u64, most: u64, least: usize) -> Self {
        let counted = open.iter().filter(|connection| connection.idle.bytes() > 0);
        let (leaving, staying): (Vec<_>, Vec<_>) = counted.partition(|connection| connection.is_leaving());
        let candidates: Vec<_> = staying.iter().map(|connection| Candidate::of(connection, weight)).collect();
        // Those that are leaving make room as well.
        let left = used.saturating_sub(leaving.iter().map(|connection| weight(connection)).sum());
        let chosen =
            if left > most { choose(&candidates, left - (most - most / 16), least) } else { Vec::new() };
        let is_urgent = used > most + most / 2;
        Self {
            chosen: chosen.into_iter().map(|place| Arc::clone(staying[place])).collect(),
            late: leaving.into_iter().filter(|one| is_urgent && one.is_idle()).cloned().collect(),
        }
    }
}

impl Budget {
    /// Ends idle connections where connections take more than an eighth of the budget, or five eighths
    /// of all places. Where there are thousands it doesn't look at all of them each time. A new one that
    /// counts so many bytes isn't among the others yet.
    pub(super) fn retire_idle(&self, new: u64) {
        let open = self.open_connections.load(Relaxed);
        let turn = self.retiring_turn.fetch_add(1, Relaxed);
        if !turn.is_multiple_of((open / 1024).max(1)) {
            return;
        }
        let most = self.process().map_or(u64::MAX, |process| process / 8);
        // Those that are being opened are among these, and make no open ones leave.
        if self.used(Kind::Connections) > most {
            // The last of an address may be all that a gateway has.
            let least = |used: u64| usize::from(used <= most.saturating_mul(2));
            self.retire(|connection| connection.idle.bytes(), new, most, least);
        }
        let many = self.many_connections();
        if open > many {
            self.retire(|connection| u64::from(connection.idle.bytes() > 0), u64::from(new > 0), many, |_| 0);
        }
    }

    fn retire(&self, weight: Weight, new: u64, most: u64, least: impl FnOnce(u64) -> usize) {
        let _one_at_a_time = match self.retiring.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        // The lock is free again when they are judged: those that open or close take it.
        let open = self.connections.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let used = open.iter().map(|connection| weight(connection)).sum::<u64>() + new;
        let Retiring { chosen, late } = Retiring::of(&open, weight, used, most, least(used));
        late.iter().for_each(|connection| connection.idle.close_now.cancel());
        chosen.iter().for_each(|connection| connection.idle.retired.cancel());
        let before = self.evicted.fetch_add(chosen.len() as u64, Relaxed);
        let count = before + chosen.len() as u64;
        // A line for each power of two: a flood must not flood the log.
        if count.checked_ilog2() != before.checked_ilog2() {
            let connections = open.len();
            tracing::warn!(
                count,
                connections,
                used,
                limit = most,
                "idle connections closed: too many, or they use too much memory"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::connection::BUFFERS;
    use super::super::{ConnectionRoom, OpenStream, TURN, Windows};
    use super::*;

    const MI: u64 = 1 << 20;
    const MANY: u64 = 10_240;

    fn peer(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn open(budget: &Arc<Budget>, last: u8) -> ConnectionRoom {
        ConnectionRoom::of_peer(budget, Windows::LARGEST, peer(last))
    }

    fn retired(rooms: &[ConnectionRoom]) -> Vec<usize> {
        (0..rooms.len()).filter(|place| rooms[*place].unread().retired().is_cancelled()).collect()
    }

    #[test]
    fn an_idle_connection_counts_its_buffers_only() {
        let budget = Arc::new(Budget::of_process(64 * MI, None));
        let mut room = open(&budget, 1);
        room.begin(0);
        assert_eq!(budget.used(Kind::Connections), BUFFERS);
        room.unread().open();
        room.begin(0);
        assert_eq!(budget.used(Kind::Connections), BUFFERS + TURN);
        drop(room);
        let mut large = open(&budget, 1);
        large.begin(64 << 10);
        assert_eq!(budget.used(Kind::Connections), BUFFERS + TURN, "of a frame that is on its way");
        drop(large);
        assert_eq!(budget.used(Kind::Connections), 0);
    }

    #[test]
    fn longest_idle_connection_is_closed_first() {
        // An eighth is 2 MiB: 64 idle connections, and a sixteenth of that are four.
        let budget = Arc::new(Budget::of_process(16 * MI, None));
        let mut rooms: Vec<_> = (0..64).map(|_| open(&budget, 1)).collect();
        let _open = OpenStream::new(rooms[0].unread());
        drop(OpenStream::new(rooms[1].unread()));
        assert_eq!((retired(&rooms), budget.evicted()), (Vec::new(), 0));
        rooms.push(open(&budget, 1));
        assert_eq!(
            retired(&rooms),
            [2, 3, 4, 5, 6],
            "not the one with a stream, nor the one that had one last"
        );
        rooms.push(open(&budget, 1));
        assert_eq!((retired(&rooms).len(), budget.evicted()), (5, 5), "there will be room");
        let all = retired(&rooms);
        assert!(
            all.iter().all(|place| !rooms[*place].unread().close_now().is_cancelled()),
            "they have time to leave"
        );
        // Nobody leaves, and more come than there is room for.
        rooms.extend((0..40).map(|_| open(&budget, 1)));
        assert!((2..7).all(|place| rooms[place].unread().close_now().is_cancelled()));
        assert!(!rooms[0].unread().is_leaving());
    }

    #[test]
    fn addresses_with_most_connections_are_closed_first() {
        let budget = Arc::new(Budget::of_process(16 * MI, None));
        let mut rooms: Vec<_> = (0..2).map(|_| open(&budget, 1)).collect();
        rooms.extend((0..300).map(|_| open(&budget, 2)));
        assert!(budget.evicted() >= 200);
        assert!(rooms[..2].iter().all(|room| !room.unread().retired().is_cancelled()));
        let v6 = ConnectionRoom::of_peer(&budget, Windows::LARGEST, "::ffff:10.0.0.2".parse().unwrap());
        assert_eq!(v6.unread().idle.peer, peer(2));
    }

    #[test]
    fn address_keeps_its_last_connection_up_to_twice_the_limit() {
        let budget = Arc::new(Budget::of_process(16 * MI, None));
        let mut rooms: Vec<_> = (0..127).map(|last| open(&budget, last)).collect();
        rooms.push(open(&budget, 7));
        assert!(retired(&rooms).is_empty());
        rooms.push(open(&budget, 200));
        assert_eq!(retired(&rooms)[..9], [0, 1, 2, 3, 4, 5, 6, 7, 8], "the longest idle of equals");
        assert!(!rooms[127].unread().retired().is_cancelled());
    }

    #[test]
    fn new_connection_is_not_closed_for_itself() {
        let budget = Arc::new(Budget::of_process(16 * MI, None));
        let rooms: Vec<_> = (0..64).map(|_| open(&budget, 1)).collect();
        let _busy: Vec<_> = rooms.iter().map(|room| OpenStream::new(room.unread())).collect();
        let new = open(&budget, 1);
        assert!(!new.unread().retired().is_cancelled());
        let _next = open(&budget, 1);
        assert!(new.unread().retired().is_cancelled(), "it does for the next one");
        assert!(retired(&rooms).is_empty());
    }

    #[test]
    fn idle_connections_are_closed_when_slots_run_out() {
        let budget = Arc::new(Budget::unlimited(None));
        let gateway = open(&budget, 1);
        let _request = OpenStream::new(gateway.unread());
        let mut rooms: Vec<_> = (1..MANY).map(|_| open(&budget, 2)).collect();
        assert_eq!(budget.evicted(), 0);
        rooms.extend((0..32).map(|_| open(&budget, 2)));
        let closed = retired(&rooms);
        assert!(
            closed.len() as u64 > MANY / 16 && closed[..8] == [0, 1, 2, 3, 4, 5, 6, 7],
            "{}",
            closed.len()
        );
        let closing = |rooms: &[ConnectionRoom]| {
            rooms.iter().filter(|room| room.unread().close_now().is_cancelled()).count()
        };
        assert_eq!(closing(&rooms), 0, "they have time to leave");
        // Nobody leaves.
        rooms.extend((0..MANY / 2).map(|_| open(&budget, 2)));
        assert!(closing(&rooms) as u64 > MANY / 16);
        assert!(rooms.len() < MAX_CONNECTIONS && !gateway.unread().is_leaving());
    }

    #[test]
    fn opening_connections_close_no_open_ones() {
        let budget = Arc::new(Budget::of_process(16 * MI, None));
        let mut opening = super::super::Reservation::new(&budget, Kind::Connections);
        opening.set(2 * MI);
        let mut rooms: Vec<_> = (0..64).map(|_| open(&budget, 1)).collect();
        assert!(retired(&rooms).is_empty());
        rooms.push(open(&budget, 1));
        assert_eq!(retired(&rooms).len(), 5);
    }

    #[test]
    fn small_ports_have_their_own_connection_slots() {
        let budget = Arc::new(Budget::of_process(16 * MI, None));
        let small: Vec<_> = (0..10).map(|_| ConnectionRoom::new(&budget, Windows::SMALLEST)).collect();
        assert_eq!(budget.used(Kind::Connections), 0);
        assert_eq!(budget.used(Kind::SmallPorts), 10 * super::super::small::CONNECTION);
        let _rooms: Vec<_> = (0..200).map(|_| open(&budget, 1)).collect();
        assert!(small.iter().all(|room| !room.unread().is_leaving()));
    }
}
