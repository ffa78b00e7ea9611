//! Causes: findings that have others as a consequence, so that the first one to fix comes first.

use super::finding::{Finding, Outcome, Report};
use super::rules::{self, Rule};

/// A finding that others follow from.
#[derive(Debug)]
pub struct Cause {
    /// Kind of the finding.
    pub rule: &'static Rule,
    /// Findings that go with it when it is fixed.
    pub follows: &'static [&'static Rule],
    /// Checks that can't look because of it.
    pub needed_by: &'static [&'static str],
}

/// Findings of a gateway whose calls to the picker fail, whether it refuses requests or lets them pass.
const CALLS_FAIL: &[&Rule] = &[
    &rules::PICKER_UNHEALTHY,
    &rules::GATEWAY_FAILS,
    &rules::PICKER_NOT_IN_PATH,
    &rules::STREAMS_FAILED,
    &rules::FAILED_OPEN,
];

/// Findings of a cluster whose picker can't become ready.
const PICKER_NOT_READY: &[&Rule] = &[
    &rules::PICKER_SERVICE_EMPTY,
    &rules::PICKER_UNREACHABLE,
    &rules::PICKER_UNHEALTHY,
    &rules::GATEWAY_FAILS,
    &rules::PICKER_NOT_IN_PATH,
    &rules::STREAMS_FAILED,
    &rules::FAILED_OPEN,
    &rules::NO_ENDPOINTS,
];

/// Checks of Envoy's configuration.
const OF_ENVOY: &[&str] =
    &["body-mode", "timeouts", "fail-mode", "circuit-breakers", "destination", "picker", "tls"];

/// All causes. One that follows from another comes after it.
pub const CAUSES: &[Cause] = &[
    Cause {
        rule: &rules::API_SERVER_UNREACHABLE,
        follows: &[&rules::NO_ENDPOINTS],
        needed_by: &["rbac", "pool", "routes", "capacity", "pod-metrics"],
    },
    Cause { rule: &rules::CRD_MISSING, follows: &[&rules::POOL_MISSING], needed_by: &["pool"] },
    Cause { rule: &rules::CRD_OLD, follows: &[&rules::POOL_MISSING], needed_by: &["pool"] },
    Cause { rule: &rules::RIGHT_MISSING, follows: PICKER_NOT_READY, needed_by: &["pool", "routes"] },
    Cause { rule: &rules::POOL_MISSING, follows: PICKER_NOT_READY, needed_by: &["routes", "pod-metrics"] },
    Cause { rule: &rules::POOL_EMPTY, follows: &[&rules::NO_ENDPOINTS], needed_by: &["pod-metrics"] },
    Cause { rule: &rules::PICKER_SERVICE, follows: CALLS_FAIL, needed_by: &[] },
    Cause {
        rule: &rules::PICKER_SERVICE_EMPTY,
        follows: &[
            &rules::PICKER_UNREACHABLE,
            &rules::PICKER_UNHEALTHY,
            &rules::GATEWAY_FAILS,
            &rules::PICKER_NOT_IN_PATH,
            &rules::STREAMS_FAILED,
            &rules::FAILED_OPEN,
        ],
        needed_by: &["tls"],
    },
    Cause {
        rule: &rules::PICKER_UNREACHABLE,
        follows: &[
            &rules::PICKER_UNHEALTHY,
            &rules::GATEWAY_FAILS,
            &rules::PICKER_NOT_IN_PATH,
            &rules::STREAMS_FAILED,
            &rules::FAILED_OPEN,
            &rules::PICKER_METRICS_UNREACHABLE,
            &rules::ADMIN_UNREACHABLE,
        ],
        needed_by: &["tls"],
    },
    Cause { rule: &rules::PICKER_NOT_EXT_PROC, follows: CALLS_FAIL, needed_by: &[] },
    Cause { rule: &rules::PICKER_NOT_HTTP2, follows: CALLS_FAIL, needed_by: &[] },
    Cause { rule: &rules::TLS_MISMATCH, follows: CALLS_FAIL, needed_by: &[] },
    Cause { rule: &rules::TLS_CERTIFICATE, follows: CALLS_FAIL, needed_by: &[] },
    Cause {
        rule: &rules::PICKER_UNHEALTHY,
        follows: &[
            &rules::GATEWAY_FAILS,
            &rules::PICKER_NOT_IN_PATH,
            &rules::STREAMS_FAILED,
            &rules::FAILED_OPEN,
        ],
        needed_by: &["picker", "tls"],
    },
    Cause {
        rule: &rules::EXT_PROC_MISSING,
        follows: &[&rules::PICKER_NOT_IN_PATH],
        needed_by: &["timeouts", "fail-mode", "circuit-breakers", "destination", "picker", "tls"],
    },
    Cause { rule: &rules::EXT_PROC_DISABLED, follows: &[&rules::PICKER_NOT_IN_PATH], needed_by: &[] },
    Cause {
        rule: &rules::OBSERVABILITY_MODE,
        follows: &[&rules::PICKER_NOT_IN_PATH, &rules::BODIES_NOT_READ],
        needed_by: &[],
    },
    Cause {
        rule: &rules::HEADERS_NOT_SENT,
        follows: &[&rules::GATEWAY_FAILS, &rules::PICKER_NOT_IN_PATH],
        needed_by: &[],
    },
    Cause {
        rule: &rules::REQUEST_BODY_MODE,
        follows: &[&rules::GATEWAY_FAILS, &rules::PICKER_NOT_IN_PATH, &rules::BODIES_NOT_READ],
        needed_by: &[],
    },
    Cause {
        rule: &rules::MESSAGE_TIMEOUT_SHORT,
        follows: &[&rules::MESSAGES_TIMED_OUT, &rules::STREAMS_FAILED],
        needed_by: &[],
    },
    Cause { rule: &rules::MESSAGE_TIMEOUT_LOW, follows: &[&rules::MESSAGES_TIMED_OUT], needed_by: &[] },
    Cause { rule: &rules::MUTATIONS_REFUSED, follows: &[&rules::PICKER_CHOICE_IGNORED], needed_by: &[] },
    Cause { rule: &rules::DESTINATION_IGNORED, follows: &[&rules::PICKER_CHOICE_IGNORED], needed_by: &[] },
    Cause {
        rule: &rules::METADATA_NOT_RECEIVED,
        follows: &[&rules::PICKER_CHOICE_IGNORED, &rules::SERVERS_FAIL],
        needed_by: &[],
    },
    Cause { rule: &rules::ROUTE_CACHE_KEPT, follows: &[&rules::PICKER_CHOICE_IGNORED], needed_by: &[] },
    Cause { rule: &rules::LIST_FOR_ORIGINAL_DST, follows: &[&rules::SERVERS_FAIL], needed_by: &[] },
    Cause { rule: &rules::ENVOY_ADMIN_UNREACHABLE, follows: &[], needed_by: OF_ENVOY },
    Cause { rule: &rules::ADMIN_UNREACHABLE, follows: &[], needed_by: &["pod-metrics"] },
    Cause { rule: &rules::NO_ENDPOINTS, follows: &[], needed_by: &["pod-metrics"] },
];

