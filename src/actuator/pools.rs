//! Pools of a namespace, for tools that handle all of its policies.

use std::collections::BTreeMap;

use super::owner_refs::{is_of_role, within};
use super::pods::PodObject;
use crate::capacity::policy::TargetRef;
use crate::cluster::{Cluster, Collection, Problem};
use crate::discovery::kubernetes::types::{InferencePool, POOL_GROUP, POOL_VERSION};

/// Label selectors of the namespace's pools, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools(BTreeMap<String, String>);

impl Pools {
    /// Lists the pools of a namespace; none if the kind isn't defined.
    ///
    /// # Errors
    /// `Problem` if the pools can't be listed.
    pub async fn list(cluster: &Cluster, namespace: &str) -> Result<Self, Problem> {
        let pools = Collection::new(POOL_GROUP, POOL_VERSION, namespace, "inferencepools");
        match cluster.list::<InferencePool>(&pools).await {
            Ok((found, _)) => Ok(found
                .into_iter()
                .map(|pool| (pool.metadata.name, pool.spec.selector.to_query()))
                .collect()),
            Err(Problem::NotFound(_)) => Ok(Self::default()),
            Err(problem) => Err(problem),
        }
    }

    /// Label selectors of pods that a policy may act on: those of its pool, or of any pool if it names none.
    /// Empty: unknown, as a picker with its own selector may apply it.
    pub fn of(&self, named: Option<&str>) -> Vec<String> {
        match named {
            Some(name) => self.0.get(name).into_iter().cloned().collect(),
            None => self.0.values().cloned().collect(),
        }
    }
}

impl FromIterator<(String, String)> for Pools {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pools: I) -> Self {
        Self(pools.into_iter().collect())
    }
}

/// Returns `true` if a role may have this pod, as pickers decide it: by its labels, its controller, and the
/// selectors of pools. No selectors: any pool.
pub fn may_have(
    selector: &BTreeMap<String, String>,
    target: Option<&TargetRef>,
    pools: &[String],
    pod: &PodObject,
) -> bool {
    let label = |key: &str| pod.metadata.labels.get(key).map(String::as_str);
    let is_in = |pool: &String| within(pool, label, true) != Some(false);
    is_of_role(pod, selector, target) && (pools.is_empty() || pools.iter().any(is_in))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::actuator::pods::tests::pod;

    #[test]
    fn a_role_has_pods_of_its_pool_and_its_target_only() {
        let pools = [("a", "app=a"), ("b", "app=b"), ("empty", "")];
        let pools: Pools =
            pools.map(|(name, labels)| (name.to_owned(), labels.to_owned())).into_iter().collect();
        let selector = BTreeMap::from([("role".to_owned(), "decode".to_owned())]);
        let target = TargetRef {
            api_version: "apps/v1".to_owned(),
            kind: "StatefulSet".to_owned(),
            name: "a".to_owned(),
            replicas_path: None,
        };
        let of = |app: &str, owner: &str| {
            let owners =
                json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "controller": true}]);
            pod(
                json!({"metadata": {"name": "x", "labels": {"app": app, "role": "decode"}, "ownerReferences": owners}}),
            )
        };
        for (named, app, owner, expected) in [
            (Some("a"), "a", "a", true),
            (Some("a"), "b", "a", false),
            (Some("a"), "a", "b", false),
            (Some("empty"), "c", "a", true),
            (Some("unknown"), "c", "a", true),
            (None, "b", "a", true),
            (None, "b", "b", false),
        ] {
            let found = may_have(&selector, Some(&target), &pools.of(named), &of(app, owner));
            assert_eq!(found, expected, "{named:?} {app} {owner}");
        }
        assert!(!may_have(&selector, None, &["app=a".to_owned()], &of("c", "a")));
    }
}
