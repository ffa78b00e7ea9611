//! Autoscalers and owners that are there for what a policy scales: found before the first write.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::hands::Hands;
use super::pods::Meta;
use super::subject::Subject;
use super::target::Target;
use crate::capacity::policy::TargetRef;
use crate::capacity::policy::file::group;
use crate::cluster::{Collection, Problem};

/// How long an answer counts.
const KNOWN: Duration = Duration::from_secs(10);

/// What scales an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ScalerObject {
    metadata: ScalerMeta,
    spec: ScalerSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ScalerMeta {
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ScalerSpec {
    scale_target_ref: ScaledRef,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ScaledRef {
    api_version: Option<String>,
    kind: Option<String>,
    name: String,
}

/// An autoscaler of a namespace.
#[derive(Clone, Debug)]
pub(super) struct Scaler {
    kind: &'static str,
    name: String,
    of: ScaledRef,
}

impl Scaler {
    /// Whether it scales this. What it leaves out is that of a Deployment.
    fn scales(&self, target: &TargetRef) -> bool {
        let of = &self.of;
        let is_kind = of.kind.as_deref().unwrap_or("Deployment") == target.kind;
        let is_group =
            of.api_version.as_deref().is_none_or(|version| group(version) == group(&target.api_version));
        of.name == target.name && is_kind && is_group
    }
}

/// When the autoscalers of a namespace were asked for, and which there are; `None`: they can't be listed.
pub(super) type Scalers = Option<(Duration, Option<Arc<[Scaler]>>)>;

/// A target, when its owner was asked for, and the answer.
pub(super) type Owned = (TargetRef, Duration, Controller);

/// Controlling owner of a target, which sets its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Absent,
    /// Its kind and name.
    Is(String, String),
    /// The target may not be read.
    Hidden,
}

/// A workload, of which only the owners count.
#[derive(Deserialize)]
struct Workload {
    metadata: Meta,
}

/// Whether objects of this kind have the replicas that their owner writes. Kinds that are made for others to
/// scale have owners as well.
pub fn has_owner(target: &TargetRef) -> bool {
    match group(&target.api_version) {
        "apps" => true,
        "leaderworkerset.x-k8s.io" => target.kind == "LeaderWorkerSet",
        _ => false,
    }
}

impl Hands {
    /// The autoscalers of the namespace; `None`: they can't be listed. Policies that act side by side ask once.
    async fn find_scalers(&mut self, now: Duration) -> Option<Arc<[Scaler]>> {
        let shared = Arc::clone(&self.scalers);
        // Held while they are listed: the others wait for the answer.
        let mut scalers = shared.lock().await;
        if let Some((at, known)) = &*scalers
            && now.saturating_sub(*at) < KNOWN
            // Without an answer they are asked for again at the next tick.
            && (known.is_some() || *at >= now)
        {
            return known.clone();
        }
        let found = match self.list_scalers().await {
            Ok(found) => {
                self.works("autoscalers");
                Some(found.into())
            }
            Err(problem) => {
                self.complain("autoscalers", &problem);
                None
            }
        };
        *scalers = Some((self.clock.elapsed(), found.clone()));
        found
    }

    /// Which autoscaler or owner is there for one of these targets, in words; `None`: none is. An autoscaler that
    /// may not be looked for may be there; an owner that may not be seen is known by what it writes.
    pub(super) async fn other_scaler(&mut self, targets: &[&Target], now: Duration) -> Option<String> {
        let Some(known) = self.find_scalers(now).await else {
            return Some("autoscalers can't be looked for".to_owned());
        };
        let scaled = targets.iter().map(|target| &target.reference).find_map(|target| {
            let found = known.iter().find(|scaler| scaler.scales(target))?;
            Some(format!("{} '{}' scales {} {}", found.kind, found.name, target.kind, target.name))
        });
        if scaled.is_some() {
            return scaled;
        }
        for target in targets {
            let TargetRef { kind, name, .. } = &target.reference;
            match self.owner(target, now).await {
                Ok(Controller::Is(of, owner)) => {
                    return Some(format!("{of} '{owner}' controls {kind} {name}"));
                }
                Ok(Controller::Absent | Controller::Hidden) => {}
                Err(problem) => {
                    self.complain(Subject::target("the owner of ", &target.reference), &problem);
                    return Some(format!("the owner of {kind} {name} can't be looked for"));
                }
            }
        }
        None
    }

    /// Whether one of these targets may not be read, so that nobody knows its owner.
    pub(super) fn has_hidden_owner(&self, targets: &[&Target]) -> bool {
        let is_hidden = |(of, _, owner): &Owned| {
            *owner == Controller::Hidden && targets.iter().any(|target| target.reference == *of)
        };
        self.owned.iter().any(is_hidden)
    }

    /// Controlling owner of a workload.
    async fn owner(&mut self, target: &Target, now: Duration) -> Result<Controller, Problem> {
        if !has_owner(&target.reference) {
            return Ok(Controller::Absent);
        }
        let known =
            self.owned.iter().find(|(of, at, _)| *of == target.reference && now.saturating_sub(*at) < KNOWN);
        if let Some((_, _, owner)) = known {
            return Ok(owner.clone());
        }
        let owner = match self.cluster.get::<Workload>(&target.path).await {
            Ok(workload) => {
                self.works(Subject::target("the owner of ", &target.reference));
                let mut owners = workload.metadata.owner_references.into_iter();
                let owner = owners.find(|owner| owner.controller);
                owner.map_or(Controller::Absent, |owner| Controller::Is(owner.kind, owner.name))
            }
            Err(Problem::Denied(_)) => Controller::Hidden,
            Err(problem) => return Err(problem),
        };
        self.owned.retain(|(of, ..)| *of != target.reference);
        self.owned.push((target.reference.clone(), now, owner.clone()));
        Ok(owner)
    }

    async fn list_scalers(&self) -> Result<Vec<Scaler>, Problem> {
        let mut all =
            self.list_of("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler").await?;
        match self.list_of("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject").await {
            Ok(more) => all.extend(more),
            // Without KEDA there are none. Without the right the HPA is seen that KEDA makes of each.
            Err(Problem::NotFound(_) | Problem::Denied(_)) => {}
            Err(problem) => return Err(problem),
        }
        Ok(all)
    }

    async fn list_of(
        &self,
        group: &str,
        version: &str,
        plural: &str,
        kind: &'static str,
    ) -> Result<Vec<Scaler>, Problem> {
        let collection = Collection::new(group, version, &self.namespace, plural);
        let (found, _) = self.cluster.list::<ScalerObject>(&collection).await?;
        let scaler = |object: ScalerObject| Scaler {
            kind,
            name: object.metadata.name,
            of: object.spec.scale_target_ref,
        };
        Ok(found.into_iter().map(scaler).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_autoscaler_is_known_by_what_it_scales() {
        let target = TargetRef {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: "decode".to_owned(),
            replicas_path: None,
        };
        for (of, expected) in [
            (json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "decode"}), true),
            (json!({"apiVersion": "apps/v1beta1", "kind": "Deployment", "name": "decode"}), true),
            (json!({"name": "decode"}), true),
            (json!({"kind": "StatefulSet", "name": "decode"}), false),
            (json!({"apiVersion": "example.com/v1", "kind": "Deployment", "name": "decode"}), false),
            (json!({"kind": "Deployment", "name": "prefill"}), false),
        ] {
            let of = serde_json::from_value(of).unwrap();
            let scaler = Scaler { kind: "ScaledObject", name: "x".to_owned(), of };
            assert_eq!(scaler.scales(&target), expected, "{scaler:?}");
        }
    }
}
