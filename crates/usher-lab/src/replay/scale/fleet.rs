//! Pods as they come and go, and what they cost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Stage of a pod's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Starting.
    Starting,
    /// Takes requests, as the server with this number.
    Serving(usize),
    /// Finishes its requests and takes no more.
    Leaving(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pod {
    /// Since when it costs.
    since: Duration,
    stage: Stage,
}

/// The pods of one role. They are numbered in the order in which they were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::replay) struct Fleet {
    /// Time that a pod starts.
    start: Duration,
    /// Until then pods cost.
    until: Duration,
    pods: BTreeMap<u64, Pod>,
    next: u64,
    /// Numbers of servers that are free, and how many there are.
    free: BTreeSet<usize>,
    numbers: usize,
    /// Cost of the pods that are gone, in pod time.
    spent: Duration,
    changes: u32,
    reversals: u32,
    /// Direction of the last change: `true` for more.
    grew: Option<bool>,
    largest: u32,
}

/// Effects of a change of size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::replay) struct Change {
    /// Pods that begin to start, and when they will serve.
    pub(in crate::replay) started: Vec<(u64, Duration)>,
    /// Servers that take no more requests.
    pub(in crate::replay) left: Vec<usize>,
}

impl Fleet {
    /// Fleet of `size` pods that serve already. Pods cost until `until`.
    pub(in crate::replay) fn new(size: u32, start: Duration, until: Duration) -> Self {
        let pod = |number: u32| Pod { since: Duration::ZERO, stage: Stage::Serving(number as usize) };
        Self {
            start,
            until,
            pods: (0..size).map(|number| (u64::from(number), pod(number))).collect(),
            next: u64::from(size),
            free: BTreeSet::new(),
            numbers: size as usize,
            spent: Duration::ZERO,
            changes: 0,
            reversals: 0,
            grew: None,
            largest: size,
        }
    }

    /// Number of pods that there should be: those that serve and those that start.
    pub(in crate::replay) fn asked(&self) -> u32 {
        self.count(|stage| !matches!(stage, Stage::Leaving(_)))
    }

    /// Number of pods that start.
    pub(in crate::replay) fn starting(&self) -> u32 {
        self.count(|stage| stage == Stage::Starting)
    }

    fn count(&self, is: impl Fn(Stage) -> bool) -> u32 {
        self.pods.values().fold(0, |sum, pod| sum + u32::from(is(pod.stage)))
    }

    /// Pods that take requests, each with the number of its server.
    pub(in crate::replay) fn serving(&self) -> impl Iterator<Item = (u64, usize)> {
        self.pods.iter().filter_map(|(pod, Pod { stage, .. })| match stage {
            Stage::Serving(number) => Some((*pod, *number)),
            _ => None,
        })
    }

    /// Changes the size. Of pods that are too many, those that start go first, then the youngest,
    /// as a ReplicaSet has it.
    pub(in crate::replay) fn resize(&mut self, size: u32, now: Duration) -> Change {
        let (asked, mut change) = (self.asked(), Change::default());
        if size == asked {
            return change;
        }
        let grows = size > asked;
        self.changes += 1;
        self.reversals += u32::from(self.grew.is_some_and(|grew| grew != grows));
        self.grew = Some(grows);
        self.largest = self.largest.max(size);
        for _ in asked..size {
            change.started.push((self.next, now + self.start));
            self.pods.insert(self.next, Pod { since: now, stage: Stage::Starting });
            self.next += 1;
        }
        for _ in size..asked {
            let youngest = |is: fn(&Stage) -> bool| {
                self.pods.iter().rev().find(|(_, pod)| is(&pod.stage)).map(|(number, _)| *number)
            };
            let found = youngest(|stage| *stage == Stage::Starting)
                .or_else(|| youngest(|stage| matches!(stage, Stage::Serving(_))));
            let Some((pod, found)) = found.and_then(|pod| self.pods.get_mut(&pod).map(|found| (pod, found)))
            else {
                break;
            };
            if let Stage::Serving(server) = found.stage {
                found.stage = Stage::Leaving(server);
                change.left.push(server);
            } else {
                self.end(pod, now);
            }
        }
        change
    }

