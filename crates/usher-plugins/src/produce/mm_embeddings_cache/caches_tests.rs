//! Caches against a reference in plain lists, and what is counted.

use prometheus::Registry;
use proptest::prelude::*;
use usher_core::endpoints::{EndpointSpec, Store};
use usher_core::metrics::render;
use usher_core::request::estimate::Modality;

use super::*;

struct Pool {
    registry: Registry,
    caches: EncoderCaches,
    store: Store,
}

impl Pool {
    fn new(names: &[u8]) -> Self {
        let registry = Registry::new();
        let families = Arc::new(EncoderFamilies::register(&registry).unwrap());
        let pool = Self { registry, caches: EncoderCaches::new(families, "mm"), store: Store::default() };
        pool.set(names);
        pool
    }

    fn set(&self, names: &[u8]) {
        let spec = |name: &u8| EndpointSpec::new(format!("pod-{name}"), ([10, 0, 0, *name], 8000));
        self.store.replace(names.iter().map(spec).collect());
    }

    fn record(&self, position: usize, items: &[u64], capacity: usize) {
        self.caches.record(&self.store.snapshot().endpoints()[position], items, capacity);
    }

    fn find(&self, items: &[u64]) -> Vec<u32> {
        self.caches.find(&images(items), &self.store.snapshot().all())
    }

    fn sweep(&self) {
        self.caches.sweep(&self.store.snapshot(), 1);
    }

