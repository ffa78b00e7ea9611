//! The rights that the chart gives are enough, and no more than that: with a verb less Usher
//! says which one is missing.

use http::Request;
use serde_json::{Value, json};

use crate::chart::{arguments, configuration, of_kind, the, usher};
use crate::objects::{POLICIES, POOLS, Space, TOPOLOGIES, send};
use crate::picker::Picker;
use crate::server::Server;
use crate::support::eventually;
use crate::tools::Helm;

/// Values of the three ways to ask the API server.
const POOL: &str = "router.modelServers.matchLabels.app=m";
const SELECTOR: &str = "router.modelServers.matchLabels.app=m,router.inferencePool.create=false";
const ELECTION: &str = "router.modelServers.matchLabels.app=m,router.epp.replicas=2";

/// Policies of the cluster that are carried out.
const APPLY: &str = "router.modelServers.matchLabels.app=m,router.inferencePool.create=false,router.epp.capacityPolicies.enabled=true,router.epp.capacityPolicies.clusterTopologies=true,router.epp.capacityPolicies.apply.enabled=true,router.epp.capacityPolicies.apply.nodes=true,router.epp.capacityPolicies.apply.pods=true,router.epp.capacityPolicies.apply.targets[0].apiGroup=apps,router.epp.capacityPolicies.apply.targets[0].resources={deployments/scale,deployments,statefulsets/scale,statefulsets}";

/// A release in a namespace of its own, as an administrator applies it.
pub(crate) struct Release {
    pub(crate) space: Space,
    pub(crate) objects: Vec<Value>,
}

impl Release {
    /// The pool, the account, and its rights without the verb `less` of a resource.
    pub(crate) async fn apply(
        server: &Server,
        helm: &Helm,
        values: &str,
        less: Option<(&str, &str)>,
    ) -> Self {
        let space = server.space(&[]).await;
        let objects = helm.template(&space.name, &["--set", values]).unwrap();
        let client = server.client().await;
        let account = format!("/api/v1/namespaces/{}/serviceaccounts", space.name);
        send(&client, "POST", &account, the(&objects, "ServiceAccount")).await.unwrap();
        let rights = "/apis/rbac.authorization.k8s.io/v1";
        for (kind, path) in [
            ("Role", format!("{rights}/namespaces/{}/roles", space.name)),
            ("RoleBinding", format!("{rights}/namespaces/{}/rolebindings", space.name)),
            ("ClusterRole", format!("{rights}/clusterroles")),
            ("ClusterRoleBinding", format!("{rights}/clusterrolebindings")),
        ] {
            for object in of_kind(&objects, kind) {
                let mut object = object.clone();
                if let Some((resource, verb)) = less.filter(|_| kind == "Role") {
                    let mut rule = object["rules"].as_array_mut().unwrap().iter_mut();
                    let rule = rule.find(|rule| rule["resources"][0] == resource).expect("no such rule");
                    let verbs = rule["verbs"].as_array_mut().unwrap();
                    let before = verbs.len();
                    verbs.retain(|other| other != verb);
                    assert_eq!(verbs.len() + 1, before, "no right to {verb} {resource}");
                }
                send(&client, "POST", &path, &object).await.unwrap();
            }
        }
        if let Some(pool) = objects.iter().find(|object| object["kind"] == "InferencePool") {
            let path = format!("/apis/{}/v1/namespaces/{}/{}", POOLS.group, space.name, POOLS.plural);
            send(&client, "POST", &path, pool).await.unwrap();
        }
        Self { space, objects }
    }

