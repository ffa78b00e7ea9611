//! Endpoints that a subset hint allows: the locator and its cache against a plain reading
//! of the rules, whatever the pool and the hint.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use proptest::prelude::*;
use usher::endpoints::{CachedLocator, Clock, EndpointSpec, PodLocator, Store, StoreLocator, SubsetHint};

/// An address with or without a port, written in one of several ways.
#[derive(Clone, Debug)]
struct Entry {
    text: String,
    /// `None`: it is no address.
    means: Option<(IpAddr, Option<u16>)>,
}

/// The addresses of pools, so that hints meet them.
fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (1..6u8).prop_map(|last| IpAddr::from([10, 0, 0, last])),
        (1..4u16).prop_map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])),
    ]
}

fn port() -> impl Strategy<Value = u16> {
    8000..8003u16
}

fn entry() -> impl Strategy<Value = Entry> {
    let space = prop_oneof![Just(""), Just(" "), Just("\t")];
    let address = (ip(), prop::option::of(port()), 0..3u8, space).prop_map(|(ip, port, style, space)| {
        let host = match (ip, style) {
            (IpAddr::V4(v4), 1) => format!("[{}]", v4.to_ipv6_mapped()),
            (IpAddr::V4(v4), _) => v4.to_string(),
            (IpAddr::V6(v6), 0) if port.is_none() => v6.to_string(),
            (IpAddr::V6(v6), 1) => format!("[fd00:0:0:0:0:0:0:{:x}]", v6.segments()[7]),
            (IpAddr::V6(v6), _) => format!("[{v6}]"),
        };
        let port_text = port.map_or(String::new(), |port| format!(":{port}"));
        Entry { text: format!("{space}{host}{port_text}{space}"), means: Some((ip, port)) }
    });
    let nonsense = prop_oneof![
        Just(String::new()),
        "[a-z.:\\[\\]0-9 ]{1,12}".prop_filter("may be an address", |text| {
            let bare = text.trim().trim_start_matches('[').trim_end_matches(']');
            text.trim().parse::<SocketAddr>().is_err() && bare.parse::<IpAddr>().is_err()
        }),
    ]
    .prop_map(|text| Entry { text, means: None });
    prop_oneof![8 => address, 1 => nonsense]
}

/// Endpoints by address; a pool may have several ports on one.
fn pool() -> impl Strategy<Value = Vec<SocketAddr>> {
    let address =
        |ports: std::ops::Range<u16>| (ip(), ports).prop_map(|(ip, port)| SocketAddr::new(ip, port));
    prop_oneof![
        prop::collection::btree_set(address(8000..8001), 0..10),
        prop::collection::btree_set(address(8000..8003), 0..10),
    ]
    .prop_map(|pool| pool.into_iter().collect())
}

/// The rules, one endpoint at a time.
fn allowed(pool: &[SocketAddr], hint: Option<&[Entry]>) -> BTreeSet<SocketAddr> {
    let ports: BTreeSet<u16> = pool.iter().map(SocketAddr::port).collect();
    let is_allowed = |endpoint: &&SocketAddr| {
        hint.is_none_or(|entries| {
            entries.iter().filter_map(|entry| entry.means).any(|(ip, port)| {
                ip == endpoint.ip() && (ports.len() < 2 || port.is_none_or(|port| port == endpoint.port()))
            })
        })
    };
    pool.iter().filter(is_allowed).copied().collect()
}

fn fill(store: &Store, pool: &[SocketAddr]) {
    store.replace(pool.iter().map(|address| EndpointSpec::new(address.to_string(), *address)).collect());
}

fn read(entries: &[Entry]) -> SubsetHint {
    SubsetHint::from_entries(entries.iter().map(|entry| entry.text.as_str()))
}

fn found(cache: &CachedLocator, hint: &SubsetHint) -> BTreeSet<SocketAddr> {
    let candidates = cache.locate(hint).now_or_never().unwrap();
    let found: BTreeSet<_> = candidates.view().iter().map(|endpoint| endpoint.address()).collect();
    assert_eq!(found.len(), candidates.len(), "an endpoint is there twice");
    assert!(candidates.indices().is_sorted());
    found
}

