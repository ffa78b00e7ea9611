//! Does the API server know the kinds of objects?

use crate::discovery::kubernetes::types::{POOL_GROUP, POOL_VERSION, RULE_GROUPS};
use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::Observations;

pub(super) fn check(seen: &Observations) -> Outcome {
    let cluster = match &seen.cluster {
        Ok(cluster) => cluster,
        Err(reason) => return Outcome::skipped(reason),
    };
    if let Some(reason) = &cluster.unreachable {
        return Outcome::looked("the API server", vec![Finding::new(&rules::API_SERVER_UNREACHABLE, reason)]);
    }
    if cluster.pool.is_none() {
        return Outcome::skipped("pods by their labels need no kinds of their own");
    }
    let served = |plural: &str| -> Vec<String> {
        let of = cluster.kinds.iter().filter(|(_, _, name)| name == plural);
        of.map(|(group, version, _)| format!("{group}/{version}")).collect()
    };
    let pools = served("inferencepools");
    let mut findings = Vec::new();
    if pools.is_empty() {
        findings.push(Finding::new(&rules::CRD_MISSING, "no version of InferencePool is served"));
    } else if !pools.contains(&format!("{POOL_GROUP}/{POOL_VERSION}")) {
        findings
            .push(Finding::new(&rules::CRD_OLD, format!("InferencePool is served in {}", pools.join(", "))));
    }
    let rules = ["inferenceobjectives", "inferencemodelrewrites"].map(|plural| {
        let groups =
            served(plural).into_iter().filter(|group| RULE_GROUPS.iter().any(|ours| group.starts_with(ours)));
        let groups: Vec<String> = groups.collect();
        if groups.is_empty() { format!("no {plural}") } else { format!("{plural} in {}", groups.join(", ")) }
    });
    Outcome::looked(format!("inferencepools in {}, {}", pools.join(", "), rules.join(", ")), findings)
}
