//! The chart takes over what llm-d-router's charts have made.

use serde_json::{Value, json};

use crate::chart::{of_kind, usher};
use crate::objects::{get, send};
use crate::server::Server;
use crate::tools::Helm;

/// By which label the other chart finds its pods.
const LABEL: &str = "llm-d-router-gateway";

/// The Go picker's Deployment, as far as it matters to who replaces it.
fn before() -> Value {
    let labels = json!({LABEL: "usher-epp"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "usher-epp"},
        "spec": {
            "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "epp", "image": "epp:v1"}]},
            },
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_the_other_chart_is_upgraded_in_place() {
    let (Some(helm), Some(server)) = (Helm::find(), Server::shared().await) else { return };
    let (client, space) = (server.client().await, server.space(&[]).await);
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", space.name);
    send(&client, "POST", &path, &before()).await.unwrap();
    let path = format!("{path}/usher-epp");
    let labels = "router.modelServers.matchLabels.app=m";
    let theirs = format!("{labels},router.epp.selectorLabels.{LABEL}=usher-epp");
    for (values, fits) in [(labels, false), (theirs.as_str(), true)] {
        let objects = helm.template(&space.name, &["--set", values]).unwrap();
        let mut deployment = usher(&objects).0.clone();
        let there = get(&client, &path).await.unwrap();
        deployment["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
        match send(&client, "PUT", &path, &deployment).await {
            Ok(_) => assert!(fits, "{values}"),
            // Why docs/guide/migrate-from-llm-d.md asks for the labels.
            Err(error) => assert!(!fits && error.to_string().contains("immutable"), "{values}: {error}"),
        }
        // Until its own pods are ready the Service finds the old ones.
        let service = of_kind(&objects, "Service").find(|object| object["metadata"]["name"] == "usher-epp");
        let selector = &service.expect("no Service")["spec"]["selector"];
        assert_eq!(*selector == before()["spec"]["template"]["metadata"]["labels"], fits, "{values}");
    }
}
