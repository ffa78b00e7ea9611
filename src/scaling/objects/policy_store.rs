//! Policies of a namespace, and their versions in force. No I/O and no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::claims::{Claims, Target, targets};
use super::kinds::{PolicyObject, TopologyObject};
use crate::actuator::Owner;
use crate::capacity::policy::spec::{API_VERSION, Document, KIND, Metadata, Spec};
use crate::capacity::policy::validate::problems;
use crate::capacity::policy::{Mode, TargetRef};
use crate::capacity::resource::status::{PolicyStatus, RoleStatus, Verdict};
use crate::capacity::{Condition, Policy};
use crate::cluster::Change;
use crate::scaling::groups::{Groups, Sources, UNELECTED};

/// Most problems in a verdict.
const MOST_PROBLEMS: usize = 3;

/// Message for a policy with targets of several pools.
const SEVERAL_POOLS: &str = "its roles scale pods of this pool and of another; write a policy for each, or name the pool with spec.poolRef";

/// Longest message of a verdict: it contains users' names.
const LONGEST: usize = 2000;

/// Update from the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectUpdate {
    /// Change of policies. An empty list if the cluster doesn't define the kind.
    Policies(Change<PolicyObject>),
    /// Change of topologies.
    Topologies(Change<TopologyObject>),
}

/// Extent of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// No relevant change.
    Nothing,
    /// Statuses of policies only.
    Status,
    /// Specifications of policies, or layers of topologies.
    Policies,
}

/// A validated policy, for its status.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Name of the policy.
    pub name: String,
    /// Uid of the object.
    pub uid: String,
    /// Validated generation.
    pub generation: Option<i64>,
    /// Verdict on that generation.
    pub verdict: Verdict,
    /// Last seen status.
    pub status: PolicyStatus,
}

impl Known {
    /// Roles in the last seen status of a policy, by name.
    pub fn roles_of<'a>(all: &'a [Self], name: &str) -> &'a [RoleStatus] {
        all.iter().find(|known| known.name == name).map_or(&[], |known| &known.status.roles)
    }
}

/// Policies of a namespace.
#[derive(Debug, Default)]
pub struct PolicyStore {
    /// Pool of this picker.
    pool: String,
    /// Policies by name.
    policies: BTreeMap<String, StoredPolicy>,
    /// Layers of each ClusterTopology, by name.
    topologies: BTreeMap<String, Vec<String>>,
    /// Pools of resolved targets.
    owners: BTreeMap<Target, Owner>,
}

#[derive(Debug)]
struct StoredPolicy {
    object: PolicyObject,
    /// Last valid version, and its generation.
    good: Option<(Document, Option<i64>)>,
    /// `None` if it is for another picker, or not validated yet.
    verdict: Option<Verdict>,
}

/// Rejection of a version of a policy.
struct Refusal {
    reason: &'static str,
    message: String,
}

impl PolicyStore {
    /// Targets whose updates policies of the namespace hold back, of any pool.
    pub fn held_targets(&self) -> Vec<TargetRef> {
        let policies = self.policies.values().map(|stored| policy_of(&stored.object));
        policies
            .filter(Policy::holds_updates)
            .flat_map(|policy| policy.roles)
            .filter_map(|role| role.target)
            .collect()
    }

    /// Empty store for the picker of this pool.
    pub fn new(pool: String) -> Self {
        Self { pool, ..Self::default() }
    }

    /// Applies an update from the API server.
    pub fn apply(&mut self, update: ObjectUpdate) -> Changed {
        match update {
            ObjectUpdate::Policies(Change::All(all)) => {
                let names: BTreeSet<String> = all.iter().map(|object| object.metadata.name.clone()).collect();
                let before = self.policies.len();
                self.policies.retain(|name, _| names.contains(name));
                let mut changed =
                    if self.policies.len() == before { Changed::Nothing } else { Changed::Policies };
                for object in all {
                    changed = changed.or(self.put(object));
                }
                changed
            }
            ObjectUpdate::Policies(Change::Put(object)) => self.put(object),
            ObjectUpdate::Policies(Change::Gone(object)) => self.remove(&object.metadata.name),
            ObjectUpdate::Topologies(change) => {
                let before = self.topologies.clone();
                match change {
                    Change::All(all) => {
                        self.topologies = all
                            .into_iter()
                            .map(|object| (object.metadata.name, object.spec.layers))
                            .collect();
                    }
                    Change::Put(object) => {
                        self.topologies.insert(object.metadata.name, object.spec.layers);
                    }
                    Change::Gone(object) => {
                        self.topologies.remove(&object.metadata.name);
                    }
                }
                if self.topologies == before { Changed::Nothing } else { Changed::Policies }
            }
        }
    }

