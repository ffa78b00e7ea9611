//! Do the versions go together?

use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::Observations;

pub(super) fn check(seen: &Observations) -> Outcome {
    let mut at = vec![format!("doctor {}", seen.version)];
    let mut findings = Vec::new();
    if let Ok(envoy) = &seen.envoy {
        at.push(format!("Envoy {}", envoy.version));
        match minor(&envoy.version) {
            Some((1, ..=32)) => {
                findings.push(Finding::new(&rules::ENVOY_OLD, format!("Envoy {}", envoy.version)))
            }
            Some((1, 35..=37)) => {
                findings.push(Finding::new(&rules::ENVOY_DUPLICATES, format!("Envoy {}", envoy.version)));
            }
            _ => {}
        }
    }
    let picker = seen.metrics.as_ref().ok().and_then(|page| page.version.as_deref());
    if let Some(version) = picker {
        at.push(format!("picker {version}"));
        // The build of llm-d-router is a name or a commit, and no version of ours.
        if minor(version).is_some() && version != seen.version {
            let what = format!("the doctor is {}, and the picker {version}", seen.version);
            findings.push(Finding::new(&rules::VERSIONS_DIFFER, what));
        }
    }
    if let Ok(cluster) = &seen.cluster
        && !cluster.version.is_empty()
    {
        at.push(format!("Kubernetes {}", cluster.version));
    }
    if at.len() == 1 {
        return Outcome::skipped(
            "no version but the doctor's own is known: give --envoy-admin, --metrics or --pool-name",
        );
    }
    Outcome::looked(at.join(", "), findings)
}

/// Major and minor of a version such as `1.40.0`.
fn minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}
