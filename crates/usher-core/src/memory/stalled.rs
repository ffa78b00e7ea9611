//! Streams whose client takes no replies: those stay unsent, and what it sends stays unread.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

use tokio::task::Id;

use super::stream_state::StreamState;
use super::unread::Unread;
use super::{Budget, Kind, Windows};

/// Three quarters of what HTTP/2 lets unread small frames of a connection [charge](Unread::add_small).
const MOST_SMALL: u64 = Windows::LARGEST.connection as u64 / 8 * 3;

impl Budget {
    /// Looks at streams while data is unread or memory short, and resets those that stall where unread
    /// data takes more than its share, or that and unsent replies do while memory is used up; and those of
    /// a connection that would end for its unread small frames. To be called every second.
    pub(super) fn check_replies(&self) {
        let (unread, is_full) = (self.used(Kind::Unread), self.was_full());
        if unread == 0 && !is_full && !self.is_tight() {
            return;
        }
        let connections = self.connections_with(|_| true);
        let share = self.unread_share(is_full);
        let mut unsent = 0;
        for connection in &connections {
            let mut stuck = 0;
            for stream in connection.streams.all() {
                stream.check();
                unsent += stream.unsent();
                stuck += stream.stuck();
            }
            let small = connection.small();
            if small > MOST_SMALL {
                self.end_stalled(
                    std::slice::from_ref(connection),
                    small - MOST_SMALL / 2,
                    StreamState::unread,
                );
            }
            if is_full
                && stuck > share
                && let Some(count) = self.evict(connection)
            {
                tracing::warn!(count, unsent_bytes = stuck, "connection closed: its client does not read");
            }
        }
        if is_full {
            self.end_stalled(&connections, (unread + unsent).saturating_sub(share), StreamState::held);
        } else if let Some(excess) = self.excess_unread(is_full, 1) {
            self.end_stalled(&connections, excess, StreamState::unread);
        }
        // One on which nothing arrives doesn't see by itself what its streams have read since.
        connections
            .iter()
            .filter(|connection| connection.kept() > 0)
            .for_each(|connection| connection.wake());
    }

    pub(super) fn connections_with(&self, is_meant: impl Fn(&Unread) -> bool) -> Vec<Arc<Unread>> {
        let open = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().filter(|connection| is_meant(connection)).cloned().collect()
    }

    /// The streams that these tasks run.
    pub(super) fn streams_of(&self, tasks: &HashSet<Id>) -> Vec<Arc<StreamState>> {
        let connections = self.connections_with(|_| true);
        let streams = connections.iter().flat_map(|connection| connection.streams.all());
        streams.filter(|stream| stream.task().is_some_and(|task| tasks.contains(&task))).collect()
    }

    /// Resets streams of these connections whose replies nobody takes, those that hold the most first, until so many bytes
    /// are given back, or none is left. Returns how many bytes that is, those of streams that are about to
    /// end among them.
    pub(super) fn end_stalled(
        &self,
        connections: &[Arc<Unread>],
        bytes: u64,
        held: fn(&StreamState) -> u64,
    ) -> u64 {
        let mut stalled: Vec<_> = connections
            .iter()
            .flat_map(|connection| connection.streams.all())
            .filter(|stream| stream.is_stalled() && stream.is_running())
            // Nobody gains by the end of one that only takes its replies slowly.
            .map(|stream| (stream.is_reset(), held(&stream), stream))
            .filter(|(_, held, _)| *held > 0)
            .collect();
        // Those that were reset before are about to end.
        stalled.sort_by_key(|(is_reset, held, _)| Reverse((*is_reset, *held)));
        let mut freed = 0;
        for (_, held, stream) in stalled {
            if freed >= bytes {
                break;
            }
            freed += held;
            if stream.reset() {
                self.count_refused();
            }
        }
        freed
    }
}

#[cfg(test)]
#[path = "stalled_tests.rs"]
mod tests;
