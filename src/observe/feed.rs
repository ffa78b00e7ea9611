//! Server-sent events: one state each second, rendered once for all who listen, and not at all while nobody does.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::memory::{Budget, Kind, Reservation};

/// Time from one state to the next.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time that somebody may listen without coming again. Below what a connection of the port may take as a whole, and the
/// 15 seconds that Envoy gives a response, so that a stream ends at an event, and not in it.
const LONGEST: Duration = Duration::from_secs(12);

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

/// Renders states, each from what it kept of the one before.
pub type Render = Box<dyn FnMut() -> State + Send>;

/// States that a function renders while a client is connected.
pub struct Feed {
    begin: Box<dyn Fn() -> Render + Send + Sync>,
    budget: Arc<Budget>,
    // Held while a state is rendered.
    turn: Arc<tokio::sync::Mutex<()>>,
    // Guards what is kept while somebody listens. Taken for moments.
    kept: Mutex<Kept>,
    /// Events rendered, ever.
    rendered: AtomicU64,
}

/// The state that is dropped with the last listener.
#[derive(Default)]
struct Kept {
    listeners: usize,
    /// The last event.
    latest: Option<Arc<Event>>,
    /// Renders the next; `None`: no client yet, or a rendering is running.
    render: Option<Render>,
}

/// A rendered state.
struct Event {
    number: u64,
    at: Instant,
    full: Bytes,
    change: Bytes,
}

/// Listener of the feed.
struct Listener {
    feed: Arc<Feed>,
    /// Number of the last event that it got; 0: none yet.
    seen: u64,
    until: Instant,
    /// Event that may not have been read yet.
    held: Reservation,
}

impl Feed {
    /// States that a function renders which `begin` makes for the first who listens. It may take its time, but not
    /// wait, and is dropped with the last client.
    pub fn new(budget: Arc<Budget>, begin: impl Fn() -> Render + Send + Sync + 'static) -> Self {
        Self {
            begin: Box::new(begin),
            budget,
            turn: Arc::default(),
            kept: Mutex::default(),
            rendered: AtomicU64::new(0),
        }
    }

    /// Streams at most `most` events, the first with all of the state; `None`: too many listen. Who reads slowly
    /// misses states and then gets all of the last one, so that nothing is kept for it but one.
    pub(super) fn listen(self: &Arc<Self>, most: usize) -> Option<impl Stream<Item = Bytes> + use<>> {
        {
            let mut kept = self.kept();
            if kept.listeners >= LISTENERS {
                return None;
            }
            kept.listeners += 1;
        }
        let listener = Listener {
            feed: Arc::clone(self),
            seen: 0,
            until: Instant::now() + LONGEST,
            held: Reservation::new(&self.budget, Kind::SmallPorts),
        };
        let events = stream::unfold(listener, |mut listener| async move {
            let event = listener.next().await?;
            Some((event, listener))
        });
        Some(stream::iter([Bytes::from_static(RETRY)]).chain(events.take(most)))
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
        let render = self.kept().render.take();
        let mut render = render.unwrap_or_else(|| (self.begin)());
        let state = render();
        let event = |data: &str| Bytes::from(format!("data: {data}\n\n"));
        let full = event(&state.full);
        let change = state.change.map_or_else(|| full.clone(), |change| event(&change));
        let number = self.rendered.fetch_add(1, Relaxed) + 1;
        let event = Arc::new(Event { number, at: Instant::now(), full, change });
        let mut kept = self.kept();
        // They may all have left meanwhile.
        if kept.listeners > 0 {
            (kept.latest, kept.render) = (Some(Arc::clone(&event)), Some(render));
        }
        event
    }

    /// The last event, if it is after this one and no new one is due.
    fn fresh(&self, seen: u64) -> Option<Arc<Event>> {
        self.latest().filter(|event| event.number > seen && event.at.elapsed() < INTERVAL)
    }

    fn latest(&self) -> Option<Arc<Event>> {
        self.kept().latest.clone()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut kept = self.feed.kept();
        kept.listeners -= 1;
        if kept.listeners == 0 {
            let dropped = std::mem::take(&mut *kept);
            drop(kept);
            drop(dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use super::*;

    /// A feed whose states are numbered from 1, and the number of them.
    fn numbered() -> (Arc<Feed>, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let feed = Feed::new(Arc::default(), move || {
            let (counted, mut is_known) = (Arc::clone(&counted), false);
            Box::new(move || {
                let number = counted.fetch_add(1, Relaxed) + 1;
                let change = is_known.then(|| format!("change {number}"));
                is_known = true;
                State { full: format!("all {number}"), change }
            })
        });
        (Arc::new(feed), count)
    }

    async fn read(events: &mut (impl Stream<Item = Bytes> + Unpin)) -> String {
        String::from_utf8(events.next().await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn state_is_rendered_once_for_all_listeners() {
        let (feed, count) = numbered();
        let mut first = Box::pin(feed.listen(usize::MAX).unwrap());
        assert_eq!(read(&mut first).await, "retry: 500\n\n");
        assert_eq!(read(&mut first).await, "data: all 1\n\n");
        let mut second = Box::pin(feed.listen(usize::MAX).unwrap());
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
        let mut third = Box::pin(feed.listen(usize::MAX).unwrap());
        read(&mut third).await;
        assert_eq!(read(&mut third).await, "data: all 5\n\n");
    }

    #[tokio::test]
    async fn state_without_listeners_is_not_kept() {
        let (begun, begins) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let (gate, token) = (Mutex::new(gate), Arc::new(()));
        let held = Arc::downgrade(&token);
        // Whoever renders holds the token, as a renderer holds a snapshot.
        let token = Mutex::new(Some(token));
        let gate = Arc::new(gate);
        let feed = Arc::new(Feed::new(Arc::default(), move || {
            let (begun, gate) = (begun.clone(), Arc::clone(&gate));
            let token = token.lock().unwrap().take();
            Box::new(move || {
                begun.send(()).unwrap();
                gate.lock().unwrap().recv().unwrap();
                State { full: format!("{}", token.is_some()), change: None }
            })
        }));
        let mut events = Box::pin(feed.listen(usize::MAX).unwrap());
        read(&mut events).await;
        assert!(futures_util::poll!(events.next()).is_pending());
        let rendering = tokio::task::spawn_blocking(move || begins.recv().unwrap());
        rendering.await.unwrap();
        drop(events);
        go.send(()).unwrap();
        // Until the turn is given back.
        drop(feed.turn.lock().await);
        let kept = feed.kept();
        assert!(kept.latest.is_none() && kept.render.is_none() && held.upgrade().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn listeners_are_bounded_counted_and_end_after_a_time() {
        let (feed, _) = numbered();
        let mut all: Vec<_> = (0..LISTENERS).map(|_| Box::pin(feed.listen(usize::MAX).unwrap())).collect();
        assert!(feed.listen(usize::MAX).is_none());
        let begin = Instant::now();
        let first = all.first_mut().unwrap();
        read(first).await;
        read(first).await;
        assert_eq!(feed.budget.used(Kind::SmallPorts), "data: all 1\n\n".len() as u64);
        while first.next().await.is_some() {}
        assert_eq!(begin.elapsed(), LONGEST);
        drop(all);
        let once: Vec<Bytes> = feed.listen(1).unwrap().collect().await;
        assert_eq!(
            (once.len(), &once[1][..9]),
            (2, &b"data: all"[..]),
            "an event after the time to come again"
        );
        assert!(feed.listen(usize::MAX).is_some());
        assert_eq!(feed.budget.used(Kind::SmallPorts), 0);
    }
}
