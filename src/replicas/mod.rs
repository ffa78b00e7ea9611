//! Load that replicas share through Redis or Valkey.
//!
//! Every replica publishes what it has in flight on its pool's channel (`message`), as a whole: when it changed
//! (`publisher`), and periodically as a heartbeat. It adds up what the others said last (`origins`), and
//! writes the sums beside its own numbers, where decisions read them. The store keeps nothing, so nothing stale
//! is ever read from it.
//!
//! Two tasks, neither on the path of a request: `link` passes messages through a `connection`, which speaks RESP3
//! (`resp`), `driver` owns the numbers. While the store is slow, newer messages replace older ones; while it is away, the others'
//! numbers expire.

mod connection;
mod driver;
mod failure;
mod link;
mod message;
mod metrics;
mod origins;
mod publisher;
mod resp;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use usher_core::endpoints::Store;

use crate::settings::{ExchangeSettings, StateStoreSettings};

pub use driver::SharedCounter;
pub use metrics::ReplicasMetrics;

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
    /// `namespace/name` of the pool.
    pub pool: String,
    /// Display name of this replica.
    pub replica: String,
    /// Numbers of the exchange.
    pub metrics: ReplicasMetrics,
}

/// Shares the load of a pool until it is dropped. The store may be away, also at the start.
pub async fn share(mut store: StateStoreSettings, exchange: ExchangeSettings, parts: Parts) {
    let Parts { endpoints, shared, pool, replica, metrics } = parts;
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
        connector: connection::Connector { store, name: replica, metrics: metrics.clone() },
        channel,
        timeout: exchange.timeout.unwrap_or(TIMEOUT),
        outgoing: newest,
        events,
    };
    let driver = driver::Driver::new(endpoints, shared, (origins, publisher), (outgoing, taken), metrics);
    tokio::join!(link.run(), driver.run());
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
    fn pools_and_databases_have_channels_of_their_own() {
        assert_eq!(super::channel("models/llama", 0), "usher:v1:{models/llama}:load");
        assert_eq!(super::channel("models/llama", 2), "usher:v1:{models/llama}:2:load");
    }
}
