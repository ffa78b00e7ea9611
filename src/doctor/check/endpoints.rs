//! Does Usher use all the endpoints that it knows?

use crate::doctor::finding::{Finding, Outcome, count};
use crate::doctor::rules;
use crate::doctor::seen::Observations;

pub(super) fn check(seen: &Observations) -> Outcome {
    let known = match &seen.admin {
        Ok(known) => known,
        Err(reason) if seen.admin_given => {
            return Outcome::looked("--admin", vec![Finding::new(&rules::ADMIN_UNREACHABLE, reason)]);
        }
        Err(reason) => return Outcome::skipped(format!("{reason} (Usher's alone)")),
    };
    if known.is_empty() {
        return Outcome::looked(
            "no endpoint",
            vec![Finding::new(&rules::NO_ENDPOINTS, "Usher knows no endpoint")],
        );
    }
    let ejected = known.iter().filter_map(|known| Some((known, known.ejected.as_ref()?)));
    let findings = ejected.map(|(known, reason)| {
        Finding::new(&rules::ENDPOINT_EJECTED, format!("{} at {}: {reason}", known.name, known.address))
            .on(&known.name, reason)
    });
    Outcome::looked(
        format!("Usher knows {}", count(known.len(), "endpoint", "endpoints")),
        findings.collect(),
    )
}
