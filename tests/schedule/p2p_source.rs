//! From whom the pod that computes a prompt takes what is cached of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use usher::config::Node;
use usher::endpoints::Candidates;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::data::PrefixMatch;
use usher::schedule::{
    Context, Effects, Facts, Key, P2pSource, P2pSourceParams, PreRequest, Profile, ProfileHandler,
    ProfileSet, Record, Runs, ScheduleError, Scheduler, Scratch,
};

use crate::pool::{Pool, at};
use crate::support::{Fixed, MAX_AGE, NOW, Reading, fresh, id, metrics, pool, top};

const SOURCE: &str = "x-kv-cache-source-host-port";
const BLOCK: u32 = 64;

fn request(id: &str) -> Request {
    let headers: Headers = [("x-request-id", id)].into_iter().collect();
    RequestParser::new(headers, &Parsers::new(&[ParserKind::PassThrough])).without_body()
}

/// Runs all profiles and returns the first one's pick.
struct All;

impl ProfileHandler for All {
    fn next(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        (0..runs.len()).collect()
    }

    fn finish(&self, _cx: &Context<'_>, _runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        Ok(0)
    }
}

/// Endpoints that have so many blocks of a prompt and such queues, profiles that pick the
/// endpoint at their position, and the plugin behind them.
struct Case {
    all: Candidates,
    facts: Facts,
    scheduler: Scheduler,
    plugin: P2pSource,
}

impl Case {
    fn new(parameters: &str, endpoints: &[(u32, Reading)], profiles: &[(&str, usize)]) -> Self {
        let all = pool(endpoints.len(), |_, _| {});
        for (endpoint, (_, waiting)) in all.view().iter().zip(endpoints) {
            if let Some((value, age)) = waiting {
                endpoint.load().waiting.set(*value, NOW - age);
            }
        }
        let (key, mut facts) = (Key::new(2), Facts::default());
        let matched = endpoints.iter().map(|(blocks, _)| *blocks).collect();
        facts.set(key, PrefixMatch { total: 100, block_size: BLOCK, matched });
        let metrics = metrics();
        let profile = |(name, pick): &(&str, usize)| {
            let scores = (0..endpoints.len()).map(|position| f32::from(u8::from(position == *pick)));
            let mut builder = Profile::builder(*name, &metrics);
            builder.scorer(&id("fixed"), Arc::new(Fixed(scores.collect())), 1.0);
            builder.picker(&id("picker"), top(1))
        };
        let profiles = profiles.iter().map(profile).collect();
        let scheduler = Scheduler::new(profiles, &id("all"), Arc::new(All), &metrics);
        let params = P2pSourceParams::decode(&Node::parse(parameters).unwrap()).unwrap();
        Self { all, facts, scheduler, plugin: P2pSource::new(&params, key) }
    }

    /// The endpoint that the request of this id is told to take from.
    fn named(&self, request_id: &str) -> Option<usize> {
        let request = request(request_id);
        let cx = Context { facts: &self.facts, ..Context::new(&request, NOW, MAX_AGE) };
        let (mut scratch, mut effects) = (Scratch::default(), Effects::default());
        let decision = self.scheduler.decide(&cx, &self.all, &mut rand::rng(), &mut scratch, Record::No);
        self.plugin.decided(&cx, &decision.unwrap(), &mut effects);
        let [header] = effects.headers() else {
            assert!(effects.is_empty());
            return None;
        };
        assert_eq!(header.name.as_ref(), SOURCE);
        self.all.view().iter().position(|endpoint| endpoint.authority().as_bytes() == header.value)
    }
}

#[test]
fn endpoint_with_more_cached_blocks_is_the_source() {
    // parameters, blocks, profiles and what they pick, who may be named
    type Row = (&'static str, &'static [u32], &'static [(&'static str, usize)], &'static [usize]);
    let table: [Row; 11] = [
        ("{}", &[4, 0], &[("default", 1)], &[0]),
        ("{}", &[4, 0], &[("default", 0)], &[]),
        ("{}", &[0, 0], &[("default", 0)], &[]),
        ("{minCachedTokenDelta: 256}", &[4, 0], &[("default", 1)], &[0]),
        ("{minCachedTokenDelta: 257}", &[4, 0], &[("default", 1)], &[]),
        ("{minCachedTokenDelta: 192}", &[4, 1], &[("default", 1)], &[0]),
        ("{minCachedTokenDelta: 193}", &[4, 1], &[("default", 1)], &[]),
        ("{}", &[4, 4], &[("default", 1)], &[]),
        // Who computes the prompt counts, where that is somebody else.
        ("{}", &[4, 0, 4], &[("decode", 0), ("prefill", 1)], &[0, 2]),
        ("{}", &[2, 0, 9], &[("decode", 2), ("prefill", 1)], &[2]),
        ("{prefillProfileName: compute}", &[0, 0, 9], &[("decode", 1), ("compute", 2)], &[]),
    ];
    for (parameters, blocks, profiles, expected) in table {
        let endpoints: Vec<_> = blocks.iter().map(|blocks| (*blocks, None)).collect();
        let found = Case::new(parameters, &endpoints, profiles).named("r");
        let is_expected = found.map_or(expected.is_empty(), |found| expected.contains(&found));
        assert!(is_expected, "{parameters} {blocks:?} {profiles:?}: {found:?}");
    }
}

