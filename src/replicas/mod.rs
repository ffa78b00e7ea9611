//! Load, prefixes and learned state that replicas share through Redis or Valkey.
//!
//! Every replica publishes what it has in flight and what waits on its pool's channel (`message`), as a whole: when it changed
//! (`publisher`), and periodically as a heartbeat. It adds up what the others published last (`origins`), and
//! writes the sums beside its own numbers, where decisions read them. The store keeps none of it, so nothing stale
//! is ever read from it. Prefixes go through a stream, which every replica reads (`prefixes`), and sessions and learned models
//! through another (`learned`).
//!
//! Four tasks, none on the path of a request: `link` passes messages on, `driver` owns the numbers, `prefixes` and `learned` take
//! `turns` at a `stream` each, over a `connection` (RESP3, `resp`) of its own, so that no kind of state waits for another or fails
//! with it.
//! While the store is slow, newer messages replace older ones; while it is away, the others' numbers expire.

mod connection;
mod driver;
mod entries;
mod failure;
mod learned;
mod link;
mod message;
mod metrics;
mod origins;
mod position;
mod prefixes;
mod publisher;
mod queue;
mod resp;
mod retries;
mod stream;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use usher_core::endpoints::{Clock, Store};
use usher_core::memory::Budget;
use usher_core::prefix::share::StreamBound;
use usher_plugin::State;

use crate::settings::{ExchangeSettings, StateStoreSettings};

pub use driver::SharedCounter;
pub use metrics::{ReplicasMetrics, Report};
pub use prefixes::Indexes;
pub use queue::{FlowService, QueueState, SharedQueue};
pub use retries::NamedCauses;

/// Time in which the store has to confirm a message, unless it is configured.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Events of the connection that wait at most.
const EVENTS: usize = 256;

/// Parts of a pool whose load is shared.
pub struct Parts {
    /// The pool's endpoints.
    pub endpoints: Arc<Store>,
    /// Counters that are shared; others replace them when the configuration changes.
    pub shared: watch::Receiver<Vec<SharedCounter>>,
    /// Clock of their readings.
    pub clock: Clock,
    /// Queue of this replica; `None`: requests never wait.
    pub queue: Option<Arc<dyn SharedQueue>>,
    /// `namespace/name` of the pool.
    pub pool: String,
    /// Display name of this replica.
    pub replica: String,
    /// Numbers of the exchange.
    pub metrics: ReplicasMetrics,
    /// Causes of failures that the log has named, of all kinds of state.
    pub named: NamedCauses,
}

/// Shares the load of a pool until it is dropped. The store may be away, also at the start.
pub async fn share(mut store: StateStoreSettings, exchange: ExchangeSettings, parts: Parts) {
    let Parts { endpoints, clock, shared, queue, pool, replica, metrics, named } = parts;
    let origin = message::Origin(rand::random());
    let replica = message::short_name(&replica);
    let interval = exchange.interval.unwrap_or_default().max(driver::INTERVAL);
    // Longer than the pause between two signs of life, whatever is configured.
    store.state_ttl = store.state_ttl.max(interval * 4);
    let origins = origins::Origins::new(origin, store.state_ttl);
    let publisher = publisher::Publisher::new(origin, replica.clone(), interval, store.state_ttl);
    let (outgoing, newest) = watch::channel(Vec::new());
    let (events, taken) = mpsc::channel(EVENTS);
    let channel = channel(&pool, store.db);
    let link = link::Link {
        connector: connection::Connector { store, name: replica, metrics: metrics.clone(), named },
        channel,
        timeout: exchange.timeout.unwrap_or(TIMEOUT),
        outgoing: newest,
        events,
    };
    let states = (origins, publisher, clock);
    let driver = driver::Driver::new((endpoints, shared, queue), states, (outgoing, taken), metrics);
    tokio::join!(link.run(), driver.run());
}

/// Parts of a pool whose prefixes are shared.
pub struct PrefixParts {
    /// The pool's endpoints.
    pub endpoints: Arc<Store>,
    /// Indexes of the configuration that runs.
    pub indexes: Indexes,
    /// Clock with which the indexes are swept.
    pub clock: Clock,
    /// Memory budget that they count against.
    pub budget: Arc<Budget>,
    /// `namespace/name` of the pool.
    pub pool: String,
    /// Name of this replica, for people.
    pub replica: String,
    /// Numbers of the exchange.
    pub metrics: ReplicasMetrics,
    /// Causes of failures that the log has named, of all kinds of state.
    pub named: NamedCauses,
    /// Signalled when the start needs to wait no longer for the blocks that other replicas published before.
    pub warm: oneshot::Sender<()>,
}

/// Shares the prefixes of a pool until it is dropped. The store may be away, also at the start.
pub async fn share_prefixes(store: StateStoreSettings, parts: PrefixParts) {
    let PrefixParts { endpoints, indexes, clock, budget, pool, replica, metrics, named, warm } = parts;
    let (shown, connected) = (metrics.prefixes.clone(), metrics.prefixes.connected.clone());
    let metrics = metrics.of("prefixes");
    let connector = connection::Connector { store, name: message::short_name(&replica), metrics, named };
    let mut stream = stream::Stream::new(connector, key(&pool, "prefixes"), connected, warm);
    let memory = (StreamBound::DEFAULT, &budget);
    let mut prefixes = prefixes::Prefixes::new(memory, clock, indexes, endpoints, shown);
    turns::take_turns(&mut stream, &mut prefixes).await;
}

/// Parts of a pool whose learned state is handed on.
pub struct LearnedParts {
    /// The pool's endpoints.
    pub endpoints: Arc<Store>,
    /// State of its plugins.
    pub state: Arc<State>,
    /// `namespace/name` of the pool.
    pub pool: String,
    /// Name of this replica, for people.
    pub replica: String,
    /// Numbers of the exchange.
    pub metrics: ReplicasMetrics,
    /// Causes of failures that the log has named, of all kinds of state.
    pub named: NamedCauses,
    /// Signalled when the start needs to wait no longer for what other replicas learned before.
    pub warm: oneshot::Sender<()>,
}

/// Hands on what plugins of a pool learned, until `ending` and a last time then. The store may be away, also at the start.
pub async fn share_learned(store: StateStoreSettings, parts: LearnedParts, ending: CancellationToken) {
    let LearnedParts { endpoints, state, pool, replica, metrics, named, warm } = parts;
    let (learned, connected) = (metrics.learned.clone(), metrics.learned.connected.clone());
    let metrics = metrics.of("learned");
    let connector = connection::Connector { store, name: message::short_name(&replica), metrics, named };
    let stream = stream::Stream::new(connector, key(&pool, "learned"), connected, warm);
    learned::LearnedExchange::new(state, endpoints, learned).run(stream, ending).await;
}

/// Key of a pool's stream, which a database has for itself.
fn key(pool: &str, stream: &str) -> String {
    format!("usher:v1:{{{pool}}}:{stream}")
}

/// Channel of a pool in a database, of which servers know nothing where they pass messages on. In braces is what
/// servers of a cluster go by.
fn channel(pool: &str, db: u32) -> String {
    match db {
        0 => format!("usher:v1:{{{pool}}}:load"),
        db => format!("usher:v1:{{{pool}}}:{db}:load"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn pools_and_databases_have_names_of_their_own() {
        assert_eq!(super::channel("models/llama", 0), "usher:v1:{models/llama}:load");
        assert_eq!(super::channel("models/llama", 2), "usher:v1:{models/llama}:2:load");
        assert_eq!(super::key("models/llama", "prefixes"), "usher:v1:{models/llama}:prefixes");
    }
}