    fn put(&mut self, object: PolicyObject) -> Changed {
        if object.metadata.deletion_timestamp.is_some() {
            return self.remove(&object.metadata.name);
        }
        let name = object.metadata.name.clone();
        let (changed, good) = match self.policies.remove(&name) {
            Some(old) if old.object.metadata.uid == object.metadata.uid => {
                let changed = if old.object.spec != object.spec
                    || old.object.metadata.generation != object.metadata.generation
                {
                    Changed::Policies
                } else if old.object.status != object.status {
                    Changed::Status
                } else {
                    Changed::Nothing
                };
                if changed != Changed::Policies {
                    self.policies.insert(name, StoredPolicy { object, ..old });
                    return changed;
                }
                (changed, old.good)
            }
            _ => (Changed::Policies, None),
        };
        self.policies.insert(name, StoredPolicy { object, good, verdict: None });
        changed
    }

    fn remove(&mut self, name: &str) -> Changed {
        if self.policies.remove(name).is_some() { Changed::Policies } else { Changed::Nothing }
    }

    /// Names of the topologies in policies.
    pub fn wanted_topologies(&self) -> BTreeSet<String> {
        let named = |stored: &StoredPolicy| {
            Some(stored.object.spec.pointer("/deploy/topology/clusterTopology")?.as_str()?.to_owned())
        };
        self.policies.values().filter_map(named).collect()
    }

    /// Targets of policies without `poolRef`.
    pub fn targets_of_any_pool(&self) -> Vec<TargetRef> {
        let open = self.policies.values().filter(|stored| pool_of(&stored.object).is_none());
        open.flat_map(|stored| targets(&stored.object.spec)).map(|(_, target)| target).collect()
    }

    /// Records the pools of targets. Returns `true` if any changed.
    pub fn note_owners(&mut self, known: Vec<(TargetRef, Owner)>) -> bool {
        let before = std::mem::take(&mut self.owners);
        self.owners = known
            .into_iter()
            .map(|(target, owner)| {
                let target = Target::of(&target);
                // A known owner stays until there is another response.
                let kept = match (&owner, before.get(&target)) {
                    (Owner::Unknown(_), Some(known @ (Owner::Ours | Owner::Other))) => Some(known.clone()),
                    _ => None,
                };
                (target, kept.unwrap_or(owner))
            })
            .collect();
        self.owners != before
    }

    /// Pool of a policy: by its `poolRef`, or by the pods of all its targets. One without targets is for
    /// every picker. `None` if unknown yet.
    fn owner(&self, object: &PolicyObject) -> Option<Owner> {
        // Before parsing the rest, which may fail.
        if let Some(name) = pool_of(object) {
            return Some(if name == self.pool { Owner::Ours } else { Owner::Other });
        }
        let (mut is_ours, mut is_others, mut unknown) = (false, false, None);
        for (_, target) in targets(&object.spec) {
            match self.owners.get(&Target::of(&target))? {
                Owner::Ours => is_ours = true,
                Owner::Other => is_others = true,
                of => unknown = Some(of.clone()),
            }
        }
        Some(match (is_ours, is_others) {
            (true, true) => Owner::Unknown(SEVERAL_POOLS.to_owned()),
            (false, true) => Owner::Other,
            (_, false) => unknown.unwrap_or(Owner::Ours),
        })
    }

    /// Validates all policies: valid ones are in force as written, others in their last valid version. Of
    /// several that scale the same object, in any pool, none acts.
    pub fn settle(&mut self, sources: &Sources) -> Groups {
        let mut claims = Claims::default();
        for (name, stored) in &self.policies {
            claims.add(name, &stored.object.spec);
        }
        let (groups, older) = self.judge(sources, &claims);
        if older.is_empty() {
            return groups;
        }
        // An earlier version in force keeps its targets.
        for name in &older {
            let good = self.policies.get(name).and_then(|stored| stored.good.as_ref());
            if let Some(Ok(spec)) = good.map(|(document, _)| serde_json::to_value(&document.spec)) {
                claims.add(name, &spec);
            }
        }
        self.judge(sources, &claims).0
    }