    #[track_caller]
    fn shows(&self, line: &str) {
        let text = render(&self.registry);
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

fn images(items: &[u64]) -> Vec<Medium> {
    items.iter().map(|hash| Medium { modality: Modality::Image, hash: *hash }).collect()
}

#[test]
fn endpoint_cache_keeps_the_latest_media() {
    let pool = Pool::new(&[1, 2, 3]);
    assert_eq!(pool.find(&[1, 2]), [0, 0, 0]);
    pool.record(0, &[1, 2], 2);
    pool.record(2, &[2], 2);
    assert_eq!(pool.find(&[1, 2]), [2, 0, 1]);
    pool.record(0, &[1], 2);
    pool.record(0, &[3], 2);
    assert_eq!(pool.find(&[1, 2, 3]), [2, 0, 1], "2 was not used for the longest time");
    pool.record(0, &[4], 1);
    assert_eq!(pool.find(&[1, 2, 3, 4]), [1, 0, 1], "the cache is smaller now");
}

#[test]
fn only_candidates_match() {
    let pool = Pool::new(&[1, 2, 3]);
    (0..3).for_each(|position| pool.record(position, &[1], 2));
    let some = pool.store.snapshot().all().narrowed(&[1]);
    assert_eq!(pool.caches.find(&images(&[1]), &some), [0, 1, 0]);
}

#[test]
fn cache_of_a_removed_endpoint_is_dropped() {
    let pool = Pool::new(&[1, 2]);
    pool.record(0, &[1], 4);
    pool.record(1, &[1, 2], 4);
    pool.set(&[2]);
    assert_eq!(pool.find(&[1, 2]), [2], "it has another position, and the same cache");
    pool.set(&[2, 1]);
    assert_eq!(pool.find(&[1, 2]), [2, 0], "what comes back has nothing in its cache");
    pool.record(1, &[2], 4);
    pool.sweep();
    assert_eq!(pool.find(&[1, 2]), [2, 1]);
    assert_eq!(format!("{:?}", pool.caches), "EncoderCaches(2 endpoints, 2 items)");
    pool.set(&[]);
    pool.sweep();
    assert_eq!(format!("{:?}", pool.caches), "EncoderCaches(0 endpoints, 0 items)");
    pool.set(&[9, 8]);
    assert_eq!(pool.store.snapshot().endpoints()[0].slot().number(), 0, "its slot is free");
}

#[test]
fn queries_hits_and_their_share_are_counted() {
    let pool = Pool::new(&[1, 2, 3]);
    pool.record(0, &[1, 2], 4);
    pool.record(1, &[1], 4);
    let clip = Medium { modality: Modality::Audio, hash: 2 };
    let items = [images(&[1]), vec![clip], images(&[7, 8])].concat();
    pool.caches.find(&items, &pool.store.snapshot().all());
    let plugin = r#"plugin_name="mm",plugin_type="mm-embeddings-cache-producer""#;
    pool.shows(&format!(r#"llm_d_epp_encoder_cache_queries_total{{modality="image",{plugin}}} 3"#));
    pool.shows(&format!(r#"llm_d_epp_encoder_cache_queries_total{{modality="audio",{plugin}}} 1"#));
    pool.shows(&format!(r#"llm_d_epp_encoder_cache_queries_total{{modality="video",{plugin}}} 0"#));
    for (pod, modality) in [("pod-1", "image"), ("pod-1", "audio"), ("pod-2", "image")] {
        let labels = format!(r#"modality="{modality}",{plugin},pod="{pod}""#);
        pool.shows(&format!("llm_d_epp_encoder_cache_hits_total{{{labels}}} 1"));
    }
    assert!(!render(&pool.registry).contains("pod-3"));
    pool.shows(&format!("llm_d_epp_encoder_cache_hit_ratio_sum{{{plugin}}} 0.5"));
    pool.shows(&format!(r#"llm_d_epp_encoder_cache_hit_ratio_bucket{{{plugin},le="0.4"}} 0"#));
    pool.shows(&format!(r#"llm_d_epp_encoder_cache_hit_ratio_bucket{{{plugin},le="0.5"}} 1"#));
    // The series of an endpoint go with it.
    pool.set(&[2]);
    pool.sweep();
    let text = render(&pool.registry);
    assert!(!text.contains(r#"pod="pod-1""#) && text.contains(r#"pod="pod-2""#), "{text}");
}

#[derive(Clone, Debug)]
enum Step {
    Record(usize, Vec<u64>),
    /// Endpoints that are there from now on.
    Replace(Vec<u8>),
    Find(Vec<u64>),
}

fn step() -> impl Strategy<Value = Step> {
    let items = || prop::collection::btree_set(0u64..12, 0..6).prop_map(|set| set.into_iter().collect());
    prop_oneof![
        6 => (0usize..6, items()).prop_map(|(endpoint, items)| Step::Record(endpoint, items)),
        1 => prop::sample::subsequence(vec![1u8, 2, 3, 4, 5], 0..5).prop_map(Step::Replace),
        3 => items().prop_map(Step::Find),
    ]
}

proptest! {
    #[test]
    fn caches_match_the_reference(steps in prop::collection::vec(step(), 0..60), capacity in 0usize..6) {
        let mut names = vec![1, 2, 3];
        let pool = Pool::new(&names);
        // The items of each endpoint by its name, the oldest first.
        let mut reference: HashMap<u8, Vec<u64>> = HashMap::new();
        for step in steps {
            match step {
                Step::Record(position, items) if position < names.len() => {
                    pool.record(position, &items, capacity);
                    let cache = reference.entry(names[position]).or_default();
                    for item in items {
                        cache.retain(|other| *other != item);
                        cache.push(item);
                    }
                    let surplus = cache.len().saturating_sub(capacity);
                    cache.drain(..surplus);
                }
                Step::Record(..) => {}
                Step::Replace(next) => {
                    pool.set(&next);
                    pool.sweep();
                    reference.retain(|name, _| next.contains(name));
                    names = next;
                }
                Step::Find(items) => {
                    let has = |name: &u8| {
                        let cache = reference.get(name).map_or(&[][..], Vec::as_slice);
                        items.iter().filter(|item| cache.contains(item)).count() as u32
                    };
                    prop_assert_eq!(pool.find(&items), names.iter().map(has).collect::<Vec<_>>());
                }
            }
        }
    }
}
