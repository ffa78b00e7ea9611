//! Does the picker respond at its port?

use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::{Choice, Observations};

pub(super) fn check(seen: &Observations) -> Outcome {
    let mut findings = Vec::new();
    if let Ok(envoy) = &seen.envoy {
        for name in envoy.config.picker_clusters() {
            let hosts = envoy.hosts.get(name).map_or(&[][..], Vec::as_slice);
            if hosts.is_empty() {
                let what = format!("cluster {name} of the gateway has no host");
                findings.push(Finding::new(&rules::PICKER_UNHEALTHY, what));
            } else if hosts.iter().all(|host| !host.unhealthy.is_empty()) {
                let bad =
                    hosts.iter().map(|host| format!("{} ({})", host.address, host.unhealthy.join(", ")));
                let what = format!(
                    "cluster {name} of the gateway has no host that is well: {}",
                    bad.collect::<Vec<_>>().join("; ")
                );
                findings.push(Finding::new(&rules::PICKER_UNHEALTHY, what));
            }
        }
    }
    let picker = match &seen.picker {
        Ok(picker) => picker,
        Err(reason) if findings.is_empty() => return Outcome::skipped(reason),
        Err(reason) => return Outcome::looked(reason, findings),
    };
    let at = format!("{} ({})", picker.address, picker.found);
    if let Some(reason) = &picker.unreachable {
        findings.push(Finding::new(&rules::PICKER_UNREACHABLE, format!("{at}: {reason}")));
        return Outcome::looked(at, findings);
    }
    match &picker.reply {
        Ok(Choice::Destination(endpoint)) if !endpoint.is_empty() => {
            Outcome::looked(format!("{at} chooses {endpoint}"), findings)
        }
        Ok(Choice::Destination(_)) => {
            let what = format!("{at} replies and names no endpoint");
            findings.push(Finding::new(&rules::PICKER_NOT_EXT_PROC, what));
            Outcome::looked(at, findings)
        }
        Ok(Choice::Refused(503)) => {
            findings.push(Finding::new(&rules::NO_ENDPOINTS, format!("{at} refuses a request with 503")));
            Outcome::looked(at, findings)
        }
        Ok(Choice::Refused(status)) => {
            Outcome::looked(format!("{at} responds, with a refusal ({status})"), findings)
        }
        Err(reason) => {
            findings.push(Finding::new(&rules::PICKER_NOT_EXT_PROC, format!("{at}: {reason}")));
            Outcome::looked(at, findings)
        }
    }
}
