//! Requests of draining pods: they take time, and are lost if their pod is deleted earlier.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

/// Longest drain of a pod, if the policy allows any.
const DRAINS: u64 = 30;

/// Draining pods and their requests.
#[derive(Default)]
pub struct Requests {
    /// Start of the drain, by uid.
    since: BTreeMap<String, u64>,
    /// `true` if RBAC forbids patching pods now.
    pub is_denied: bool,
}

/// Seconds until a pod's requests have ended: some exceed the timeout.
fn seconds(uid: &str) -> u64 {
    uid.trim_start_matches('u').parse::<u64>().unwrap() * 11 % 40
}

impl Requests {
    /// Returns `true` if a pod's requests have ended.
    pub fn are_answered(&self, uid: &str, now: u64) -> bool {
        self.since.get(uid).is_some_and(|since| now - since >= seconds(uid))
    }

    /// Checks that no ready pod is deleted before its requests have ended, within the timeout.
    ///
    /// # Errors
    /// `TestCaseError` for a pod deleted before its requests have ended.
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

    /// Updates the draining pods.
    pub fn keep(&mut self, draining: BTreeSet<String>, now: u64) {
        self.since.retain(|uid, _| draining.contains(uid));
        for uid in draining {
            self.since.entry(uid).or_insert(now);
        }
    }
}
