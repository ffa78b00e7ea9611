//! Finds the pool of each target of policies without `poolRef`, in a task of its own: a slow API server
//! delays no tick.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::kinds::Kinds;
use super::owner_refs::{LABELS, equalities, is_of, within};
use super::pods::PodObject;
use super::state::Actuator;
use crate::capacity::policy::TargetRef;
use crate::cluster::{Backoff, Cluster, Collection, Problem};

/// Time for which responses are cached.
const KNOWN: Duration = Duration::from_secs(60);

/// First pause before a failed request is repeated.
const UNKNOWN: Duration = Duration::from_secs(3);

/// Pool that a target's pods belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This picker's pool.
    Ours,
    /// Another pool.
    Other,
    /// Unknown, with the reason.
    Unknown(String),
}

/// Resolver of the pools of targets.
#[derive(Debug)]
pub struct Owners {
    cluster: Cluster,
    namespace: String,
    pool: watch::Receiver<Option<String>>,
    kinds: Kinds,
}

impl Actuator {
    /// Resolver of the pools of this namespace's targets.
    pub fn owners(&self) -> Owners {
        Owners {
            cluster: self.watched.clone(),
            namespace: self.namespace.clone(),
            pool: self.pool.clone(),
            kinds: Kinds::default(),
        }
    }
}

impl Owners {
    /// Reports the owners of all wanted targets, again when the targets or the pool change, and periodically.
    /// Ends when the channels are closed.
    pub async fn follow<M>(
        mut self,
        mut wanted: watch::Receiver<Vec<TargetRef>>,
        sender: mpsc::Sender<M>,
        update: impl Fn(Vec<(TargetRef, Owner)>) -> M,
    ) {
        let mut backoff = Backoff::new(UNKNOWN, KNOWN);
        loop {
            let targets = wanted.borrow_and_update().clone();
            let pool = self.pool.borrow_and_update().clone();
            let mut pause = KNOWN;
            if let Some(pool) = pool.filter(|_| !targets.is_empty()) {
                let mut known = Vec::with_capacity(targets.len());
                for target in targets {
                    let owner = self.ask(&target, &pool).await;
                    known.push((target, owner));
                }
                if known.iter().any(|(_, owner)| matches!(owner, Owner::Unknown(_))) {
                    pause = backoff.next(&mut rand::rng());
                }
                if sender.send(update(known)).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                changed = wanted.changed() => match changed {
                    Ok(()) => backoff.reset(),
                    Err(_) => return,
                },
                Ok(()) = self.pool.changed() => backoff.reset(),
            }
        }
    }

    async fn ask(&mut self, target: &TargetRef, pool: &str) -> Owner {
        match self.owner(target, pool).await {
            Ok(owner) => owner,
            Err(problem) => {
                self.kinds.forget(target);
                Owner::Unknown(format!("{} '{}': {problem}", target.kind, target.name))
            }
        }
    }

    async fn owner(&mut self, target: &TargetRef, pool: &str) -> Result<Owner, Problem> {
        let said = |is_ours| if is_ours { Owner::Ours } else { Owner::Other };
        let kind = self.kinds.of(&self.cluster, target).await?;
        let path = kind.path(&self.namespace, &target.name);
        if kind.has_scale
            && let Some(scale) = readable(self.cluster.get(&format!("{path}/scale")).await)?
        {
            // Labels that its pods have at least.
            let selector = scale.pointer("/status/selector").and_then(Value::as_str).unwrap_or_default();
            let labels = equalities(selector).unwrap_or_default();
            if let Some(is_within) = within(pool, |key| labels.get(key).copied(), false) {
                return Ok(said(is_within));
            }
        }
        if let Some(object) = readable(self.cluster.get(&path).await)? {
            let labels = LABELS.iter().find_map(|pointer| object.pointer(pointer));
            let label = |key: &str| labels?.get(key)?.as_str();
            if let Some(is_within) = labels.and_then(|_| within(pool, label, true)) {
                return Ok(said(is_within));
            }
        }
        let has_pods = async |labels: &str| {
            let pods = Collection::new("", "v1", &self.namespace, "pods").with_labels(labels);
            let (pods, _) = self.cluster.list::<PodObject>(&pods).await?;
            Ok::<bool, Problem>(pods.iter().any(|pod| is_of(pod, target) == Some(true)))
        };
        if has_pods(pool).await? {
            return Ok(Owner::Ours);
        }
        // A pool with an empty selector has all pods.
        if !pool.is_empty() && has_pods("").await? {
            return Ok(Owner::Other);
        }
        let TargetRef { kind, name, .. } = target;
        Ok(Owner::Unknown(format!(
            "{kind} '{name}': can't determine the pool of its pods: there are none, and its labels are unreadable or inconclusive; set spec.poolRef"
        )))
    }
}

/// Object; `None` if RBAC forbids reading it, as other objects may decide.
fn readable(read: Result<Value, Problem>) -> Result<Option<Value>, Problem> {
    match read {
        Ok(object) => Ok(Some(object)),
        Err(Problem::Denied(_)) => Ok(None),
        Err(problem) => Err(problem),
    }
}
