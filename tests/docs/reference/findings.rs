//! docs/reference/doctor-findings.md, from the rules of `usher doctor`.

use usher::doctor::Severity;

use super::page::{assert_written, row};

#[test]
fn every_doctor_finding_has_its_row() {
    let mut written = "| finding | | why it matters | what to do |\n|---|---|---|---|\n".to_owned();
    for rule in usher::doctor::rules::ALL {
        let severity = match rule.severity {
            Severity::Warning => "warning",
            Severity::Wrong => "wrong",
        };
        written += &row([&format!("`{}`", rule.code), severity, rule.why, rule.fix]);
    }
    assert_written("docs/reference/doctor-findings.md", "src/doctor/rules.rs", &written);
}
