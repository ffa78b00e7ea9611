//! Values that a plugin works out of the endpoints of a snapshot, once instead of for every
//! decision: what their labels say, which don't change within a snapshot and take long
//! to look up in a large pool.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use usher_core::endpoints::{Endpoint, Snapshot};

/// Value that follows from the endpoints of a snapshot. The latest is kept; requests
/// read it without a lock.
pub struct PerSnapshot<T>(ArcSwapOption<Known<T>>);

struct Known<T> {
    /// The snapshot's number.
    of: u64,
    value: T,
}

impl<T> PerSnapshot<T> {
    /// Empty cache.
    pub fn new() -> Self {
        Self(ArcSwapOption::empty())
    }

    /// Reads what is known of a snapshot. Made when it is asked for first; by several
    /// threads, if they ask at once.
    pub fn read<R>(
        &self,
        snapshot: &Snapshot,
        make: impl FnOnce(&[Arc<Endpoint>]) -> T,
        read: impl FnOnce(&T) -> R,
    ) -> R {
        let current = self.0.load();
        if let Some(known) = current.as_deref().filter(|known| known.of == snapshot.number()) {
            return read(&known.value);
        }
        let made = Arc::new(Known { of: snapshot.number(), value: make(snapshot.endpoints()) });
        // A request may still be at an older snapshot than those behind it.
        if current.as_deref().is_none_or(|known| known.of < made.of) {
            self.0.store(Some(Arc::clone(&made)));
        }
        read(&made.value)
    }
}

impl<T> Default for PerSnapshot<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for PerSnapshot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PerSnapshot({:?})", self.0.load().as_deref().map(|known| known.of))
    }
}

/// Endpoints of a snapshot that fit, by position.
pub type Fitting = PerSnapshot<Box<[bool]>>;

impl Fitting {
    /// Keeps the candidates that fit.
    pub fn retain(&self, snapshot: &Snapshot, kept: &mut Vec<u32>, mut fits: impl FnMut(&Endpoint) -> bool) {
        self.read(
            snapshot,
            |endpoints| endpoints.iter().map(|endpoint| fits(endpoint)).collect(),
            |fitting| kept.retain(|position| fitting.get(*position as usize).is_some_and(|fits| *fits)),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use usher_core::endpoints::{EndpointSpec, Store};

    #[test]
    fn value_is_computed_once_per_snapshot_and_latest_is_kept() {
        let stores = [(); 3].map(|()| Store::default());
        stores[2].replace(vec![EndpointSpec::new("pod", ([10, 0, 0, 1], 80))]);
        // All but the last have the same generation.
        let [old, new, newest] = stores.map(|store| store.snapshot());
        let (known, made) = (PerSnapshot::new(), Cell::new(0));
        let read = |snapshot: &Snapshot| {
            let make = |endpoints: &[Arc<Endpoint>]| {
                made.set(made.get() + 1);
                endpoints.len()
            };
            (known.read(snapshot, make, |length| *length), made.get())
        };
        assert_eq!(read(&new), (0, 1));
        assert_eq!(read(&new), (0, 1));
        assert_eq!(read(&old), (0, 2), "another snapshot");
        assert_eq!(read(&new), (0, 2), "the older one doesn't take its place");
        assert_eq!(read(&newest), (1, 3));
        assert_eq!(read(&newest), (1, 3));
        assert_eq!(read(&new), (0, 4));
    }
}
