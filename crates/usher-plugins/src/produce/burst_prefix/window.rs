//! Batches of requests that come together: which are open, who is in them, and when they
//! end. Time is passed in; nothing here waits.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use usher_core::endpoints::{Candidates, Endpoint};
use usher_core::prefix::Blocks;

use super::assign::{Member, Rules, assign};

/// The open batches of a producer.
#[derive(Debug)]
pub(super) struct Window {
    length: Duration,
    /// Requests that are held at a time.
    capacity: usize,
    rules: Rules,
    // Taken by each request when it comes and when its batch ends.
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    batches: Vec<Arc<Batch>>,
    /// Requests in them, and in those that have just ended.
    held: usize,
}

/// Requests that came within a window and have the same candidates.
#[derive(Debug)]
struct Batch {
    ends: Instant,
    candidates: Candidates,
    // Taken while the batch is open, and by whoever ends it.
    members: Mutex<Vec<Option<Member<Arc<[u64]>>>>>,
    /// The endpoint of each member, once the batch has ended.
    endpoints: OnceLock<Vec<Option<Arc<Endpoint>>>>,
}

/// A request's place in a batch. Dropping it before the batch ends takes the request out.
#[derive(Debug)]
pub(super) struct Seat {
    window: Arc<Window>,
    batch: Arc<Batch>,
    position: usize,
}

impl Window {
    pub(super) fn new(length: Duration, capacity: usize, rules: Rules) -> Self {
        Self { length, capacity, rules, open: Mutex::default() }
    }

    /// Takes a request into the batch of its candidates, or opens one for it; `None` when
    /// as many are held as may be.
    pub(super) fn join(
        self: &Arc<Self>,
        now: Instant,
        candidates: &Candidates,
        blocks: &Blocks,
        load: u64,
    ) -> Option<Seat> {
        let mut open = self.open();
        if open.held >= self.capacity {
            return None;
        }
        let is_theirs = |batch: &&Arc<Batch>| now < batch.ends && is_same(&batch.candidates, candidates);
        let batch = match open.batches.iter().find(is_theirs) {
            Some(batch) => Arc::clone(batch),
            None => {
                let batch = Arc::new(Batch {
                    ends: now + self.length,
                    candidates: candidates.clone(),
                    members: Mutex::default(),
                    endpoints: OnceLock::new(),
                });
                open.batches.push(Arc::clone(&batch));
                batch
            }
        };
        let mut members = batch.members();
        members.push(Some(Member { hashes: blocks.hashes().into(), load }));
        let position = members.len() - 1;
        drop(members);
        open.held += 1;
        Some(Seat { window: Arc::clone(self), batch, position })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batch {
    fn members(&self) -> MutexGuard<'_, Vec<Option<Member<Arc<[u64]>>>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Endpoints for its members. `now_ms` and `max_age` say which readings count.
    fn place(&self, rules: Rules, now_ms: u64, max_age: Duration) -> Vec<Option<Arc<Endpoint>>> {
        let replicas = by_load(&self.candidates, now_ms, max_age);
        let members = std::mem::take(&mut *self.members());
        let assigned = assign(&members, replicas.len(), rules);
        let endpoint = |replica: usize| replicas.get(replica).map(|endpoint| Arc::clone(endpoint));
        assigned.into_iter().map(|replica| replica.and_then(endpoint)).collect()
    }
}

impl Seat {
    /// Time at which the batch ends.
    pub(super) fn ends(&self) -> Instant {
        self.batch.ends
    }

    /// Ends the batch, unless another member has, and says where this one should go.
    pub(super) fn end(&self, now_ms: u64, max_age: Duration) -> Option<Arc<Endpoint>> {
        // From here on nobody joins it.
        self.window.open().batches.retain(|batch| !Arc::ptr_eq(batch, &self.batch));
        let place = || self.batch.place(self.window.rules, now_ms, max_age);
        self.batch.endpoints.get_or_init(place).get(self.position).cloned().flatten()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.window.open();
        open.held = open.held.saturating_sub(1);
        let mut members = self.batch.members();
        if let Some(member) = members.get_mut(self.position) {
            *member = None;
        }
        if members.iter().flatten().next().is_none() {
            open.batches.retain(|batch| !Arc::ptr_eq(batch, &self.batch));
        }
    }
}

/// Returns `true` if requests with these candidates can go to the same endpoints.
fn is_same(one: &Candidates, other: &Candidates) -> bool {
    let same_pool = || one.snapshot().generation() == other.snapshot().generation();
    one.is_same(other) || (same_pool() && one.indices() == other.indices())
}

/// The candidates, those that run the fewest requests first, equals by their names. Who
/// doesn't say how many comes last.
fn by_load(candidates: &Candidates, now_ms: u64, max_age: Duration) -> Vec<&Arc<Endpoint>> {
    let mut replicas: Vec<&Arc<Endpoint>> = candidates.view().iter().collect();
    let running = |endpoint: &Endpoint| {
        let running = endpoint.load().running.fresh(now_ms, max_age);
        running.filter(|running| running.is_finite()).unwrap_or(f64::INFINITY)
    };
    replicas.sort_by(|a, b| running(a).total_cmp(&running(b)).then_with(|| a.id().cmp(b.id())));
    replicas
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
