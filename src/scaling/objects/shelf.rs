//! What is known of the policies of a namespace, and which of them are in force. No I/O and no clock.

use std::collections::{BTreeMap, BTreeSet};

use super::kinds::{PolicyObject, TopologyObject};
use crate::capacity::Policy;
use crate::capacity::policy::file::group;
use crate::capacity::policy::spec::{API_VERSION, Document, KIND, Metadata, Spec};
use crate::capacity::policy::validate::problems;
use crate::capacity::resource::status::{PolicyStatus, Verdict};
use crate::cluster::Change;
use crate::scaling::groups::{Groups, Sources};

/// How many problems a verdict tells.
const TOLD: usize = 3;

/// Longest text of a verdict. Names in it are anybody's.
const LONGEST: usize = 2000;

/// Something that the API server said.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// Of policies. Where there are none of that kind, all of them are none.
    Policies(Change<PolicyObject>),
    /// Of topologies.
    Topologies(Change<TopologyObject>),
}

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Nothing that counts.
    Nothing,
    /// What is said of policies, not what they say.
    Status,
    /// What policies say.
    Policies,
}

/// A policy, for those who tell its status.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Which object of this name it is.
    pub uid: String,
    /// The generation that was judged.
    pub generation: Option<i64>,
    /// Whether that is in force.
    pub verdict: Verdict,
    /// Its status, as it was last seen.
    pub status: PolicyStatus,
}

/// The policies of a namespace.
#[derive(Debug, Default)]
pub struct Shelf {
    /// The pool whose picker this is.
    pool: String,
    /// By name.
    policies: BTreeMap<String, Shelved>,
    /// The layers of each ClusterTopology, by name.
    topologies: BTreeMap<String, Vec<String>>,
}

#[derive(Debug)]
struct Shelved {
    object: PolicyObject,
    /// The last version that could be used, and its generation.
    good: Option<(Document, Option<i64>)>,
    /// `None`: it isn't for this picker, or was not judged yet.
    verdict: Option<Verdict>,
}

/// Whose replicas a policy's role scales: a target, by group, kind and name.
type Target = (String, String, String);

/// Why a version of a policy can't be used.
struct Refusal {
    reason: &'static str,
    message: String,
}

impl Shelf {
    /// Of the picker of this pool. Nothing is known yet.
    pub fn new(pool: String) -> Self {
        Self { pool, ..Self::default() }
    }

    /// Takes in what the API server said.
    pub fn apply(&mut self, news: News) -> Changed {
        match news {
            News::Policies(Change::All(all)) => {
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
            News::Policies(Change::Put(object)) => self.put(object),
            News::Policies(Change::Gone(object)) => self.remove(&object.metadata.name),
            News::Topologies(change) => {
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
                    self.policies.insert(name, Shelved { object, ..old });
                    return changed;
                }
                (changed, old.good)
            }
            _ => (Changed::Policies, None),
        };
        self.policies.insert(name, Shelved { object, good, verdict: None });
        changed
    }

    fn remove(&mut self, name: &str) -> Changed {
        if self.policies.remove(name).is_some() { Changed::Policies } else { Changed::Nothing }
    }

    /// The names of the topologies that policies name.
    pub fn wanted_topologies(&self) -> BTreeSet<String> {
        let named = |shelved: &Shelved| {
            Some(shelved.object.spec.pointer("/deploy/topology/clusterTopology")?.as_str()?.to_owned())
        };
        self.policies.values().filter_map(named).collect()
    }

    /// Judges all policies: those that can be used as they are written, the last version that could be of
    /// others, and each thing that is scaled in one policy only, the oldest.
    pub fn settle(&mut self, sources: &Sources) -> Groups {
        let mut groups = Groups::default();
        let mut taken: BTreeMap<Target, (String, String)> = BTreeMap::new();
        let mut order: Vec<(String, String)> = self
            .policies
            .iter()
            .map(|(name, shelved)| (shelved.object.metadata.creation_timestamp.clone(), name.clone()))
            .collect();
        order.sort_unstable();
        for (_, name) in order {
            let Some(shelved) = self.policies.get_mut(&name) else { continue };
            if !is_ours(&shelved.object, &self.pool) {
                (shelved.verdict, shelved.good) = (None, None);
                continue;
            }
            let mut adding = Adding { groups: &mut groups, taken: &mut taken, sources };
            let generation = shelved.object.metadata.generation;
            let new = read(&shelved.object, &self.topologies);
            let judged = new.and_then(|document| Ok((adding.add(&document)?, document)));
            shelved.verdict = Some(match judged {
                Ok((verdict, document)) => {
                    shelved.good = Some((document, generation));
                    verdict
                }
                Err(Refusal { reason, mut message }) => {
                    let stays = shelved.good.as_ref().filter(|(document, _)| adding.add(document).is_ok());
                    match stays {
                        Some((_, Some(generation))) => {
                            message.push_str(&format!("; generation {generation} stays in force"));
                        }
                        Some((_, None)) => message.push_str("; the version before stays in force"),
                        None => {}
                    }
                    Verdict { is_accepted: false, reason, message }
                }
            });
        }
        groups
    }

