//! Policies that are refused or warned of, and what becomes of one that got past both.

use serde_json::{Value, json};
use usher::capacity::policy::spec::Document;
use usher::capacity::policy::{Policy, file};

fn document(spec: &str) -> String {
    format!("apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p}}\nspec: {{{spec}}}\n")
}

const AB: &str = "roles: {a: {min: 1, max: 4}, b: {min: 1, max: 4}}";

fn errors(text: &str) -> Vec<String> {
    file::parse(text).err().unwrap_or_default().iter().map(|error| error.in_file("f")).collect()
}

#[test]
fn invalid_policies_are_refused_with_position() {
    let rule = |more: &str| format!("{AB}, rules: [{{name: r, role: a, metric: m, {more}}}]");
    let up = "comparator: GREATER_THAN, threshold: 5, step: 1";
    let two = |first: &str, second: &str| {
        format!(
            "{AB}, rules: [{{name: r, role: a, metric: m, {first}}}, {{name: s, role: a, metric: m, {second}}}]"
        )
    };
    let shared = |more: &str| format!("{AB}, coordination: {{{more}}}");
    let ratio = |more: &str| shared(&format!("ratio: {{numerator: a, denominator: b, {more}}}"));
    let stepped = |steps: &str, ratio: &str| {
        format!(
            "roles: {{a: {{min: 1, max: 16}}, b: {{min: 1, max: 16}}}}, coordination: {{ratio: {{numerator: a, denominator: b, {ratio}}}}}, deploy: {{steps: {steps}}}"
        )
    };
    let total = |more: &str| format!("{AB}, total: {{{more}}}");
    let one = "metrics: [{name: m, target: 1}]";
    let table: Vec<(String, &str)> = vec![
        ("roles: {}".into(), "spec.roles is empty"),
        ("roles: {a: {min: 1}}".into(), "'a' has no max"),
        ("roles: {a: {min: 5, max: 4}}".into(), "spec.roles.a.min is above max"),
        ("roles: {a: {min: -1, max: 4}}".into(), "spec.roles.a.min is out of range"),
        ("roles: {a: {max: 1000001}}".into(), "spec.roles.a.max is out of range"),
        ("roles: {a: {max: 4, cost: -1}}".into(), "spec.roles.a.cost has to be 0 or more"),
        ("roles: {a: {max: 4, scaleTargetRef: {name: x}}}".into(), "spec.roles.a.scaleTargetRef has no apiVersion"),
        (format!("interval: 0s, {AB}"), "spec.interval is out of range"),
        (format!("interval: 31m, {AB}"), "spec.interval is out of range"),
        (format!("{AB}, sizes: 3"), "unknown"),
        (total(""), "spec.total.metrics is empty"),
        (total("metrics: [{target: 1}]"), "spec.total.metrics.0 has no name"),
        (total("metrics: [{name: m, target: 1}, {name: m, target: 2}]"), "'m' is a duplicate"),
        (total("metrics: [{name: m}]"), "spec.total.metrics.0.target is missing"),
        (total("metrics: [{name: m, target: 0}]"), "spec.total.metrics.0.target has to be above 0"),
        (total("metrics: [{name: m, target: .inf}]"), "target"),
        (total("metrics: [{name: m, target: 1e-10}]"), "spec.total.metrics.0.target has to be a billionth or more"),
        (shared("pressure: {a: [{metric: q, target: 1e-300}]}"), "has to be a billionth or more"),
        (total("metrics: [{name: m, source: elsewhere, target: 1}]"), "elsewhere"),
        (total(&format!("tolerancePercent: 101, {one}")), "spec.total.tolerancePercent is out of range"),
        (format!("{}, total: {{{one}}}", rule(up)), "spec.total excludes rules; keep one of them"),
        (format!("{}, behavior: {{scaleUp: {{period: 31m}}}}", total(one)), "spec.behavior.scaleUp.period is longer than 30m"),
        (format!("{}, behavior: {{scaleDown: {{percent: 1001}}}}", total(one)), "spec.behavior.scaleDown.percent is out of range"),
        (format!("{}, behavior: {{scaleUp: {{panic: {{thresholdPercent: 109}}}}}}", total(one)), "panic.thresholdPercent is out of range"),
        (format!("{}, behavior: {{scaleDown: {{panic: {{}}}}}}", total(one)), "move it to scaleUp"),
        (shared("mode: Always"), "Always"),
        (shared("alpha: 1.5"), "spec.coordination.alpha is out of range"),
        (shared("preferredRatio: {a: {min: 60}, b: {min: 41}}"), "minima of 101 percent"),
        (shared("preferredRatio: {a: {max: 40}, b: {max: 59}}"), "maxima of 99 percent"),
        (shared("preferredRatio: {a: {min: 60, max: 50}}"), "spec.coordination.preferredRatio.a.min is above max"),
        (shared("preferredRatio: {c: {min: 60}}"), "'c' is not a role of this policy; its roles are a, b"),
        (shared("pressure: {a: [{metric: q, target: 0}]}"), "spec.coordination.pressure.a.0.target has to be above 0"),
        (shared("ratio: {numerator: a, denominator: a, min: 1}"), "is the numerator's role"),
        (ratio("min: '1:x'"), "\"1:x\""),
        (ratio("max: 0"), "spec.coordination.ratio.max has to be above 0"),
        (ratio("min: 2, max: 1"), "spec.coordination.ratio.min is above max"),
        (shared("ratio: {numerator: a, denominator: b}"), "has neither min nor max"),
        // Over real numbers there is a pair.
        ("roles: {a: {min: 1, max: 1}, b: {min: 1, max: 2}}, coordination: {ratio: {numerator: a, denominator: b, min: 0.6, max: 0.65}}".into(), "can't be satisfied within the roles' bounds"),
        // None at all keep any ratio, and that is no group.
        ("roles: {a: {max: 1}, b: {max: 2}}, coordination: {ratio: {numerator: a, denominator: b, min: 0.6, max: 0.65}}".into(), "can't be satisfied within the roles' bounds"),
        // Steps lead along one ratio.
        (stepped("{a: 2, b: 4}", "min: '1:1', max: '1:1'"), "spec.deploy.steps bring up 2 a with every 4 b, which is below spec.coordination.ratio.min 1:1, so that no step keeps the ratio; write a: 4 and b: 4, or change the ratio"),
        (stepped("{a: 3, b: 2}", "max: '1:1'"), "is above spec.coordination.ratio.max 1:1, so that no step keeps the ratio; write a: 3 and b: 3"),
        (rule("comparator: GREATER_THAN, threshold: 5"), "spec.rules.0 has no step"),
        (rule("comparator: GREATER_THAN, threshold: 5, step: 0"), "is 0, which changes nothing"),
        (rule("comparator: ABOVE, threshold: 5, step: 1"), "ABOVE"),
        (rule("comparator: GREATER_THAN, step: 1"), "a comparator and no threshold"),
        (rule("threshold: 1, step: 1"), "a threshold and no comparator"),
        (rule("step: 1"), "spec.rules.0 has no threshold"),
        (rule(&format!("maxThreshold: 3, {up}")), "thresholds of both kinds"),
        (rule("minThreshold: 3, maxThreshold: 3, step: 1"), "or the role flaps"),
        (rule("maxThreshold: 3, step: -1"), "has no sign beside"),
        (rule(&format!("{up}, min: 3, max: 2")), "spec.rules.0.min is above max"),
        (rule(&format!("{up}, minCoverage: 2")), "spec.rules.0.minCoverage is out of range"),
        (format!("{AB}, rules: [{{name: r, role: c, metric: m, {up}}}]"), "'c' is not a role"),
        (format!("{AB}, rules: [{{role: a, metric: m, {up}}}]"), "spec.rules.0 has no name"),
        (format!("{AB}, rules: [{{name: r, role: a, {up}}}]"), "spec.rules.0 has no metric"),
        (two(up, "comparator: LESS_THAN, threshold: 5, step: -1"), "so the role flaps"),
        (two(up, "minThreshold: 6, step: 1"), "so the role flaps"),
        // What waits is one number, and so is a query: there is nothing to aggregate.
        (format!("{AB}, rules: [{{name: r, role: a, metric: waiting, {up}}}, {{name: s, role: a, metric: waiting, aggregation: max, comparator: LESS_THAN, threshold: 6, step: -1}}]"), "so the role flaps"),
        (format!("{AB}, rules: [{{name: r, role: a, metric: m, {up}}}, {{name: r, role: b, metric: m, {up}}}]"), "'r' is a duplicate"),
    ];
    for (spec, says) in table {
        let found = errors(&document(&spec));
        assert!(found.iter().any(|error| error.contains(says)), "{spec}: {says}: {found:?}");
        for error in found {
            assert!(error.starts_with("f:") && !error.contains('\n'), "{error}");
        }
    }
    let twice = format!("{}---\n{}", document(AB), document(AB));
    assert!(errors(&twice)[0].contains("a second policy is called 'p'"), "{:?}", errors(&twice));
    for (text, says) in [
        (document(AB).replace("v1alpha1", "v2"), "write usher.dev/v1alpha1"),
        (
            document(AB).replace("kind: CapacityPolicy", "kind: Pool"),
            "kind 'Pool' is not known (write kind: CapacityPolicy)",
        ),
        (document(AB).replace("kind: CapacityPolicy", "kind: 3"), "kind: expected text"),
        (document(AB).replace("kind: CapacityPolicy\n", ""), "kind is \"\"; write CapacityPolicy"),
        (
            "plugins: []".into(),
            "this is an EndpointPickerConfig, not a CapacityPolicy (serve takes it as --config-file)",
        ),
        ("endpoints: []".into(), "this is an endpoints file, not a CapacityPolicy"),
        (document(AB).replace("{name: p}", "{}"), "metadata.name is missing"),
        (String::new(), "there is no policy in it"),
    ] {
        assert!(errors(&text).iter().any(|error| error.contains(says)), "{says}: {:?}", errors(&text));
    }
}

