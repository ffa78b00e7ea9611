//! Local mirrors of watched collections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::{Change, Cluster, Collection, Missing, WatchStatus, Watched, follow_once_defined};
use crate::endpoints::Clock;

/// Capacity of the channel of changes.
const WAITING: usize = 256;

type Objects<K> = BTreeMap<String, Arc<K>>;
type SharedObjects<K> = Arc<Mutex<Option<Objects<K>>>>;

/// Mirror of a collection's objects, by name; `None` until the first list. Written by its own task, which
/// ends when the mirror is dropped.
#[derive(Debug)]
pub(super) struct Mirror<K> {
    kept: SharedObjects<K>,
    /// Number of changes.
    changes: Arc<AtomicU64>,
    watch_status: Arc<WatchStatus>,
    _task: AbortOnDropHandle<()>,
}

impl<K: Send + Sync + 'static> Mirror<K> {
    /// Watches a collection. `keep` maps an object to the kept part and its name; `None` drops it. `changed`
    /// is notified of every change.
    pub(super) fn start<T: Watched>(
        cluster: Cluster,
        collection: Collection,
        clock: Clock,
        keep: fn(T) -> (String, Option<K>),
        changed: Arc<Notify>,
    ) -> Self {
        let kept: SharedObjects<K> = Arc::default();
        let watch_status = Arc::new(WatchStatus::new(clock));
        let changes: Arc<AtomicU64> = Arc::default();
        let (known, seen, counts) = (Arc::clone(&kept), Arc::clone(&watch_status), Arc::clone(&changes));
        let task = async move {
            let (sender, mut receiver) = mpsc::channel::<Change<T>>(WAITING);
            let ask = follow_once_defined(
                &cluster,
                &collection,
                &seen,
                &sender,
                |change| change,
                Missing::IsTrouble,
            );
            let take = async {
                while let Some(change) = receiver.recv().await {
                    apply(&known, change, keep);
                    counts.fetch_add(1, Relaxed);
                    changed.notify_one();
                }
            };
            tokio::join!(ask, take);
        };
        Self { kept, changes, watch_status, _task: AbortOnDropHandle::new(tokio::spawn(task)) }
    }

    /// Objects; `None` before the first list.
    pub(super) fn objects(&self) -> MutexGuard<'_, Option<Objects<K>>> {
        lock(&self.kept)
    }

    /// Number of changes so far: while it stays, so do the objects read after it.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// Time since the last message of the API server; `None`: never.
    pub(super) fn age(&self) -> Option<Duration> {
        self.watch_status.age()
    }
}

fn lock<K>(kept: &SharedObjects<K>) -> MutexGuard<'_, Option<Objects<K>>> {
    // A map is whole between two inserts.
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn apply<T, K>(kept: &SharedObjects<K>, change: Change<T>, keep: fn(T) -> (String, Option<K>)) {
    let mut kept = lock(kept);
    match change {
        Change::All(objects) => {
            let all = objects.into_iter().map(keep).filter_map(|(name, kept)| Some((name, Arc::new(kept?))));
            *kept = Some(all.collect());
        }
        Change::Put(object) => {
            let objects = kept.get_or_insert_default();
            match keep(object) {
                (name, Some(object)) => objects.insert(name, Arc::new(object)),
                (name, None) => objects.remove(&name),
            };
        }
        Change::Gone(object) => {
            let (name, _) = keep(object);
            if let Some(objects) = kept.as_mut() {
                objects.remove(&name);
            }
        }
    }
}
