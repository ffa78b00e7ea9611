//! CapacityPolicy and ClusterTopology before a real API server: what it takes, and what it refuses.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use usher::capacity::policy::spec::Document;
use usher::capacity::policy::validate::problems;

use crate::objects::{get, send};
use crate::server::Server;
use crate::support::eventually;
use crate::tools::{documents, root};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn policy(spec: impl Into<Value>) -> Value {
    let spec: Value = spec.into();
    json!({"apiVersion": "usher.dev/v1alpha1", "kind": "CapacityPolicy", "metadata": {"name": "p"}, "spec": spec})
}

/// Two roles, and with `more` what a test is about.
fn spec(more: Value) -> Value {
    let mut spec = json!({"roles": {"prefill": {"min": 1, "max": 8}, "decode": {"min": 2, "max": 16}}});
    if let (Value::Object(spec), Value::Object(more)) = (&mut spec, more) {
        spec.extend(more);
    }
    spec
}

fn rule(more: Value) -> Value {
    let mut rule = json!({"name": "r", "role": "decode", "metric": "queue_depth", "comparator": "GREATER_THAN", "threshold": 5, "step": 1});
    if let (Value::Object(rule), Value::Object(more)) = (&mut rule, more) {
        rule.extend(more);
        rule.retain(|_, value| !value.is_null());
    }
    spec(json!({"rules": [rule]}))
}