#[test]
fn suspicious_policies_have_warnings() {
    let total = "total: {metrics: [{name: m, target: 1}]}";
    let table = [
        (format!("{AB}, behavior: {{}}"), "no effect without total"),
        (format!("{AB}, {total}, coordination: {{mode: Preferred}}"), "has no metrics of 'a'"),
        (format!("{AB}, coordination: {{alpha: 0.8}}"), "may swing"),
        (format!("{AB}, rules: [{{name: r, role: a, metric: m, comparator: GREATER_THAN, threshold: 5, step: -1}}]"), "removes pods when there is more"),
        (format!("{AB}, rules: [{{name: r, role: a, metric: m, comparator: LESS_THAN, threshold: 5, step: 1}}]"), "adds pods when there is less"),
        ("roles: {a: {max: 4}, b: {min: 1, max: 4}}, coordination: {ratio: {numerator: a, denominator: b, min: 1}}".into(), "scale to zero or none"),
        ("roles: {a: {max: 2}, b: {max: 4}}, coordination: {ratio: {numerator: a, denominator: b, max: 0.2}}".into(), "can't be satisfied while requests wait"),
        (format!("{AB}, rules: [{{name: r, role: a, metric: m, comparator: GREATER_THAN, threshold: 5, step: 1, min: 5}}]"), "spec.rules.0.min is above the max of 'a', which holds"),
        ("roles: {a: {min: 3, max: 9}}, rules: [{name: r, role: a, metric: m, comparator: GREATER_THAN, threshold: 5, step: 1, max: 2}]".into(), "spec.rules.0.max is below the min of 'a', which holds"),
    ];
    for (spec, says) in table {
        let read = file::parse(&document(&spec)).unwrap_or_else(|errors| panic!("{spec}: {errors:?}"));
        let warnings: Vec<String> = read[0].warnings.iter().map(ToString::to_string).collect();
        assert!(warnings.iter().any(|warning| warning.contains(says)), "{spec}: {says}: {warnings:?}");
    }
    for sound in [format!("{AB}, coordination: {{alpha: 0.75}}"), format!("{AB}, {total}, behavior: {{}}")] {
        assert!(file::parse(&document(&sound)).unwrap()[0].warnings.is_empty(), "{sound}");
    }
}

