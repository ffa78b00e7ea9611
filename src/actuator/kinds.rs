//! Kinds of objects as the API server defines them: their path, and whether they have a `scale` subresource.

use std::collections::HashMap;

use serde::Deserialize;

use crate::capacity::policy::TargetRef;
use crate::cluster::{Cluster, Problem};

/// Path of a kind, and its subresources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Path of the group and version, for example `/apis/apps/v1`.
    root: String,
    plural: String,
    /// `true` if its objects have a `scale` subresource.
    pub(super) has_scale: bool,
}

impl Kind {
    /// Path of an object.
    pub(super) fn path(&self, namespace: &str, name: &str) -> String {
        let Self { root, plural, .. } = self;
        format!("{root}/namespaces/{namespace}/{plural}/{name}")
    }
}

#[derive(Deserialize)]
struct Resources {
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    kind: String,
}

/// Cache of kinds. A kind doesn't change while it exists.
#[derive(Clone, Debug, Default)]
pub(super) struct Kinds(HashMap<(String, String), Kind>);

impl Kinds {
    /// Kind of a target.
    ///
    /// # Errors
    /// `Problem` if the API server doesn't know the kind, or the request fails.
    pub(super) async fn of(&mut self, cluster: &Cluster, target: &TargetRef) -> Result<Kind, Problem> {
        let key = (target.api_version.clone(), target.kind.clone());
        if let Some(known) = self.0.get(&key) {
            return Ok(known.clone());
        }
        let root = match target.api_version.contains('/') {
            true => format!("/apis/{}", target.api_version),
            false => format!("/api/{}", target.api_version),
        };
        let resources: Resources = cluster.get(&root).await?;
        let kind = find(&resources, &target.kind, root).ok_or_else(|| {
            Problem::NotFound(format!("{} has no kind {}", target.api_version, target.kind))
        })?;
        self.0.insert(key, kind.clone());
        Ok(kind)
    }

    /// Caches the kind of a target.
    pub(super) fn know(&mut self, target: &TargetRef, kind: &Kind) {
        let key = (target.api_version.clone(), target.kind.clone());
        self.0.entry(key).or_insert_with(|| kind.clone());
    }

    /// Removes a kind from the cache.
    pub(super) fn forget(&mut self, target: &TargetRef) {
        self.0.remove(&(target.api_version.clone(), target.kind.clone()));
    }
}

fn find(resources: &Resources, kind: &str, root: String) -> Option<Kind> {
    let is_own = |resource: &&Resource| resource.kind == kind && !resource.name.contains('/');
    let plural = &resources.resources.iter().find(is_own)?.name;
    let scale = format!("{plural}/scale");
    let has_scale = resources.resources.iter().any(|resource| resource.name == scale);
    Some(Kind { root, plural: plural.clone(), has_scale })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_among_the_resources_of_its_group() {
        let list = serde_json::json!({"resources": [
            {"name": "deployments", "kind": "Deployment"},
            {"name": "deployments/scale", "kind": "Scale"},
            {"name": "daemonsets/status", "kind": "DaemonSet"},
            {"name": "daemonsets", "kind": "DaemonSet"},
        ]});
        let list: Resources = serde_json::from_value(list).unwrap();
        let found = |kind: &str| find(&list, kind, "/apis/apps/v1".to_owned());
        let deployment = found("Deployment").unwrap();
        assert!(deployment.has_scale && !found("DaemonSet").unwrap().has_scale);
        assert_eq!(deployment.path("ns", "x"), "/apis/apps/v1/namespaces/ns/deployments/x");
        assert_eq!(found("Job"), None);
    }
}
