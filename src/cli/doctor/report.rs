//! Prints a report.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::doctor::{Finding, Outcome, Report, Status};

/// For people: a line per check, then what was found.
pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    let name_width = report.checks.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, outcome) in &report.checks {
        let detail = plain(match outcome {
            Outcome::Looked { at, .. } => at,
            Outcome::Skipped { reason } => reason,
        });
        // Writing to a string can't fail, here and below.
        let _ = writeln!(text, "{:<8} {name:<name_width$}  {detail}", outcome.status());
    }
    for (name, finding) in report.findings() {
        let Finding { rule, what, .. } = finding;
        let severity = match rule.severity {
            crate::doctor::Severity::Warning => "warning",
            crate::doctor::Severity::Wrong => "wrong",
        };
        let _ = writeln!(text, "\n{severity:<8} {name}: {}", rule.code);
        for (title, words) in [("what", what.as_str()), ("why", rule.why), ("fix", finding.remedy())] {
            let _ = writeln!(text, "    {title:<4} {}", plain(words));
        }
    }
    let [ok, warning, wrong, skipped] = counts(report);
    let _ = writeln!(text, "\n{ok} ok, {warning} with warnings, {wrong} wrong, {skipped} skipped");
    text
}

/// For machines: the same.
pub(super) fn json(report: &Report) -> String {
    let finding = |finding: &Finding| {
        json!({
            "code": finding.rule.code, "severity": finding.rule.severity, "what": plain(&finding.what),
            "why": finding.rule.why, "fix": plain(finding.remedy()),
        })
    };
    let check = |(name, outcome): &(&str, Outcome)| {
        let (key, detail) = match outcome {
            Outcome::Looked { at, .. } => ("detail", at),
            Outcome::Skipped { reason } => ("reason", reason),
        };
        let findings: Vec<Value> = outcome.findings().iter().map(finding).collect();
        json!({"check": name, "status": outcome.status(), key: plain(detail), "findings": findings})
    };
    let checks: Vec<Value> = report.checks.iter().map(check).collect();
    let [ok, warning, wrong, skipped] = counts(report);
    let counts = json!({"ok": ok, "warning": warning, "wrong": wrong, "skipped": skipped});
    format!("{:#}\n", json!({"wrong": report.is_wrong(), "counts": counts, "checks": checks}))
}

fn counts(report: &Report) -> [usize; 4] {
    [Status::Ok, Status::Warning, Status::Wrong, Status::Skipped]
        .map(|status| report.checks.iter().filter(|(_, outcome)| outcome.status() == status).count())
}

/// Words of others on one line: what a terminal would take for a command is left out.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::rules;

    fn report() -> Report {
        let finding = Finding::new(&rules::FAILS_OPEN, "filter \u{1b}[31mx\nfails open");
        Report {
            checks: vec![
                ("path", Outcome::looked("http://gw", Vec::new())),
                ("fail-mode", Outcome::looked("filter x", vec![finding])),
                ("rbac", Outcome::skipped("give --pool-name")),
            ],
        }
    }

    #[test]
    fn text_has_a_line_per_check_and_three_per_finding() {
        let text = text(&report());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ok       path       http://gw");
        assert_eq!(lines[2], "skipped  rbac       give --pool-name");
        assert_eq!(lines[4], "warning  fail-mode: fails-open");
        assert_eq!(lines[5], "    what filter  [31mx fails open");
        assert!(lines[6].starts_with("    why  ") && lines[7].starts_with("    fix  "), "{text}");
        assert_eq!(lines[9], "1 ok, 1 with warnings, 0 wrong, 1 skipped");
    }

    #[test]
    fn json_says_the_same() {
        let value: Value = serde_json::from_str(&json(&report())).unwrap();
        assert_eq!(value["wrong"], false);
        assert_eq!(value["counts"], json!({"ok": 1, "warning": 1, "wrong": 0, "skipped": 1}));
        assert_eq!(value["checks"][1]["findings"][0]["code"], "fails-open");
        assert_eq!(value["checks"][2]["reason"], "give --pool-name");
    }
}
