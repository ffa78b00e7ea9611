//! A report for machines.

use serde_json::{Value, json};

use super::plain::plain;
use crate::doctor::{Finding, GROUPS, Outcome, Report, Rule};

/// Servers that are named one by one; of more of the same kind only how many there are.
const NAMED: usize = 5;

/// The report as JSON.
pub(super) fn json(report: &Report) -> String {
    let code = |rule: &Rule| rule.code;
    let finding = |finding: &Finding| {
        json!({
            "code": finding.rule.code, "severity": finding.rule.severity, "what": plain(&finding.what),
            "why": finding.rule.why, "fix": plain(finding.remedy()),
            "follows_from": report.cause(finding.rule).map(code),
        })
    };
    let check = |(name, outcome): &(&str, Outcome)| {
        let (key, detail) = match outcome {
            Outcome::Looked { at, .. } => ("detail", at),
            Outcome::Skipped { reason } => ("reason", reason),
        };
        let findings: Vec<Value> = summarised(outcome.findings()).iter().map(finding).collect();
        let group = GROUPS.iter().find(|(_, checks)| checks.contains(name)).map(|(group, _)| *group);
        json!({
            "check": name, "group": group, "status": outcome.status(), key: plain(detail),
            "findings": findings, "skipped_because_of": report.obstacle(name).map(code),
        })
    };
    let checks: Vec<Value> = report.checks.iter().map(check).collect();
    let [ok, warning, wrong, skipped] = report.counts();
    let counts = json!({"ok": ok, "warning": warning, "wrong": wrong, "skipped": skipped});
    format!("{:#}\n", json!({"wrong": report.is_wrong(), "counts": counts, "checks": checks}))
}

/// In a large pool the same fault of metrics is everywhere: the first few say what it is.
fn summarised(findings: &[Finding]) -> Vec<Finding> {
    let mut kept: Vec<Finding> = Vec::new();
    for finding in findings {
        let before = kept.iter().filter(|other| other.rule == finding.rule).count();
        let is_of_metrics = finding.rule.code.starts_with("pod-metrics-");
        if !is_of_metrics || before < NAMED {
            kept.push(finding.clone());
        }
        if is_of_metrics && before + 1 == NAMED {
            let all = findings.iter().filter(|other| other.rule == finding.rule).count();
            if let Some(last) = kept.last_mut().filter(|_| all > NAMED) {
                last.what = format!("{}; and {} more like it", last.what, all - NAMED);
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::rules;

    #[test]
    fn json_has_checks_findings_and_their_causes() {
        let finding = Finding::new(&rules::FAILS_OPEN, "filter \u{1b}[31mx\nfails open");
        let unreachable = Finding::new(&rules::PICKER_UNREACHABLE, "refused");
        let unhealthy = Finding::new(&rules::PICKER_UNHEALTHY, "no host");
        let report = Report {
            checks: vec![
                ("path", Outcome::looked("http://gw", Vec::new())),
                ("fail-mode", Outcome::looked("filter x", vec![finding])),
                ("rbac", Outcome::skipped("give --pool-name")),
                ("picker", Outcome::looked("p:9002", vec![unhealthy, unreachable])),
                ("tls", Outcome::skipped("see picker")),
            ],
        };
        let value: Value = serde_json::from_str(&json(&report)).unwrap();
        assert_eq!(value["wrong"], true);
        assert_eq!(value["counts"], json!({"ok": 1, "warning": 1, "wrong": 1, "skipped": 2}));
        let (fail_mode, rbac) = (&value["checks"][1], &value["checks"][2]);
        assert_eq!(fail_mode["group"], "gateway");
        assert_eq!(fail_mode["findings"][0]["code"], "fails-open");
        assert_eq!(fail_mode["findings"][0]["what"], "filter  [31mx fails open");
        assert_eq!(fail_mode["findings"][0]["follows_from"], Value::Null);
        assert_eq!(
            (&rbac["reason"], &rbac["skipped_because_of"]),
            (&json!("give --pool-name"), &Value::Null)
        );
        assert_eq!(value["checks"][3]["findings"][0]["follows_from"], "picker-unreachable");
        assert_eq!(value["checks"][4]["skipped_because_of"], "picker-unreachable");
    }

    #[test]
    fn many_servers_of_a_kind_are_counted() {
        let of = |pod: usize| Finding::new(&rules::POD_METRICS_CACHE, format!("pod {pod}"));
        for (pods, named, more) in [(5, 5, "pod 4"), (6, 5, "pod 4; and 1 more"), (400, 5, "395 more")] {
            let findings = summarised(&(0..pods).map(of).collect::<Vec<_>>());
            assert_eq!(findings.len(), named, "{pods}");
            assert!(findings[4].what.contains(more), "{pods}: {}", findings[4].what);
        }
        let ejected = |_| Finding::new(&rules::ENDPOINT_EJECTED, "a");
        assert_eq!(summarised(&(0..9).map(ejected).collect::<Vec<_>>()).len(), 9);
    }
}
