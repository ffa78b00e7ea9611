//! Validation of policies that set the order in which pods come up: values, notes and errors.

use usher::capacity::policy::file;
use usher::capacity::rollout::{OnTimeout, Pace, Success};

fn read(spec: &str) -> Result<Vec<String>, Vec<String>> {
    let text = format!(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p}}\nspec: {spec}\n"
    );
    let lines = |errors: &[usher::config::ConfigError]| errors.iter().map(ToString::to_string).collect();
    match file::parse(&text) {
        Ok(read) => Ok(lines(&read[0].warnings)),
        Err(errors) => Err(lines(&errors)),
    }
}

fn spec(more: &str) -> String {
    format!("{{roles: {{decode: {{min: 4, max: 16}}, prefill: {{min: 2, max: 8}}}}, {more}}}")
}

#[test]
fn contradictory_settings_are_errors() {
    for (more, part) in [
        ("deploy: {steps: {decode: 4, prefil: 2}}", "'prefil' is not a role"),
        ("deploy: {steps: {decode: 0}}", "write 1 to"),
        ("deploy: {}", "has no steps"),
        ("deploy: {steps: {decode: 4}, batchTimeout: 0s}", "has to be above 0"),
        ("deploy: {steps: {decode: 4}, batchTimeout: 25h}", "longer than 24h"),
        ("deploy: {steps: {decode: 4}, onTimeout: Wait}", "known here: Hold, Trim, Fail"),
        ("deploy: {steps: {decode: 4}, succes: Ready}", "unknown"),
        ("deploy: {steps: {decode: 4}}, scaling: {maxSkewPercent: 5}", "keep one of them"),
        ("deploy: {steps: {decode: 4}, topology: {layer: rack}}", "not one of the layers"),
        ("deploy: {steps: {decode: 4}, topology: {layers: [a, a]}}", "is a duplicate"),
        ("deploy: {steps: {decode: 4}, topology: {layers: [a], clusterTopology: c}}", "keep one of the two"),
        ("scaling: {maxSkewPercent: 101}", "write 0 to 100"),
        ("update: {maxSkewPercent: -1}", "write 0 to 100"),
        ("update: {maxUnavailablePercent: 101}", "write 0 to 100"),
    ] {
        let errors = read(&spec(more)).expect_err(more);
        assert!(errors.iter().any(|error| error.contains(part)), "{more}: {errors:?}");
    }
}

#[test]
fn settings_without_effect_are_warnings() {
    for (more, parts) in [
        ("deploy: {steps: {decode: 4, prefill: 2}}", &[][..]),
        ("scaling: {maxSkewPercent: 0}", &[]),
        ("deploy: {steps: {decode: 4}}", &[]),
        (
            "deploy: {steps: {decode: 5, prefill: 2}}",
            &["less than one step", "min in the same", "max in the same"],
        ),
        ("deploy: {steps: {decode: 4, prefill: 1}}", &["min in the same", "max in the same"]),
        ("scaling: {}, deploy: {success: Running}", &["has no effect"]),
        ("mode: Apply", &["'decode' has no scaleTargetRef", "'prefill' has no scaleTargetRef"]),
    ] {
        let warnings = read(&spec(more)).expect(more);
        assert_eq!(warnings.len(), parts.len(), "{more}: {warnings:?}");
        for part in parts {
            assert!(warnings.iter().any(|warning| warning.contains(part)), "{more}: {warnings:?}");
        }
    }
}

#[test]
fn target_belongs_to_one_role() {
    let policy = |name: &str, version: &str, target: &str| {
        format!(
            "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: {name}}}\nspec: {{roles: {{decode: {{max: 4, scaleTargetRef: {{apiVersion: apps/{version}, kind: Deployment, name: {target}}}}}}}}}\n---\n"
        )
    };
    let fine = file::parse(&[policy("a", "v1", "one"), policy("b", "v1", "other")].join("---\n"));
    assert!(fine.is_ok(), "{fine:?}");
    let errors = file::parse(&[policy("a", "v1", "one"), policy("b", "v1beta1", "one")].join("---\n"))
        .expect_err("twice");
    let text = errors[0].to_string();
    assert!(text.contains("Deployment 'one'") && text.contains("of policy 'a'"), "{text}");
}

#[test]
fn defaults_match_the_documentation() {
    let rollout = |more: &str| crate::cluster::policy(&spec(more)).rollout.unwrap();
    let deploy = rollout("deploy: {steps: {decode: 4}}");
    assert_eq!((deploy.pace, deploy.success), (Some(Pace::Steps(vec![4, 0])), Success::Ready));
    assert_eq!((deploy.batch_timeout.as_secs(), deploy.provisioning_timeout.as_secs()), (600, 900));
    assert_eq!((deploy.on_timeout, deploy.topology, deploy.update), (OnTimeout::Hold, None, None));
    let scaling = rollout("scaling: {maxSkewPercent: 0, progression: OrderScheduled}, update: {}");
    assert_eq!((scaling.pace, scaling.success), (Some(Pace::Skew(0)), Success::Scheduled));
    let update = scaling.update.unwrap();
    assert_eq!((update.max_skew, update.max_unavailable), (10, 5));
    assert_eq!(rollout("scaling: {}").success, Success::Ready);
    let topology = rollout("deploy: {steps: {decode: 4}, topology: {}}").topology.unwrap();
    assert_eq!((topology.layer, topology.layers.len(), topology.is_required), (0, 4, false));
}

/// Steps in percent as in RBG's tables, with exact arithmetic (285, where theirs has 286).
#[test]
fn skew_percentages_give_the_expected_steps() {
    let spec = "{roles: {decode: {min: 200, max: 200}, prefill: {min: 300, max: 300}}, scaling: {maxSkewPercent: 5}}";
    let mut cluster = crate::cluster::Cluster::new(spec, 1);
    let mut seen = Vec::new();
    for _ in 0..100 {
        let plan = cluster.plan();
        if plan.state == usher::capacity::State::Idle {
            break;
        }
        seen.push(crate::cluster::admitted(&plan));
        cluster.apply(&plan);
        cluster.pass(1);
        cluster.pass(1);
    }
    assert_eq!(seen.len(), 20, "{seen:?}");
    assert!(seen.contains(&vec![190, 285]), "{seen:?}");
}
