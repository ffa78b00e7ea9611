//! Other autoscalers and owners of targets.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::capacity::policy::TargetRef;
use crate::capacity::policy::spec::group;
use crate::cluster::{Backoff, LONGEST_PAUSE, Metadata};

/// Object that scales another one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ScalerObject {
    pub(super) metadata: Metadata,
    pub(super) spec: ScalerSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ScalerSpec {
    pub(super) scale_target_ref: ScaledRef,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ScaledRef {
    api_version: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) name: String,
}

/// An autoscaler of the namespace.
#[derive(Clone, Debug)]
pub(super) struct Scaler {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) of: ScaledRef,
}

impl Scaler {
    /// Returns `true` if it scales this target. Missing fields mean a Deployment.
    pub(super) fn scales(&self, target: &TargetRef) -> bool {
        let of = &self.of;
        let is_kind = of.kind.as_deref().unwrap_or("Deployment") == target.kind;
        let is_group =
            of.api_version.as_deref().is_none_or(|version| group(version) == group(&target.api_version));
        of.name == target.name && is_kind && is_group
    }
}

/// First pause before autoscalers are listed again after an error.
const AGAIN: Duration = Duration::from_secs(1);

/// Cached autoscalers of a namespace.
#[derive(Debug)]
pub(super) struct Scalers {
    /// End of their validity.
    pub(super) until: Duration,
    /// `None` if they can't be listed.
    pub(super) known: Option<Arc<[Scaler]>>,
    /// Pauses between attempts.
    pub(super) backoff: Backoff,
}

impl Default for Scalers {
    fn default() -> Self {
        Self { until: Duration::ZERO, known: None, backoff: Backoff::new(AGAIN, LONGEST_PAUSE) }
    }
}

/// A target, the time at which its owner was read, and the result.
pub(super) type Owned = (TargetRef, Duration, Controller);

/// Controlling owner of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Absent,
    /// Kind and name.
    Is(String, String),
    /// RBAC forbids reading the target.
    Hidden,
}

/// Returns `true` if the owner of this kind of objects sets their replicas. Kinds made for autoscalers have
/// owners as well.
pub fn has_owner(target: &TargetRef) -> bool {
    match group(&target.api_version) {
        "apps" => true,
        "leaderworkerset.x-k8s.io" => target.kind == "LeaderWorkerSet",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn autoscaler_is_matched_by_its_target() {
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
