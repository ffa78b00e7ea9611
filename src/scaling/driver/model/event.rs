//! Events of the cluster, and of the picker.

use proptest::test_runner::TestCaseError;
use serde_json::{Value, json};

use super::cluster::WORKLOADS;
use super::picker::Picker;
use super::rival::{Rival, beside};
use super::server::{Fault, POLICIES, SCALERS};
use super::trial::Trial;

/// Event in the model.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Three seconds pass, this many times.
    Pass(u8),
    /// The load needs so many pods.
    Load(u32),
    /// Metrics of pods are known, or not.
    Metrics(bool),
    /// The picker restarts.
    Restart,
    /// Another writer sets the replicas of a role.
    Foreign(usize, u32),
    /// This many of the next pods never become ready.
    Duds(u32),
    /// The nodes have capacity for so many pods.
    Room(usize),
    /// All pods become ready.
    Heal,
    /// A request fails.
    Fail(u8, Fault),
    /// A pod of a role is lost.
    Lose(usize, usize),
    /// Requests wait in the picker, or not.
    Waiting(bool),
    /// The policy is paused, or not.
    Paused(bool),
    /// The policy has mode `Apply`, or `Recommend`.
    Applied(bool),
    /// The policy exists, or is deleted.
    Present(bool),
    /// An autoscaler exists for a role, or not.
    Scaler(bool),
    /// Watches are silent, or not.
    Silent(bool),
    /// The picker holds the lease, or another one does.
    Leads(bool),
    /// The picker's lease is renewed, or expires.
    Acts(bool),
    /// The workloads' pod templates change.
    Revise,
    /// Another writer keeps setting the replicas of a role, or no longer.
    Rival(Option<(usize, u32)>),
    /// Another policy scales a workload of this one while this one is applied, or none does.
    Beside(bool),
    /// A pod of a role is unready for so many seconds.
    Unready(usize, usize, u64),
    /// The policy becomes invalid, or valid.
    Refused(bool),
}

impl Trial {
    pub(super) fn write_policy(&mut self) {
        self.generation += 1;
        let path = format!("{POLICIES}/p");
        let status = self.cluster.server.get(&path)["status"].clone();
        let mut spec = self.shape.spec();
        spec["mode"] = json!(if self.applied { "Apply" } else { "Recommend" });
        spec["paused"] = json!(self.paused);
        if self.refused {
            spec["rules"] = json!([]);
            spec["total"] = json!({"metrics": [{"name": "no_such_number", "target": 1}]});
        }
        let metadata = json!({"name": "p", "uid": format!("u-p{}", self.deleted), "generation": self.generation, "creationTimestamp": "2026-01-01T00:00:00Z"});
        let mut policy = json!({"metadata": metadata, "spec": spec});
        if !status.is_null() {
            policy["status"] = status;
        }
        self.cluster.server.put(&path, if self.present { policy } else { Value::Null });
        let beside = if self.is_beside() { beside() } else { Value::Null };
        self.cluster.server.put(&format!("{POLICIES}/z"), beside);
    }

    /// Returns `true` if another policy scales a workload of this one.
    pub(super) fn is_beside(&self) -> bool {
        self.beside && self.present && self.applied && !self.paused
    }

    pub(super) async fn happen(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Pass(times) => {
                for _ in 0..times {
                    self.pass(3).await?;
                }
            }
            Event::Load(pods) => self.load = pods,
            Event::Metrics(known) => self.is_known = known,
            Event::Restart => {
                self.picker = Picker::start(&self.cluster.server, self.clock.clone());
                self.picker.set_waiting(self.waiting.into());
                self.picker.set_leads(self.leads);
                self.picker.set_acts(self.leads && self.acts);
                self.still.0 = self.cluster.now;
                self.unready = None;
                self.has_version = !self.refused;
                self.rival.iter_mut().for_each(Rival::forget);
            }
            Event::Foreign(role, replicas) => {
                let path = WORKLOADS[role].path();
                let mut object = self.cluster.server.get(&path);
                object["spec"]["replicas"] = json!(replicas);
                self.cluster.server.put(&path, object);
            }
            Event::Duds(pods) => self.cluster.duds = pods,
            Event::Room(room) => self.cluster.set_room(room),
            Event::Heal => self.cluster.heal(),
            Event::Fail(after, fault) => self.cluster.server.fail(after, fault),
            Event::Lose(role, place) => self.cluster.lose(&WORKLOADS[role], place),
            Event::Waiting(waiting) => {
                self.waiting = waiting;
                self.picker.set_waiting(waiting.into());
            }
            Event::Paused(paused) if paused != self.paused => {
                self.paused = paused;
                self.write_policy();
            }
            Event::Applied(applied) if applied != self.applied => {
                self.applied = applied;
                self.write_policy();
            }
            Event::Present(present) if present != self.present => {
                self.present = present;
                self.deleted += u64::from(!present);
                self.write_policy();
            }
            Event::Paused(_) | Event::Applied(_) | Event::Present(_) => {}
            Event::Scaler(is_there) => {
                let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "decode"});
                let scaler = json!({"metadata": {"name": "h"}, "spec": {"scaleTargetRef": target}});
                self.cluster.server.put(&format!("{SCALERS}/h"), if is_there { scaler } else { Value::Null });
                self.scaler = is_there.then(|| self.scaler.unwrap_or(self.cluster.now));
            }
            Event::Silent(silent) => {
                self.is_silent = silent;
                self.cluster.server.set_silent(silent);
            }
            Event::Leads(leads) => {
                self.leads = leads;
                self.rival.iter_mut().for_each(Rival::forget);
                self.picker.set_leads(leads);
                self.picker.set_acts(leads && self.acts);
            }
            Event::Acts(acts) => {
                self.acts = acts;
                self.picker.set_acts(self.leads && acts);
            }
            Event::Revise => self.cluster.revise(),
            Event::Rival(rival) => self.rival = rival.map(|(role, replicas)| Rival::new(role, replicas)),
            Event::Beside(beside) if beside != self.beside => {
                self.beside = beside;
                self.write_policy();
            }
            Event::Beside(_) => {}
            Event::Unready(role, place, seconds) => self.cluster.unready(&WORKLOADS[role], place, seconds),
            Event::Refused(refused) if refused != self.refused => {
                self.refused = refused;
                self.has_version |= !refused;
                self.write_policy();
            }
            Event::Refused(_) => {}
        }
        Ok(())
    }
}
