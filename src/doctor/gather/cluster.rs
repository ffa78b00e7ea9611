//! The API server: kinds, rights, the pool and what belongs to it.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};

use super::api::{Any, LIMIT, review, review_kind};
use super::capacity;
use super::plan::PoolPlan;
use crate::cluster::{Cluster as Api, Collection, Problem, connect};
use crate::discovery::kubernetes::types::{POOL_GROUP, POOL_VERSION, RULE_GROUPS};
use crate::doctor::json::{flag, list, number, text};
use crate::doctor::seen::{Cluster, Need, NoPool, Pod, Pool, Right, Route, Seen, Service};

/// Labels of a pod that name its engine, the newer one first.
const ENGINE_LABELS: [&str; 2] = ["llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type"];

const READ: [&str; 3] = ["get", "list", "watch"];

/// Reads the state of the cluster from the API server.
pub(super) async fn look(plan: &PoolPlan) -> Cluster {
    let unreachable = |reason: String| Cluster {
        unreachable: Some(reason.clone()),
        version: String::new(),
        kinds: Vec::new(),
        account: String::new(),
        rights: Err(reason.clone()),
        namespace: plan.namespace.clone(),
        pool: None,
        pods: Err(reason.clone()),
        capacity: Err(reason),
    };
    let api = match connect().await {
        Ok(api) => api,
        Err(error) => return unreachable(error.to_string()),
    };
    let version: Value = match api.get("/version").await {
        Ok(version) => version,
        Err(problem) => return unreachable(problem.to_string()),
    };
    let account = plan.account.as_ref().map_or_else(
        || "the account of this doctor".to_owned(),
        |name| format!("the service account {name}"),
    );
    let pool = match &plan.name {
        Some(name) => Some(pool(&api, plan, name).await),
        None => None,
    };
    let selector = match &pool {
        None => Ok(plan.selector.clone().unwrap_or_default()),
        Some(Ok((_, selector))) => Ok(selector.clone()),
        Some(Err(none)) => Err(none.reason().to_owned()),
    };
    let pods = match selector {
        Ok(selector) => pods(&api, &plan.namespace, &selector).await,
        Err(reason) => Err(reason),
    };
    Cluster {
        unreachable: None,
        version: text(&version, "gitVersion").to_owned(),
        kinds: kinds(&api).await,
        account,
        rights: rights(&api, plan).await,
        namespace: plan.namespace.clone(),
        pool: pool.map(|pool| pool.map(|(pool, _)| pool)),
        pods,
        capacity: capacity::look(&api, plan).await,
    }
}

/// Kinds of the groups that pickers and their gateways read.
async fn kinds(api: &Api) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for group in [POOL_GROUP, RULE_GROUPS[0], RULE_GROUPS[1], "gateway.networking.k8s.io"] {
        let Ok(versions) = api.get::<Value>(&format!("/apis/{group}")).await else { continue };
        for version in list(&versions, "versions").iter().map(|entry| text(entry, "version").to_owned()) {
            let Ok(resources) = api.get::<Value>(&format!("/apis/{group}/{version}")).await else { continue };
            let names = list(&resources, "resources").iter().map(|kind| text(kind, "name"));
            let names = names.filter(|name| !name.contains('/'));
            found.extend(names.map(|name| (group.to_owned(), version.clone(), name.to_owned())));
        }
    }
    found
}

/// The rights of docs/guide/kubernetes.md, one by one.
fn needed(plan: &PoolPlan) -> Vec<Right> {
    let of = |group, resource, verbs: &[&'static str]| -> Vec<Right> {
        verbs.iter().map(|verb| Right { group, resource, verb, need: Need::Ready }).collect()
    };
    let mut all = of("", "pods", &READ);
    if plan.name.is_some() {
        all.extend(of(POOL_GROUP, "inferencepools", &READ));
        for group in RULE_GROUPS {
            all.extend(of(group, "inferenceobjectives", &READ));
            all.extend(of(group, "inferencemodelrewrites", &READ));
        }
    }
    if plan.election {
        all.extend(of("coordination.k8s.io", "leases", &["get", "list", "watch", "create", "update"]));
    }
    if plan.metrics_auth {
        let reviews =
            [("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")];
        let create = |(group, resource)| Right { group, resource, verb: "create", need: Need::Metrics };
        all.extend(reviews.map(create));
    }
    all
}