    /// All policies that are for this picker and were judged.
    pub fn known(&self) -> Vec<Known> {
        let known = |(name, shelved): (&String, &Shelved)| {
            Some(Known {
                name: name.clone(),
                uid: shelved.object.metadata.uid.clone(),
                generation: shelved.object.metadata.generation,
                verdict: shelved.verdict.clone()?,
                status: shelved.object.status.clone(),
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

fn is_ours(object: &PolicyObject, pool: &str) -> bool {
    // Before the rest is read, which may not be possible.
    let named = object.spec.pointer("/poolRef/name").and_then(serde_json::Value::as_str);
    named.is_none_or(|name| name == pool)
}

/// What an object says, with the layers of the topology that it names.
fn read(object: &PolicyObject, topologies: &BTreeMap<String, Vec<String>>) -> Result<Document, Refusal> {
    let mut spec: Spec = serde_json::from_value(object.spec.clone())
        .map_err(|error| Refusal { reason: "Invalid", message: format!("spec can't be read: {error}") })?;
    if let Some(topology) = spec.deploy.as_mut().and_then(|deploy| deploy.topology.as_mut())
        && let Some(name) = topology.cluster_topology.clone()
    {
        let layers = topologies.get(&name).filter(|layers| !layers.is_empty()).ok_or_else(|| Refusal {
            reason: "TopologyUnknown",
            message: format!(
                "spec.deploy.topology.clusterTopology: there is no ClusterTopology '{name}' with layers, or it may not be read"
            ),
        })?;
        // Layers beside the name are an error, which is told.
        if topology.layers.is_empty() {
            topology.layers.clone_from(layers);
            topology.cluster_topology = None;
        }
    }
    let metadata = Metadata { name: object.metadata.name.clone(), namespace: None, ..Metadata::default() };
    Ok(Document { api_version: API_VERSION.to_owned(), kind: KIND.to_owned(), metadata, spec })
}

struct Adding<'a> {
    groups: &'a mut Groups,
    taken: &'a mut BTreeMap<Target, (String, String)>,
    sources: &'a Sources,
}

impl Adding<'_> {
    /// Adds a policy to those in force.
    fn add(&mut self, document: &Document) -> Result<Verdict, Refusal> {
        let name = &document.metadata.name;
        let (errors, warnings): (Vec<_>, Vec<_>) =
            problems(document).into_iter().partition(|problem| problem.is_error);
        let policy = Policy::of(document);
        // What was replaced can stand. What contradicts itself has nothing to be replaced by.
        if !errors.is_empty() && policy.sanitised == 0 {
            let all = errors.iter().map(|problem| format!("{} {}", problem.path, problem.message));
            return Err(Refusal { reason: "Invalid", message: some(all) });
        }
        let targets = self.targets(document)?;
        let replaced = policy.sanitised;
        self.groups.add(policy, self.sources).map_err(|errors| Refusal {
            reason: "Invalid",
            message: some(errors.iter().map(ToString::to_string)),
        })?;
        self.taken.extend(targets);
        self.groups.warnings.extend(
            warnings.iter().map(|problem| format!("policy '{name}': {} {}", problem.path, problem.message)),
        );
        Ok(if replaced > 0 {
            let all = errors.iter().map(|problem| format!("{} {}", problem.path, problem.message));
            let values = if replaced == 1 { "value" } else { "values" };
            let message = format!("{replaced} {values} could not stand and were replaced: {}", some(all));
            Verdict { is_accepted: true, reason: "Sanitised", message }
        } else {
            let message = "it is in force as it is written".to_owned();
            Verdict { is_accepted: true, reason: "Accepted", message }
        })
    }

    /// What the policy scales, unless an older one does.
    fn targets(&self, document: &Document) -> Result<Vec<(Target, (String, String))>, Refusal> {
        let name = &document.metadata.name;
        let mut targets: Vec<(Target, (String, String))> = Vec::new();
        for (role, spec) in &document.spec.roles {
            let Some(target) = &spec.scale_target_ref else { continue };
            let key = (group(&target.api_version).to_owned(), target.kind.clone(), target.name.clone());
            let own = targets.iter().find(|(known, _)| *known == key).map(|(_, by)| by);
            if let Some((policy, first)) = self.taken.get(&key).or(own) {
                let (kind, target) = (&target.kind, &target.name);
                let message = format!(
                    "{kind} '{target}' is scaled by role '{role}', and by '{first}' of policy '{policy}', which is older; keep a role in one policy"
                );
                let message = if policy == name { message.replace(", which is older", "") } else { message };
                return Err(Refusal { reason: "TargetConflict", message });
            }
            targets.push((key, (name.clone(), role.clone())));
        }
        Ok(targets)
    }
}

/// The first of many, and how many more there are.
fn some(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let mut text = all.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; ");
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    match all.len().saturating_sub(TOLD) {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}

#[cfg(test)]
#[path = "shelf_tests.rs"]
mod tests;
