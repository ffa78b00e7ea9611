//! Other writers of the same workloads: a controller that keeps writing its number, and another policy.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::{Value, json};

use super::cluster::WORKLOADS;
use super::server::{Server, Written};

/// Seconds between two syncs of the controller, as of a HorizontalPodAutoscaler.
const INTERVAL: u64 = 15;
/// Seconds within which two foreign writes count as another controller.
const WITHIN: u64 = 60;
/// Most writes of the picker within that time: a first one, and one after the first revert.
const MOST: usize = 3;
/// Period for the limit per hour: bursts of as many, after pauses of one minute, two, four and so on.
const LONG: u64 = 3600;
const MOST_LONG: usize = 8 * MOST;

/// Controller that wants these replicas of a role.
pub struct Rival {
    role: usize,
    replicas: u32,
    looked: u64,
    /// Times at which the picker wrote the role's replicas.
    written: Vec<u64>,
}

impl Rival {
    pub fn new(role: usize, replicas: u32) -> Self {
        Self { role, replicas, looked: 0, written: Vec::new() }
    }

    /// Forgets earlier writes, as the picker restarted.
    pub fn forget(&mut self) {
        self.written.clear();
    }

    /// Writes its number, when due.
    pub fn act(&mut self, server: &Server, now: u64) {
        if now < self.looked + INTERVAL {
            return;
        }
        self.looked = now;
        let path = WORKLOADS[self.role].path();
        let mut object = server.get(&path);
        if object["spec"]["replicas"] != self.replicas {
            object["spec"]["replicas"] = json!(self.replicas);
            server.put(&path, object);
        }
    }

    /// Checks that the picker doesn't keep reverting this writer's replicas.
    ///
    /// # Errors
    /// `TestCaseError` if the picker does.
    pub fn check(&mut self, written: &[Written], now: u64) -> Result<(), TestCaseError> {
        let path = format!("{}/scale", WORKLOADS[self.role].path());
        // What it wants itself it doesn't undo.
        let is_other =
            |write: &&Written| write.path == path && write.after["spec"]["replicas"] != self.replicas;
        self.written.extend(written.iter().filter(is_other).map(|_| now));
        self.written.retain(|at| at + LONG > now);
        let recent = self.written.iter().filter(|at| **at + WITHIN > now).count();
        let is_few = recent <= MOST && self.written.len() <= MOST_LONG;
        prop_assert!(is_few, "two writers undo each other's work: {:?}", self.written);
        Ok(())
    }
}

/// Another policy that scales `decode`.
pub fn beside() -> Value {
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "decode"});
    json!({
        "metadata": {"name": "z", "uid": "u-z", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "poolRef": {"name": "pool"},
            "mode": "Apply",
            "roles": {"decode": {"min": 2, "max": 4, "scaleTargetRef": target}},
            "total": {"metrics": [{"name": "queue_depth", "target": 4}]},
        },
    })
}
