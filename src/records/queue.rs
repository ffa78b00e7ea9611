//! A queue of records that is read in steps.

use std::collections::VecDeque;
use std::sync::Arc;

use super::record::DecisionRecord;

/// Records that are copied in a step.
const STEP: usize = 128;

/// Records in the order in which they came. They are numbered from 0, and keep their numbers when others leave.
#[derive(Debug)]
pub(super) struct Queue<T = DecisionRecord> {
    records: VecDeque<Arc<T>>,
    /// Number of the first that is still there.
    first: usize,
}

impl<T> Queue<T> {
    pub(super) fn push_back(&mut self, record: Arc<T>) {
        self.records.push_back(record);
    }

    pub(super) fn pop_front(&mut self) -> Option<Arc<T>> {
        let record = self.records.pop_front()?;
        self.first += 1;
        Some(record)
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Copies some from this number on. Returns the number to go on with; `None`: these were the last.
    pub(super) fn copy(&self, from: usize, to: &mut Vec<Arc<T>>) -> Option<usize> {
        let last = self.first + self.len();
        let from = from.clamp(self.first, last);
        let end = (from + STEP).min(last);
        to.extend(self.records.range(from - self.first..end - self.first).cloned());
        (end < last).then_some(end)
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { records: VecDeque::new(), first: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_step_reads_on_despite_changes() {
        let mut queue = Queue::default();
        (0..2 * STEP).for_each(|number| queue.push_back(Arc::new(number)));
        let mut all = Vec::new();
        assert_eq!(queue.copy(0, &mut all), Some(STEP));
        (0..10).for_each(|_| drop(queue.pop_front()));
        (0..STEP + 10).for_each(|_| drop(queue.pop_front()));
        queue.push_back(Arc::new(2 * STEP));
        let mut next = Some(STEP);
        while let Some(from) = next {
            next = queue.copy(from, &mut all);
        }
        let expected: Vec<usize> = (0..STEP).chain(STEP + 20..=2 * STEP).collect();
        assert_eq!(all.iter().map(|number| **number).collect::<Vec<_>>(), expected);
        while queue.pop_front().is_some() {}
        assert_eq!(queue.copy(5 * STEP, &mut all), None);
    }
}
