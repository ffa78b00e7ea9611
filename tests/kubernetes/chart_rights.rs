//! The rights that the chart gives are enough, and no more than that: with a verb less Usher
//! says which one is missing.

use http::Request;
use serde_json::{Value, json};

use crate::chart::{arguments, configuration, the, usher};
use crate::objects::{POOLS, Space, send};
use crate::picker::Picker;
use crate::server::Server;
use crate::tools::Helm;

/// Values of the three ways to ask the API server.
const POOL: &str = "router.modelServers.matchLabels.app=m";
const SELECTOR: &str = "router.modelServers.matchLabels.app=m,router.inferencePool.create=false";
const ELECTION: &str = "router.modelServers.matchLabels.app=m,router.epp.replicas=2";

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
        let rights = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}", space.name);
        let account = format!("/api/v1/namespaces/{}/serviceaccounts", space.name);
        send(&client, "POST", &account, the(&objects, "ServiceAccount")).await.unwrap();
        let mut role = the(&objects, "Role").clone();
        if let Some((resource, verb)) = less {
            let mut rule = role["rules"].as_array_mut().unwrap().iter_mut();
            let rule = rule.find(|rule| rule["resources"][0] == resource).expect("no such rule");
            let verbs = rule["verbs"].as_array_mut().unwrap();
            let before = verbs.len();
            verbs.retain(|other| other != verb);
            assert_eq!(verbs.len() + 1, before, "no right to {verb} {resource}");
        }
        send(&client, "POST", &format!("{rights}/roles"), &role).await.unwrap();
        send(&client, "POST", &format!("{rights}/rolebindings"), the(&objects, "RoleBinding")).await.unwrap();
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
async fn with_a_verb_less_it_says_which() {
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
