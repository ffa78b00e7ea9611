//! Requests of pods that are about to go: they take their time, and are lost where a pod goes before that.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

/// Longest time that a pod may take to respond, where a policy gives it time for that.
const DRAINS: u64 = 30;

/// Pods that get no new requests, and what they still have.
#[derive(Default)]
pub struct Requests {
    /// Since when pods get none, by uid.
    since: BTreeMap<String, u64>,
    /// `true` if the right to choose the pods that go is missing now.
    pub is_denied: bool,
}

/// Seconds that a pod takes to answer what it has: some need more than they get.
fn seconds(uid: &str) -> u64 {
    uid.trim_start_matches('u').parse::<u64>().unwrap() * 11 % 40
}

impl Requests {
    /// Returns `true` if a pod has answered all that it had.
    pub fn are_answered(&self, uid: &str, now: u64) -> bool {
        self.since.get(uid).is_some_and(|since| now - since >= seconds(uid))
    }

    /// No pod that was ready goes before it has responded, within its limit.
    ///
    /// # Errors
    /// `TestCaseError` for a pod removed before its requests have ended.
    pub fn check(
        &self,
        now: u64,
        before: &BTreeSet<String>,
        after: &BTreeSet<String>,
    ) -> Result<(), TestCaseError> {
        if self.is_denied {
            return Ok(());
        }
        for uid in before.difference(after) {
            let (drained, takes) = (self.since.get(uid).map(|since| now - since), seconds(uid));
            prop_assert!(
                drained.is_some_and(|drained| drained > 0 && drained >= takes.min(DRAINS)),
                "{uid} goes after {drained:?} s, and takes {takes} s to respond"
            );
        }
        Ok(())
    }

    /// Takes in which pods get no new requests.
    pub fn keep(&mut self, draining: BTreeSet<String>, now: u64) {
        self.since.retain(|uid, _| draining.contains(uid));
        for uid in draining {
            self.since.entry(uid).or_insert(now);
        }
    }
}
