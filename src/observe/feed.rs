//! Server-sent events: one state each second, rendered once for all who listen, and not at all while nobody does.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::memory::{Budget, Kind, Reservation};

/// Time from one state to the next.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time that somebody may listen without coming again. Below what a connection of the port may take as a whole, so
/// that a stream ends at an event, and not in it.
const LONGEST: Duration = Duration::from_secs(20);

/// Listeners at a time.
const LISTENERS: usize = 16;

/// First line of a stream: a browser comes again so many milliseconds after its end.
const RETRY: &[u8] = b"retry: 500\n\n";

/// A state, and how it differs from the one before it. Neither has a line break.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// All of it, as the data of an event.
    pub full: String,
    /// Changes since the state before it; `None`: there was none, or all is different.
    pub change: Option<String>,
}

/// States that a function renders, each from what it kept of the one before.
pub struct Feed {
    render: Mutex<Box<dyn FnMut(bool) -> State + Send>>,
    budget: Arc<Budget>,
    listeners: Arc<Semaphore>,
    // Held while a state is rendered.
    turn: Arc<tokio::sync::Mutex<()>>,
    // Guards the last event. Taken for moments.
    latest: Mutex<Option<Arc<Event>>>,
    /// Events rendered, ever.
    rendered: AtomicU64,
}

/// A rendered state.
struct Event {
    number: u64,
    at: Instant,
    full: Bytes,
    change: Bytes,
}

/// Somebody who listens.
struct Listener {
    feed: Arc<Feed>,
    /// Number of the last event that it got; 0: none yet.
    seen: u64,
    until: Instant,
    /// Event that may not have been read yet.
    held: Reservation,
    _place: OwnedSemaphorePermit,
}

impl Feed {
    /// States that `render` makes. It may take its time, but not wait. It is told whether the listeners know the
    /// state before.
    pub fn new(budget: Arc<Budget>, render: impl FnMut(bool) -> State + Send + 'static) -> Self {
        Self {
            render: Mutex::new(Box::new(render)),
            budget,
            listeners: Arc::new(Semaphore::new(LISTENERS)),
            turn: Arc::default(),
            latest: Mutex::default(),
            rendered: AtomicU64::new(0),
        }
    }

    /// Events from now on, the first with all of the state; `None`: too many listen. Who reads slowly misses states
    /// and then gets all of the last one, so that nothing is kept for it but one.
    pub(super) fn listen(self: &Arc<Self>) -> Option<impl Stream<Item = Bytes> + use<>> {
        let listener = Listener {
            feed: Arc::clone(self),
            seen: 0,
            until: Instant::now() + LONGEST,
            held: Reservation::new(&self.budget, Kind::SmallPorts),
            _place: Arc::clone(&self.listeners).try_acquire_owned().ok()?,
        };
        let events = stream::unfold(listener, |mut listener| async move {
            let event = listener.next().await?;
            Some((event, listener))
        });
        Some(stream::iter([Bytes::from_static(RETRY)]).chain(events))
    }

    /// The first event after this one, not before its time.
    async fn after(self: &Arc<Self>, seen: u64) -> Result<Arc<Event>, JoinError> {
        if let Some(event) = self.fresh(seen) {
            return Ok(event);
        }
        if let Some(last) = self.latest() {
            tokio::time::sleep_until(last.at + INTERVAL).await;
        }
        let turn = Arc::clone(&self.turn).lock_owned().await;
        if let Some(event) = self.fresh(seen) {
            return Ok(event);
        }
        let feed = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            feed.rendered()
        })
        .await
    }

    fn rendered(&self) -> Arc<Event> {
        let is_known = self.latest().is_some();
        let state = {
            let mut render = self.render.lock().unwrap_or_else(PoisonError::into_inner);
            render(is_known)
        };
        let event = |data: &str| Bytes::from(format!("data: {data}\n\n"));
        let full = event(&state.full);
        let change = state.change.map_or_else(|| full.clone(), |change| event(&change));
        let number = self.rendered.fetch_add(1, Relaxed) + 1;
        let event = Arc::new(Event { number, at: Instant::now(), full, change });
        *self.lock_latest() = Some(Arc::clone(&event));
        event
    }

    /// The last event, if it is after this one and no new one is due.
    fn fresh(&self, seen: u64) -> Option<Arc<Event>> {
        self.latest().filter(|event| event.number > seen && event.at.elapsed() < INTERVAL)
    }

    fn latest(&self) -> Option<Arc<Event>> {
        self.lock_latest().clone()
    }

    fn lock_latest(&self) -> std::sync::MutexGuard<'_, Option<Arc<Event>>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    async fn next(&mut self) -> Option<Bytes> {
        let event = tokio::time::timeout_at(self.until, self.feed.after(self.seen)).await.ok()?;
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                tracing::error!(%error, "events could not be rendered");
                return None;
            }
        };
        let is_next = self.seen != 0 && event.number == self.seen + 1;
        self.seen = event.number;
        let data = if is_next { &event.change } else { &event.full };
        self.held.set(data.len() as u64);
        Some(data.clone())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Nothing is kept while nobody listens. This one's place is still taken.
        if self.feed.listeners.available_permits() + 1 >= LISTENERS {
            *self.feed.lock_latest() = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A feed whose states are numbered from 1, and the number of them.
    fn numbered() -> (Arc<Feed>, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let feed = Feed::new(Arc::default(), move |is_known| {
            let number = counted.fetch_add(1, Relaxed) + 1;
            State { full: format!("all {number}"), change: is_known.then(|| format!("change {number}")) }
        });
        (Arc::new(feed), count)
    }

    async fn read(events: &mut (impl Stream<Item = Bytes> + Unpin)) -> String {
        String::from_utf8(events.next().await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn states_are_rendered_once_for_all_and_only_while_somebody_listens() {
        let (feed, count) = numbered();
        let mut first = Box::pin(feed.listen().unwrap());
        assert_eq!(read(&mut first).await, "retry: 500\n\n");
        assert_eq!(read(&mut first).await, "data: all 1\n\n");
        let mut second = Box::pin(feed.listen().unwrap());
        read(&mut second).await;
        assert_eq!(read(&mut second).await, "data: all 1\n\n", "it is still new");
        let begin = Instant::now();
        assert_eq!([read(&mut first).await, read(&mut second).await], ["data: change 2\n\n"; 2]);
        assert_eq!((begin.elapsed().as_secs(), count.load(Relaxed)), (1, 2));
        // The first misses one.
        assert_eq!(read(&mut second).await, "data: change 3\n\n");
        assert_eq!(read(&mut second).await, "data: change 4\n\n");
        assert_eq!(read(&mut first).await, "data: all 4\n\n");
        drop((first, second));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(count.load(Relaxed), 4);
        let mut third = Box::pin(feed.listen().unwrap());
        read(&mut third).await;
        assert_eq!(read(&mut third).await, "data: all 5\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn listeners_are_bounded_counted_and_end_after_a_time() {
        let (feed, _) = numbered();
        let mut all: Vec<_> = (0..LISTENERS).map(|_| Box::pin(feed.listen().unwrap())).collect();
        assert!(feed.listen().is_none());
        let begin = Instant::now();
        let first = all.first_mut().unwrap();
        read(first).await;
        read(first).await;
        assert_eq!(feed.budget.used(Kind::SmallPorts), "data: all 1\n\n".len() as u64);
        while first.next().await.is_some() {}
        assert_eq!(begin.elapsed(), LONGEST);
        drop(all);
        assert!(feed.listen().is_some());
        assert_eq!(feed.budget.used(Kind::SmallPorts), 0);
    }
}