    /// Validates all policies, given these claims. Returns the names of those in force in an earlier version.
    fn judge(&mut self, sources: &Sources, claims: &Claims) -> (Groups, Vec<String>) {
        let (mut groups, mut older) = (Groups::default(), Vec::new());
        let owners: BTreeMap<String, Option<Owner>> =
            self.policies.iter().map(|(name, stored)| (name.clone(), self.owner(&stored.object))).collect();
        let mut order: Vec<(Option<String>, String)> = self
            .policies
            .iter()
            .map(|(name, stored)| (stored.object.metadata.creation_timestamp.clone(), name.clone()))
            .collect();
        order.sort_unstable();
        for (_, name) in order {
            let Some(stored) = self.policies.get_mut(&name) else { continue };
            match owners.get(&name).cloned().flatten() {
                Some(Owner::Ours) => {}
                Some(Owner::Unknown(message)) => {
                    stored.verdict = Some(Verdict { is_accepted: false, reason: "TargetUnknown", message });
                    stored.good = None;
                    groups.unusable.push(Arc::new(policy_of(&stored.object)));
                    continue;
                }
                Some(Owner::Other) | None => {
                    (stored.verdict, stored.good) = (None, None);
                    continue;
                }
            }
            let mut adding = Adding { groups: &mut groups, claims, sources };
            let generation = stored.object.metadata.generation;
            let new = read(&stored.object, &self.topologies);
            let judged = new.and_then(|document| Ok((adding.add(&document)?, document)));
            stored.verdict = Some(match judged {
                Ok((verdict, document)) => {
                    stored.good = Some((document, generation));
                    verdict
                }
                Err(Refusal { reason, mut message }) => {
                    let held = |document: &Document| held_back(document, &stored.object);
                    let stays =
                        stored.good.as_ref().filter(|(document, _)| adding.add(&held(document)).is_ok());
                    if stays.is_some() {
                        older.push(name.clone());
                    }
                    match stays {
                        Some((_, Some(generation))) => {
                            message.push_str(&format!("; generation {generation} stays in force"));
                        }
                        Some((_, None)) => message.push_str("; the previous version stays in force"),
                        None => groups.unusable.push(Arc::new(policy_of(&stored.object))),
                    }
                    Verdict { is_accepted: false, reason, message }
                }
            });
        }
        (groups, older)
    }

    /// All validated policies for this picker.
    pub fn known(&self) -> Vec<Known> {
        let known = |(name, stored): (&String, &StoredPolicy)| {
            Some(Known {
                name: name.clone(),
                uid: stored.object.metadata.uid.clone(),
                generation: stored.object.metadata.generation,
                verdict: stored.verdict.clone()?,
                status: stored.object.status.clone(),
            })
        };
        self.policies.iter().filter_map(known).collect()
    }
}

impl Changed {
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Policies, _) | (_, Self::Policies) => Self::Policies,
            (Self::Status, _) | (_, Self::Status) => Self::Status,
            _ => Self::Nothing,
        }
    }
}

/// Policy of an object, as far as readable: at least the pods of its roles.
pub fn policy_of(object: &PolicyObject) -> Policy {
    let spec = serde_json::from_value(object.spec.clone()).unwrap_or_else(|_| {
        let roles = object.spec.get("roles").and_then(serde_json::Value::as_object);
        let role = |(name, role): (&String, &serde_json::Value)| {
            let known = ["selector", "scaleTargetRef"];
            let known = known.into_iter().filter_map(|key| Some((key.to_owned(), role.get(key)?.clone())));
            Some((name.clone(), serde_json::from_value(known.collect::<serde_json::Value>()).ok()?))
        };
        let roles = roles.into_iter().flatten().filter_map(role).collect();
        Spec {
            roles,
            mode: read_part(object, "mode").unwrap_or_default(),
            deploy: read_part(object, "deploy"),
            update: read_part(object, "update"),
            ..Spec::default()
        }
    });
    Policy::of(&document(object, spec))
}

/// Last valid version of a policy, blocked if the newest one is paused or not applied, whatever else is wrong
/// with it.
fn held_back(document: &Document, newest: &PolicyObject) -> Document {
    let mut document = document.clone();
    document.spec.paused |= read_part(newest, "paused").unwrap_or(false);
    if read_part(newest, "mode") != Some(Mode::Apply) {
        document.spec.mode = Mode::Recommend;
    }
    document
}

/// Part of a policy's specification; `None` if absent or invalid.
fn read_part<T: serde::de::DeserializeOwned>(object: &PolicyObject, name: &str) -> Option<T> {
    serde_json::from_value(object.spec.get(name)?.clone()).ok()
}

