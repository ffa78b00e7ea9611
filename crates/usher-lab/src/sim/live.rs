//! The engine driven by tokio's clock, and the requests that wait for its tokens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::kv_events::{Expected, Publisher};
use super::model::{Engine, Output, Rejected, SimRequest};
use super::timer::Timer;

/// Points at which the task that waits for a request's tokens is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// By the last one.
    AtEnd,
    /// By the first one, each time that there are so many more, and by the last one.
    Every(u32),
}

/// Progress of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    pub(crate) generated: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) finished: bool,
}

#[derive(Debug)]
struct Waiter {
    progress: watch::Sender<Progress>,
    wake: Wake,
    // Tokens that there were when it was woken last.
    seen: u32,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    waiters: HashMap<u64, Waiter>,
    next_id: u64,
    // When the driver wakes by itself.
    armed: Option<Duration>,
    outputs: Vec<Output>,
    events: Option<Arc<Publisher>>,
}

impl Inner {
    fn advance(&mut self, now: Duration) {
        self.engine.advance(now, &mut self.outputs);
        if let Some(events) = &self.events {
            events.publish(&self.engine.take_kv_changes());
        }
        for Output { id, generated, cached_tokens, finished, .. } in self.outputs.drain(..) {
            let Some(Waiter { progress, wake, seen }) = self.waiters.get_mut(&id) else { continue };
            let due = match *wake {
                Wake::AtEnd => false,
                Wake::Every(tokens) => *seen == 0 || generated - *seen >= tokens,
            };
            if due {
                *seen = generated;
            }
            progress.send_if_modified(|progress| {
                *progress = Progress { generated, cached_tokens, finished };
                due || finished
            });
            if finished {
                self.waiters.remove(&id);
            }
        }
    }
}

/// An engine in real time.
#[derive(Debug)]
pub(crate) struct Live {
    // Guards the engine and who waits for it; held for single steps, never across an await.
    inner: Mutex<Inner>,
    timer: Timer,
    // Notifies the driver that something happens earlier than it thought.
    earlier: Notify,
    started: Instant,
    // Simulated seconds per second.
    scale: f64,
}

impl Live {
    /// An engine that has just started, driven as finely as the timer waits.
    pub(crate) fn new(engine: Engine, scale: f64, timer: Timer) -> Self {
        Self {
            timer,
            inner: Mutex::new(Inner {
                engine,
                waiters: HashMap::new(),
                next_id: 0,
                armed: None,
                outputs: Vec::new(),
                events: None,
            }),
            earlier: Notify::new(),
            started: Instant::now(),
            scale,
        }
    }

    /// Publishes changes of its KV cache from now on.
    pub(crate) fn publish(&self, events: Arc<Publisher>) {
        let mut inner = self.lock();
        inner.engine.keep_kv_changes();
        inner.events = Some(events);
    }

    /// Forgets its KV cache, and begins to publish anew.
    pub(crate) fn restart_kv(&self) {
        let mut inner = self.lock();
        inner.engine.forget_kv();
        if let Some(events) = &inner.events {
            events.restart();
        }
    }

    /// Gives up its KV cache, and publishes nothing of that: a sleeping engine takes no step.
    pub(crate) fn sleeps(&self) {
        self.lock().engine.forget_kv();
    }

    /// Simulated time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed().mul_f64(self.scale)
    }

    /// A wait of `time` simulated time.
    pub(crate) async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time.div_f64(self.scale)).await;
    }

    /// Looks at the engine as it is now.
    pub(crate) fn inspect<T>(&self, look: impl FnOnce(&Engine) -> T) -> T {
        let mut inner = self.lock();
        inner.advance(self.now());
        look(&inner.engine)
    }

    /// Hands a request to the engine; its id is set here.
    pub(crate) fn submit(self: &Arc<Self>, mut request: SimRequest, wake: Wake) -> Result<Ticket, Rejected> {
        let mut inner = self.lock();
        let now = self.now();
        let id = inner.next_id;
        request.id = id;
        inner.engine.arrive(request, now)?;
        inner.next_id += 1;
        let (sender, progress) = watch::channel(Progress::default());
        inner.waiters.insert(id, Waiter { progress: sender, wake, seen: 0 });
        inner.advance(now);
        self.arm(&inner);
        Ok(Ticket { live: self.clone(), id, progress, expected: None })
    }

    // Wakes the driver if something happens earlier than it thinks.
    fn arm(&self, inner: &Inner) {
        if let Some(next) = inner.engine.next_event_at()
            && inner.armed.is_none_or(|armed| next < armed)
        {
            self.earlier.notify_one();
        }
    }

    /// Runs the engine's steps when they are due. Never ends.
    pub(crate) async fn drive(&self) {
        loop {
            let next = {
                let mut inner = self.lock();
                inner.armed = inner.engine.next_event_at();
                inner.armed
            };
            let Some(at) = next else {
                self.earlier.notified().await;
                continue;
            };
            tokio::select! {
                () = self.timer.until(self.started + at.div_f64(self.scale)) => {
                    // Not before `at`, whatever the scaling rounded, or this would spin.
                    self.lock().advance(self.now().max(at));
                }
                () = self.earlier.notified() => {}
            }
        }
    }

    // A panic elsewhere can't leave the engine half changed: nothing in it panics.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in the engine. Dropped before its last token, it is aborted.
