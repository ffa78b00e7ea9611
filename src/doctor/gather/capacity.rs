//! Capacity policies, and what they act on.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use http::Method;
use serde_json::{Value, json};

use super::api::{Any, LIMIT, review};
use super::plan::PoolPlan;
use crate::actuator::has_owner;
use crate::actuator::held_back::held_back;
use crate::actuator::pods::PodObject;
use crate::actuator::pools::Pools;
use crate::capacity::Policy;
use crate::capacity::policy::spec::{API_VERSION, Document, KIND, Metadata, Spec};
use crate::capacity::policy::{Mode, Role, TargetRef, file};
use crate::capacity::resource::{GROUP, POLICIES, TOPOLOGIES, VERSION};
use crate::cluster::{Cluster as Api, Collection, Problem};
use crate::doctor::json::{flag, list, text};
use crate::doctor::seen::{Capacity, CapacityPolicy, CapacityRight, CapacityRole, Labelled, Seen};

/// Policies of a file that a picker is given.
///
/// # Errors
/// The first error in it, with the path of the file.
pub(crate) fn of_file(path: &Path, text: &str) -> Result<Vec<Policy>, String> {
    let read = file::parse(text).map_err(|errors| {
        let first = errors.into_iter().next().map(|error| error.in_file(&path.display().to_string()));
        first.unwrap_or_default()
    })?;
    Ok(read.into_iter().map(|read| read.policy).collect())
}

/// Reads policies, their targets and their pods from the API server.
pub(super) async fn look(api: &Api, plan: &PoolPlan) -> Seen<Capacity> {
    let said = |problem: Problem| problem.to_string();
    let policies = Collection::new(GROUP, VERSION, &plan.namespace, POLICIES);
    let objects = match api.list::<Any>(&policies).await {
        Ok((objects, _)) => objects,
        // Not defined here.
        Err(Problem::NotFound(_)) => Vec::new(),
        Err(problem) => return Err(said(problem)),
    };
    let all = Collection::new("", "v1", &plan.namespace, "pods");
    let (pods, _) = api.list::<Any>(&all).await.map_err(said)?;
    let read = |pod: &Any| serde_json::from_value::<PodObject>(pod.0.clone()).ok();
    let gated: Vec<PodObject> =
        pods.iter().filter_map(read).filter(|pod: &PodObject| pod.is_alive() && pod.is_gated()).collect();
    let pods = pods.iter().map(|pod| labelled(&pod.0)).collect();
    let pools = Pools::list(api, &plan.namespace).await.unwrap_or_default();
    let (held, unlisted) = held_back(api, &plan.namespace, "").await;
    let unlisted = unlisted.into_iter().map(said).collect();
    let mut capacity = Capacity { policies: Vec::new(), gated, held, unlisted, pods };
    let mut asked = Asked { api, plan, pools, kinds: HashMap::new(), rights: HashMap::new() };
    for policy in &plan.policies {
        let seen = asked.policy(policy, None, &capacity).await;
        capacity.policies.push(seen);
    }
    for object in &objects {
        let seen = asked.object(&object.0, &capacity).await;
        capacity.policies.push(seen);
    }
    Ok(capacity)
}

fn labelled(object: &Value) -> Labelled {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let label = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    Labelled { name, labels: labels.into_iter().flatten().filter_map(label).collect() }
}

/// Questions to the API server, each asked once.
struct Asked<'a> {
    api: &'a Api,
    plan: &'a PoolPlan,
    pools: Pools,
    /// Path, plural and whether there is a `scale`, by version and kind.
    kinds: HashMap<(String, String), Seen<Option<(String, String, bool)>>>,
    rights: HashMap<CapacityRight, Seen<bool>>,
}

