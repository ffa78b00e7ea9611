//! Numbers in place of hashes.

use std::collections::HashMap;

use usher_core::recording::BlockRun;

/// Numbers of hashes, in the order in which these are first seen, from 0. A number stands for one hash as long as that
/// is among the last `most` of them, and is never given to another one. Memory is bounded: two tables of that size take
/// turns.
#[derive(Debug)]
pub(super) struct Numbers {
    young: HashMap<u64, u64>,
    old: HashMap<u64, u64>,
    most: usize,
    next: u64,
}

impl Numbers {
    /// Numbers for at least so many hashes at a time, at most twice as many.
    pub(super) fn new(most: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), most: most.max(1), next: 0 }
    }

    /// The number of a hash.
    pub(super) fn of(&mut self, hash: u64) -> u64 {
        if let Some(number) = self.young.get(&hash) {
            return *number;
        }
        let number = self.old.get(&hash).copied().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        if self.young.len() >= self.most {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, number);
        number
    }

    /// The numbers of these hashes, as runs of consecutive ones.
    pub(super) fn runs(&mut self, hashes: &[u64]) -> Vec<BlockRun> {
        let mut runs: Vec<BlockRun> = Vec::new();
        for hash in hashes {
            let number = self.of(*hash);
            match runs.last_mut() {
                Some((first, count)) if *first + u64::from(*count) == number => *count += 1,
                _ => runs.push((number, 1)),
            }
        }
        runs
    }

    /// Bytes that the tables take, about.
    pub(super) fn bytes(&self) -> u64 {
        // A key, a value and a byte of control, in tables that are up to seven eighths full.
        (self.young.capacity() + self.old.capacity()) as u64 * 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_prefixes_are_equal_runs() {
        let mut numbers = Numbers::new(100);
        assert_eq!(numbers.runs(&[70, 80, 90]), [(0, 3)]);
        assert_eq!(numbers.runs(&[70, 80, 91, 92]), [(0, 2), (3, 2)]);
        assert_eq!(numbers.runs(&[70, 80, 91, 92]), [(0, 2), (3, 2)]);
        assert_eq!(numbers.runs(&[]), []);
    }

    #[test]
    fn tables_are_bounded_and_numbers_are_not_reused() {
        let mut numbers = Numbers::new(10);
        for hash in 0..1000 {
            assert_eq!(numbers.of(hash), hash);
            assert_eq!(numbers.of(0), 0, "what is used stays");
        }
        assert!(numbers.young.len() + numbers.old.len() <= 20);
        assert_eq!(numbers.of(1), 1000, "forgotten, so it is a new one");
    }
}
