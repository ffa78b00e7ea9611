//! From a request's subset hint to its candidates.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::{Candidates, Store, SubsetHint};

/// Candidates that may still have to be fetched.
pub type Located<'a> = Pin<Box<dyn Future<Output = Candidates> + Send + 'a>>;

/// Resolves a subset hint to candidates. Implement it for an environment with
/// its own way to find endpoints and hand it to [`crate::run`]; the server puts
/// the cache in front of it.
pub trait PodLocator: Send + Sync + 'static {
    /// The candidates for a hint; empty when nothing matches. It can't fail: an
    /// implementation that can't reach its source answers with the last state it knew.
    fn locate<'a>(&'a self, hint: &'a SubsetHint) -> Located<'a>;

    /// A number that changes whenever an earlier answer may be out of date. The
    /// cache compares it at every look-up, so it has to be cheap.
    fn generation(&self) -> u64;
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
}
