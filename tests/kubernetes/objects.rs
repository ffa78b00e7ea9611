//! Objects in the API server: a namespace of its own for every test, and what is in it.

use http::Request;
use kube::Client;
use serde_json::{Value, json};

use crate::server::Server;
use crate::support::eventually;

pub(crate) const POOLS: Definition = Definition {
    file: include_str!("crds/inferencepools.yaml"),
    group: "inference.networking.k8s.io",
    version: "v1",
    plural: "inferencepools",
};
pub(crate) const OBJECTIVES: Definition = objectives("llm-d.ai");
pub(crate) const REWRITES: Definition = rewrites("llm-d.ai");
pub(crate) const OLDER_OBJECTIVES: Definition = objectives("inference.networking.x-k8s.io");

pub(crate) const POLICIES: Definition = Definition {
    file: include_str!("../../deploy/chart/crds/capacitypolicies.yaml"),
    group: "usher.dev",
    version: "v1alpha1",
    plural: "capacitypolicies",
};
pub(crate) const TOPOLOGIES: Definition = Definition {
    file: include_str!("../../deploy/chart/crds/clustertopologies.yaml"),
    group: "usher.dev",
    version: "v1alpha1",
    plural: "clustertopologies",
};

const fn objectives(group: &'static str) -> Definition {
    let file = include_str!("crds/inferenceobjectives.yaml");
    Definition { file, group, version: "v1alpha2", plural: "inferenceobjectives" }
}

const fn rewrites(group: &'static str) -> Definition {
    let file = include_str!("crds/inferencemodelrewrites.yaml");
    Definition { file, group, version: "v1alpha2", plural: "inferencemodelrewrites" }
}

/// A kind of objects that a cluster may or may not have.
#[derive(Clone, Copy)]
pub(crate) struct Definition {
    pub(crate) file: &'static str,
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
}

/// Rights of the picker, each as a rule of its Role.
pub(crate) fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

const READ: [&str; 3] = ["get", "list", "watch"];

/// The least rights with an InferencePool.
pub(crate) fn least() -> Vec<Value> {
    let both = ["llm-d.ai", "inference.networking.x-k8s.io"];
    vec![
        rule(&[""], &["pods"], &READ),
        rule(&["inference.networking.k8s.io"], &["inferencepools"], &READ),
        rule(&both, &["inferenceobjectives", "inferencemodelrewrites"], &READ),
    ]
}

/// The rights to ask who may read metrics.
pub(crate) fn reviews() -> Vec<Value> {
    vec![
        rule(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
        rule(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]),
    ]
}

/// The right to read metrics.
pub(crate) fn reading() -> Vec<Value> {
    vec![json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]})]
}

/// The least rights to take part in an election.
pub(crate) fn election() -> Value {
    rule(&["coordination.k8s.io"], &["leases"], &["get", "list", "watch", "create", "update"])
}

impl Server {
    /// Makes kinds of objects known, and waits until they are.
    pub(crate) async fn define(&self, definitions: &[Definition]) {
        let client = self.client().await;
        for definition in definitions {
            let text = definition.file.replace("GROUP", definition.group);
            let object: Value = serde_saphyr::from_str(&text).unwrap();
            send(&client, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &object)
                .await
                .unwrap();
            let path = format!("/apis/{}/{}/{}", definition.group, definition.version, definition.plural);
            eventually("a kind to be served", async || get(&client, &path).await.ok()).await;
        }
    }

    /// Gives somebody rights everywhere, as a ClusterRole of this name.
    pub(crate) async fn grant_everywhere(&self, name: &str, subject: Value, rules: &[Value]) {
        let (client, path) = (self.client().await, "/apis/rbac.authorization.k8s.io/v1");
        let object = json!({"metadata": {"name": name}, "rules": rules});
        send(&client, "POST", &format!("{path}/clusterroles"), &object).await.unwrap();
        let binding = json!({
            "metadata": {"name": name},
            "subjects": [subject],
            "roleRef": {"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"},
        });
        send(&client, "POST", &format!("{path}/clusterrolebindings"), &binding).await.unwrap();
    }