impl Asked<'_> {
    async fn object(&mut self, object: &Value, capacity: &Capacity) -> CapacityPolicy {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let spec = object.get("spec").cloned().unwrap_or_default();
        let pool = spec.pointer("/poolRef/name").and_then(Value::as_str).map(str::to_owned);
        let conditions = object.get("status").map_or(&[][..], |status| list(status, "conditions"));
        let refused = |condition: &&Value| {
            text(condition, "type") == "Accepted" && text(condition, "status") == "False"
        };
        let refused = conditions.iter().find(refused);
        let problem =
            refused.map(|condition| format!("{}: {}", text(condition, "reason"), text(condition, "message")));
        let spec: Spec = match serde_json::from_value(spec) {
            Ok(spec) => spec,
            Err(error) => {
                let problem = problem.or_else(|| Some(format!("its spec can't be read: {error}")));
                let (roles, rights) = (Vec::new(), Ok(Vec::new()));
                let pools = Vec::new();
                let (opens_gates, updates) = (false, false);
                return CapacityPolicy { name, pool, pools, problem, opens_gates, updates, roles, rights };
            }
        };
        let metadata = Metadata { name, ..Metadata::default() };
        let document =
            Document { api_version: API_VERSION.to_owned(), kind: KIND.to_owned(), metadata, spec };
        let policy = Policy::of(&document);
        let mut seen = self.policy(&policy, Some(pool), capacity).await;
        let topology = document.spec.deploy.as_ref().and_then(|deploy| deploy.topology.as_ref());
        let is_named = topology.is_some_and(|topology| topology.cluster_topology.is_some());
        // Of another pool's nothing is asked.
        if is_named && seen.rights.as_ref().is_ok_and(|rights| !rights.is_empty()) {
            let more = self.topology_rights().await;
            seen.rights = seen.rights.and_then(|rights| Ok([rights, more?].concat()));
        }
        CapacityPolicy { problem, ..seen }
    }

    /// `pool` of an object; `None`: of a file.
    async fn policy(
        &mut self,
        policy: &Policy,
        pool: Option<Option<String>>,
        capacity: &Capacity,
    ) -> CapacityPolicy {
        let is_object = pool.is_some();
        let pool = pool.flatten();
        // Another pool's picker has rights of its own.
        let is_ours = self.plan.name.is_none() || pool.is_none() || pool == self.plan.name;
        let mut roles = Vec::new();
        for role in &policy.roles {
            let is_there = match &role.target {
                Some(target) if is_ours => Some(self.finds(target).await),
                _ => None,
            };
            let (name, selector) = (role.name.clone(), role.selector.clone());
            roles.push(CapacityRole { name, selector, target: role.target.clone(), is_there });
        }
        let rights = if is_ours { self.rights(policy, is_object, capacity).await } else { Ok(Vec::new()) };
        let opens_gates = policy.mode == Mode::Apply;
        let updates = policy.holds_updates();
        // A file's is that of the picker that has it.
        let named = if is_object { pool.as_deref() } else { self.plan.name.as_deref() };
        let pools = match &self.plan.selector {
            Some(selector) if !is_object => vec![selector.clone()],
            // This picker's pods are those of no pool.
            Some(selector) if named.is_none() => {
                let mut pools = self.pools.of(None);
                pools.push(selector.clone());
                pools
            }
            _ => self.pools.of(named),
        };
        let name = policy.name.clone();
        CapacityPolicy { name, pool, pools, problem: None, opens_gates, updates, roles, rights }
    }

    /// Location of a target's kind; `None`: nowhere.
    async fn kind(&mut self, target: &TargetRef) -> Seen<Option<(String, String, bool)>> {
        let key = (target.api_version.clone(), target.kind.clone());
        if let Some(known) = self.kinds.get(&key) {
            return known.clone();
        }
        let root = if key.0.contains('/') { format!("/apis/{}", key.0) } else { format!("/api/{}", key.0) };
        let found = match self.api.get::<Value>(&root).await {
            Ok(response) => {
                let names = |kind: &str| {
                    let all = list(&response, "resources").iter();
                    let own = all.filter(|entry| kind.is_empty() || text(entry, "kind") == kind);
                    own.map(|entry| text(entry, "name").to_owned()).collect::<Vec<String>>()
                };
                let plural = names(&key.1).into_iter().find(|name| !name.contains('/'));
                Ok(plural.map(|plural| {
                    let has_scale = names("").contains(&format!("{plural}/scale"));
                    (root, plural, has_scale)
                }))
            }
            Err(Problem::NotFound(_)) => Ok(None),
            Err(problem) => Err(problem.to_string()),
        };
        self.kinds.insert(key, found.clone());
        found
    }

    /// Looks for a target.
    async fn finds(&mut self, target: &TargetRef) -> Seen<bool> {
        let Some((root, plural, has_scale)) = self.kind(target).await? else { return Ok(false) };
        let scale = if has_scale { "/scale" } else { "" };
        let path = format!("{root}/namespaces/{}/{plural}/{}{scale}", self.plan.namespace, target.name);
        match self.api.get::<Value>(&path).await {
            Ok(_) => Ok(true),
            Err(Problem::NotFound(_)) => Ok(false),
            Err(problem) => Err(problem.to_string()),
        }
    }

    /// The rights that a policy takes, and whether there are.
    async fn rights(
        &mut self,
        policy: &Policy,
        is_object: bool,
        capacity: &Capacity,
    ) -> Seen<Vec<(CapacityRight, bool)>> {
        let mut needed = Vec::new();
        let mut need = |group: &str, resource: &str, verbs: &[&'static str], is_needed| {
            needed.extend(verbs.iter().map(|verb| CapacityRight {
                group: group.to_owned(),
                resource: resource.to_owned(),
                verb,
                is_needed,
                everywhere: false,
            }));
        };
        if is_object {
            need(GROUP, POLICIES, &["get", "list", "watch"], true);
            need(GROUP, &format!("{POLICIES}/status"), &["get", "patch"], true);
        }
        if policy.mode == Mode::Apply {
            let updates = policy.rollout.as_ref().is_some_and(|rollout| rollout.update.is_some());
            for target in policy.roles.iter().filter_map(|role| role.target.as_ref()) {
                // A kind that isn't there is a target that isn't.
                let Some((_, plural, has_scale)) = self.kind(target).await? else { continue };
                let group = target.api_version.split_once('/').map_or("", |(group, _)| group);
                if has_scale {
                    need(group, &format!("{plural}/scale"), &["get", "patch"], true);
                }
                if !has_scale || updates {
                    need(group, &plural, &["get", "patch"], true);
                } else if has_owner(target) {
                    need(group, &plural, &["get"], false);
                }
            }
            let is_of = |pod: &PodObject, role: &Role| pod.matches(&role.selector);
            let topology = policy.rollout.as_ref().is_some_and(|rollout| rollout.topology.is_some());
            let has_gated = capacity.gated.iter().any(|pod| policy.roles.iter().any(|role| is_of(pod, role)));
            let mut targets = policy.roles.iter().filter_map(|role| role.target.as_ref());
            if topology || has_gated {
                need("", "pods", &["patch"], true);
                need("", "pods/eviction", &["create"], true);
            } else if policy.rollout.is_some() {
                // Their templates may have gates, and steps be given back.
                need("", "pods", &["patch"], false);
                need("", "pods/eviction", &["create"], false);
            } else if targets.any(|target| matches!(target.kind.as_str(), "Deployment" | "ReplicaSet")) {
                // Of their pods it is said which are to go, so that those respond first.
                need("", "pods", &["patch"], false);
            }
            need("autoscaling", "horizontalpodautoscalers", &["list"], true);
            let keda = TargetRef {
                api_version: "keda.sh/v1alpha1".to_owned(),
                kind: "ScaledObject".to_owned(),
                name: String::new(),
                replicas_path: None,
            };
            if self.kind(&keda).await?.is_some() {
                // Without it the autoscaler is seen that KEDA makes of each.
                need("keda.sh", "scaledobjects", &["list"], false);
            }
            need("", "events", &["create", "list"], false);
            if topology {
                for resource in ["nodes", "pods"] {
                    needed.extend(["get", "list", "watch"].map(|verb| CapacityRight {
                        group: String::new(),
                        resource: resource.to_owned(),
                        verb,
                        is_needed: false,
                        everywhere: true,
                    }));
                }
            }
        }
        let mut found = Vec::new();
        for right in needed {
            let allowed = self.allowed(&right).await?;
            found.push((right, allowed));
        }
        Ok(found)
    }

    /// The rights that a policy takes which names a ClusterTopology, and whether there are.
    async fn topology_rights(&mut self) -> Seen<Vec<(CapacityRight, bool)>> {
        let mut found = Vec::new();
        for verb in ["get", "list", "watch"] {
            let (group, resource) = (GROUP.to_owned(), TOPOLOGIES.to_owned());
            let right = CapacityRight { group, resource, verb, is_needed: true, everywhere: true };
            let allowed = self.allowed(&right).await?;
            found.push((right, allowed));
        }
        Ok(found)
    }

    async fn allowed(&mut self, right: &CapacityRight) -> Seen<bool> {
        if let Some(known) = self.rights.get(right) {
            return known.clone();
        }
        let (resource, subresource) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
        let namespace = if right.everywhere { "" } else { self.plan.namespace.as_str() };
        let attributes = json!({
            "namespace": namespace, "group": right.group, "resource": resource,
            "subresource": subresource, "verb": right.verb,
        });
        let (path, body) = review(self.plan, &attributes);
        let response = self.api.put::<Value>(Method::POST, &path, body, LIMIT).await;
        let allowed = response
            .map(|response| response.get("status").is_some_and(|status| flag(status, "allowed")))
            .map_err(|problem| format!("a review of rights is not answered: {problem}"));
        self.rights.insert(right.clone(), allowed.clone());
        allowed
    }
}

impl Labelled {
    /// Returns `true` if it has all these labels.
    pub fn has(&self, selector: &BTreeMap<String, String>) -> bool {
        selector.iter().all(|(key, value)| self.labels.get(key) == Some(value))
    }
}
