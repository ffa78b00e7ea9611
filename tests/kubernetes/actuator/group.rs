//! A group of workloads, and a picker that acts on it.

use std::io::Write;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::objects::{Space, election, least, rule};
use crate::picker::Picker;
use crate::server::Server;
use crate::support::eventually;

/// The rights to act on Deployments and StatefulSets, and on the kinds that the tests define.
pub(crate) fn acting() -> Vec<Value> {
    let mut rights = least();
    rights.extend([
        rule(&["apps"], &["deployments/scale", "statefulsets/scale"], &["get", "patch"]),
        rule(&["apps"], &["deployments", "statefulsets"], &["get", "patch"]),
        rule(&["example.com"], &["engines/scale", "plains"], &["get", "patch"]),
        rule(&[""], &["pods"], &["patch"]),
        rule(&[""], &["pods/eviction"], &["create"]),
        rule(&["usher.dev"], &["capacitypolicies"], &["get", "list", "watch"]),
        rule(&["usher.dev"], &["capacitypolicies/status"], &["get", "patch"]),
        rule(&[""], &["events"], &["create", "list"]),
        rule(&["autoscaling"], &["horizontalpodautoscalers"], &["list"]),
        election(),
    ]);
    rights
}

/// A namespace, a pool, and a file with a policy.
pub(crate) struct Group {
    pub(crate) space: Space,
    policy: NamedTempFile,
}

impl Group {
    pub(crate) async fn new(server: &Server, spec: &str) -> Self {
        let space = server.space(&acting()).await;
        space.pool("m", &[8000]).await;
        let mut policy = NamedTempFile::with_suffix(".yaml").unwrap();
        write!(
            policy,
            "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p}}\nspec: {spec}\n"
        )
        .unwrap();
        Self { space, policy }
    }

    pub(crate) async fn picker(&self, server: &Server, flags: &[&str]) -> Picker {
        let policy = format!("--capacity-policy={}", self.policy.path().display());
        let elects = flags.iter().any(|flag| flag.contains("leader-election"));
        let only = format!("--capacity-single-replica={}", !elects);
        let all = [&[policy.as_str(), "--outlier-detection=false", only.as_str()], flags].concat();
        Picker::of_pool(server, &self.space, &all).await
    }

    /// One that follows policies of the cluster and takes part in the election, in a pod of a revision if any, and
    /// whose writes are told apart by its number. Between its last write and the end of its lease an API server may stall for three seconds.
    pub(crate) async fn replica(&self, server: &Server, number: usize, revision: Option<&str>) -> Picker {
        let namespace = format!("--pool-namespace={}", self.space.name);
        let flags = [
            "--capacity-policies",
            &namespace,
            "--pool-name=p",
            "--outlier-detection=false",
            "--ha-enable-leader-election",
            "--leader-elect-lease-duration=6s",
            "--leader-elect-renew-deadline=3s",
        ];
        let pod = format!("epp-{number}");
        if let Some(revision) = revision {
            self.space.replica(&pod, revision).await;
        }
        let access = server.kubeconfig_with(&format!("token-epp-{number}"), server.port);
        Picker::spawn(&access, revision.map(|_| &*pod), &flags).await
    }

    /// A workload of a kind with so many replicas.
    pub(crate) async fn workload(&self, kind: &str, name: &str, replicas: u32) {
        let template = json!({
            "metadata": {"labels": {"app": "m", "llm-d.ai/role": name}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        let selector = json!({"matchLabels": {"app": "m", "llm-d.ai/role": name}});
        let (version, plural, spec) = match kind {
            "Deployment" => (
                "apps/v1",
                "deployments",
                json!({"replicas": replicas, "selector": selector, "template": template}),
            ),
            "StatefulSet" => (
                "apps/v1",
                "statefulsets",
                json!({"replicas": replicas, "selector": selector, "template": template, "serviceName": name}),
            ),
            "Engine" => ("example.com/v1", "engines", json!({"replicas": replicas})),
            _ => ("example.com/v1", "plains", json!({"groups": [{"workers": replicas}]})),
        };
        let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec});
        self.space.send("POST", &self.space.path(version, plural), &object).await.unwrap();
    }

    /// Replicas of a Deployment.
    pub(crate) async fn replicas(&self, name: &str) -> u64 {
        let path = format!("{}/{name}", self.space.path("apps/v1", "deployments"));
        self.space.get(&path).await.unwrap()["spec"]["replicas"].as_u64().unwrap()
    }

    /// Waits until Deployments have so many replicas.
    pub(crate) async fn become_replicas(&self, wanted: &[(&str, u64)]) {
        for (name, replicas) in wanted {
            let what = format!("{name} to have {replicas} replicas");
            eventually(&what, async || (self.replicas(name).await == *replicas).then_some(())).await;
        }
    }

    /// Sets the replicas of a Deployment, as `kubectl scale` does.
    pub(crate) async fn scale(&self, name: &str, replicas: u32) {
        let path = format!("{}/{name}/scale", self.space.path("apps/v1", "deployments"));
        self.space.send("PATCH", &path, &json!({"spec": {"replicas": replicas}})).await.unwrap();
    }

    /// A pod of a role: at the gate, or not. It does nothing yet.
    pub(crate) async fn pod(&self, name: &str, role: &str, spec: Value) {
        let mut object = json!({
            "metadata": {"name": name, "labels": {"app": "m", "llm-d.ai/role": role}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            object["spec"][key] = value.clone();
        }
        self.space.send("POST", &self.space.path("v1", "pods"), &object).await.unwrap();
    }

    /// Pods of a role that are there and ready.
    pub(crate) async fn ready_pods(&self, role: &str, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let name = format!("{role}-{number}");
            self.pod(&name, role, json!({})).await;
            self.ready(&name, role, number).await;
        }
    }

    /// A pod becomes ready.
    pub(crate) async fn ready(&self, name: &str, role: &str, number: u32) {
        // Addresses that no other test has, and that refuse connections at once.
        let high = if role == "decode" { 1 } else { 2 };
        self.space.status(name, &format!("127.9.{high}.{}", number + 1), true).await;
    }

    /// Messages of events about an object.
    pub(crate) async fn events(&self, about: &str) -> Vec<String> {
        let events = self.space.get(&self.space.path("v1", "events")).await.unwrap();
        let all = events["items"].as_array().unwrap().iter();
        all.filter(|event| event["involvedObject"]["name"] == about)
            .map(|event| {
                format!("{}: {}", event["reason"].as_str().unwrap(), event["message"].as_str().unwrap())
            })
            .collect()
    }
}

/// Roles `decode` and `prefill` with Deployments of their names, from whole steps up.
pub(crate) fn pair(more: &str) -> String {
    let role = |name: &str, min: u32, max: u32| {
        format!(
            "{name}: {{min: {min}, max: {max}, scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}}}"
        )
    };
    format!(
        "{{mode: Apply, interval: 1s, roles: {{{}, {}}}, deploy: {{steps: {{decode: 4, prefill: 2}}{more}}}}}",
        role("decode", 8, 16),
        role("prefill", 4, 8)
    )
}