fn document(object: &PolicyObject, spec: Spec) -> Document {
    let metadata = Metadata { name: object.metadata.name.clone(), ..Metadata::default() };
    Document { api_version: API_VERSION.to_owned(), kind: KIND.to_owned(), metadata, spec }
}

fn pool_of(object: &PolicyObject) -> Option<&str> {
    object.spec.pointer("/poolRef/name").and_then(serde_json::Value::as_str)
}

/// Document of an object, with the layers of its topology.
fn read(object: &PolicyObject, topologies: &BTreeMap<String, Vec<String>>) -> Result<Document, Refusal> {
    let mut spec: Spec = serde_json::from_value(object.spec.clone())
        .map_err(|error| Refusal { reason: "Invalid", message: format!("spec can't be read: {error}") })?;
    if let Some(topology) = spec.deploy.as_mut().and_then(|deploy| deploy.topology.as_mut())
        && let Some(name) = topology.cluster_topology.clone()
    {
        let layers = topologies.get(&name).filter(|layers| !layers.is_empty()).ok_or_else(|| Refusal {
            reason: "TopologyUnknown",
            message: format!(
                "spec.deploy.topology.clusterTopology: no ClusterTopology '{name}' with layers, or RBAC forbids reading it"
            ),
        })?;
        // Layers beside the name are an error, reported below.
        if topology.layers.is_empty() {
            topology.layers.clone_from(layers);
            topology.cluster_topology = None;
        }
    }
    Ok(document(object, spec))
}

/// Error for two roles of a policy that scale the same object; `None` if there are none.
fn twice(document: &Document) -> Option<String> {
    let mut seen: BTreeMap<Target, &str> = BTreeMap::new();
    for (role, spec) in &document.spec.roles {
        let Some(target) = &spec.scale_target_ref else { continue };
        if let Some(first) = seen.insert(Target::of(target), role) {
            let TargetRef { kind, name, .. } = target;
            return Some(format!("{kind} '{name}' is scaled by role '{role}' and by role '{first}'"));
        }
    }
    None
}

struct Adding<'a> {
    groups: &'a mut Groups,
    claims: &'a Claims,
    sources: &'a Sources,
}

impl Adding<'_> {
    /// Adds a policy to those in force.
    fn add(&mut self, document: &Document) -> Result<Verdict, Refusal> {
        let name = &document.metadata.name;
        let (errors, warnings): (Vec<_>, Vec<_>) =
            problems(document).into_iter().partition(|problem| problem.is_error);
        let policy = Policy::of(document);
        // Replaced values are valid. Contradictions can't be replaced.
        if !errors.is_empty() && policy.sanitised == 0 {
            let all = errors.iter().map(|problem| format!("{} {}", problem.path, problem.message));
            return Err(Refusal { reason: "Invalid", message: some(all) });
        }
        let replaced = policy.sanitised;
        if let Some(message) = twice(document) {
            return Err(Refusal { reason: "TargetConflict", message });
        }
        self.groups.add(policy, self.sources).map_err(|errors| Refusal {
            reason: "Invalid",
            message: some(errors.iter().map(ToString::to_string)),
        })?;
        self.groups.warnings.extend(
            warnings.iter().map(|problem| format!("policy '{name}': {} {}", problem.path, problem.message)),
        );
        let frozen = self.groups.groups.last_mut().map(|group| &mut group.frozen);
        if let Some(message) = self.claims.conflict(document) {
            if let Some(frozen) = frozen {
                *frozen = Some(Condition::TargetConflict);
            }
            return Ok(Verdict { is_accepted: false, reason: "TargetConflict", message });
        }
        if frozen.is_some_and(|frozen| *frozen == Some(Condition::NoLeaderElection)) {
            let message = UNELECTED.to_owned();
            return Ok(Verdict { is_accepted: false, reason: "NoLeaderElection", message });
        }
        Ok(if replaced > 0 {
            let all = errors.iter().map(|problem| format!("{} {}", problem.path, problem.message));
            let values = if replaced == 1 { "value" } else { "values" };
            let message = format!("replaced {replaced} invalid {values}: {}", some(all));
            Verdict { is_accepted: true, reason: "Sanitised", message }
        } else {
            let message = "in force as written".to_owned();
            Verdict { is_accepted: true, reason: "Accepted", message }
        })
    }
}

/// The first problem of several, and the number of others.
fn some(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let mut text = all.iter().take(MOST_PROBLEMS).cloned().collect::<Vec<_>>().join("; ");
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    match all.len().saturating_sub(MOST_PROBLEMS) {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}

#[cfg(test)]
#[path = "policy_store_tests.rs"]
mod tests;