    /// Deletes all nodes, and the pods of all namespaces at once.
    pub(crate) async fn delete_nodes_and_pods(&self) {
        let client = self.client().await;
        let at_once = json!({"gracePeriodSeconds": 0});
        send(&client, "DELETE", "/api/v1/nodes", &at_once).await.unwrap();
        let pods = get(&client, "/api/v1/pods").await.unwrap();
        for pod in pods["items"].as_array().unwrap() {
            let name = |of: &str| pod["metadata"][of].as_str().unwrap();
            let path = format!("/api/v1/namespaces/{}/pods/{}", name("namespace"), name("name"));
            send(&client, "DELETE", &path, &at_once).await.unwrap();
        }
    }

    /// Waits until a user, or a service account by its full name, may read metrics.
    pub(crate) async fn may_read(&self, user: &str) {
        let client = self.client().await;
        let question = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "nonResourceAttributes": {"path": "/metrics", "verb": "get"}},
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        eventually("a right to count", async || {
            let response = send(&client, "POST", path, &question).await.ok()?;
            (response["status"]["allowed"] == true).then_some(())
        })
        .await;
    }

    /// A new namespace where the picker has these rights.
    pub(crate) async fn space(&self, rights: &[Value]) -> Space {
        let name = format!("t{:016x}", rand::random::<u64>());
        let space = Space { client: self.client().await, name };
        let namespace = json!({"metadata": {"name": space.name}});
        send(&space.client, "POST", "/api/v1/namespaces", &namespace).await.unwrap();
        space.grant("epp", rights).await;
        space
    }
}

/// A namespace.
#[derive(Clone)]
pub(crate) struct Space {
    client: Client,
    pub(crate) name: String,
}

