//! Picker that ticks one policy with a model of the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prometheus::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::cluster::{Cluster, WORKLOADS, is_ready};
use super::server::{POLICIES, Server};
use crate::actuator::Actuator;
use crate::capacity::{Plan, State};
use crate::cluster::Change;
use crate::endpoints::{Clock, EndpointSpec, Store};
use crate::leader::Term;
use crate::scaling::driver::lookups::Lookups;
use crate::scaling::driver::{Driver, Live};
use crate::scaling::groups::{Groups, Sources};
use crate::scaling::objects::{ObjectUpdate, PolicyObject, PolicyStore, StatusWriter};
use crate::scrape::ScrapeMetrics;

/// Action on a step that times out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTimeout {
    Hold,
    Trim,
    Fail,
}

/// Shape of the policy.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Pods of each role in a step.
    pub steps: Option<(u32, u32)>,
    pub on_timeout: OnTimeout,
    /// `true` if pods wait at gates for their step.
    pub has_gates: bool,
    /// `true` for a ratio of one to three `decode` pods per `prefill` pod.
    pub has_ratio: bool,
    /// `true` if rules size the roles, rather than metrics the group.
    pub has_rules: bool,
    /// `true` if pods may drain for half a minute.
    pub drains: bool,
    /// `true` if rolling updates are coordinated.
    pub has_updates: bool,
    /// `true` if the pods of a step have to be in one rack.
    pub has_racks: bool,
}