async fn rights(api: &Api, plan: &PoolPlan) -> Seen<Vec<(Right, bool)>> {
    let kind = review_kind(plan);
    let mut found = Vec::new();
    for right in needed(plan) {
        let namespace = match right.need {
            Need::Ready => plan.namespace.as_str(),
            Need::Metrics => "",
        };
        let attributes = json!({
            "namespace": namespace, "group": right.group, "resource": right.resource, "verb": right.verb,
        });
        let (path, review) = review(plan, &attributes);
        let response: Value = (api.put(Method::POST, &path, review, LIMIT).await)
            .map_err(|problem| format!("a {kind} is not answered: {problem}"))?;
        let allowed = response.get("status").is_some_and(|status| flag(status, "allowed"));
        found.push((right, allowed));
    }
    Ok(found)
}

/// The pool, and its selector as a query.
async fn pool(api: &Api, plan: &PoolPlan, name: &str) -> Result<(Pool, String), NoPool> {
    let pools = Collection::new(POOL_GROUP, POOL_VERSION, &plan.namespace, "inferencepools");
    let object: Value = match api.get(&format!("{}/{name}", pools.path())).await {
        Ok(object) => object,
        Err(problem @ Problem::NotFound(_)) => return Err(NoPool::Missing(said(problem))),
        Err(problem) => return Err(NoPool::Unreadable(said(problem))),
    };
    let spec = object.get("spec").cloned().unwrap_or_default();
    let selector = selector(&spec);
    let reference = spec.get("endpointPickerRef");
    let is_service = |reference: &&Value| matches!(text(reference, "kind"), "" | "Service");
    let picker = reference.filter(is_service).map(|reference| {
        let port = reference.get("port").and_then(|port| number(port, "number"));
        (text(reference, "name").to_owned(), port.and_then(|port| u16::try_from(port).ok()))
    });
    let service = match &picker {
        Some((name, _)) => service(api, &plan.namespace, name).await,
        None => Err("the pool names no Service".to_owned()),
    };
    let others = api.list::<Any>(&pools).await.map(|(others, _)| others).unwrap_or_default();
    let name_of = |object: &Value| {
        object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let overlapping = others.iter().filter(|other| name_of(&other.0) != name);
    let overlapping =
        overlapping.filter(|other| other.0.get("spec").is_some_and(|spec| self::selector(spec) == selector));
    let pool = Pool {
        name: name.to_owned(),
        ports: ports(list(&spec, "targetPorts"), "number"),
        fails_open: reference.is_some_and(|reference| text(reference, "failureMode") == "FailOpen"),
        picker,
        service,
        rejected: rejected(object.get("status"), &["Accepted", "ResolvedRefs"]),
        routes: routes(api, &plan.namespace, name).await,
        overlapping: overlapping.map(|other| name_of(&other.0)).collect(),
    };
    Ok((pool, selector))
}

fn selector(spec: &Value) -> String {
    let labels = spec.pointer("/selector/matchLabels").and_then(Value::as_object);
    let pairs: BTreeMap<_, _> =
        labels.into_iter().flatten().map(|(key, value)| (key, value.as_str().unwrap_or_default())).collect();
    pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

fn ports(entries: &[Value], field: &str) -> Vec<u16> {
    entries.iter().filter_map(|entry| u16::try_from(number(entry, field)?).ok()).collect()
}

async fn service(api: &Api, namespace: &str, name: &str) -> Seen<Option<Service>> {
    let object: Value = match api.get(&format!("/api/v1/namespaces/{namespace}/services/{name}")).await {
        Ok(object) => object,
        Err(Problem::NotFound(_)) => return Ok(None),
        Err(problem) => return Err(said(problem)),
    };
    let slices = Collection::new("discovery.k8s.io", "v1", namespace, "endpointslices");
    let slices = slices.with_labels(&format!("kubernetes.io/service-name={name}"));
    let is_ready =
        |endpoint: &&Value| endpoint.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false);
    let ready = api.list::<Any>(&slices).await.map_err(said).map(|(slices, _)| {
        slices.iter().map(|slice| list(&slice.0, "endpoints").iter().filter(is_ready).count()).sum()
    });
    let ports = object.get("spec").map(|spec| ports(list(spec, "ports"), "port")).unwrap_or_default();
    Ok(Some(Service { ports, ready }))
}

/// Conditions that are not true, of each parent.
fn rejected(status: Option<&Value>, kinds: &[&str]) -> Vec<(String, String, String)> {
    let parents = status.map_or(&[][..], |status| list(status, "parents"));
    let mut found = Vec::new();
    for parent in parents {
        let name = parent.pointer("/parentRef/name").and_then(Value::as_str).unwrap_or("(unnamed)");
        for condition in list(parent, "conditions") {
            let kind = text(condition, "type");
            if kinds.contains(&kind) && text(condition, "status") == "False" {
                let said = format!("{}: {}", text(condition, "reason"), text(condition, "message"));
                found.push((name.to_owned(), kind.to_owned(), said));
            }
        }
    }
    found
}

async fn routes(api: &Api, namespace: &str, pool: &str) -> Seen<Vec<Route>> {
    let all = Collection::new("gateway.networking.k8s.io", "v1", namespace, "httproutes");
    let (all, _) = api.list::<Any>(&all).await.map_err(said)?;
    let leads = |route: &&Any| {
        let rules = route.0.pointer("/spec/rules").and_then(Value::as_array);
        let mut backends = rules.into_iter().flatten().flat_map(|rule| list(rule, "backendRefs"));
        backends.any(|backend| text(backend, "kind") == "InferencePool" && text(backend, "name") == pool)
    };
    let of = |route: &Any| Route {
        name: route.0.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned(),
        rejected: rejected(route.0.get("status"), &["Accepted", "ResolvedRefs"]),
    };
    Ok(all.iter().filter(leads).map(of).collect())
}

async fn pods(api: &Api, namespace: &str, selector: &str) -> Seen<Vec<Pod>> {
    let all = Collection::new("", "v1", namespace, "pods").with_labels(selector);
    let (all, _) = api.list::<Any>(&all).await.map_err(said)?;
    Ok(all.iter().map(|pod| read(&pod.0)).collect())
}

fn read(pod: &Value) -> Pod {
    let conditions = pod.get("status").map_or(&[][..], |status| list(status, "conditions"));
    let is_ready =
        |condition: &Value| text(condition, "type") == "Ready" && text(condition, "status") == "True";
    let deleted = pod.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null());
    let labels = pod.pointer("/metadata/labels").cloned().unwrap_or_default();
    let engine = ENGINE_LABELS.iter().map(|label| text(&labels, label)).find(|engine| !engine.is_empty());
    let containers = pod.get("spec").map_or(&[][..], |spec| list(spec, "containers"));
    Pod {
        name: pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned(),
        ip: pod.pointer("/status/podIP").and_then(Value::as_str).and_then(|ip| ip.parse().ok()),
        ready: !deleted && conditions.iter().any(is_ready),
        engine: engine.map(str::to_owned),
        ports: containers
            .iter()
            .flat_map(|container| ports(list(container, "ports"), "containerPort"))
            .collect(),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn said(problem: Problem) -> String {
    problem.to_string()
}
