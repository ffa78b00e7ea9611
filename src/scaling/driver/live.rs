//! The server, as far as policies look at it.

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
    /// The pods.
    pub store: Arc<Store>,
    /// The clock of their readings.
    pub clock: Clock,
    /// From which age on these no longer count.
    pub staleness: Duration,
    /// Requests that wait.
    pub waiting: Waiting,
    /// Wakes when requests begin to wait; `None`: they never do.
    pub demanded: Option<watch::Receiver<()>>,
    /// `true` if the pool is known, and this replica plans for it.
    pub may_plan: MayPlan,
    /// `true` if this replica is the only one to act on the cluster now.
    pub may_act: MayPlan,
    /// Other replicas serve, too, and say what they have in flight.
    pub is_shared: bool,
    /// Configuration of reads of the model servers' metrics, and the GPU exporters'; `None`: there are none.
    pub servers: Option<ScrapeConfig>,
    /// The same for the GPU exporters'.
    pub gpus: Option<ScrapeConfig>,
    /// Counts scrapes.
    pub scrapes: ScrapeMetrics,
    /// Looks at Kubernetes for policies, and acts; `None`: there is no API server.
    pub actuator: Option<Actuator>,
}