    /// A pod's start is over: the number of its server, unless it was taken back.
    pub(in crate::replay) fn comes_up(&mut self, pod: u64) -> Option<usize> {
        let found = self.pods.get_mut(&pod).filter(|pod| pod.stage == Stage::Starting)?;
        let number = self.free.pop_first().unwrap_or_else(|| {
            self.numbers += 1;
            self.numbers - 1
        });
        found.stage = Stage::Serving(number);
        Some(number)
    }

    /// Returns `true` if this server takes no more requests.
    pub(in crate::replay) fn is_leaving(&self, server: usize) -> bool {
        self.pods.values().any(|pod| pod.stage == Stage::Leaving(server))
    }

    /// A server that was leaving has answered all that it had.
    pub(in crate::replay) fn gone(&mut self, server: usize, now: Duration) {
        let found = self.pods.iter().find(|(_, pod)| pod.stage == Stage::Leaving(server));
        if let Some(pod) = found.map(|(pod, _)| *pod) {
            self.end(pod, now);
            self.free.insert(server);
        }
    }

    fn end(&mut self, pod: u64, now: Duration) {
        if let Some(pod) = self.pods.remove(&pod) {
            self.spent += self.cost(&pod, now);
        }
    }

    fn cost(&self, pod: &Pod, now: Duration) -> Duration {
        now.min(self.until).saturating_sub(pod.since)
    }

    /// Seconds that all pods cost together, from when each was asked for until it was gone.
    pub(in crate::replay) fn pod_seconds(&self) -> f64 {
        let there = self.pods.values().map(|pod| self.cost(pod, self.until)).sum::<Duration>();
        (self.spent + there).as_secs_f64()
    }

    /// Number of changes of the size.
    pub(in crate::replay) fn changes(&self) -> u32 {
        self.changes
    }

    /// Number of changes in the opposite direction of the one before.
    pub(in crate::replay) fn reversals(&self) -> u32 {
        self.reversals
    }

    /// The largest size that was asked for.
    pub(in crate::replay) fn largest(&self) -> u32 {
        self.largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn pods_cost_from_creation_to_deletion() {
        let mut fleet = Fleet::new(1, S(120), S(1000));
        let change = fleet.resize(3, S(100));
        assert_eq!(change.started, [(1, S(220)), (2, S(220))]);
        assert_eq!((fleet.asked(), fleet.starting(), fleet.serving().count()), (3, 2, 1));
        assert_eq!((fleet.comes_up(1), fleet.comes_up(2)), (Some(1), Some(2)));
        // The youngest goes, and costs until it has answered everybody.
        assert_eq!(fleet.resize(2, S(500)).left, [2]);
        assert!(fleet.is_leaving(2) && fleet.asked() == 2);
        fleet.gone(2, S(550));
        assert_eq!(fleet.pod_seconds(), 1000.0 + 900.0 + 450.0);
        assert_eq!((fleet.changes(), fleet.reversals(), fleet.largest()), (2, 1, 3));
        // Its server's number is free again.
        fleet.resize(3, S(600));
        assert_eq!(fleet.comes_up(3), Some(2));
        fleet.resize(2, S(990));
        fleet.gone(2, S(2000));
        assert_eq!(fleet.pod_seconds(), 2350.0 + 400.0, "nothing counts after the end");
    }

    #[test]
    fn starting_pods_are_removed_first() {
        let mut fleet = Fleet::new(2, S(120), S(1000));
        fleet.resize(4, S(0));
        let change = fleet.resize(1, S(60));
        assert_eq!(change, Change { started: Vec::new(), left: vec![1] });
        assert_eq!((fleet.comes_up(2), fleet.comes_up(3)), (None, None));
        assert_eq!((fleet.asked(), fleet.starting()), (1, 0));
        fleet.gone(1, S(60));
        fleet.gone(0, S(60));
        assert_eq!(fleet.asked(), 1, "it was not leaving");
        assert_eq!(fleet.pod_seconds(), 1000.0 + 60.0 + 2.0 * 60.0);
        assert_eq!(fleet.resize(1, S(70)), Change::default());
        assert_eq!((fleet.changes(), fleet.reversals()), (2, 1));
        assert_eq!(fleet.resize(0, S(80)).left, [0]);
    }
}
