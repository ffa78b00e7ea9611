//! Who leaves the queue when memory is short.

use std::cmp::Reverse;

use super::{Action, Count, Nanos, Outcome, Queue};

impl Queue {
    /// Refuses requests that wait until their bodies come to so many bytes, or none is left
    /// that has any: of the lowest band first, within a band the newest first, as it waited
    /// least. Looks at all requests, so whoever calls this asks for a lump of bytes, not for
    /// those of one request.
    pub fn shed(&mut self, now: Nanos, bytes: u64, actions: &mut Vec<Action>) -> Count {
        if self.waiting.bytes == 0 {
            return Count::default();
        }
        let mut victims: Vec<_> = self
            .requests
            .waiting()
            .filter(|(_, held)| held.bytes > 0)
            .map(|(slot, held)| (held.priority, Reverse((held.since, held.rank.sequence())), slot))
            .collect();
        victims.sort_unstable();
        let mut freed = Count::default();
        for (.., slot) in victims {
            if freed.bytes >= bytes {
                break;
            }
            let Some((_, held)) = self.requests.at(slot) else { continue };
            freed += Count::one(held.bytes);
            self.expiry.remove(slot, held);
            self.refuse(now, slot, Outcome::EvictedQueuePressure, actions);
        }
        freed
    }
}
