//! From a request's subset hint to its candidates.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::{Candidates, Store, SubsetHint};

/// Candidates that may still have to be fetched.
pub type Located<'a> = Pin<Box<dyn Future<Output = Candidates> + Send + 'a>>;

/// Resolves a subset hint to candidates. Implement it for an environment with its own way
/// to find endpoints, and hand it to `Setup::with_locator` of the server, which puts a
/// [cache](super::CachedLocator) in front of it: that asks once however many requests want the same.
///
/// Endpoints live in a [`Store`]: it numbers them and keeps what they are doing. The server
/// scrapes, shows and cleans up after those in its own (`Setup::store`), so that is where an
/// implementation should put what it finds.
///
/// ```
/// use std::net::SocketAddr;
/// use std::sync::Arc;
/// use usher_core::endpoints::{EndpointSpec, Located, PodLocator, Store, SubsetHint};
///
/// /// Asks a directory for the servers, whenever a subset is new or was found a while ago.
/// struct Directory {
///     store: Arc<Store>,
/// }
///
/// impl Directory {
///     /// Stands for a call over the network.
///     async fn servers(&self) -> Vec<(&'static str, SocketAddr)> {
///         vec![("a", ([10, 0, 0, 1], 8000).into()), ("b", ([10, 0, 0, 2], 8000).into())]
///     }
/// }
///
/// impl PodLocator for Directory {
///     fn locate<'a>(&'a self, hint: &'a SubsetHint) -> Located<'a> {
///         Box::pin(async move {
///             let servers = self.servers().await;
///             let specs = servers.into_iter().map(|(name, address)| EndpointSpec::new(name, address));
///             // Endpoints that were known keep their number and what is known of their load.
///             self.store.replace(specs.collect());
///             self.store.snapshot().subset(hint)
///         })
///     }
///
///     fn generation(&self) -> u64 {
///         self.store.generation()
///     }
/// }
///
/// let directory = Directory { store: Arc::default() };
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let candidates = directory.locate(&SubsetHint::from_entries(["10.0.0.2:8000"])).await;
/// assert_eq!(candidates.view().get(0).name(), "b");
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait PodLocator: Send + Sync + 'static {
    /// The candidates for a hint; empty when nothing matches. It can't fail: an
    /// implementation that can't reach its source returns the last state it knew.
    ///
    /// The future may be polled by one request's task and then by another's, and is dropped
    /// when no request waits for it any more.
    fn locate<'a>(&'a self, hint: &'a SubsetHint) -> Located<'a>;

    /// A number that changes whenever an earlier result may be out of date. The
    /// cache compares it at every look-up, so it has to be cheap.
    fn generation(&self) -> u64;

    /// Returns `true` if [`locate`](Self::locate) finds the same whatever the hint. The
    /// cache then keeps one view for all.
    fn ignores_hints(&self) -> bool {
        false
    }
}

/// Finds candidates in a [`Store`].
#[derive(Debug)]
pub struct StoreLocator {
    store: Arc<Store>,
    ignore_hints: bool,
}

impl StoreLocator {
    /// `ignore_hints` is the flag `--disable-endpoint-subset-filter`: every
    /// request then sees the whole pool.
    pub fn new(store: Arc<Store>, ignore_hints: bool) -> Self {
        Self { store, ignore_hints }
    }
}

impl PodLocator for StoreLocator {
    fn locate<'a>(&'a self, hint: &'a SubsetHint) -> Located<'a> {
        let snapshot = self.store.snapshot();
        let candidates = if self.ignore_hints { snapshot.all() } else { snapshot.subset(hint) };
        Box::pin(std::future::ready(candidates))
    }

    fn generation(&self) -> u64 {
        self.store.generation()
    }

    fn ignores_hints(&self) -> bool {
        self.ignore_hints
    }
}