/// A finding that follows from no other, with what follows from it.
#[derive(Debug)]
pub struct Root<'a> {
    /// Kind of the finding.
    pub rule: &'static Rule,
    /// Findings of this kind, with their checks.
    pub findings: Vec<(&'static str, &'a Finding)>,
    /// Checks that need it fixed, with the kinds of what they found; none if they could not look.
    pub needed_by: Vec<(&'static str, Vec<&'static Rule>)>,
}

impl Report {
    /// Findings that follow from no other: what is wrong first, and otherwise causes before what has none.
    pub fn roots(&self) -> Vec<Root<'_>> {
        let mut roots: Vec<Root<'_>> = Vec::new();
        for (check, finding) in self.findings().filter(|(_, finding)| self.cause(finding.rule).is_none()) {
            match roots.iter_mut().find(|root| root.rule == finding.rule) {
                Some(root) => root.findings.push((check, finding)),
                None => roots.push(Root {
                    rule: finding.rule,
                    findings: vec![(check, finding)],
                    needed_by: Vec::new(),
                }),
            }
        }
        for root in &mut roots {
            root.needed_by =
                self.checks.iter().filter_map(|(name, of)| needs(self, name, of, root)).collect();
        }
        let place = |rule: &Rule| CAUSES.iter().position(|cause| cause.rule == rule).unwrap_or(CAUSES.len());
        roots.sort_by_key(|root| (std::cmp::Reverse(root.rule.severity), place(root.rule)));
        roots
    }

    /// Kind of the finding that one of this kind follows from; `None`: from no other.
    pub fn cause(&self, rule: &Rule) -> Option<&'static Rule> {
        self.first(|cause| cause.follows.contains(&rule)).map(|cause| self.cause(cause).unwrap_or(cause))
    }

    /// Kind of the finding because of which a check could not look.
    pub fn obstacle(&self, check: &str) -> Option<&'static Rule> {
        let is_skipped =
            |(name, of): &(&str, Outcome)| *name == check && matches!(of, Outcome::Skipped { .. });
        self.checks.iter().find(|each| is_skipped(each))?;
        self.first(|cause| cause.needed_by.contains(&check)).map(|cause| self.cause(cause).unwrap_or(cause))
    }

    /// The first cause that was found and is as asked for.
    fn first(&self, is: impl Fn(&Cause) -> bool) -> Option<&'static Rule> {
        let is_found = |rule: &Rule| self.findings().any(|(_, finding)| finding.rule == rule);
        CAUSES.iter().find(|cause| is(cause) && is_found(cause.rule)).map(|cause| cause.rule)
    }
}