/// An object that nobody validated.
fn sanitised(spec: &Value) -> Policy {
    let object = json!({
        "apiVersion": "usher.dev/v1alpha1", "kind": "CapacityPolicy", "metadata": {"name": "p"}, "spec": spec,
    });
    Policy::of(&serde_json::from_value::<Document>(object).unwrap())
}

#[test]
fn out_of_range_values_are_replaced_and_counted() {
    let roles = json!({"a": {"min": 1, "max": 4}, "b": {"min": 1, "max": 4}});
    let rule = |step: i64| json!([{"name": "r", "role": "a", "metric": "m", "comparator": "GREATER_THAN", "threshold": 1, "step": step}]);
    let table = [
        (json!({"roles": roles}), 0),
        (json!({"roles": roles, "rules": rule(1)}), 0),
        (json!({"roles": {"a": {"min": -3, "max": 4}}}), 1),
        (json!({"roles": {"a": {"min": 9, "max": 4}}}), 1),
        (json!({"roles": {"a": {"max": 4, "cost": -1}}}), 1),
        (json!({"roles": roles, "interval": "0s"}), 1),
        (json!({"roles": roles, "rules": rule(0)}), 1),
        (json!({"roles": roles, "rules": rule(1), "total": {"metrics": [{"name": "m", "target": 1}]}}), 1),
        (json!({"roles": roles, "total": {"metrics": [{"name": "m", "target": -1}]}}), 1),
        (json!({"roles": roles, "behavior": {"scaleDown": {"stabilization": "3h", "percent": -5}}}), 2),
        (json!({"roles": roles, "coordination": {"alpha": 2.0}}), 1),
        (
            json!({"roles": roles, "coordination": {"preferredRatio": {"a": {"min": 9, "max": 4}, "c": {}}}}),
            2,
        ),
        (
            json!({"roles": roles, "coordination": {"ratio": {"numerator": "a", "denominator": "a", "min": "1"}}}),
            1,
        ),
    ];
    for (spec, count) in table {
        let policy = sanitised(&spec);
        assert_eq!(policy.sanitised, count, "{spec}");
        for role in &policy.roles {
            assert!(role.range.min <= role.range.max && role.cost >= 0.0, "{spec}: {role:?}");
        }
    }
}

/// Metadata as kubectl writes it and as users add it beside a policy is accepted; misspelt keys are not.
#[test]
fn any_object_metadata_is_accepted() {
    let named = document(AB).replace(
        "{name: p}",
        "{name: p, namespace: there, labels: {team: x}, annotations: {example.com/why: 'a test'}}",
    );
    assert_eq!(errors(&named), Vec::<String>::new());
    let misspelt = document(AB).replace("{name: p}", "{name: p, label: {team: x}}");
    assert!(errors(&misspelt)[0].contains("did you mean `labels`?"), "{:?}", errors(&misspelt));
}

#[test]
fn each_error_is_reported_once() {
    let found = errors(&document("roles: {a: {max: 4, scaleTargetRef: {kind: X, name: x}}}"));
    assert_eq!(found.len(), 1, "{found:?}");
}
