//! Text of reports.

use super::*;
use crate::doctor::{Rule, rules};

fn looked(at: &str, rules: &[&'static Rule]) -> Outcome {
    let finding = |rule: &&'static Rule| Finding::new(rule, format!("{at} \u{1b}[31mhas\nit"));
    Outcome::looked(at, rules.iter().map(finding).collect())
}

/// A picker that is away.
fn away() -> Report {
    Report {
        checks: vec![
            ("path", looked("http://gw", &[&rules::GATEWAY_FAILS])),
            ("envoy-admin", looked("http://gw:19000", &[])),
            ("picker", looked("10.0.0.9:9002", &[&rules::PICKER_UNREACHABLE, &rules::PICKER_UNHEALTHY])),
            ("tls", Outcome::skipped("see picker")),
            ("timeouts", looked("message_timeout 1000 s", &[&rules::STREAMS_FAILED])),
            ("fail-mode", looked("filter x fails open", &[&rules::FAILS_OPEN])),
            ("rbac", Outcome::skipped("give --pool-name")),
            ("pool", Outcome::skipped("give --pool-name")),
            ("capacity", Outcome::skipped("give --pool-name")),
        ],
    }
}

#[test]
fn cause_is_first_with_dependent_checks_folded_under_it() {
    let expected = "\
gateway
  + envoy-admin       http://gw:19000
  ! fail-mode         filter x fails open

picker
  x picker            10.0.0.9:9002
      and 3 checks that need it: path (gateway-fails), tls, timeouts (streams-failed)

cluster
  - rbac, pool: give --pool-name

capacity
  - capacity          give --pool-name

x picker-unreachable (picker)
    what  10.0.0.9:9002 [31mhas it
    why   The gateway's calls fail, so requests fail, or go on unrouted where it fails open.
    fix   Start the picker, and let its Service, its port and NetworkPolicies admit the gateway.
    also  picker-unhealthy, which follows from it

! fails-open (fail-mode)
    what  filter x fails open [31mhas it
";
    let text = text(&away(), Terminal::default());
    assert!(text.starts_with(expected), "{text}");
    let verdict = "\n\nx Something is wrong: fix picker-unreachable first \
                   (checks: 1 ok, 2 with warnings, 2 wrong, 4 skipped).\n";
    assert!(text.ends_with(verdict), "{text}");
}

#[test]
fn lines_fit_into_the_terminal() {
    for width in [60, 80, 100] {
        let text = text(&away(), Terminal { width: Some(width), ..Terminal::default() });
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(width), "{width}: {text}");
        assert!(longest > Some(width - 12), "{width}: {text}");
    }
    let text = text(&away(), Terminal { width: None, ..Terminal::default() });
    assert!(text.lines().any(|line| line.len() > 100), "{text}");
}

#[test]
fn marks_and_colours_follow_the_terminal() {
    let terminal = Terminal { width: Some(80), unicode: true, colour: false };
    let plain = text(&away(), terminal);
    for mark in ["  ✓ envoy-admin", "  ! fail-mode", "  ✗ picker", "  – rbac, pool", "\n✗ picker-unreachable"]
    {
        assert!(plain.contains(mark), "{mark}: {plain}");
    }
    assert!(!plain.contains('\u{1b}') && text(&away(), Terminal::default()).is_ascii());
    let coloured = text(&away(), Terminal { colour: true, ..terminal });
    assert!(coloured.contains("\u{1b}[31m✗\u{1b}[0m"), "{coloured:?}");
    // The same but for the colours: they take no columns.
    let mut bare = coloured;
    for code in ["0", "1", "2", "31", "32", "33"] {
        bare = bare.replace(&format!("\u{1b}[{code}m"), "");
    }
    assert_eq!(bare, plain);
}

#[test]
fn servers_with_the_same_problem_are_counted() {
    let of = |number: usize, problem: &str| {
        let what = format!("pod-{number} at http://10.0.0.{number}:8000/metrics: {problem}");
        Finding::new(&rules::POD_METRICS_UNREACHABLE, what).on(format!("pod-{number}"), problem)
    };
    let mut findings: Vec<Finding> = (0..12).map(|number| of(number, "refused")).collect();
    findings.extend([of(12, "no response"), of(13, "it responds with 404"), of(14, "it responds with 404")]);
    let findings: Vec<(&str, &Finding)> = findings.iter().map(|finding| ("pod-metrics", finding)).collect();
    let expected = [
        "12 model servers (pod-0, pod-1, pod-2 and 9 more): refused",
        "pod-12 at http://10.0.0.12:8000/metrics: no response",
        "2 model servers (pod-13, pod-14): it responds with 404",
    ];
    assert_eq!(whats(&findings), expected);
}

#[test]
fn the_verdict_is_one_sentence() {
    let of = |checks: Vec<(&'static str, Outcome)>| {
        let text = text(&Report { checks }, Terminal::default());
        text.lines().last().unwrap_or_default().to_owned()
    };
    let (ok, skipped) = (|| ("path", looked("gw", &[])), || ("rbac", Outcome::skipped("no")));
    assert_eq!(of(vec![ok()]), "+ Nothing is wrong (checks: 1 ok).");
    let part = "+ Nothing is wrong in what was looked at (checks: 1 ok, 1 skipped).";
    assert_eq!(of(vec![ok(), skipped()]), part);
    assert_eq!(of(vec![skipped()]), "- Nothing could be looked at (checks: 1 skipped).");
    let warned = of(vec![ok(), ("fail-mode", looked("x", &[&rules::FAILS_OPEN]))]);
    let expected = "! Nothing is wrong, but look at fails-open (checks: 1 ok, 1 with warnings).";
    assert_eq!(warned, expected);
}
