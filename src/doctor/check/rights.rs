//! May the picker read what it needs to read?

use std::collections::BTreeMap;

use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::{Observations, Right};

use super::{answered, count};

pub(super) fn check(seen: &Observations) -> Outcome {
    let cluster = match answered(&seen.cluster) {
        Ok(cluster) => cluster,
        Err(outcome) => return outcome,
    };
    let rights = match &cluster.rights {
        Ok(rights) => rights,
        Err(reason) => return Outcome::skipped(reason),
    };
    let is_served = |right: &Right| {
        let known =
            |(group, _, plural): &(String, String, String)| group == right.group && plural == right.resource;
        !right.resource.starts_with("inference") || cluster.kinds.iter().any(known)
    };
    let mut missing: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    // Rights to kinds that are not served are missed by nobody.
    for (right, _) in rights.iter().filter(|(right, allowed)| !allowed && is_served(right)) {
        missing.entry((right.group, right.resource)).or_default().push(right.verb);
    }
    let findings = missing.iter().map(|((group, resource), verbs)| {
        let of = if group.is_empty() { (*resource).to_owned() } else { format!("{resource}.{group}") };
        let what = format!("{} may not {} {of} in namespace {}", cluster.account, verbs.join(", "), cluster.namespace);
        Finding::new(&rules::RIGHT_MISSING, what).fix(format!(
            "Add to the rules of the picker's Role: {{apiGroups: [\"{group}\"], resources: [\"{resource}\"], verbs: [{}]}}.",
            verbs.iter().map(|verb| format!("\"{verb}\"")).collect::<Vec<_>>().join(", ")
        ))
    });
    let at = format!("{} of {}", count(rights.len(), "right", "rights"), cluster.account);
    Outcome::looked(at, findings.collect())
}
