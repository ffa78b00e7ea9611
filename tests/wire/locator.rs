//! Sources of candidates: the cache behind real streams, and a locator that is not ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use usher::endpoints::{EndpointSpec, Located, PodLocator, Store, SubsetHint};

use crate::support::{PROMPT, Picker, body, headers, list, string, with_subset};

const ONE: [(&str, &str, u16); 1] = [("a", "127.0.0.1", 1)];
const POST: [(&str, &str); 2] = [(":method", "POST"), (":path", "/v1/completions")];

/// Finds endpoints that no file lists, a while after it was asked.
struct Elsewhere {
    store: Arc<Store>,
    calls: AtomicU64,
}

impl PodLocator for Elsewhere {
    fn locate<'a>(&'a self, hint: &'a SubsetHint) -> Located<'a> {
        self.calls.fetch_add(1, Relaxed);
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.store.replace(vec![
                EndpointSpec::new("x", ([127, 0, 0, 7], 1)),
                EndpointSpec::new("y", ([127, 0, 0, 8], 1)),
            ]);
            self.store.snapshot().subset(hint)
        })
    }

    fn generation(&self) -> u64 {
        self.store.generation()
    }
}

#[tokio::test]
async fn candidates_can_be_found_elsewhere() {
    let picker = Picker::set_up(tempfile::tempdir().unwrap(), &["--locator-ttl=1h"], |setup| {
        let store = Arc::clone(setup.store());
        setup.with_locator(Arc::new(Elsewhere { store, calls: AtomicU64::new(0) }))
    })
    .await;
    let connection = picker.connect().await;
    for _ in 0..3 {
        let mut stream = connection.stream().await;
        stream.send(with_subset(headers(&POST, false), list(vec![string("127.0.0.8:1")])));
        stream.send(body(PROMPT, true));
        assert_eq!(stream.request_headers().await.destination(), "127.0.0.8:1");
    }
    // What it found is among what the server knows, so it is scraped and shown.
    let page = Picker::get(picker.admin, "/endpoints");
    assert!(page.contains("127.0.0.7:1") && page.contains("127.0.0.8:1"), "{page}");
    // The first fetch changed the membership, so what it found was out of date at once.
    assert_eq!(picker.metric("usher_locator_misses_total"), Some(2.0));
    assert_eq!(picker.metric("usher_locator_hits_total"), Some(1.0));
    assert_eq!(picker.metric("usher_locator_subsets"), Some(1.0));
    assert_eq!(picker.metric("usher_locator_evicted_total"), Some(0.0));
    assert_eq!(picker.metric("usher_locator_shared_total"), Some(0.0));
    assert_eq!(picker.metric("usher_locator_age_seconds_count"), Some(1.0));
}

#[tokio::test]
async fn requests_are_served_without_a_locator_ttl() {
    let picker = Picker::start(&ONE, &["--locator-ttl=0s", "--locator-max-subsets=1"]).await;
    for _ in 0..3 {
        let mut stream = picker.stream().await;
        stream.send(headers(&POST, false));
        stream.send(body(PROMPT, true));
        assert_eq!(stream.request_headers().await.destination(), "127.0.0.1:1");
    }
    assert_eq!(picker.metric("usher_locator_hits_total"), Some(0.0));
    assert_eq!(picker.metric("usher_locator_misses_total"), Some(3.0));
}

#[tokio::test]
async fn a_hint_of_a_mebibyte_is_answered() {
    let picker = Picker::start(&ONE, &[]).await;
    let somewhere = string(&"10.9.9.9:1,".repeat((1 << 20) / 11));
    let mut here = vec![string("127.0.0.1:1")];
    here.extend((0..60_000).map(|i| string(&format!("10.0.{}.{}:1", i >> 8, i & 255))));
    let connection = picker.connect().await;
    let mut stream = connection.stream().await;
    stream.send(with_subset(headers(&POST, false), list(here)));
    stream.send(body(PROMPT, true));
    assert_eq!(stream.request_headers().await.destination(), "127.0.0.1:1");
    assert_eq!(picker.metric("usher_locator_subsets"), Some(0.0), "it is too large to keep");
    let mut stream = connection.stream().await;
    stream.send(with_subset(headers(&POST, false), somewhere));
    stream.send(body(PROMPT, true));
    assert_eq!(stream.immediate().await.status.unwrap().code, 503);
}