/// Number of times that each endpoint is named to 3,000 requests that another one computes.
fn shares(endpoints: &[(u32, Reading)]) -> BTreeMap<usize, usize> {
    let mut endpoints = endpoints.to_vec();
    endpoints.push((0, None));
    let computing = [("default", endpoints.len() - 1)];
    let (case, mut counts) = (Case::new("{}", &endpoints, &computing), BTreeMap::new());
    for number in 0..3000 {
        let found = case.named(&format!("0b7f-{number}-4c21")).unwrap();
        *counts.entry(found).or_default() += 1;
    }
    counts
}

#[test]
fn near_best_sources_are_weighted_by_shorter_queues() {
    // blocks and queues, expected shares
    type Row = (&'static [(u32, Reading)], &'static [(usize, usize)]);
    let table: [Row; 4] = [
        (&[(5, Some((0.0, 0))), (4, Some((0.0, 0))), (3, Some((0.0, 0)))], &[(0, 1500), (1, 1500)]),
        (&[(5, Some((1.0, 0))), (5, Some((0.0, 0)))], &[(0, 1000), (1, 2000)]),
        (&[(1, Some((0.0, 0))), (0, Some((0.0, 0)))], &[(0, 3000)]),
        // Stale and unknown queues are as the longest known one.
        (
            &[(5, Some((0.0, 2001))), (5, None), (5, Some((4.0, 0))), (5, Some((0.0, 0)))],
            &[(0, 375), (1, 375), (2, 375), (3, 1875)],
        ),
    ];
    for (endpoints, expected) in table {
        let counts = shares(endpoints);
        assert_eq!(counts.keys().collect::<Vec<_>>(), expected.iter().map(|(e, _)| e).collect::<Vec<_>>());
        for (endpoint, count) in expected {
            // Six standard deviations of a coin, which are the most.
            assert!(counts[endpoint].abs_diff(*count) < 165, "{endpoints:?}: {counts:?}");
        }
    }
}

proptest! {
    #[test]
    fn source_matches_a_plain_reference_loop(
        endpoints in prop::collection::vec((0u32..6, 0u8..20), 1..7),
        computing in any::<prop::sample::Index>(),
        delta in 1u32..300,
        request_id in "[a-z0-9-]{1,36}",
    ) {
        let computing = computing.index(endpoints.len());
        let most = endpoints.iter().map(|(blocks, _)| *blocks).max().unwrap();
        let peers: Vec<usize> = (0..endpoints.len())
            .filter(|peer| endpoints[*peer].0 > 0 && endpoints[*peer].0 as i64 >= i64::from(most) - 1)
            .collect();
        let mut hash = 2_166_136_261u32;
        for byte in request_id.bytes() {
            hash = (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
        }
        let weights: Vec<f64> = peers.iter().map(|peer| 1.0 / (1.0 + f64::from(endpoints[*peer].1))).collect();
        let aim = f64::from(hash) / 4_294_967_296.0 * weights.iter().sum::<f64>();
        let upto = |peer: usize| weights[..=peer].iter().sum::<f64>();
        // Nearer to the edge of two than their sums are exact.
        prop_assume!((0..peers.len()).all(|peer| (upto(peer) - aim).abs() > 1e-9));
        let best = (0..peers.len()).find(|peer| upto(*peer) > aim).map(|peer| peers[peer]);
        let expected = best.filter(|best| {
            let more = i64::from(endpoints[*best].0) - i64::from(endpoints[computing].0);
            *best != computing && more * i64::from(BLOCK) >= i64::from(delta)
        });
        let endpoints: Vec<_> =
            endpoints.iter().map(|(blocks, waiting)| (*blocks, fresh(f64::from(*waiting)))).collect();
        let parameters = format!("{{minCachedTokenDelta: {delta}}}");
        let case = Case::new(&parameters, &endpoints, &[("default", computing)]);
        prop_assert_eq!(case.named(&request_id), expected);
    }
}

#[test]
fn source_is_named_without_a_request_id() {
    let endpoints = [(5, fresh(0.0)), (5, fresh(0.0)), (0, None)];
    assert!(matches!(Case::new("{}", &endpoints, &[("default", 2)]).named(""), Some(0 | 1)));
}

#[test]
fn source_header_names_the_endpoint_sent_the_prompt() {
    // Where a request goes is what its header says.
    let config = "
plugins:
- {name: where, type: header-based-testing-filter}
- {type: p2p-source-producer}
schedulingProfiles: [{name: default, plugins: [{pluginRef: where}]}]
";
    let pool = Pool::new(config, at(&["10.0.0.1:8000", "[fd00::2]:8000"]));
    let sent = |address: &str| {
        let headers = [(":path", "/v1/completions"), ("test-epp-endpoint-selection", address)];
        let mut parser =
            RequestParser::new(headers.into_iter().collect(), &Parsers::new(&[ParserKind::OpenAi]));
        parser.push(json!({"model": "m", "prompt": "long ".repeat(100)}).to_string().into());
        let routed = pool.ask(&parser.finish().unwrap());
        let header = routed.headers().first().map(|header| header.value.clone());
        header.map(|value| String::from_utf8(value.to_vec()).unwrap())
    };
    assert_eq!(sent("fd00::2"), None, "nobody has it");
    assert_eq!(sent("10.0.0.1").as_deref(), Some("[fd00::2]:8000"));
    assert_eq!(sent("10.0.0.1"), None, "now it has it itself");
}