    /// Usher as its pod would start it, but on free ports.
    pub(crate) async fn start(&self, server: &Server) -> Picker {
        let account = the(&self.objects, "ServiceAccount")["metadata"]["name"].as_str().unwrap();
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", self.space.name);
        let asked = json!({"spec": {"expirationSeconds": 3600}});
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(asked.to_string().into_bytes()).unwrap();
        let token: Value = server.client().await.request(request).await.unwrap();
        let token = token["status"]["token"].as_str().unwrap();
        let mut flags = arguments(usher(&self.objects).1);
        let ours = [
            "--grpc-port=",
            "--grpc-health-port=",
            "--metrics-port=",
            "--config-file=",
            "--zap-encoder=",
            "--secure-serving=",
        ];
        flags.retain(|flag| !ours.iter().any(|ours| flag.starts_with(ours)));
        flags.push(format!("--config-text={}", configuration(&self.objects)));
        flags.push(format!("--pool-namespace={}", self.space.name));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Picker::start_as(&server.kubeconfig_with(token, server.port), &flags).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_charts_rights_are_enough() {
    let (Some(helm), Some(server)) = (Helm::find(), Server::shared().await) else { return };
    for values in [POOL, SELECTOR, ELECTION] {
        let release = Release::apply(server, &helm, values, None).await;
        release.space.pod("a", "10.6.0.1", "m").await;
        let picker = release.start(server).await;
        picker.turns(true).await;
        picker.becomes(&["10.6.0.1:8000"]).await;
        // What changes later is heard of, too.
        release.space.pod("b", "10.6.0.2", "m").await;
        picker.becomes(&["10.6.0.1:8000", "10.6.0.2:8000"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_verb_is_named() {
    let (Some(helm), Some(server)) = (Helm::find(), Server::shared().await) else { return };
    // values, resource, verb
    let table = [
        (POOL, "pods", "list"),
        (POOL, "pods", "watch"),
        (POOL, "inferencepools", "list"),
        (POOL, "inferencepools", "watch"),
        (POOL, "inferenceobjectives", "list"),
        (SELECTOR, "pods", "watch"),
        (ELECTION, "leases", "create"),
        (ELECTION, "leases", "get"),
    ];
    for (values, resource, verb) in table {
        let release = Release::apply(server, &helm, values, Some((resource, verb))).await;
        release.space.pod("a", "10.6.0.1", "m").await;
        let picker = release.start(server).await;
        picker.says(&[&format!("cannot {verb} resource"), resource]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_charts_rights_are_enough_to_act() {
    let (Some(helm), Some(server)) = (Helm::find(), Server::own().await) else { return };
    server.define(&[POLICIES, TOPOLOGIES]).await;
    let release = Release::apply(&server, &helm, APPLY, None).await;
    let space = &release.space;
    for (kind, plural) in [("Deployment", "deployments"), ("StatefulSet", "statefulsets")] {
        let labels = json!({"app": "m", "kind": kind});
        let object = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "w"}, "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        }});
        space.send("POST", &space.path("apps/v1", plural), &object).await.unwrap();
    }
    let role = |kind: &str| {
        json!({"min": 3, "max": 4, "selector": {"kind": kind},
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": kind, "name": "w"}})
    };
    let layer = "kubernetes.io/hostname";
    let spec = json!({
        "mode": "Apply",
        "interval": "1s",
        "roles": {"a": role("Deployment"), "b": role("StatefulSet")},
        "deploy": {"steps": {"a": 1, "b": 1}, "topology": {"clusterTopology": "t"}},
        "update": {},
    });
    let topology = json!({"apiVersion": "usher.dev/v1alpha1", "kind": "ClusterTopology", "metadata": {"name": "t"},
        "spec": {"layers": [layer]}});
    space.send("POST", "/apis/usher.dev/v1alpha1/clustertopologies", &topology).await.unwrap();
    space.create(POLICIES, "p", spec).await;
    // A pod at its gate.
    let pod = json!({"metadata": {"name": "a-0", "labels": {"app": "m", "kind": "Deployment"}}, "spec": {
        "schedulingGates": [{"name": "usher.dev/rollout"}],
        "containers": [{"name": "c", "image": "i"}],
    }});
    space.send("POST", &space.path("v1", "pods"), &pod).await.unwrap();
    let picker = release.start(&server).await;
    let written = async || {
        let object = space.get(&space.path("usher.dev/v1alpha1", "capacitypolicies/p")).await.ok()?;
        object["status"]["lastWrites"].as_array().is_some_and(|writes| writes.len() == 2).then_some(object)
    };
    let object = eventually("the writes in the status", written).await;
    assert!(!object.to_string().contains("TopologyUnknown"), "{object}");
    eventually("the gate to open", async || {
        let pod = space.get(&format!("{}/a-0", space.path("v1", "pods"))).await.unwrap();
        pod["spec"].get("schedulingGates").is_none().then_some(())
    })
    .await;
    eventually("events of both", async || {
        let events = space.get(&space.path("v1", "events")).await.unwrap();
        let reasons = |kind: &str| {
            let events = events["items"].as_array().unwrap().iter();
            let of = events.filter(|event| event["involvedObject"]["kind"] == kind);
            of.filter(|event| event["reason"] == "ScaledUp").count()
        };
        (reasons("Deployment") > 0 && reasons("StatefulSet") > 0).then_some(())
    })
    .await;
    drop(picker);
}
