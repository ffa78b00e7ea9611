//! Can the picker's metrics be read, and are they a picker's?

use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::Observations;

pub(super) fn check(seen: &Observations) -> Outcome {
    let page = match &seen.metrics {
        Ok(page) => page,
        Err(reason) => return Outcome::skipped(reason),
    };
    let mut findings = Vec::new();
    if let Some(problem) = &page.problem {
        findings.push(Finding::new(&rules::PICKER_METRICS_UNREACHABLE, problem));
    } else if page.families == 0 {
        let what = format!(
            "{}/metrics has neither llm_d_epp_info nor another metric that every picker has",
            page.url
        );
        findings.push(Finding::new(&rules::PICKER_METRICS_NAMES, what));
    }
    Outcome::looked(format!("{}/metrics", page.url), findings)
}
