//! Objects that policies of a namespace scale, for any pool.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::capacity::policy::TargetRef;
use crate::capacity::policy::spec::Document;
use crate::capacity::policy::spec::group;

/// An object with replicas, whatever its version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    group: String,
    kind: String,
    name: String,
}

impl Target {
    pub(super) fn of(target: &TargetRef) -> Self {
        let TargetRef { api_version, kind, name, .. } = target;
        Self { group: group(api_version).to_owned(), kind: kind.clone(), name: name.clone() }
    }
}

/// Targets of a policy with its roles, as far as readable.
pub(super) fn targets(spec: &Value) -> impl Iterator<Item = (&String, TargetRef)> {
    let roles = spec.get("roles").and_then(Value::as_object).into_iter().flatten();
    roles.filter_map(|(role, spec)| {
        let target = serde_json::from_value(spec.get("scaleTargetRef")?.clone()).ok()?;
        Some((role, target))
    })
}

/// Policies, by the objects that they scale.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<Target, BTreeSet<String>>);

impl Claims {
    /// Adds the targets of a policy.
    pub(super) fn add(&mut self, policy: &str, spec: &Value) {
        for (_, target) in targets(spec) {
            self.0.entry(Target::of(&target)).or_default().insert(policy.to_owned());
        }
    }

    /// Other policies that scale a target of this one, as a sentence; `None` if there are none.
    pub(super) fn conflict(&self, document: &Document) -> Option<String> {
        document.spec.roles.iter().find_map(|(role, spec)| {
            let target = spec.scale_target_ref.as_ref()?;
            let others = self.0.get(&Target::of(target))?.iter();
            let others: Vec<String> = others
                .filter(|policy| **policy != document.metadata.name)
                .map(|policy| format!("'{policy}'"))
                .collect();
            let TargetRef { kind, name, .. } = target;
            (!others.is_empty()).then(|| {
                format!(
                    "{kind} '{name}' of role '{role}' is scaled by {} too, so none of them acts; keep a target in one policy",
                    others.join(", ")
                )
            })
        })
    }
}
