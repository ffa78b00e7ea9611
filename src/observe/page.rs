//! A page that is rendered off the runtime, once for all waiting clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::task::JoinError;

/// A page and the way to render it.
///
/// A caller gets a page that was begun after the call, so it shows all that the caller did
/// before. There is one rendering at a time: callers that come meanwhile share the next, in
/// one piece of memory however many they are and however slowly they read.
pub struct Page {
    render: Box<dyn Fn() -> Bytes + Send + Sync>,
    /// Renderings begun, ever.
    begun: AtomicU64,
    /// The last page, as long as a client waits for it. Locked while the next is rendered.
    last: Arc<Mutex<Rendered>>,
    /// Callers that wait for a page.
    waiting: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Rendered {
    /// Number of this rendering; 0 for none yet.
    number: u64,
    page: Bytes,
}

impl Page {
    /// A page that `render` makes. It may take its time, but not wait.
    pub fn new<B: Into<Bytes>>(render: impl Fn() -> B + Send + Sync + 'static) -> Self {
        Self {
            render: Box::new(move || render().into()),
            begun: AtomicU64::new(0),
            last: Arc::default(),
            waiting: Arc::default(),
        }
    }

    /// The page as it is now, or a little later.
    ///
    /// Cancel safe: a rendering is finished even if no client waits for it any more, so
    /// that those who come and go don't start one each.
    ///
    /// # Errors
    /// `JoinError` if rendering panicked, or the runtime shuts down.
    pub async fn get(self: Arc<Self>) -> Result<Bytes, JoinError> {
        let begun = self.begun.load(Ordering::SeqCst);
        let own = Waiting::new(&self.waiting);
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if last.number > begun {
            let page = if own.is_last() { std::mem::take(&mut last.page) } else { last.page.clone() };
            return Ok(page);
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::task::spawn_blocking(move || {
            let page = (self.render)();
            // A large page is not to stay in memory until the next scrape.
            let shared = if own.is_last() { Bytes::new() } else { page.clone() };
            *last = Rendered { number, page: shared };
            page
        })
        .await
    }
}

/// A caller that waits for a page, until it is dropped.
struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn new(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(waiting))
    }

    /// Returns `true` if no other client waits.
    fn is_last(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 1
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::future::join_all;
    use futures_util::poll;

    use super::*;

    /// A page whose renderings wait for a word each, and are numbered from 1.
    fn gated() -> (Arc<Page>, mpsc::Sender<()>) {
        let (go, gate) = mpsc::channel();
        let state = std::sync::Mutex::new((gate, 0));
        let page = Page::new(move || {
            let (gate, count) = &mut *state.lock().unwrap();
            gate.recv().unwrap();
            *count += 1;
            count.to_string()
        });
        (Arc::new(page), go)
    }

    #[tokio::test]
    async fn scrapes_during_a_rendering_share_the_next_one() {
        let (page, go) = gated();
        let mut first = Box::pin(Arc::clone(&page).get());
        assert!(poll!(&mut first).is_pending());
        let mut waiting: Vec<_> = (0..50).map(|_| Box::pin(Arc::clone(&page).get())).collect();
        for request in &mut waiting {
            assert!(poll!(request).is_pending());
        }
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert_eq!(first.await.unwrap(), "1");
        let pages: Vec<_> = join_all(waiting).await.into_iter().map(Result::unwrap).collect();
        for shared in &pages {
            assert_eq!((shared, shared.as_ptr()), (&Bytes::from("2"), pages[0].as_ptr()));
        }
        assert!(page.last.lock().await.page.is_empty(), "nobody waits for it any more");
        // What is done after a page is on the next.
        go.send(()).unwrap();
        assert_eq!(Arc::clone(&page).get().await.unwrap(), "3");
        assert!(page.last.lock().await.page.is_empty());
    }

    #[tokio::test]
    async fn cancelled_scrape_starts_no_second_rendering() {
        let (page, go) = gated();
        for _ in 0..10 {
            let mut request = Box::pin(Arc::clone(&page).get());
            assert!(poll!(&mut request).is_pending());
        }
        go.send(()).unwrap();
        go.send(()).unwrap();
        // The rendering that the first began, then this one.
        assert_eq!(page.get().await.unwrap(), "2");
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_one_request() {
        let first = std::sync::atomic::AtomicBool::new(true);
        let page = Arc::new(Page::new(move || {
            assert!(!first.swap(false, Ordering::Relaxed), "as the test wants it");
            "fine"
        }));
        assert!(Arc::clone(&page).get().await.unwrap_err().is_panic());
        assert_eq!(page.get().await.unwrap(), "fine");
    }
}