fn metrics() -> Value {
    json!({"metrics": [{"name": "queue_depth", "target": 4}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_definitions_are_accepted_as_structural() {
    let Some(server) = Server::with_policies().await else { return };
    let client = server.client().await;
    for plural in ["capacitypolicies", "clustertopologies"] {
        let path = format!("{DEFINITIONS}/{plural}.usher.dev");
        let conditions = eventually("a definition to be judged", async || {
            let conditions = get(&client, &path).await.ok()?["status"]["conditions"].take();
            let found = conditions.as_array()?.clone();
            found.iter().any(|condition| condition["type"] == "Established").then_some(found)
        })
        .await;
        for condition in conditions {
            let is_bad = condition["type"] == "NonStructuralSchema" && condition["status"] == "True";
            assert!(!is_bad && condition["status"] == "True", "{plural}: {condition}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shipped_policies_and_all_fields_are_accepted() {
    let Some(server) = Server::with_policies().await else { return };
    let (client, space) = (server.client().await, server.space(&[]).await);
    let path = format!("/apis/usher.dev/v1alpha1/namespaces/{}/capacitypolicies", space.name);
    let strict = format!("{path}?dryRun=All&fieldValidation=Strict");
    let mut taken = 0;
    for entry in std::fs::read_dir(root().join("deploy/capacity")).unwrap() {
        for object in documents(&std::fs::read_to_string(entry.unwrap().path()).unwrap()) {
            send(&client, "POST", &strict, &object).await.unwrap_or_else(|error| panic!("{object}: {error}"));
            taken += 1;
        }
    }
    assert!(taken >= 3, "{taken}");
    let table = [
        spec(json!({})),
        spec(json!({"interval": "1m30s", "total": metrics(), "poolRef": {"name": "p"}})),
        spec(
            json!({"behavior": {"scaleUp": {"period": "0", "stabilization": "1.5m", "panic": {"hold": "500ms"}}}}),
        ),
        spec(
            json!({"coordination": {"mode": "Off", "ratio": {"numerator": "prefill", "denominator": "decode", "min": "1:4", "max": 1}}}),
        ),
        spec(
            json!({"coordination": {"ratio": {"numerator": "prefill", "denominator": "decode", "min": "0.25"}}}),
        ),
        spec(json!({"scaling": {"maxSkewPercent": 0}, "deploy": {"batchTimeout": "24h"}})),
        rule(json!({})),
        rule(
            json!({"comparator": null, "threshold": null, "minThreshold": 1, "maxThreshold": 4, "cooldown": "1h"}),
        ),
        rule(
            json!({"comparator": "LESS_THAN", "step": -1, "aggregation": "p95", "onBound": "clamp", "minCoverage": 0.5}),
        ),
    ];
    for spec in table {
        let object = policy(spec);
        send(&client, "POST", &strict, &object).await.unwrap_or_else(|error| panic!("{object}: {error}"));
        let document: Document = serde_json::from_value(object.clone()).unwrap();
        let errors: Vec<_> = problems(&document).into_iter().filter(|problem| problem.is_error).collect();
        assert!(errors.is_empty(), "the API server takes {object} and Usher doesn't: {errors:?}");
    }
    let kept = send(&client, "POST", &path, &policy(spec(json!({})))).await.unwrap();
    assert_eq!(kept["spec"]["mode"], "Recommend", "what it is by default is seen");
    let topology = json!({
        "apiVersion": "usher.dev/v1alpha1", "kind": "ClusterTopology", "metadata": {"name": "racks"},
        "spec": {"layers": ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]},
    });
    send(&client, "POST", "/apis/usher.dev/v1alpha1/clustertopologies?fieldValidation=Strict", &topology)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_policies_are_refused_by_the_api_server() {
    let Some(server) = Server::with_policies().await else { return };
    let (client, space) = (server.client().await, server.space(&[]).await);
    let path = format!("/apis/usher.dev/v1alpha1/namespaces/{}/capacitypolicies?dryRun=All", space.name);
    let ratio = |more: Value| {
        let mut ratio = json!({"numerator": "prefill", "denominator": "decode"});
        if let (Value::Object(ratio), Value::Object(more)) = (&mut ratio, more) {
            ratio.extend(more);
        }
        spec(json!({"coordination": {"ratio": ratio}}))
    };
    let deploy = |deploy: Value| spec(json!({"deploy": deploy}));
    let steps = || json!({"prefill": 2, "decode": 4});
    let topology = |topology: Value| deploy(json!({"steps": steps(), "topology": topology}));
    let behavior = |up: Value| spec(json!({"behavior": {"scaleUp": up}, "total": metrics()}));
    let table = [
        (json!({}), "spec.roles: Required value"),
        (json!({"roles": {}}), "spec.roles"),
        (json!({"roles": {"a": {"min": 1}}}), "spec.roles.a.max: Required value"),
        (json!({"roles": {"a": {"min": 3, "max": 2}}}), "min is above max"),
        (json!({"roles": {"a": {"min": -1, "max": 2}}}), "greater than or equal to 0"),
        (json!({"roles": {"a": {"max": 0}}}), "greater than or equal to 1"),
        (json!({"roles": {"a": {"max": 1_000_001}}}), "less than or equal to 1000000"),
        (json!({"roles": {"a": {"max": 2, "cost": -1}}}), "spec.roles.a.cost"),
        (
            json!({"roles": {"a": {"max": 2, "scaleTargetRef": {"kind": "Deployment", "name": "x"}}}}),
            "apiVersion: Required value",
        ),
        (spec(json!({"mode": "apply"})), "Unsupported value: \"apply\""),
        (spec(json!({"interval": "500ms"})), "1s to 30m"),
        (spec(json!({"interval": "soon"})), "spec.interval"),
        (spec(json!({"interval": 15})), "must be of type string"),
        (spec(json!({"poolRef": {}})), "spec.poolRef.name: Required value"),
        (
            spec(
                json!({"total": metrics(), "rules": [{"name": "r", "role": "decode", "metric": "m", "comparator": "LESS_THAN", "threshold": 1, "step": -1}]}),
            ),
            "total and rules exclude each other: keep one of them",
        ),
        (spec(json!({"total": {"metrics": []}})), "spec.total.metrics"),
        (
            spec(json!({"total": {"metrics": [{"name": "a", "target": 1}, {"name": "a", "target": 2}]}})),
            "Duplicate value",
        ),
        (spec(json!({"total": {"metrics": [{"name": "a", "target": 0}]}})), "greater than 0"),
        (
            spec(json!({"total": {"metrics": [{"name": "a", "target": 1}], "tolerancePercent": 101}})),
            "less than or equal to 100",
        ),
        (behavior(json!({"period": "31m"})), "at most 30m"),
        (behavior(json!({"percent": 1001})), "less than or equal to 1000"),
        (behavior(json!({"panic": {"thresholdPercent": 109}})), "greater than or equal to 110"),
        (
            spec(json!({"behavior": {"scaleDown": {"panic": {}}}, "total": metrics()})),
            "panic is for scale-up only",
        ),
        (spec(json!({"coordination": {"alpha": 1.5}})), "less than or equal to 1"),
        (
            spec(json!({"coordination": {"preferredRatio": {"prefill": {"min": 60, "max": 40}}}})),
            "min is above max",
        ),
        (
            spec(
                json!({"coordination": {"preferredRatio": {"prefill": {"min": 60}, "decode": {"min": 60}}}}),
            ),
            "more than 100 percent together",
        ),
        (
            spec(json!({"coordination": {"preferredRatio": {"other": {"min": 1}}}})),
            "preferredRatio names an unknown role",
        ),
        (spec(json!({"coordination": {"pressure": {"other": []}}})), "pressure names an unknown role"),
        (ratio(json!({})), "give min or max"),
        (ratio(json!({"denominator": "prefill", "min": "1:4"})), "name two roles"),
        (ratio(json!({"denominator": "other", "min": "1:4"})), "ratio names an unknown role"),
        (ratio(json!({"min": "one to four"})), "spec.coordination.ratio.min"),
        (rule(json!({"role": "other"})), "a rule names an unknown role"),
        (rule(json!({"comparator": null})), "comparator and threshold go together"),
        (rule(json!({"minThreshold": 1})), "give comparator and threshold, or minThreshold or maxThreshold"),
        (
            rule(json!({"comparator": null, "threshold": null})),
            "give comparator and threshold, or minThreshold or maxThreshold",
        ),
        (
            rule(json!({"comparator": null, "threshold": null, "minThreshold": 4, "maxThreshold": 4})),
            "minThreshold has to be below maxThreshold",
        ),
        (
            rule(json!({"comparator": null, "threshold": null, "maxThreshold": 4, "step": -1})),
            "step has no sign",
        ),
        (rule(json!({"step": 0})), "a step of 0 changes nothing"),
        (rule(json!({"step": null})), "step: Required value"),
        (rule(json!({"min": 5, "max": 4})), "min is above max"),
        (rule(json!({"minCoverage": 1.5})), "less than or equal to 1"),
        (rule(json!({"comparator": "ABOVE"})), "Unsupported value: \"ABOVE\""),
        (deploy(json!({})), "deploy has no steps"),
        (deploy(json!({"steps": {"prefill": 0}})), "greater than or equal to 1"),
        (deploy(json!({"steps": {"other": 1}})), "deploy.steps names an unknown role"),
        (deploy(json!({"steps": steps(), "batchTimeout": "0s"})), "batchTimeout has to be above 0"),
        (deploy(json!({"steps": steps(), "provisioningTimeout": "25h"})), "at most 24h"),
        (spec(json!({"deploy": {"steps": steps()}, "scaling": {}})), "keep one of them"),
        (spec(json!({"scaling": {"maxSkewPercent": -1}})), "greater than or equal to 0"),
        (spec(json!({"update": {"maxUnavailablePercent": 101}})), "less than or equal to 100"),
        (topology(json!({"layers": ["a", "b"], "layer": "c"})), "layer is not one of the layers"),
        (topology(json!({"layers": ["a", "a"]})), "Duplicate value"),
        (
            topology(json!({"layers": ["a"], "clusterTopology": "t"})),
            "the layers are those of the ClusterTopology",
        ),
    ];
    let mut wrong = Vec::new();
    let mut said = BTreeSet::new();
    for (spec, words) in table {
        let object = policy(spec);
        match send(&client, "POST", &path, &object).await {
            Ok(_) => wrong.push(format!("taken: {object}")),
            Err(error) if !error.to_string().contains(words) => wrong.push(format!("{object}: {error}")),
            Err(_) => {}
        }
        // Usher itself finds the same, or can't even read it.
        if let Ok(document) = serde_json::from_value::<Document>(object.clone())
            && !problems(&document).iter().any(|problem| problem.is_error)
            // A pool is the API server's business only.
            && words != "spec.poolRef.name: Required value"
        {
            wrong.push(format!("Usher takes {object}"));
        }
        said.insert(words);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(said.len() > 30, "{}", said.len());
    for layers in [json!([]), json!(["a", "a"]), json!([""])] {
        let object = json!({
            "apiVersion": "usher.dev/v1alpha1", "kind": "ClusterTopology", "metadata": {"name": "t"},
            "spec": {"layers": layers},
        });
        let path = "/apis/usher.dev/v1alpha1/clustertopologies?dryRun=All";
        assert!(send(&client, "POST", path, &object).await.is_err(), "{object}");
    }
}
