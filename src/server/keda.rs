//! The port for KEDA, and who responds there: the replica that leads.

use std::net::TcpListener as StdListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::Background;
use crate::extproc::conn::Lifetime;
use crate::extproc::connection_metrics::ConnectionMetrics;
use crate::extproc::server::serve_small;
use crate::leader::Term;
use crate::memory::{Budget, Windows};
use crate::scaling::{PlanStore, keda};

/// Streams of a connection of KEDA, which keeps one to an address: its triggers of the type
/// `external-push` have a stream each that stays open.
const STREAMS: u32 = 256;

/// Interval at which a replica that doesn't lead ends its connections.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Connections of KEDA. It keeps one to the address of a Service, at whichever replica that once led
/// to: when it is ended, it asks the Service again, which leads to the replica that is ready; where all are, to any
/// of them, until that is the one that leads.
#[derive(Debug)]
struct Connections {
    shutdown: CancellationToken,
    // Ends those that there are. Taken for each new one, and once a second while another leads.
    close: Mutex<CancellationToken>,
}

impl Connections {
    fn new(shutdown: CancellationToken) -> Self {
        Self { close: Mutex::new(shutdown.child_token()), shutdown }
    }

    /// The lifetime of a new connection.
    fn next(&self) -> Lifetime {
        let close = self.close.lock().unwrap_or_else(PoisonError::into_inner).child_token();
        Lifetime { close, ..Lifetime::new() }
    }

    fn end(&self) {
        let mut close = self.close.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *close, self.shutdown.child_token()).cancel();
    }

    /// Ends all of them again and again while another replica leads.
    async fn follow(self: Arc<Self>, term: Arc<Term>) {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !term.lasts() {
                self.end();
            }
        }
    }
}

/// Answers KEDA until the shutdown.
///
/// # Errors
/// `io::Error` if the socket can't be used.
pub(super) fn serve(
    listener: StdListener,
    plan_store: &Arc<PlanStore>,
    term: Arc<Term>,
    budget: Arc<Budget>,
    metrics: Arc<ConnectionMetrics>,
    background: &mut Background,
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let (leads, shutdown) = (Arc::clone(&term), background.shutdown.clone());
    let service = keda::service(Arc::clone(plan_store), move || leads.lasts());
    let connections = Arc::new(Connections::new(shutdown.clone()));
    let following = Arc::clone(&connections).follow(term);
    background.run(following);
    let lifetime = Lifetime { close: shutdown, ..Lifetime::new() };
    let windows = Windows { streams: STREAMS, most_streams: STREAMS, ..Windows::SMALLEST };
    let each = move || connections.next();
    background.tasks.spawn(serve_small(listener, service, lifetime, each, (budget, windows), metrics));
    Ok(())
}
