//! The filter that sticks to caches until they are saturated, against its rule.

use prometheus::Registry;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::Node;
use usher::endpoints::{Candidates, InFlightId, Share};
use usher::metrics::render;
use usher::schedule::data::PrefixMatch;
use usher::schedule::{
    AffinityFamilies, Context, Facts, Filter, Key, PrefixCacheAffinityFilter, PrefixCacheAffinityFilterParams,
};

use crate::support::{MAX_AGE, NOW, pool, request};

/// Blocks of the prompts here.
const TOTAL: u32 = 10;

/// Endpoints with so many blocks of the prompt and so many tokens in flight each, and the
/// filter before them.
struct Case {
    filter: PrefixCacheAffinityFilter,
    candidates: Candidates,
    facts: Facts,
    registry: Registry,
    // Given back when dropped.
    _shares: Vec<Share>,
}

impl Case {
    fn new(parameters: &str, endpoints: &[(u32, u64)]) -> Self {
        let (prefix, counters) = (Key::new(3), InFlightId::new(1).unwrap());
        let params = PrefixCacheAffinityFilterParams::decode(&Node::parse(parameters).unwrap()).unwrap();
        let registry = Registry::new();
        let decisions = AffinityFamilies::register(&registry).unwrap().of("sticky");
        let filter = PrefixCacheAffinityFilter::new(&params, prefix, Some(counters), decisions);
        let candidates = pool(endpoints.len(), |_, _| {});
        let shares = candidates.view().iter().zip(endpoints);
        let shares = shares.map(|(endpoint, (_, tokens))| Share::new(endpoint.load(), counters, *tokens));
        let mut facts = Facts::default();
        let matched = endpoints.iter().map(|(blocks, _)| *blocks).collect();
        facts.set(prefix, PrefixMatch { total: TOTAL, block_size: 64, matched });
        Self { filter, _shares: shares.collect(), candidates, facts, registry }
    }

    fn kept(&self, seed: u64) -> Vec<u32> {
        self.kept_with(&self.facts, seed)
    }

    fn kept_with(&self, facts: &Facts, seed: u64) -> Vec<u32> {
        let (request, mut kept) = (request(), self.candidates.indices().to_vec());
        let cx = Context { facts, ..Context::new(&request, NOW, MAX_AGE) };
        let mut rng = StdRng::seed_from_u64(seed);
        self.filter.filter(&cx, self.candidates.snapshot(), &mut kept, &mut rng);
        kept
    }

    #[track_caller]
    fn counted(&self, outcome: &str, count: u64) {
        let text = render(&self.registry);
        let line = format!(
            r#"llm_d_epp_prefix_cache_affinity_filter_decisions_total{{outcome="{outcome}",plugin_name="sticky"}} {count}"#
        );
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn requests_stick_until_their_endpoints_are_saturated() {
    // A thousand tokens per second, a second at most: a thousand tokens.
    let gap = "{maxTTFTPenaltyMs: 1000, peakPrefillThroughput: 1000}";
    let table: [(&str, &[(u32, u64)], &[u32], &str); 14] = [
        ("{}", &[(10, 0), (0, 0), (8, 0)], &[0, 2], "sticky"),
        ("{}", &[(7, 0), (0, 0)], &[0, 1], "no_match"),
        ("{affinityThreshold: 0.7}", &[(7, 0), (0, 0)], &[0], "sticky"),
        ("{affinityThreshold: 1}", &[(9, 0), (10, 0)], &[1], "sticky"),
        ("{affinityThreshold: 0}", &[(9, 0), (0, 0)], &[0, 1], "not_applicable"),
        ("{affinityThreshold: -1}", &[(9, 0), (0, 0)], &[0, 1], "not_applicable"),
        ("{}", &[(0, 0)], &[0], "not_applicable"),
        (gap, &[(10, 1000), (0, 0)], &[0], "sticky"),
        (gap, &[(10, 1001), (0, 0)], &[0, 1], "load_override"),
        (gap, &[(10, 2000), (0, 1000), (0, 5000)], &[0], "sticky"),
        // The best of those that hold it counts, and all of them are kept.
        (gap, &[(10, 9000), (10, 900), (0, 0)], &[0, 1], "sticky"),
        (gap, &[(10, 9000), (10, 2000)], &[0, 1], "sticky"),
        ("{maxTTFTPenaltyMs: 0}", &[(10, 9_000_000), (0, 0)], &[0], "sticky"),
        // llm-d-router's defaults: 18 s of 15,928 tokens.
        ("{}", &[(10, 286_705), (0, 0)], &[0, 1], "load_override"),
    ];
    for (parameters, endpoints, expected, outcome) in table {
        let case = Case::new(parameters, endpoints);
        assert_eq!(case.kept(1), expected, "{parameters} {endpoints:?}");
        case.counted(outcome, 1);
    }
    assert_eq!(Case::new("{}", &[(10, 286_704), (0, 0)]).kept(1), [0]);
}

#[test]
fn without_a_match_all_are_kept() {
    let case = Case::new("{}", &[(10, 0), (0, 0)]);
    assert_eq!(case.kept_with(Facts::NONE, 1), [0, 1]);
    let mut empty = Facts::default();
    empty.set(Key::new(3), PrefixMatch { total: 0, block_size: 64, matched: vec![0, 0] });
    assert_eq!(case.kept_with(&empty, 1), [0, 1]);
    case.counted("no_match", 2);
}

#[test]
fn seed_determines_which_requests_explore() {
    let case = Case::new("{explorationProbability: 0.25}", &[(10, 0), (0, 0)]);
    let explored: Vec<u64> = (0..4000).filter(|seed| case.kept(*seed).len() == 2).collect();
    // Six standard deviations around 1000.
    assert!(explored.len().abs_diff(1000) < 165, "{}", explored.len());
    case.counted("exploration", explored.len() as u64);
    case.counted("sticky", 4000 - explored.len() as u64);
    assert!(explored.iter().take(50).all(|seed| case.kept(*seed).len() == 2), "the same again");
    assert_eq!(Case::new("{explorationProbability: 1}", &[(10, 0), (0, 0)]).kept(7), [0, 1]);
}

proptest! {
    #[test]
    fn filter_matches_a_plain_reference_loop(
        endpoints in prop::collection::vec((0u32..=TOTAL, 0u64..400), 0..9),
        threshold in -0.1f64..=1.0,
        penalty in -10.0f64..400.0,
    ) {
        let parameters =
            format!("{{affinityThreshold: {threshold}, maxTTFTPenaltyMs: {penalty}, peakPrefillThroughput: 1000}}");
        let all: Vec<u32> = (0..endpoints.len() as u32).collect();
        let holds = |position: &u32| {
            f64::from(endpoints[*position as usize].0) / f64::from(TOTAL) >= threshold
        };
        let (held, other): (Vec<u32>, Vec<u32>) = all.iter().copied().partition(holds);
        let best = |positions: &[u32]| positions.iter().map(|p| endpoints[*p as usize].1).min();
        let late = match (best(&held), best(&other)) {
            // A token takes a millisecond.
            (Some(held), Some(other)) => penalty > 0.0 && held as f64 - other as f64 > penalty,
            _ => false,
        };
        let free = endpoints.len() <= 1 || threshold <= 0.0 || held.is_empty() || late;
        let expected = if free { all } else { held };
        prop_assert_eq!(Case::new(&parameters, &endpoints).kept(3), expected);
    }
}
