//! Sends reviews: each once for all waiting requests, a few at a time, and not again
//! while the last response counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::review_cache::{CacheTtl, Key, ReviewCache};
use crate::cluster::Problem;
use crate::endpoints::Clock;

/// Result of a review: yes with what there is to know, or no; or why it could not be made.
pub(super) type ReviewResult<V> = Result<Option<V>, Problem>;

/// Time to get a turn when many reviews are under way.
const TURN: Duration = Duration::from_secs(5);

/// Reviews of one kind.
pub(super) struct Reviews<V> {
    // Guards what was said and what is asked now; held for a look or an entry, never while
    // something is awaited.
    state: Mutex<State<V>>,
    /// Turns, shared by all kinds.
    turns: Arc<Semaphore>,
    clock: Clock,
}

struct State<V> {
    cache: ReviewCache<V>,
    /// Reviews under way, no more than there are turns.
    asked: HashMap<Key, PendingReview<V>>,
}

/// Result of a review under way.
type PendingReview<V> = watch::Receiver<Option<ReviewResult<V>>>;

enum Found<V> {
    Said(Option<V>),
    Asked(PendingReview<V>),
}

impl<V: Clone + Send + Sync + 'static> Reviews<V> {
    pub(super) fn new(lasting: CacheTtl, turns: Arc<Semaphore>, clock: Clock) -> Arc<Self> {
        let state = State { cache: ReviewCache::new(lasting), asked: HashMap::new() };
        Arc::new(Self { state: Mutex::new(state), turns, clock })
    }

    /// Result of a review, or of one not long ago.
    ///
    /// Cancel safe: a review that has begun is finished for the others who wait for it.
    pub(super) async fn ask<F>(self: &Arc<Self>, key: Key, review: impl FnOnce() -> F) -> ReviewResult<V>
    where
        F: Future<Output = ReviewResult<V>> + Send + 'static,
    {
        let found = self.lock().find(&key, self.clock.elapsed());
        if let Some(found) = found {
            return found.result().await;
        }
        // Before the task is made, so that those who come and go can't pile up tasks.
        let turn = tokio::time::timeout(TURN, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(Problem::TimedOut(TURN)) };
        let receiver = {
            let mut state = self.lock();
            // Somebody else may have asked meanwhile.
            match state.find(&key, self.clock.elapsed()) {
                Some(found) => Err(found),
                None => {
                    let (sender, receiver) = watch::channel(None);
                    state.asked.insert(key, receiver.clone());
                    Ok((sender, receiver))
                }
            }
        };
        let (sender, receiver) = match receiver {
            Ok(channel) => channel,
            Err(found) => {
                drop(turn);
                return found.result().await;
            }
        };
        let (reviews, review) = (Arc::clone(self), review());
        tokio::spawn(async move {
            let response = review.await;
            let mut state = reviews.lock();
            state.asked.remove(&key);
            if let Ok(said) = &response {
                state.cache.put(key, said.clone(), reviews.clock.elapsed());
            }
            drop(state);
            sender.send_replace(Some(response));
            drop(turn);
        });
        Found::Asked(receiver).result().await
    }

    fn lock(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V: Clone> State<V> {
    fn find(&self, key: &Key, now: Duration) -> Option<Found<V>> {
        // One whose task is gone without a response is asked again.
        let asked = || self.asked.get(key).filter(|receiver| receiver.has_changed().is_ok());
        self.cache.get(key, now).map(Found::Said).or_else(|| asked().cloned().map(Found::Asked))
    }
}

impl<V: Clone> Found<V> {
    async fn result(self) -> ReviewResult<V> {
        match self {
            Self::Said(said) => Ok(said),
            Self::Asked(mut receiver) => {
                let response =
                    receiver.wait_for(Option::is_some).await.ok().and_then(|response| response.clone());
                response.unwrap_or_else(|| Err(Problem::Unreachable("the review was given up".to_owned())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    const LASTING: CacheTtl = CacheTtl { yes: Duration::from_secs(60), no: Duration::from_secs(30) };
    const KEY: Key = [1; 32];

    fn reviews(clock: &Clock, turns: usize) -> Arc<Reviews<u32>> {
        Reviews::new(LASTING, Arc::new(Semaphore::new(turns)), clock.clone())
    }

    /// A review that takes a second and counts how often it was made.
    async fn slow(count: Arc<AtomicUsize>, response: ReviewResult<u32>) -> ReviewResult<u32> {
        count.fetch_add(1, SeqCst);
        tokio::time::sleep(Duration::from_secs(1)).await;
        response
    }

    #[tokio::test(start_paused = true)]
    async fn equal_requests_share_one_review() {
        let (clock, count) = (Clock::stopped(), Arc::new(AtomicUsize::new(0)));
        let reviews = reviews(&clock, 4);
        let ask = || reviews.ask(KEY, || slow(Arc::clone(&count), Ok(Some(7))));
        // One who leaves does not end it for the others.
        let left = tokio::time::timeout(Duration::from_millis(1), ask()).await;
        assert!(left.is_err());
        let responses = join_all((0..50).map(|_| ask())).await;
        assert!(responses.iter().all(|response| *response == Ok(Some(7))));
        assert_eq!(count.load(SeqCst), 1);
        clock.set(Duration::from_secs(59));
        assert_eq!(ask().await, Ok(Some(7)));
        assert_eq!(count.load(SeqCst), 1);
        clock.set(Duration::from_secs(60));
        assert_eq!(ask().await, Ok(Some(7)));
        assert_eq!(count.load(SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_review_is_retried_and_keeps_the_cache() {
        let (clock, count) = (Clock::stopped(), Arc::new(AtomicUsize::new(0)));
        let reviews = reviews(&clock, 4);
        let down = || Err(Problem::Unreachable("refused".to_owned()));
        let ask = |response| reviews.ask(KEY, || slow(Arc::clone(&count), response));
        assert_eq!(ask(down()).await, down());
        assert_eq!(ask(Ok(None)).await, Ok(None));
        assert_eq!(count.load(SeqCst), 2);
        // While a response counts, it doesn't matter that nobody could be asked.
        clock.set(Duration::from_secs(29));
        assert_eq!(ask(down()).await, Ok(None));
        clock.set(Duration::from_secs(30));
        assert_eq!(ask(down()).await, down());
    }

    #[tokio::test(start_paused = true)]
    async fn queued_review_times_out_with_an_error() {
        let clock = Clock::stopped();
        let reviews = reviews(&clock, 2);
        let started = tokio::time::Instant::now();
        // Two at a time, a second each: the last of eight begins after three seconds.
        let eight = (0..8u8).map(|key| reviews.ask([key; 32], || slow(Arc::default(), Ok(Some(1)))));
        assert!(join_all(eight).await.iter().all(Result::is_ok));
        assert_eq!(started.elapsed(), Duration::from_secs(4));
        let forever = || async { std::future::pending().await };
        let stuck: Vec<_> = (10..12u8)
            .map(|key| {
                tokio::spawn({
                    let reviews = Arc::clone(&reviews);
                    async move { reviews.ask([key; 32], forever).await }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(reviews.ask([20; 32], forever).await, Err(Problem::TimedOut(TURN)));
        assert_eq!(reviews.lock().asked.len(), 2);
        stuck.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn panicking_review_is_an_error_for_its_waiters() {
        let reviews = reviews(&Clock::stopped(), 1);
        let ask = |panics: bool| {
            reviews.ask(KEY, move || async move {
                assert!(!panics, "as the test wants it");
                Ok(Some(1))
            })
        };
        assert!(ask(true).await.is_err());
        assert_eq!(ask(false).await, Ok(Some(1)));
    }
}
