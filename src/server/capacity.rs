//! Capacity policies: from flags and the other parts to a running driver and its outlets.

use std::net::TcpListener as StdListener;
use std::sync::Arc;

use prometheus::Registry;
use tokio::sync::watch;

use super::numbers::attributes;
use super::pool::Pool;
use super::{Background, RunError};
use crate::actuator::Actuator;
use crate::capacity::Condition;
use crate::cluster::{Cluster, WatchStatus};
use crate::endpoints::Clock;
use crate::extproc::connection_metrics::ConnectionMetrics;
use crate::extproc::health::HealthState;
use crate::leader::Term;
use crate::observe::http::Routes;
use crate::registry::Pipeline;
use crate::scaling::file::PolicyFile;
use crate::scaling::objects::{PolicyObjects, StatusWriter, Surveyor};
use crate::scaling::query::Server;
use crate::scaling::{self, Driver, Feed, Group, Groups, Live, PlanStore, Sources, UNELECTED};
use crate::schedule::State;
use crate::scrape::params::SourceKind;
use crate::scrape::{ScrapeConfig, ScrapeMetrics};
use crate::settings::ServeSettings;

/// Owner of the attributes that hold the policies' numbers.
const OWNER: &str = "capacity-policy";

const JSON: &str = "application/json";

/// Policies that have been read, and what it takes to read them again.
#[derive(Debug)]
pub(super) struct Policies {
    /// `None`: they are objects of the API server.
    file: Option<PolicyFile>,
    groups: Groups,
    sources: Sources,
    servers: Option<ScrapeConfig>,
    gpus: Option<ScrapeConfig>,
    prometheus: Option<Server>,
}

impl Policies {
    /// Reads the file, if there is one; `None`: there are to be no policies. `can_act` says whether there is
    /// an API server to act on.
    ///
    /// # Errors
    /// Every mistake of the file.
    pub(super) fn load(
        settings: &ServeSettings,
        pipeline: &Pipeline,
        state: &Arc<State>,
        can_act: bool,
    ) -> Result<Option<Self>, RunError> {
        let path = settings.capacity_policy.as_ref();
        if path.is_none() && !settings.capacity_policies {
            return Ok(None);
        }
        let config = |kind: SourceKind| {
            let source = pipeline.sources.iter().find(|source| source.params.kind == kind);
            let new =
                |params| ScrapeConfig::new(params, settings.refresh_metrics_interval, Vec::new(), false);
            source.map(|source| new(&source.params)).transpose().map_err(RunError::Config)
        };
        let (servers, gpus) = (config(SourceKind::Metrics)?, config(SourceKind::Dcgm)?);
        let prometheus = settings.prometheus.clone().map(Server::new).transpose();
        let prometheus =
            prometheus.map_err(|error| RunError::Config(format!("--prometheus-ca-file: {error}")))?;
        if prometheus.as_ref().is_some_and(Server::shows_token_to_all) {
            tracing::warn!(
                "the token for queries is sent in plain text; let --prometheus-address begin with https://"
            );
        }
        let leasing = Arc::clone(state);
        let sources = Sources {
            lease: Box::new(move |name| leasing.attribute(OWNER, name)),
            configured: attributes(&pipeline.sources),
            has_servers: servers.is_some(),
            has_gpus: gpus.is_some(),
            has_queue: pipeline.flow_control.is_some(),
            can_act,
            has_queries: prometheus.is_some(),
            is_only: settings.pool.leader_election || settings.capacity_single_replica,
        };
        let mut file = path.map(PolicyFile::new);
        let groups = file.as_mut().map(|file| file.load(&sources)).transpose().map_err(RunError::Config)?;
        // A file that is read again is taken as it is, and does nothing.
        let is_frozen = |group: &Group| group.frozen == Some(Condition::NoLeaderElection);
        if can_act
            && let Some(group) =
                groups.iter().flat_map(|groups| &groups.groups).find(|group| is_frozen(group))
        {
            let name = &group.policy.name;
            return Err(RunError::Config(format!("policy '{name}' has mode Apply: {UNELECTED}")));
        }
        Ok(Some(Self { file, groups: groups.unwrap_or_default(), sources, servers, gpus, prometheus }))
    }
}