impl Space {
    /// Gives the picker more rights.
    pub(crate) async fn grant(&self, role: &str, rules: &[Value]) {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}", self.name);
        let object = json!({"metadata": {"name": role}, "rules": rules});
        send(&self.client, "POST", &format!("{path}/roles"), &object).await.unwrap();
        let binding = json!({
            "metadata": {"name": role},
            "subjects": [user("epp")],
            "roleRef": {"kind": "Role", "name": role, "apiGroup": "rbac.authorization.k8s.io"},
        });
        send(&self.client, "POST", &format!("{path}/rolebindings"), &binding).await.unwrap();
    }

    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.name)
    }

    fn kind(&self, kind: Definition) -> String {
        format!("/apis/{}/{}/namespaces/{}/{}", kind.group, kind.version, self.name, kind.plural)
    }

    /// Sends an object to a path, or a merge patch.
    pub(crate) async fn send(&self, method: &str, path: &str, object: &Value) -> kube::Result<Value> {
        let of = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        request(&self.client, method, path, of, object).await
    }

    /// The object at a path.
    pub(crate) async fn get(&self, path: &str) -> kube::Result<Value> {
        get(&self.client, path).await
    }

    /// The path of a kind's objects; `version` is the group and version.
    pub(crate) fn path(&self, version: &str, plural: &str) -> String {
        let root = if version.contains('/') { "/apis" } else { "/api" };
        format!("{root}/{version}/namespaces/{}/{plural}", self.name)
    }

    /// A pod that is ready, with the label `app`.
    pub(crate) async fn pod(&self, name: &str, ip: &str, app: &str) {
        let object = json!({
            "metadata": {"name": name, "labels": {"app": app}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        send(&self.client, "POST", &self.pods(), &object).await.unwrap();
        self.status(name, ip, true).await;
    }

    /// The pod of a replica of the picker, of a revision of its deployment.
    pub(crate) async fn replica(&self, name: &str, revision: &str) {
        let object = json!({
            "metadata": {"name": name, "labels": {"app": "epp", "pod-template-hash": revision}},
            "spec": {"containers": [{"name": "epp", "image": "i"}]},
        });
        send(&self.client, "POST", &self.pods(), &object).await.unwrap();
    }

    /// Sets the status of a pod, as a kubelet would.
    pub(crate) async fn status(&self, name: &str, ip: &str, ready: bool) {
        let ready = if ready { "True" } else { "False" };
        let status = json!({"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": ready}],
        }});
        patch(&self.client, &format!("{}/{name}/status", self.pods()), &status).await;
    }

    /// Changes labels and annotations of a pod.
    pub(crate) async fn mark(&self, name: &str, metadata: Value) {
        patch(&self.client, &format!("{}/{name}", self.pods()), &json!({"metadata": metadata})).await;
    }

    /// Deletes a pod, with or without a time to end.
    pub(crate) async fn delete_pod(&self, name: &str, seconds: u64) {
        let options = json!({"gracePeriodSeconds": seconds});
        send(&self.client, "DELETE", &format!("{}/{name}", self.pods()), &options).await.unwrap();
    }

    /// Creates the pool `p`.
    pub(crate) async fn pool(&self, app: &str, ports: &[u16]) {
        send(&self.client, "POST", &self.kind(POOLS), &pool(app, ports)).await.unwrap();
    }

    /// Changes the pool `p`.
    pub(crate) async fn change_pool(&self, app: &str, ports: &[u16]) {
        patch(&self.client, &format!("{}/p", self.kind(POOLS)), &pool(app, ports)).await;
    }

    /// The token of a new service account.
    pub(crate) async fn service_account(&self, name: &str) -> String {
        let path = format!("/api/v1/namespaces/{}/serviceaccounts", self.name);
        send(&self.client, "POST", &path, &json!({"metadata": {"name": name}})).await.unwrap();
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let response = send(&self.client, "POST", &format!("{path}/{name}/token"), &request).await.unwrap();
        response["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Creates an object of a kind.
    pub(crate) async fn create(&self, kind: Definition, name: &str, spec: Value) {
        let mut object = typed(kind, name);
        object["spec"] = spec;
        send(&self.client, "POST", &self.kind(kind), &object).await.unwrap();
    }

    /// Changes an object of a kind.
    pub(crate) async fn change(&self, kind: Definition, name: &str, spec: Value) {
        patch(&self.client, &format!("{}/{name}", self.kind(kind)), &json!({"spec": spec})).await;
    }

    /// Deletes an object of a kind.
    pub(crate) async fn delete(&self, kind: Definition, name: &str) {
        send(&self.client, "DELETE", &format!("{}/{name}", self.kind(kind)), &json!({})).await.unwrap();
    }

    /// Holder of the lease of the pool `p`; empty: nobody. `None`: the lease can't be read, or names no
    /// holder.
    pub(crate) async fn holder(&self) -> Option<String> {
        let name = format!("epp-{}-p.llm-d.ai", self.name);
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{name}", self.name);
        let lease = get(&self.client, &path).await.ok()?;
        Some(lease["spec"]["holderIdentity"].as_str()?.to_owned())
    }
}

fn typed(kind: Definition, name: &str) -> Value {
    let of = match kind.plural {
        "inferencepools" => "InferencePool",
        "inferenceobjectives" => "InferenceObjective",
        "capacitypolicies" => "CapacityPolicy",
        _ => "InferenceModelRewrite",
    };
    json!({"apiVersion": format!("{}/{}", kind.group, kind.version), "kind": of, "metadata": {"name": name}})
}

fn pool(app: &str, ports: &[u16]) -> Value {
    let mut object = typed(POOLS, "p");
    let ports: Vec<Value> = ports.iter().map(|number| json!({"number": number})).collect();
    object["spec"] = json!({
        "selector": {"matchLabels": {"app": app}},
        "targetPorts": ports,
        "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
    });
    object
}

/// A user as the subject of a binding.
pub(crate) fn user(name: &str) -> Value {
    json!({"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"})
}

/// Sends a request with an object.
pub(crate) async fn send(client: &Client, method: &str, path: &str, object: &Value) -> kube::Result<Value> {
    request(client, method, path, "application/json", object).await
}

async fn patch(client: &Client, path: &str, object: &Value) {
    request(client, "PATCH", path, "application/merge-patch+json", object).await.unwrap();
}

pub(crate) async fn get(client: &Client, path: &str) -> kube::Result<Value> {
    client.request(Request::get(path).body(Vec::new()).unwrap()).await
}

async fn request(client: &Client, method: &str, path: &str, of: &str, object: &Value) -> kube::Result<Value> {
    let request = Request::builder().method(method).uri(path).header("content-type", of);
    client.request(request.body(object.to_string().into_bytes()).unwrap()).await
}