#[derive(Debug)]
pub(crate) struct Ticket {
    live: Arc<Live>,
    id: u64,
    progress: watch::Receiver<Progress>,
    // Given back once the engine has no part of the request.
    expected: Option<Expected>,
}

impl Ticket {
    /// Keeps the contents of its blocks.
    pub(crate) fn keep(&mut self, expected: Option<Expected>) {
        self.expected = expected;
    }

    /// The number of the request at its server.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Waits until there are more than `seen` tokens, or no more will come.
    pub(crate) async fn beyond(&mut self, seen: u32) -> Progress {
        loop {
            let progress = *self.progress.borrow_and_update();
            if progress.generated > seen || progress.finished {
                return progress;
            }
            // The sender goes away only after it said that the request is finished.
            if self.progress.changed().await.is_err() {
                return *self.progress.borrow();
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.progress.borrow().finished {
            let mut inner = self.live.lock();
            inner.waiters.remove(&self.id);
            inner.engine.abort(self.id, self.live.now());
            // Somebody may have waited for its blocks.
            self.live.arm(&inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{EngineConfig, Finish, Kind, Layer, Transfer};

    fn request(output_tokens: u32) -> SimRequest {
        SimRequest {
            id: 0,
            prompt_tokens: 100,
            blocks: Vec::new(),
            output_tokens,
            finish: Finish::Length,
            adapter: None,
            kind: Kind::Whole,
        }
    }

    fn live(scale: f64) -> Arc<Live> {
        let config = EngineConfig {
            prefill_tokens_per_second: 1000.0,
            decode_step: Duration::from_millis(10),
            jitter: 0.0,
            ..EngineConfig::default()
        };
        let live = Arc::new(Live::new(Engine::new(config).unwrap(), scale, Timer::Coarse));
        let driven = live.clone();
        tokio::spawn(async move { driven.drive().await });
        live
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_appear_at_their_simulated_time() {
        for (scale, last) in [(1.0, 130), (10.0, 13)] {
            let start = Instant::now();
            let mut ticket = live(scale).submit(request(4), Wake::Every(1)).unwrap();
            assert_eq!(ticket.beyond(0).await.generated, 1);
            let mut progress = Progress::default();
            while !progress.finished {
                progress = ticket.beyond(progress.generated).await;
            }
            // 100 prompt tokens take 100 ms, three more tokens 10 ms each; tokio's timer
            // rounds up to milliseconds.
            let millis = start.elapsed().as_millis();
            assert!((last..last + 2).contains(&millis), "{millis}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn listener_wakes_at_the_first_token_and_every_interval() {
        let mut ticket = live(1.0).submit(request(9), Wake::Every(3)).unwrap();
        let mut woken = Vec::new();
        while ticket.progress.changed().await.is_ok() {
            woken.push(ticket.progress.borrow_and_update().generated);
        }
        assert_eq!(woken, [1, 4, 7, 9]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_ticket_leaves_the_engine() {
        let live = live(1.0);
        let mut first = live.submit(request(1000), Wake::Every(1)).unwrap();
        first.beyond(0).await;
        assert_eq!(live.inspect(|engine| engine.state().running), 1);
        drop(first);
        let (state, aborted) = live.inspect(|engine| (engine.state(), engine.stats().aborted));
        assert_eq!((state.running, state.kv_used_blocks, aborted), (0, 0, 1));
        assert!(live.lock().waiters.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_ticket_makes_room_at_once() {
        let config = EngineConfig { num_blocks: 8, ..EngineConfig::instant() };
        let live = Arc::new(Live::new(Engine::new(config).unwrap(), 1.0, Timer::Coarse));
        let driven = live.clone();
        tokio::spawn(async move { driven.drive().await });
        // Its prompt takes an hour and all blocks but one.
        let link = Transfer { layer: Layer::Apart, bytes_per_token: 36, bytes_per_second: 1 };
        let first =
            live.submit(SimRequest { kind: Kind::Decode(link), ..request(1) }, Wake::Every(1)).unwrap();
        let mut second = live.submit(request(1), Wake::Every(1)).unwrap();
        let start = Instant::now();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(live.inspect(|engine| engine.state().receiving), 1);
        drop(first);
        second.beyond(0).await;
        assert!(start.elapsed() < Duration::from_secs(61), "{:?}", start.elapsed());
    }
}
