//! Capacity policies: from flags and the other parts to a running driver and its outlets.

use std::net::TcpListener as StdListener;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use prometheus::Registry;
use tokio::net::TcpListener;

use super::numbers::attributes;
use super::{Background, RunError};
use crate::config::settings::ServeSettings;
use crate::endpoints::{Clock, Store};
use crate::extproc::conn::Lifetime;
use crate::extproc::health::HealthState;
use crate::extproc::server::serve_plain;
use crate::flow::Dispatcher;
use crate::observe::http::Routes;
use crate::scaling::file::PolicyFile;
use crate::scaling::{self, Board, Driver, Groups, Live, Sources, keda};
use crate::schedule::State;
use crate::schedule::registry::Pipeline;
use crate::scrape::params::SourceKind;
use crate::scrape::{ScrapeConfig, ScrapeMetrics};

/// Who the numbers' places belong to.
const OWNER: &str = "capacity-policy";

/// Connections of KEDA: its operator and its metrics server keep one each.
const MAX_KEDA_CONNECTIONS: usize = 64;

const JSON: &str = "application/json";

/// Policies that have been read, and what it takes to read them again.
#[derive(Debug)]
pub(super) struct Policies {
    file: PolicyFile,
    groups: Groups,
    sources: Sources,
    servers: Option<ScrapeConfig>,
    gpus: Option<ScrapeConfig>,
}

impl Policies {
    /// Reads the file.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub(super) fn load(
        path: &Path,
        settings: &ServeSettings,
        pipeline: &Pipeline,
        state: &Arc<State>,
    ) -> Result<Self, RunError> {
        let config = |kind: SourceKind| {
            let source = pipeline.sources.iter().find(|source| source.params.kind == kind);
            let new =
                |params| ScrapeConfig::new(params, settings.refresh_metrics_interval, Vec::new(), false);
            source.map(|source| new(&source.params)).transpose().map_err(RunError::Config)
        };
        let (servers, gpus) = (config(SourceKind::Metrics)?, config(SourceKind::Dcgm)?);
        let leasing = Arc::clone(state);
        let sources = Sources {
            lease: Box::new(move |name| leasing.attribute(OWNER, name)),
            configured: attributes(&pipeline.sources),
            has_servers: servers.is_some(),
            has_gpus: gpus.is_some(),
            has_queue: pipeline.waiting.is_some(),
        };
        let mut file = PolicyFile::new(path);
        let groups = file.load(&sources).map_err(RunError::Config)?;
        Ok(Self { file, groups, sources, servers, gpus })
    }
}

/// What of the server policies look at.
pub(super) struct Seen<'a> {
    pub(super) dispatcher: &'a Arc<Dispatcher>,
    pub(super) store: Arc<Store>,
    pub(super) health: Arc<HealthState>,
    pub(super) clock: &'a Clock,
    pub(super) scrapes: ScrapeMetrics,
}

/// Starts to tick, and to answer KEDA where it is to be answered. Returns where the plans stand.
///
/// # Errors
/// When the metrics can't be registered, or the socket can't be used.
pub(super) fn start(
    policies: Policies,
    seen: Seen<'_>,
    keda: Option<StdListener>,
    settings: &ServeSettings,
    registry: &Registry,
    background: &mut Background,
) -> Result<Arc<Board>, RunError> {
    let Policies { file, groups, sources, servers, gpus } = policies;
    let gate = seen.dispatcher.gate().cloned();
    let health = seen.health;
    let live = Live {
        store: seen.store,
        clock: seen.clock.clone(),
        staleness: settings.metrics_staleness,
        demanded: gate.as_ref().map(|gate| gate.demanded()),
        waiting: Box::new(move || gate.as_ref().map_or(0, |gate| gate.waiting())),
        may_plan: Box::new(move || {
            let view = health.view();
            view.synced && view.leads != Some(false)
        }),
        servers,
        gpus,
        scrapes: seen.scrapes,
    };
    let driver = Driver::new(groups, sources, live, registry)?;
    let board = Arc::clone(driver.board());
    let driving = background.shutdown.clone().run_until_cancelled_owned(driver.run(file));
    background.tasks.spawn(driving.map(|_| ()));
    if let Some(listener) = keda {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        tracing::info!(address = %listener.local_addr()?, "external scaler for KEDA open");
        let lifetime = Lifetime { close: background.shutdown.clone(), ..Lifetime::new() };
        let service = keda::service(Arc::clone(&board));
        background.tasks.spawn(serve_plain(listener, service, lifetime, MAX_KEDA_CONNECTIONS));
    }
    Ok(board)
}

/// With the pages about plans, where there are any.
pub(super) fn with_pages(routes: Routes, board: Option<&Arc<Board>>, clock: &Clock) -> Routes {
    let Some(board) = board else { return routes };
    let (plans, rules) = (Arc::clone(board), Arc::clone(board));
    let (now, then) = (clock.clone(), clock.clone());
    routes.with_page("/capacity/v1/plans", JSON, move || scaling::plans(&plans, &now)).with_page(
        "/capacity/v1/rules",
        JSON,
        move || scaling::rules(&rules, &then),
    )
}
