//! Updates of policies, and their effects on the driver.

use std::sync::Arc;

use tokio::sync::watch;
use tracing::{info, warn};

use super::Driver;
use super::lookups::Lookups;
use crate::actuator::Owner;
use crate::capacity::policy::TargetRef;
use crate::scaling::file::{FileChange, joined};
use crate::scaling::groups::Groups;
use crate::scaling::objects::{self, Changed, Known};

/// Sends a value, if it has changed.
fn replace<T: PartialEq>(sender: &watch::Sender<T>, now: T) {
    sender.send_if_modified(|before| {
        let is_new = *before != now;
        *before = now;
        is_new
    });
}

impl Driver {
    /// Applies a changed policy file.
    pub(super) async fn apply_file(&mut self, change: FileChange, name: &str) {
        let groups = change
            .and_then(|text| Groups::read(&text, &self.sources).map_err(|errors| joined(&errors, name)));
        match groups {
            Ok(groups) => {
                let policies = groups.groups.len();
                self.take(groups);
                self.read().await;
                info!(policies, file = name, "capacity policies read");
                self.metrics.reloaded(true);
            }
            Err(error) => {
                warn!(error, "invalid capacity policies, keeping the last valid ones");
                self.metrics.reloaded(false);
            }
        }
    }

    /// Applies changed objects. `lookups` receives the topologies to follow, and the targets whose owners to
    /// find.
    pub(super) async fn apply_objects(&mut self, update: objects::ObjectUpdate, lookups: &Lookups) {
        match self.policy_store.apply(update) {
            Changed::Nothing => {}
            Changed::Status => {
                self.objects = self.policy_store.known().into();
                self.put();
            }
            Changed::Policies => {
                replace(&lookups.topologies, self.policy_store.wanted_topologies());
                replace(&lookups.owners, self.policy_store.targets_of_any_pool());
                self.settle().await;
            }
        }
    }

    /// Applies resolved owners of targets without `poolRef`.
    pub(super) async fn apply_owners(&mut self, owners: Vec<(TargetRef, Owner)>) {
        if self.policy_store.note_owners(owners) {
            self.settle().await;
        }
    }

    /// Validates the policies, and ticks those in force.
    async fn settle(&mut self) {
        let groups = self.policy_store.settle(&self.sources);
        let known: Arc<[Known]> = self.policy_store.known().into();
        for policy in known.iter() {
            let before = self.objects.iter().find(|before| before.uid == policy.uid);
            if before.is_none_or(|before| before.verdict != policy.verdict) {
                let (name, reason, why) = (&policy.name, policy.verdict.reason, &policy.verdict.message);
                if policy.verdict.is_accepted {
                    info!(policy = name, reason, why, "capacity policy accepted");
                } else {
                    warn!(policy = name, reason, why, "capacity policy rejected");
                }
            }
        }
        self.objects = known;
        self.take(groups);
        self.read().await;
    }
}