/// A check that could not look because of a root, or found what follows from it.
fn needs(
    report: &Report,
    name: &'static str,
    outcome: &Outcome,
    root: &Root<'_>,
) -> Option<(&'static str, Vec<&'static Rule>)> {
    let mut found: Vec<&'static Rule> = Vec::new();
    for finding in outcome.findings() {
        if report.cause(finding.rule) == Some(root.rule) && !found.contains(&finding.rule) {
            found.push(finding.rule);
        }
    }
    (!found.is_empty() || report.obstacle(name) == Some(root.rule)).then_some((name, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(checks: Vec<(&'static str, Vec<&'static Rule>)>, skipped: &[&'static str]) -> Report {
        let looked = |rules: Vec<&'static Rule>| {
            Outcome::looked("x", rules.into_iter().map(|rule| Finding::new(rule, "y")).collect())
        };
        let mut all: Vec<_> = checks.into_iter().map(|(name, rules)| (name, looked(rules))).collect();
        all.extend(skipped.iter().map(|name| (*name, Outcome::skipped("z"))));
        Report { checks: all }
    }

    #[test]
    fn causes_precede_their_consequences() {
        for (place, cause) in CAUSES.iter().enumerate() {
            for rule in cause.follows {
                let later = CAUSES.iter().position(|other| other.rule == *rule);
                assert!(later.is_none_or(|later| later > place), "{} and {}", cause.rule.code, rule.code);
                assert!(cause.rule.severity >= rule.severity, "{} hides {}", cause.rule.code, rule.code);
            }
            let again = CAUSES.iter().filter(|other| other.rule == cause.rule).count();
            assert_eq!(again, 1, "{}", cause.rule.code);
            let checks: Vec<&str> =
                crate::doctor::check::GROUPS.iter().flat_map(|(_, of)| *of).copied().collect();
            assert!(cause.needed_by.iter().all(|check| checks.contains(check)), "{}", cause.rule.code);
        }
    }

    #[test]
    fn findings_are_folded_under_their_first_cause() {
        let report = report(
            vec![
                ("path", vec![&rules::GATEWAY_FAILS]),
                ("picker", vec![&rules::PICKER_UNHEALTHY, &rules::PICKER_UNREACHABLE]),
                ("timeouts", vec![&rules::ROUTE_TIMEOUT_SHORT, &rules::STREAMS_FAILED]),
                ("fail-mode", vec![&rules::FAILS_OPEN]),
            ],
            &["tls", "crds"],
        );
        let roots = report.roots();
        let codes: Vec<&str> = roots.iter().map(|root| root.rule.code).collect();
        assert_eq!(codes, ["picker-unreachable", "route-timeout-short", "fails-open"]);
        let needed: Vec<(&str, usize)> =
            roots[0].needed_by.iter().map(|(name, rules)| (*name, rules.len())).collect();
        assert_eq!(needed, [("path", 1), ("picker", 1), ("timeouts", 1), ("tls", 0)]);
        assert_eq!(report.obstacle("crds"), None);
        assert!(roots[1].needed_by.is_empty() && roots[2].needed_by.is_empty());
    }

    #[test]
    fn a_chain_of_causes_ends_at_the_first() {
        let report = report(
            vec![
                ("pool", vec![&rules::POOL_MISSING]),
                ("picker", vec![&rules::PICKER_UNREACHABLE]),
                ("path", vec![&rules::GATEWAY_FAILS]),
            ],
            &["tls"],
        );
        let roots = report.roots();
        assert_eq!(roots.len(), 1);
        assert_eq!(roots[0].rule.code, "pool-missing");
        assert_eq!(report.obstacle("tls").map(|rule| rule.code), Some("pool-missing"));
    }
}
