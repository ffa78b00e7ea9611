//! Autoscalers that are there for what a policy scales: found before the first write.

use std::time::Duration;

use serde::Deserialize;

use super::hands::Hands;
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

/// The autoscalers of a namespace, and when they were asked for.
pub(super) type Scalers = Option<(Duration, Vec<Scaler>)>;

impl Hands {
    /// Which autoscaler is there for one of these targets, in words; `None`: none is. One that may not be
    /// looked for may be there.
    pub(super) async fn other_scaler<'t>(
        &mut self,
        targets: impl Iterator<Item = &'t Target>,
        now: Duration,
    ) -> Option<String> {
        if self.scalers.as_ref().is_none_or(|(at, _)| now.saturating_sub(*at) >= KNOWN) {
            match self.list_scalers().await {
                Ok(found) => {
                    self.works("autoscalers");
                    self.scalers = Some((now, found));
                }
                Err(problem) => {
                    self.complain("autoscalers", &problem);
                    self.scalers = None;
                    return Some("autoscalers can't be looked for".to_owned());
                }
            }
        }
        let (_, known) = self.scalers.as_ref()?;
        let mut targets = targets.map(|target| &target.reference);
        targets.find_map(|target| {
            let found = known.iter().find(|scaler| scaler.scales(target))?;
            Some(format!("{} '{}' scales {} {}", found.kind, found.name, target.kind, target.name))
        })
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