impl Shape {
    /// Specification of the policy.
    pub fn spec(&self) -> Value {
        let role = |place: usize, max: u32| {
            let workload = WORKLOADS[place];
            json!({"min": 1, "max": max, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": workload.kind, "name": workload.role}})
        };
        let drain = if self.drains { "30s" } else { "0s" };
        let mut spec = json!({
            "poolRef": {"name": "pool"},
            "mode": "Apply",
            "roles": {"decode": role(0, 9), "prefill": role(1, 6)},
            "behavior": {"scaleDown": {"stabilization": "30s", "drainTimeout": drain}},
        });
        if self.has_rules {
            let rule = |role: &str, up: bool| {
                let (comparator, threshold, step) =
                    if up { ("GREATER_THAN", 5, 2) } else { ("LESS_THAN", 2, -1) };
                json!({"name": format!("{role}-{up}"), "role": role, "metric": "queue_depth",
                       "comparator": comparator, "threshold": threshold, "step": step, "cooldown": "30s"})
            };
            spec["rules"] = json!([
                rule("decode", true),
                rule("decode", false),
                rule("prefill", true),
                rule("prefill", false)
            ]);
        } else {
            spec["total"] = json!({"metrics": [{"name": "queue_depth", "target": 4}]});
        }
        if self.has_ratio {
            let ratio = json!({"numerator": "prefill", "denominator": "decode", "min": "1:3", "max": "1:1"});
            spec["coordination"] = json!({"ratio": ratio});
        }
        if self.has_updates {
            spec["update"] = json!({"maxSkewPercent": 20, "maxUnavailablePercent": 40});
        }
        if let Some((decode, prefill)) = self.steps {
            spec["deploy"] = json!({"steps": {"decode": decode, "prefill": prefill}, "batchTimeout": "60s",
                                    "onTimeout": format!("{:?}", self.on_timeout)});
            if self.has_racks {
                spec["deploy"]["topology"] = json!({"layers": ["rack"], "constraint": "Required"});
            }
        }
        spec
    }
}

/// A process, from start to end.
pub struct Picker {
    pub driver: Driver,
    pub clock: Clock,
    registry: Registry,
    term: Arc<Term>,
    leads: Arc<AtomicBool>,
    waiting: Arc<AtomicU64>,
    lookups: Lookups,
    /// Policies at the last update.
    heard: Vec<Value>,
    _pool: watch::Sender<Option<String>>,
    _status_writer: AbortOnDropHandle<()>,
}

impl Picker {
    /// Starts as leader, without policies.
    pub fn start(server: &Server, clock: Clock) -> Self {
        let (pool, pools) = watch::channel(Some("app=m".to_owned()));
        let term = Arc::new(Term::endless(clock.clone()));
        let actuator =
            Actuator::new(server.connect(), "ns".to_owned(), clock.clone(), pools, Arc::clone(&term));
        let (leads, waiting) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let (may_plan, acts, waits) = (Arc::clone(&leads), Arc::clone(&term), Arc::clone(&waiting));
        let registry = Registry::new();
        let live = Live {
            store: Arc::new(Store::default()),
            clock: clock.clone(),
            staleness: Duration::from_secs(5),
            waiting: Box::new(move || waits.load(Relaxed)),
            demanded: None,
            may_plan: Box::new(move || may_plan.load(Relaxed)),
            may_act: Box::new(move || acts.lasts()),
            is_shared: false,
            servers: None,
            gpus: None,
            scrapes: ScrapeMetrics::register(&Registry::new()).unwrap(),
            actuator: Some(actuator),
        };
        let sources = Sources {
            lease: Box::new(|_| None),
            configured: Vec::new(),
            has_servers: true,
            has_gpus: false,
            has_queue: true,
            has_queries: false,
            can_act: true,
            is_only: true,
        };
        let mut driver = Driver::new(Groups::default(), sources, live, None, &registry).unwrap();
        driver.policy_store = PolicyStore::new("pool".to_owned());
        let plan_store = Arc::clone(driver.plan_store());
        let writes = Arc::clone(&term);
        let status_writer =
            StatusWriter::new(server.connect(), "ns".to_owned(), plan_store, clock.clone(), writes);
        let status_writer = AbortOnDropHandle::new(tokio::spawn(status_writer.run()));
        let (lookups, heard) = (Lookups::default(), Vec::new());
        Self {
            driver,
            clock,
            registry,
            term,
            leads,
            waiting,
            lookups,
            heard,
            _pool: pool,
            _status_writer: status_writer,
        }
    }

    /// Sets the number of waiting requests.
    pub fn set_waiting(&self, requests: u64) {
        self.waiting.store(requests, Relaxed);
    }

    /// Gives it the lease, or takes it away: first it may not write, then it doesn't lead.
    pub fn set_leads(&self, leads: bool) {
        self.term.set(leads.then_some(Duration::MAX));
        self.leads.store(leads, Relaxed);
    }

    /// Expires or renews its lease, while it leads.
    pub fn set_acts(&self, acts: bool) {
        self.term.set(acts.then_some(Duration::MAX));
    }

    /// Updates the policies.
    pub async fn update_policies(&mut self, server: &Server) {
        let mut policies = ["p", "z"].map(|name| server.get(&format!("{POLICIES}/{name}"))).to_vec();
        policies.retain(|policy| !policy.is_null());
        if policies == self.heard {
            return;
        }
        let of = |policy: &Value| serde_json::from_value(policy.clone()).unwrap();
        let all: Vec<PolicyObject> = policies.iter().map(of).collect();
        self.heard = policies;
        self.driver.apply_objects(ObjectUpdate::Policies(Change::All(all)), &self.lookups).await;
    }

    /// Uids of draining pods.
    pub fn draining(&self) -> BTreeSet<String> {
        self.driver.live.actuator.iter().flat_map(Actuator::draining).collect()
    }

    /// Updates the endpoints and their load, where known. `has_answered`: whether a draining pod's requests
    /// have ended.
    pub fn observe(&self, cluster: &Cluster, load: u32, is_known: bool, has_answered: impl Fn(&str) -> bool) {
        let pods: Vec<Arc<Value>> = cluster
            .server
            .pods()
            .into_iter()
            .filter(|pod| is_ready(pod) && pod["metadata"]["labels"]["app"] == "m")
            .collect();
        let spec = |pod: &Arc<Value>| {
            let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
            let (name, uid) = (text("/metadata/name"), text("/metadata/uid"));
            let number: u16 = uid.trim_start_matches('u').parse().unwrap();
            let labels: BTreeMap<String, String> =
                serde_json::from_value(pod["metadata"]["labels"].clone()).unwrap();
            EndpointSpec {
                namespace: "ns".to_owned(),
                labels,
                uid: Some(uid),
                ..EndpointSpec::new(name, ([10, 0, 0, 1], number))
            }
        };
        let store = &self.driver.live.store;
        store.replace(pods.iter().map(spec).collect());
        if !is_known {
            return;
        }
        let draining = self.draining();
        let snapshot = store.snapshot();
        let drained = |uid: &&String| draining.contains(*uid);
        let uids = snapshot.endpoints().iter().filter_map(|endpoint| endpoint.spec().uid.as_ref());
        // Others get the requests that these don't.
        let count = uids.filter(|uid| !drained(uid)).count().max(1);
        let now = self.clock.now_ms();
        for endpoint in snapshot.endpoints() {
            let drains = endpoint.spec().uid.as_ref().filter(drained);
            let is_idle = drains.is_some_and(|uid| has_answered(uid));
            let drains = drains.is_some();
            endpoint.load().running.set(if is_idle { 0.0 } else { 1.0 }, now);
            endpoint.load().waiting.set(if drains { 0.0 } else { f64::from(load) * 4.0 / count as f64 }, now);
        }
    }

    /// Runs what is due. Returns `true` if a policy was ticked.
    pub async fn act(&mut self) -> bool {
        if self.driver.next_gates.is_some_and(|at| at <= Instant::now()) {
            self.driver.open_gates().await;
        }
        let is_due = self.driver.due().is_some_and(|due| due <= self.clock.elapsed());
        if is_due {
            self.driver.tick_due().await;
            while let Some(ended) = self.driver.fetches.next().await {
                self.driver.tick_fetched(ended).await;
            }
            while let Some(result) = self.driver.applies.next().await {
                self.driver.applied(result);
            }
        }
        is_due
    }

    /// Latest plan.
    pub fn plan(&self) -> Option<Plan> {
        let running = self.driver.running.iter().find(|running| running.group.policy.name == "p")?;
        Some(running.latest.as_ref()?.plan.clone())
    }

    /// Reasons for which the policy is blocked, by its metric.
    pub fn frozen(&self) -> BTreeSet<String> {
        let families = self.registry.gather();
        let frozen = families.iter().filter(|family| family.name() == "usher_capacity_frozen_seconds");
        let label = |metric: &prometheus::proto::Metric, name: &str| {
            metric.get_label().iter().find(|label| label.name() == name).map(|label| label.value().to_owned())
        };
        let of_policy = frozen
            .flat_map(prometheus::proto::MetricFamily::get_metric)
            .filter(|metric| label(metric, "policy").as_deref() == Some("p"));
        of_policy.filter_map(|metric| label(metric, "reason")).collect()
    }

    /// Returns `true` if it reports that the policy is blocked.
    pub fn says_why(&self) -> bool {
        !self.frozen().is_empty()
            || self.plan().is_some_and(|plan| plan.state.is_stuck() && plan.state != State::Idle)
    }
}
