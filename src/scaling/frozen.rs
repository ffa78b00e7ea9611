//! Blocked policies, with reasons and times.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::endpoints::Clock;

/// Reasons for which policies are blocked, each with its start.
#[derive(Debug)]
pub(super) struct Frozen {
    clock: Clock,
    // By policy and reason. Taken by the driver once per tick, and by scrapes.
    since: Mutex<BTreeMap<(String, String), Duration>>,
}

impl Frozen {
    /// No policy is blocked.
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, since: Mutex::default() }
    }

    /// Sets the reasons for which a policy is blocked now.
    pub(super) fn note(&self, policy: &str, reasons: &[String]) {
        let now = self.clock.elapsed();
        let mut since = self.lock();
        since.retain(|(name, reason), _| name != policy || reasons.contains(reason));
        for reason in reasons {
            since.entry((policy.to_owned(), reason.clone())).or_insert(now);
        }
    }

    /// Forgets other policies.
    pub(super) fn keep(&self, is_kept: impl Fn(&str) -> bool) {
        self.lock().retain(|(policy, _), _| is_kept(policy));
    }

    /// Policies, reasons, and the time since each began.
    pub(super) fn all(&self) -> Vec<(String, String, Duration)> {
        let now = self.clock.elapsed();
        let since = self.lock();
        let all = since
            .iter()
            .map(|((policy, reason), since)| (policy.clone(), reason.clone(), now.saturating_sub(*since)));
        all.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, String), Duration>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_freeze_reason_has_its_own_start() {
        let clock = Clock::stopped();
        let frozen = Frozen::new(clock.clone());
        let at = |seconds, policy: &str, reasons: &[&str]| {
            clock.set(Duration::from_secs(seconds));
            let reasons: Vec<String> = reasons.iter().map(|reason| (*reason).to_owned()).collect();
            frozen.note(policy, &reasons);
            let all = frozen.all().into_iter();
            all.map(|(policy, reason, held)| format!("{policy} {reason} {}", held.as_secs()))
                .collect::<Vec<_>>()
        };
        assert_eq!(at(10, "p", &["StaleData"]), ["p StaleData 0"]);
        assert_eq!(at(15, "q", &["StaleData"]), ["p StaleData 5", "q StaleData 0"]);
        assert_eq!(
            at(20, "p", &["StaleData", "ForeignWriter"]),
            ["p ForeignWriter 0", "p StaleData 10", "q StaleData 5"]
        );
        assert_eq!(at(30, "p", &["ForeignWriter"]), ["p ForeignWriter 10", "q StaleData 15"]);
        assert_eq!(
            at(40, "p", &["StaleData", "ForeignWriter"]),
            ["p ForeignWriter 20", "p StaleData 0", "q StaleData 25"],
            "it began again"
        );
        frozen.keep(|policy| policy == "q");
        assert_eq!(at(50, "q", &[]), Vec::<String>::new());
    }
}
