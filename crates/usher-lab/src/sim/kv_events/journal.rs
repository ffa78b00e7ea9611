//! Numbers of batches, those that are kept for replays, and what faults make of them.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::sim::faults::KvEventsFault;

/// Batches that are kept for replays, as vLLM's default is.
const KEPT: usize = 10_000;

/// A batch with its number.
pub(super) type Numbered = (u64, Bytes);

/// Events published so far.
#[derive(Debug, Default)]
pub(super) struct Journal {
    next: u64,
    kept: VecDeque<Numbered>,
    fault: Option<KvEventsFault>,
    // Waits for the batch behind it, that is to come first.
    late: Option<Numbered>,
}

impl Journal {
    /// Adds a batch. Returns what is to be sent now.
    pub(super) fn add(&mut self, payload: Bytes) -> Vec<Numbered> {
        let batch = (self.next, payload);
        self.next += 1;
        self.kept.push_back(batch.clone());
        if self.kept.len() > KEPT {
            self.kept.pop_front();
        }
        match self.fault {
            Some(KvEventsFault::Drop) if batch.0 % 2 == 1 => vec![],
            Some(KvEventsFault::Silence) => vec![],
            Some(KvEventsFault::Duplicate) => vec![batch.clone(), batch],
            Some(KvEventsFault::Reorder) => match self.late.take() {
                Some(late) => vec![batch, late],
                None => {
                    self.late = Some(batch);
                    vec![]
                }
            },
            Some(KvEventsFault::Drop | KvEventsFault::Restart) | None => vec![batch],
        }
    }

    /// Changes the fault. Returns what is to be sent now.
    pub(super) fn set_fault(&mut self, fault: Option<KvEventsFault>) -> Option<Numbered> {
        self.fault = fault;
        self.late.take()
    }

    /// Begins anew.
    pub(super) fn restart(&mut self) {
        (self.next, self.late) = (0, None);
        self.kept.clear();
    }

    /// Batches from a number on, as far as they are kept. `None`: no reply.
    pub(super) fn replay(&self, from: u64) -> Option<Vec<Numbered>> {
        let replies = self.fault != Some(KvEventsFault::Silence);
        replies.then(|| self.kept.iter().filter(|(number, _)| *number >= from).cloned().collect())
    }

    /// Number of the next batch.
    pub(super) fn next(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that are sent of this many batches.
    fn sent(fault: Option<KvEventsFault>, batches: usize) -> Vec<u64> {
        let mut journal = Journal::default();
        journal.set_fault(fault);
        let sent = (0..batches).flat_map(|_| journal.add(Bytes::new())).map(|(number, _)| number).collect();
        let kept: Vec<u64> =
            journal.replay(1).unwrap_or_default().into_iter().map(|(number, _)| number).collect();
        let replies = fault != Some(KvEventsFault::Silence);
        assert_eq!(kept, (1..batches as u64).filter(|_| replies).collect::<Vec<_>>(), "{fault:?}");
        sent
    }

    #[test]
    fn faults_change_sent_but_not_kept_messages() {
        assert_eq!(sent(None, 4), [0, 1, 2, 3]);
        assert_eq!(sent(Some(KvEventsFault::Drop), 4), [0, 2]);
        assert_eq!(sent(Some(KvEventsFault::Duplicate), 2), [0, 0, 1, 1]);
        assert_eq!(sent(Some(KvEventsFault::Reorder), 5), [1, 0, 3, 2]);
        assert_eq!(sent(Some(KvEventsFault::Silence), 3), [0; 0]);
    }

    #[test]
    fn end_of_a_fault_sends_held_messages() {
        let mut journal = Journal::default();
        journal.set_fault(Some(KvEventsFault::Reorder));
        assert_eq!(journal.add(Bytes::new()), []);
        assert_eq!(journal.set_fault(None), Some((0, Bytes::new())));
        journal.restart();
        assert_eq!(journal.replay(0), Some(vec![]));
        assert_eq!(journal.add(Bytes::new()), [(0, Bytes::new())]);
    }

    #[test]
    fn journal_drops_its_oldest_messages() {
        let mut journal = Journal::default();
        (0..KEPT + 2).for_each(|_| drop(journal.add(Bytes::new())));
        let kept = journal.replay(0).unwrap();
        assert_eq!((kept.len(), kept[0].0, journal.next()), (KEPT, 2, KEPT as u64 + 2));
    }
}
