//! Live state of the server that policies use.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::actuator::Actuator;
use crate::endpoints::{Clock, Store};
use crate::scrape::{ScrapeConfig, ScrapeMetrics};

type MayPlan = Box<dyn Fn() -> bool + Send + Sync>;
type Waiting = Box<dyn Fn() -> u64 + Send + Sync>;

/// Live state of the server, and its connection to Kubernetes.
pub struct Live {
    /// Endpoints.
    pub store: Arc<Store>,
    /// Clock of their metrics.
    pub clock: Clock,
    /// Age from which on metrics are stale.
    pub staleness: Duration,
    /// Waiting requests.
    pub waiting: Waiting,
    /// Notified when requests begin to wait; `None`: they never do.
    pub demanded: Option<watch::Receiver<()>>,
    /// `true` if the pool is known, and this replica plans for it.
    pub may_plan: MayPlan,
    /// `true` if only this replica may write to the cluster.
    pub may_act: MayPlan,
    /// `true` if other replicas serve too, and share their requests in flight.
    pub is_shared: bool,
    /// Scrape configuration of model servers for policies; `None` without a scraper.
    pub servers: Option<ScrapeConfig>,
    /// Scrape configuration of GPU exporters for policies; `None` without a scraper.
    pub gpus: Option<ScrapeConfig>,
    /// Metrics of scrapes.
    pub scrapes: ScrapeMetrics,
    /// Actuator; `None` without an API server.
    pub actuator: Option<Actuator>,
}
