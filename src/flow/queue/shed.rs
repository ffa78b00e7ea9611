//! Sheds waiting requests when memory is short.

use std::cmp::Reverse;

use super::{Action, Count, Nanos, Outcome, Queue};

impl Queue {
    /// Refuses requests that wait until what they hold comes to so many bytes, or none is left
    /// that holds any and has at most this priority: of the lowest band first, within a band the
    /// newest first, as it waited least. Looks at all requests, so whoever calls this asks for a
    /// lump of bytes, not for those of one request.
    pub fn shed(&mut self, now: Nanos, bytes: u64, highest: i32, actions: &mut Vec<Action>) -> Count {
        // Those who must not push others out come with every chunk that they bring.
        if !self.bands.iter().any(|band| band.priority <= highest && band.waiting.requests > 0) {
            return Count::default();
        }
        let mut victims: Vec<_> = self
            .requests
            .waiting()
            .filter(|(_, held)| held.priority <= highest && held.bytes + held.beside > 0)
            .map(|(slot, held)| (held.priority, Reverse((held.since, held.rank.sequence())), slot))
            .collect();
        victims.sort_unstable();
        let mut freed = Count::default();
        for (.., slot) in victims {
            if freed.bytes >= bytes {
                break;
            }
            let Some((_, held)) = self.requests.at(slot) else { continue };
            freed += Count::one(held.bytes + held.beside);
            self.expiry.remove(slot, held);
            self.refuse(now, slot, Outcome::EvictedQueuePressure, actions);
        }
        freed
    }
}
