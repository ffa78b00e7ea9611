//! The filter with which conformance tests choose endpoints.

use proptest::prelude::*;
use usher::schedule::HeaderTestingFilter;

use crate::pool::{Pool, all, asking, at, filtered_for, profile_of};

const HEADER: &str = "test-epp-endpoint-selection";
const POOL: [&str; 6] =
    ["10.0.0.1:3000", "10.0.0.1:3002", "10.0.0.2:3000", "10.0.0.3:3000", "[fd00::1]:3000", "[fd00::2]:3000"];

#[test]
fn the_header_lists_endpoints_in_their_order() {
    let table: [(&str, &[u32]); 16] = [
        ("10.0.0.2", &[2]),
        ("10.0.0.3,10.0.0.2", &[3, 2]),
        ("10.0.0.2, 10.0.0.3", &[2, 3]),
        ("10.0.0.1", &[0, 1]),
        ("10.0.0.1:3002", &[1]),
        ("10.0.0.1:3002,10.0.0.1", &[1, 0]),
        ("10.0.0.1:3004", &[]),
        ("10.0.0.2,10.0.0.2:3000,10.0.0.2", &[2]),
        ("fd00::1", &[4]),
        ("[fd00::2],[fd00::1]:3000", &[5, 4]),
        ("[fd00:0:0::1]:3000", &[4]),
        ("[fd00::1]:3001", &[]),
        ("10.0.0.9", &[]),
        ("pod-2,,10.0.0.3", &[3]),
        (" \t ", &[]),
        ("", &[]),
    ];
    let endpoints = all(at(&POOL));
    for (list, expected) in table {
        let request = asking(&[(HEADER, list)]);
        assert_eq!(filtered_for(&HeaderTestingFilter, &endpoints, &request), expected, "{list:?}");
    }
    assert!(filtered_for(&HeaderTestingFilter, &endpoints, &asking(&[])).is_empty());
}

#[test]
fn test_header_selects_the_endpoint() {
    let config = "
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins: [{pluginRef: header-based-testing-filter}, {pluginRef: max-score-picker}]
";
    let pool = Pool::new(config, at(&POOL));
    let destination =
        |list| pool.route(&asking(&[("Test-EPP-Endpoint-Selection", list)])).unwrap().destination();
    for _ in 0..20 {
        assert_eq!(destination("10.0.0.2:3000"), "10.0.0.2:3000");
        assert_eq!(destination("[fd00::2]:3000"), "[fd00::2]:3000");
    }
    assert_eq!(pool.kept(&asking(&[])), [0u32; 0]);
}

#[test]
fn an_endless_list_is_cut() {
    let pool = Pool::new(&profile_of(&["type: header-based-testing-filter"]), at(&POOL));
    let list = "10.0.0.9,".repeat(2000) + "10.0.0.2";
    assert_eq!(pool.kept(&asking(&[(HEADER, &list)])), [0u32; 0]);
}

proptest! {
    #[test]
    fn the_filter_equals_its_reference(
        picks in proptest::collection::vec((0u8..5, prop::option::of(3000u16..3003)), 0..8),
        endpoints in proptest::collection::btree_set((0u8..4, 3000u16..3003), 1..10),
    ) {
        let addresses: Vec<String> = endpoints.iter().map(|(ip, port)| format!("10.0.0.{ip}:{port}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let entry = |(ip, port): &(u8, Option<u16>)| match port {
            Some(port) => format!("10.0.0.{ip}:{port}"),
            None => format!("10.0.0.{ip}"),
        };
        let list = picks.iter().map(entry).collect::<Vec<_>>().join(",");
        let mut expected = Vec::new();
        for (ip, port) in &picks {
            for (position, endpoint) in (0u32..).zip(&endpoints) {
                let wanted = endpoint.0 == *ip && port.is_none_or(|port| endpoint.1 == port);
                if wanted && !expected.contains(&position) {
                    expected.push(position);
                }
            }
        }
        let kept = filtered_for(&HeaderTestingFilter, &all(at(&addresses)), &asking(&[(HEADER, &list)]));
        prop_assert_eq!(kept, expected);
    }
}
