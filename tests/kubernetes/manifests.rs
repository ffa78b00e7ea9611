//! Objects that the chart renders, that kustomize builds, and that are written down in `deploy/`
//! and `docs/`: a real API server takes all of them, and takes them literally.

use std::collections::BTreeSet;

use kube::Client;
use serde_json::{Value, json};

use crate::examples::{Example, examples};
use crate::kustomize::OVERLAYS;
use crate::objects::{get, send};
use crate::server::Server;
use crate::support::eventually;
use crate::tools::{Helm, Kustomize, definitions, values_files};

/// Kinds that no API server knows: they are for a program's own eyes.
const NOT_OBJECTS: [(&str, &str); 2] =
    [("llm-d.ai/v1alpha1", "EndpointPickerConfig"), ("kustomize.config.k8s.io/v1beta1", "Kustomization")];

/// Kinds that have to be among them, or this tests less than it says.
const KINDS: [&str; 32] = [
    "BackendTLSPolicy",
    "BackendTrafficPolicy",
    "CapacityPolicy",
    "ClientTrafficPolicy",
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "CustomResourceDefinition",
    "Deployment",
    "DestinationRule",
    "EnvoyExtensionPolicy",
    "EnvoyFilter",
    "GCPBackendPolicy",
    "Gateway",
    "GatewayClass",
    "HTTPRoute",
    "HealthCheckPolicy",
    "InferenceModelRewrite",
    "InferenceObjective",
    "InferencePool",
    "ListenerPolicy",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "PodMonitoring",
    "Role",
    "RoleBinding",
    "ScaledObject",
    "Secret",
    "Service",
    "ServiceAccount",
    "PrometheusRule",
    "ServiceMonitor",
];

/// Everything, and where it comes from.
fn everything(helm: &Helm, kustomize: &Kustomize) -> Vec<Example> {
    let named = |place: String, objects: Vec<Value>| {
        objects.into_iter().map(move |object| Example { place: place.clone(), object })
    };
    let mut all = examples();
    for values in values_files() {
        all.extend(named(format!("chart with {values}"), helm.rendered(&values)));
    }
    let own = helm.template("models", &["--values", "deploy/envoy-gateway/usher-values.yaml"]).unwrap();
    all.extend(named("chart for deploy/envoy-gateway".to_owned(), own));
    for overlay in OVERLAYS {
        all.extend(named(format!("kustomize {overlay}"), kustomize.build(&overlay.folder())));
    }
    all.retain(|Example { object, .. }| {
        !NOT_OBJECTS.iter().any(|(version, kind)| object["apiVersion"] == *version && object["kind"] == *kind)
    });
    all
}

/// Makes the kinds of these objects known, of all definitions that there are.
async fn define(client: &Client, definitions: &[Value], objects: &[Example]) {
    let group = |object: &Value| {
        object["apiVersion"]
            .as_str()
            .and_then(|version| version.split_once('/'))
            .map(|(group, _)| group.to_owned())
    };
    let used: BTreeSet<(String, String)> = objects
        .iter()
        .filter_map(|example| Some((group(&example.object)?, example.object["kind"].as_str()?.to_owned())))
        .collect();
    let is_used = |definition: &&Value| {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        used.contains(&(text(&spec["group"]), text(&spec["names"]["kind"])))
    };
    let definitions: Vec<&Value> = definitions.iter().filter(is_used).collect();
    for definition in &definitions {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        send(client, "POST", path, definition).await.unwrap();
    }
    for definition in definitions {
        let name = definition["metadata"]["name"].as_str().unwrap();
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        eventually("a kind to be served", async || {
            let conditions = get(client, &path).await.ok()?["status"]["conditions"].take();
            let is = |kind: &str| {
                conditions.as_array()?.iter().find(|condition| condition["type"] == kind)?["status"].as_str()
            };
            (is("Established")? == "True").then_some(())
        })
        .await;
        // The list of kinds is made anew a moment later.
        let spec = &definition["spec"];
        for version in spec["versions"].as_array().unwrap().iter().filter(|version| version["served"] == true)
        {
            let version =
                format!("{}/{}", spec["group"].as_str().unwrap(), version["name"].as_str().unwrap());
            let object = json!({"apiVersion": version, "kind": spec["names"]["kind"]});
            eventually("a kind to be listed", async || path_of(client, "default", &object).await).await;
        }
    }
}

/// Path at which objects of this kind are created, in a namespace if they have one. `None`:
/// the server doesn't know the kind.
async fn path_of(client: &Client, space: &str, object: &Value) -> Option<String> {
    let version = object["apiVersion"].as_str()?;
    let base = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let kinds = get(client, &base).await.ok()?;
    let kind = kinds["resources"].as_array()?.iter().find(|kind| {
        kind["kind"] == object["kind"] && !kind["name"].as_str().unwrap_or_default().contains('/')
    })?;
    let plural = kind["name"].as_str()?;
    Some(if kind["namespaced"] == true {
        format!("{base}/namespaces/{space}/{plural}")
    } else {
        format!("{base}/{plural}")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_server_accepts_every_manifest() {
    let (Some(helm), Some(kustomize), Some(definitions)) = (Helm::find(), Kustomize::find(), definitions())
    else {
        return;
    };
    let Some(server) = Server::own().await else { return };
    let client = server.client().await;
    let space = server.space(&[]).await.name;
    let all = everything(&helm, &kustomize);
    define(&client, &definitions, &all).await;
    let mut problems = Vec::new();
    let (mut kinds, mut strict) = (BTreeSet::new(), BTreeSet::new());
    for Example { place, mut object } in all {
        let Some(path) = path_of(&client, &space, &object).await else {
            problems.push(format!("{place}: no definition of {} {}", object["apiVersion"], object["kind"]));
            continue;
        };
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        let dry = format!("{path}?dryRun=All&fieldValidation=Strict");
        // A definition that another test made is there already, which is asked after it was checked.
        let taken = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 409);
        if let Err(error) = send(&client, "POST", &dry, &object).await
            && !taken(&error)
        {
            problems.push(format!("{place}: {} {}: {error}", object["kind"], object["metadata"]["name"]));
        }
        let kind = object["kind"].as_str().unwrap().to_owned();
        // Once per kind: that a field which nobody knows is really refused.
        if strict.insert(kind.clone()) {
            let part = if object["spec"].is_object() { "spec" } else { "metadata" };
            object[part]["unheardOf"] = json!("x");
            if send(&client, "POST", &dry, &object).await.is_ok() {
                problems.push(format!("{place}: {kind} may have any field"));
            }
        }
        kinds.insert(kind);
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let missing: Vec<_> = KINDS.iter().filter(|kind| !kinds.contains(**kind)).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
    println!("{} kinds", kinds.len());
}