/// Parts of the server that policies look at.
pub(super) struct Seen<'a> {
    pub(super) pool: &'a Pool,
    pub(super) health: Arc<HealthState>,
    /// The time in which this replica may act on the cluster.
    pub(super) term: Arc<Term>,
    /// The labels of the pool's pods.
    pub(super) selected: watch::Receiver<Option<String>>,
    pub(super) scrapes: ScrapeMetrics,
    /// Counter of KEDA's connections that end with GOAWAY.
    pub(super) connections: Arc<ConnectionMetrics>,
    /// The cluster that the endpoints are in, if any.
    pub(super) cluster: Option<Cluster>,
    /// Other replicas serve, too, and say through a store what they have in flight.
    pub(super) is_shared: bool,
}

/// Starts to tick, and to answer KEDA where it is to be answered. Returns where the plans stand.
///
/// # Errors
/// Returns an error if the metrics can't be registered or the socket can't be used, and without an API server
/// if policies are its objects.
pub(super) fn start(
    policies: Policies,
    seen: Seen<'_>,
    keda: Option<StdListener>,
    settings: &ServeSettings,
    registry: &Registry,
    background: &mut Background,
) -> Result<Arc<PlanStore>, RunError> {
    let Policies { file, groups, sources, servers, gpus, prometheus } = policies;
    let Pool { store, clock, dispatcher, .. } = seen.pool;
    let gate = dispatcher.gate().cloned();
    let (health, term, leading) = (seen.health, Arc::clone(&seen.term), seen.term);
    let responds = Arc::clone(&leading);
    let cluster = seen.cluster;
    let live = Live {
        store: Arc::clone(store),
        clock: clock.clone(),
        staleness: settings.metrics_staleness,
        demanded: gate.as_ref().map(|gate| gate.demanded()),
        waiting: Box::new(move || gate.as_ref().map_or(0, |gate| gate.waiting())),
        may_plan: Box::new(move || {
            let view = health.view();
            view.synced && view.leads != Some(false)
        }),
        may_act: Box::new(move || term.lasts()),
        is_shared: seen.is_shared,
        servers,
        gpus,
        scrapes: seen.scrapes,
        actuator: cluster.clone().map(|cluster| {
            let namespace = settings.pool.namespace.clone();
            Actuator::new(cluster, namespace, clock.clone(), seen.selected, Arc::clone(&leading))
        }),
    };
    let driver = Driver::new(groups, sources, live, prometheus, registry)?;
    let plan_store = Arc::clone(driver.plan_store());
    let feed = match (file, cluster) {
        (Some(file), _) => Feed::File(file),
        (None, Some(cluster)) => {
            let pool = &settings.pool;
            let wanted = Arc::new(watch::Sender::default());
            let term = Arc::clone(&leading);
            let surveyor = Surveyor::new(cluster.clone(), wanted.subscribe(), clock.clone(), term);
            background.run(surveyor.run());
            let namespace = pool.namespace.clone();
            let status_writer = StatusWriter::new(
                cluster.clone(),
                namespace,
                Arc::clone(&plan_store),
                clock.clone(),
                leading,
            );
            background.run(status_writer.run());
            Feed::Objects(PolicyObjects {
                cluster,
                namespace: pool.namespace.clone(),
                pool: pool.label().to_owned(),
                wanted,
                watch_status: Arc::new(WatchStatus::new(clock.clone())),
                topologies: Arc::new(WatchStatus::new(clock.clone())),
            })
        }
        (None, None) => {
            let text = "--capacity-policies follows the policies of a cluster, and endpoints come from elsewhere; give --pool-name or --endpoint-selector, or a file with --capacity-policy";
            return Err(RunError::Config(text.to_owned()));
        }
    };
    background.run(driver.run(feed));
    if let Some(listener) = keda {
        let budget = Arc::clone(seen.pool.budget());
        super::keda::serve(listener, &plan_store, responds, budget, seen.connections, background)?;
    }
    Ok(plan_store)
}

/// With the pages about plans, where there are any.
pub(super) fn with_pages(routes: Routes, plan_store: Option<&Arc<PlanStore>>, clock: &Clock) -> Routes {
    let Some(plan_store) = plan_store else { return routes };
    let (plans, rules) = (Arc::clone(plan_store), Arc::clone(plan_store));
    let (now, then) = (clock.clone(), clock.clone());
    routes.with_page("/capacity/v1/plans", JSON, move || scaling::plans(&plans, &now)).with_page(
        "/capacity/v1/rules",
        JSON,
        move || scaling::rules(&rules, &then),
    )
}