proptest! {
    /// However the pool changes and whatever is asked in which order, each response is that of
    /// the rules for the pool as it is.
    #[test]
    fn candidates_follow_the_locator_rules(
        pools in prop::collection::vec(pool(), 1..4),
        hints in prop::collection::vec(prop::option::of(prop::collection::vec(entry(), 0..6)), 1..8),
        asked in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), 0..30u64), 1..60),
        max_keys in 1..12usize,
    ) {
        let store = Arc::new(Store::default());
        let clock = Clock::stopped();
        let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
        let cache = CachedLocator::new(locator, clock.clone(), Duration::from_millis(50), max_keys);
        let (mut current, mut pools) = (&[][..], pools.iter().cycle());
        for (index, changes, later) in asked {
            if changes {
                current = pools.next().unwrap();
                fill(&store, current);
            }
            clock.set(clock.elapsed() + Duration::from_millis(later));
            let entries = index.get(&hints).as_deref();
            let hint = entries.map_or(SubsetHint::Missing, read);
            prop_assert_eq!(found(&cache, &hint), allowed(current, entries), "{:?}", entries);
            prop_assert!(cache.keys() <= max_keys);
        }
    }

    /// Order, duplicates and how a list is cut into strings make no other key.
    #[test]
    fn the_same_subset_is_one_key(
        entries in prop::collection::vec(entry(), 1..8),
        order in any::<u64>(),
        again in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let store = Arc::new(Store::default());
        fill(&store, &["10.0.0.1:8000".parse().unwrap()]);
        let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
        let cache = CachedLocator::new(locator, Clock::stopped(), Duration::from_secs(1), 8);
        cache.locate(&read(&entries)).now_or_never().unwrap();
        let mut other: Vec<&Entry> = entries.iter().collect();
        other.extend(again.iter().map(|index| index.get(&entries)));
        let at = order as usize % other.len();
        other.rotate_left(at);
        let texts: Vec<&str> = other.iter().map(|entry| entry.text.as_str()).collect();
        let joined = texts.join(",");
        for hint in [
            SubsetHint::from_entries(texts.iter().copied()),
            SubsetHint::from_entries([joined.as_str()]),
        ] {
            prop_assert!(cache.peek(&hint).is_some(), "{texts:?}");
        }
        prop_assert_eq!(cache.keys(), 1);
    }
}

#[test]
fn a_hint_of_a_mebibyte_is_read_once_and_not_kept() {
    let store = Arc::new(Store::default());
    fill(&store, &["10.0.0.1:8000".parse().unwrap(), "10.0.0.2:8000".parse().unwrap()]);
    let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
    let cache = CachedLocator::new(locator, Clock::stopped(), Duration::from_secs(1), 8);
    // One address again and again, a different one each time, and no address at all.
    let same = "10.0.0.1:8000,".repeat((1 << 20) / 14);
    let different: String =
        (0..70_000u32).map(|i| format!("10.{}.{}.{}:1,", i >> 16, i >> 8 & 255, i & 255)).collect();
    let nonsense = "x".repeat(1 << 20);
    let commas = ",".repeat(1 << 20);
    for (text, want, kept) in [(&same, 1, 1), (&different, 2, 1), (&nonsense, 0, 2), (&commas, 0, 2)] {
        let hint = SubsetHint::from_entries([text.as_str()]);
        assert_eq!(found(&cache, &hint).len(), want);
        assert_eq!(cache.keys(), kept);
    }
}

/// A label's size is discovery's business: candidates and their cost don't depend on it.
#[test]
fn a_label_of_a_mebibyte_changes_nothing() {
    let store = Arc::new(Store::default());
    let mut spec = EndpointSpec::new("a", ([10, 0, 0, 1], 8000));
    spec.labels.insert("topology.kubernetes.io/zone".to_owned(), "z".repeat(1 << 20));
    spec.labels.insert("l".repeat(1 << 20), String::new());
    store.replace(vec![spec, EndpointSpec::new("b", ([10, 0, 0, 2], 8000))]);
    let locator = StoreLocator::new(Arc::clone(&store), false);
    let located = locator.locate(&SubsetHint::from_entries(["10.0.0.1"])).now_or_never().unwrap();
    assert_eq!(located.len(), 1);
    assert_eq!(located.view().get(0).label("topology.kubernetes.io/zone").map(str::len), Some(1 << 20));
    assert!(
        store.replace(store.snapshot().endpoints().iter().map(|e| e.spec().clone()).collect()).is_empty()
    );
}
