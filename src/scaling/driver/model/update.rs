//! Controllers of workloads, with rolling updates.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::cluster::{is_ready, ordinal, revision};

/// Revisions of the workloads' templates.
pub struct Revisions {
    /// Newest revision.
    pub newest: u32,
    /// Revision of StatefulSet pods below the partition.
    before: u32,
    /// Pods of each ReplicaSet of the Deployment, by revision.
    sets: BTreeMap<u32, usize>,
}

/// Actions of a controller.
#[derive(Default)]
pub struct Turn {
    /// Pods to delete, and whether for an update.
    pub deletes: Vec<(Arc<Value>, bool)>,
    /// Ordinals, if any, and revisions of pods to create.
    pub creates: Vec<(Option<u64>, u32)>,
}

fn wanted(workload: &Value) -> usize {
    workload["spec"]["replicas"].as_u64().unwrap() as usize
}

impl Revisions {
    pub fn new(replicas: [u32; 2]) -> Self {
        Self { newest: 0, before: 0, sets: BTreeMap::from([(0, replicas[0] as usize)]) }
    }

    /// Sync of a StatefulSet with parallel pod management: pods from the partition on are replaced, highest
    /// ordinal first, each when those above it are ready.
    pub fn stateful_set(&mut self, workload: &Value, pods: &[Arc<Value>]) -> Turn {
        let (mut turn, wanted) = (Turn::default(), wanted(workload) as u64);
        let partition = workload.pointer("/spec/updateStrategy/rollingUpdate/partition");
        let partition = partition.and_then(Value::as_u64).unwrap_or(0);
        // It goes by numbers, also where one is missing.
        let (goes, mut stays): (Vec<_>, Vec<_>) =
            pods.iter().cloned().partition(|pod| ordinal(pod) >= wanted);
        turn.deletes.extend(goes.into_iter().map(|pod| (pod, false)));
        let missing = (0..wanted).filter(|number| stays.iter().all(|pod| ordinal(pod) != *number));
        let revision_of = |number: u64| if number < partition { self.before } else { self.newest };
        turn.creates.extend(missing.map(|number| (Some(number), revision_of(number))));
        stays.sort_by_key(|pod| std::cmp::Reverse(ordinal(pod)));
        if !turn.creates.is_empty() {
            return turn;
        }
        for pod in stays.iter().filter(|pod| ordinal(pod) >= partition) {
            if revision(pod) != self.newest {
                turn.deletes.push((Arc::clone(pod), true));
                turn.creates.push((Some(ordinal(pod)), self.newest));
                break;
            }
            if !is_ready(pod) {
                break;
            }
        }
        if stays.iter().all(|pod| revision(pod) == self.newest) {
            self.before = self.newest;
        }
        turn
    }

    /// Sync of a Deployment without surge, of which one pod may be unavailable. `pods` are in the order of
    /// deletion.
    pub fn deployment(&mut self, workload: &Value, pods: &[Arc<Value>]) -> Turn {
        let (mut turn, wanted) = (Turn::default(), wanted(workload));
        let is_paused = workload["spec"].get("paused").is_some_and(|paused| *paused == true);
        let mut pods = pods.to_vec();
        if !is_paused || self.sets.is_empty() {
            self.sets.entry(self.newest).or_default();
        }
        let is_updating = self.sets.len() > 1;
        while self.sets.values().sum::<usize>() > wanted {
            // Pods that aren't there yet go first, then those that are the first to be deleted.
            let there = |of: u32, pods: &[Arc<Value>]| pods.iter().filter(|pod| revision(pod) == of).count();
            let missing = self.sets.iter().find(|(of, count)| there(**of, &pods) < **count);
            let of = match missing {
                Some((of, _)) => *of,
                None => {
                    let goes = pods.remove(0);
                    turn.deletes.push((Arc::clone(&goes), false));
                    revision(&goes)
                }
            };
            *self.sets.get_mut(&of).unwrap() -= 1;
        }
        let sum = self.sets.values().sum::<usize>();
        *self.sets.values_mut().next_back().unwrap() += wanted - sum;
        let unready =
            |of: &dyn Fn(u32) -> bool| pods.iter().filter(|pod| of(revision(pod)) && !is_ready(pod)).count();
        let newest = self.newest;
        let new = self.sets.get(&newest).copied().unwrap_or(0);
        let new_missing = new.saturating_sub(pods.iter().filter(|pod| revision(pod) == newest).count());
        if is_updating && !is_paused && unready(&|of| of == newest) + new_missing == 0 {
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            let may_go = |pod: &&Arc<Value>| revision(pod) != newest && (!is_ready(pod) || ready >= wanted);
            if let Some(goes) = pods.iter().find(may_go).cloned() {
                *self.sets.get_mut(&revision(&goes)).unwrap() -= 1;
                *self.sets.get_mut(&newest).unwrap() += 1;
                pods.retain(|pod| !Arc::ptr_eq(pod, &goes));
                turn.deletes.push((goes, true));
            }
        }
        for (of, count) in &self.sets {
            let there = pods.iter().filter(|pod| revision(pod) == *of).count();
            turn.creates.extend((there..*count).map(|_| (None, *of)));
        }
        self.sets.retain(|of, count| *of == newest || *count > 0);
        turn
    }
}
