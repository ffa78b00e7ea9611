//! The examples that are shipped, and what is wrong with policies.

use usher::capacity::policy::{Sizing, file};

fn example(name: &str) -> String {
    std::fs::read_to_string(format!("{}/deploy/capacity/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn the_examples_are_valid() {
    for (name, policy) in [("pd.yaml", "llama-70b"), ("rules.yaml", "qwen-7b")] {
        let read = file::parse(&example(name)).unwrap();
        assert_eq!((read.len(), read[0].policy.name.as_str()), (1, policy));
        assert!(
            read[0].warnings.is_empty() && read[0].policy.sanitised == 0,
            "{name}: {:?}",
            read[0].warnings
        );
    }
    let both = format!("{}---\n{}", example("pd.yaml"), example("rules.yaml"));
    let read = file::parse(&both).unwrap();
    assert_eq!(read.len(), 2);
    assert!(matches!(read[1].policy.sizing, Sizing::Rules(_)));
    let twice = format!("{}---\n{}", example("rules.yaml"), example("rules.yaml"));
    let error = file::parse(&twice).unwrap_err().remove(0).to_string();
    assert!(error.contains("a second policy is called 'qwen-7b'"), "{error}");
}

/// Each change to a policy is refused with an error that has this text; an empty text: the change is valid.
#[test]
fn invalid_policies_are_refused_with_position() {
    let table = [
        ("min: 2", "min: 9", ":13:7: spec.roles.prefill.min is above max"),
        ("max: 16", "max: 0", "spec.roles.decode.max is out of range"),
        ("cost: 60", "cost: -1", "spec.roles.decode.cost has to be 0 or more"),
        ("prefill: {min: 25, max: 60}", "prefill: {min: 70, max: 80}", "minima of 110 percent"),
        ("{min: 40, max: 75}", "{min: 10, max: 30}", "maxima of 90 percent"),
        ("{min: 40, max: 75}", "{min: 80, max: 75}", "preferredRatio.decode.min is above max"),
        (
            "prefill: {min: 25",
            "encode: {min: 25",
            "'encode' is not a role of this policy; its roles are decode, prefill",
        ),
        ("alpha: 0.5", "alpha: 1.5", "spec.coordination.alpha is out of range"),
        ("min: \"1:4\"", "min: \"4:1\"", "ratio.min is above max"),
        ("min: \"1:4\", max: \"1:1\"", "min: \"1:4\", max: \"0.26\"", ""),
        (
            "min: \"1:4\", max: \"1:1\"",
            "min: \"9:1\", max: \"9:1\"",
            "can't be satisfied within the roles' bounds",
        ),
        ("numerator: prefill", "numerator: decode", "is the numerator's role"),
        ("target: 4}]\n", "target: 0}]\n", "spec.total.metrics.0.target has to be above 0"),
        ("tolerancePercent: 10", "tolerancePercent: 101", "write 0 to 100"),
        ("tolerancePercent", "tolerancPercent", "did you mean `tolerancePercent`?"),
        ("period: 60s", "period: 31m", "is longer than 30m"),
        ("thresholdPercent: 200", "thresholdPercent: 100", "write 110 to 1000"),
        ("interval: 15s", "interval: 15", "is not a duration"),
        ("kind: CapacityPolicy", "kind: Policy", "kind 'Policy' is not known (write kind: CapacityPolicy)"),
        ("name: llama-70b", "namespace: x", "metadata.name is missing"),
        ("mode: Recommend", "mode: Auto", "unknown value 'Auto' (known here: Recommend, Apply)"),
        ("mode: Preferred", "mode: Off", ""),
        ("mode: Preferred", "mode: On", "expected Off or Preferred"),
    ];
    for (from, to, expected) in table {
        let text = example("pd.yaml");
        assert!(text.contains(from), "{from}");
        let result = file::parse(&text.replacen(from, to, 1));
        if expected.is_empty() {
            assert!(result.is_ok(), "{to}");
            continue;
        }
        let errors: Vec<String> = result.expect_err(to).iter().map(|error| error.in_file("")).collect();
        assert!(errors.iter().any(|error| error.contains(expected)), "{to}: {errors:?}");
    }
}

#[test]
fn invalid_rules_are_refused_and_odd_ones_noted() {
    let table = [
        ("threshold: 1\n", "threshold: 5\n", "adds pods from 5 on and 'down-on-idle' removes them up to 5"),
        ("name: down-on-idle", "name: up-on-queue", "spec.rules.1.name 'up-on-queue' is a duplicate"),
        ("step: 2", "step: 0", "changes nothing"),
        ("    step: 2\n", "", "has no step"),
        ("    threshold: 5\n", "", "has a comparator and no threshold"),
        ("comparator: LESS_THAN\n", "minThreshold: 1\n", "thresholds of both kinds"),
        ("    role: decode\n", "    role: encode\n", "'encode' is not a role"),
        ("    metric: queue_depth\n", "", "spec.rules.0 has no metric"),
        ("max: 8\n    onBound", "max: 0\n    onBound", "spec.rules.0.max is out of range"),
    ];
    for (from, to, expected) in table {
        let text = example("rules.yaml");
        assert!(text.contains(from), "{from}");
        let errors: Vec<String> = file::parse(&text.replacen(from, to, 1))
            .unwrap_err()
            .iter()
            .map(|error| error.in_file(""))
            .collect();
        assert!(errors.iter().any(|error| error.contains(expected)), "{to}: {errors:?}");
    }
    let beside =
        example("rules.yaml").replace("  rules:", "  total: {metrics: [{name: x, target: 1}]}\n  rules:");
    let errors = file::parse(&beside).unwrap_err();
    assert!(errors[0].to_string().contains("keep one of them"), "{errors:?}");
    let odd = example("rules.yaml").replace("step: 2", "step: -2");
    let warnings = &file::parse(&odd).unwrap()[0].warnings;
    assert!(warnings[0].to_string().contains("removes pods when there is more to do"), "{warnings:?}");
}
