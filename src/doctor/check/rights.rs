//! May the picker do what it needs to do?

use std::collections::BTreeMap;

use crate::doctor::finding::{Finding, Outcome, count};
use crate::doctor::rules;
use crate::doctor::seen::{Need, Observations, Right};

use super::preconditions::responded;

pub(super) fn check(seen: &Observations) -> Outcome {
    let cluster = match responded(&seen.cluster) {
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
    let mut missing: BTreeMap<(Need, &str, &str), Vec<&str>> = BTreeMap::new();
    // Rights to kinds that are not served are missed by nobody.
    for (right, _) in rights.iter().filter(|(right, allowed)| !allowed && is_served(right)) {
        missing.entry((right.need, right.group, right.resource)).or_default().push(right.verb);
    }
    let findings = missing.iter().map(|((need, group, resource), verbs)| {
        let of = if group.is_empty() { (*resource).to_owned() } else { format!("{resource}.{group}") };
        let what = format!("{} may not {} {of}", cluster.account, verbs.join(", "));
        let rule = format!(
            "{{apiGroups: [\"{group}\"], resources: [\"{resource}\"], verbs: [{}]}}",
            verbs.iter().map(|verb| format!("\"{verb}\"")).collect::<Vec<_>>().join(", ")
        );
        match need {
            Need::Ready => {
                Finding::new(&rules::RIGHT_MISSING, format!("{what} in namespace {}", cluster.namespace))
                    .fix(format!("Add to the rules of the picker's Role: {rule}."))
            }
            Need::Metrics => Finding::new(&rules::METRICS_RIGHT_MISSING, what).fix(format!(
                "Add to the rules of a ClusterRole of the picker: {rule}; or start it, and the doctor, with --metrics-endpoint-auth=false."
            )),
        }
    });
    let at = format!("{} of {}", count(rights.len(), "right", "rights"), cluster.account);
    Outcome::looked(at, findings.collect())
}
