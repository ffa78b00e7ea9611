//! `pairing: joint`: the cheapest pair against all pairs, what is forbidden, and bookings.

use std::sync::Arc;

use prometheus::Registry;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::{ConfigError, Node};
use usher::endpoints::{Candidates, Clock};
use usher::schedule::data::{PrefixMatch, PromptTokens};
use usher::schedule::ttft::Model;
use usher::schedule::{
    Context, Decider, Decision, DisaggFamily, DisaggParams, DisaggProfileHandler, Effects, Facts, Followers,
    Joint, Key, PreRequest, Profile, ProfileHandler, Record, ScheduleError, Scheduler, Scratch, State,
};

use crate::pool::pipeline;
use crate::support::{Fixed, MAX_AGE, NOW, Only, id, metrics, pool, request, top};

const RATE: f64 = 1000.0;
/// The prompt's tokens; a token is a byte of KV cache, so that speeds are in tokens, too.
const PROMPT: u64 = 1000;

fn params(more: &str) -> Result<DisaggParams, ConfigError> {
    let text = format!("{{pairing: joint, kvBytesPerToken: 1, peakPrefillThroughput: 1000, {more}}}");
    DisaggParams::decode(&Node::parse(&text).unwrap())
}

struct Always;

impl Decider for Always {
    fn decide(&self, _cx: &Context<'_>, _candidates: &Candidates, _decode: Option<u32>) -> bool {
        true
    }
}

/// A scheduler over `prefill` endpoints and then as many that decode as there are scores.
struct Pairing {
    handler: Arc<DisaggProfileHandler>,
    scheduler: Scheduler,
    candidates: Candidates,
    facts: Facts,
}

impl Pairing {
    fn new(more: &str, prefill: &[f32], decode: &[f32], candidates: Candidates) -> Self {
        let params = params(more).unwrap();
        let model = Arc::new(Model::new(RATE, Clock::stopped()));
        let joint = Joint::new(params.joint.clone().unwrap(), model, Key::new(0), Key::new(1));
        let registry = Registry::new();
        let decisions = Arc::new(DisaggFamily::register(&registry).unwrap()).of(id("handler"));
        let handler =
            DisaggProfileHandler::new(&params, Some(Arc::new(Always)), None, decisions).paired(joint);
        let handler = Arc::new(handler);
        let split = prefill.len() as u32;
        let all = split + decode.len() as u32;
        let scores: Vec<f32> = prefill.iter().chain(decode).copied().collect();
        let metrics = metrics();
        let profile = |name: &str, kept: Vec<u32>| {
            let mut builder = Profile::builder(name.to_owned(), &metrics);
            builder.filter(&id("only"), Arc::new(Only(kept)));
            builder.scorer(&id("fixed"), Arc::new(Fixed(scores.clone())), 1.0);
            builder.picker(&id("picker"), top(1))
        };
        let profiles =
            vec![profile("prefill", (0..split).collect()), profile("decode", (split..all).collect())];
        let scheduler = Scheduler::new(
            profiles,
            &id("handler"),
            Arc::clone(&handler) as Arc<dyn ProfileHandler>,
            &metrics,
        );
        let mut facts = Facts::default();
        facts.set(Key::new(0), PromptTokens { count: PROMPT });
        Self { handler, scheduler, candidates, facts }
    }

    fn decide(&self, seed: u64) -> Result<Decision, ScheduleError> {
        let (request, mut rng) = (request(), StdRng::seed_from_u64(seed));
        let cx = Context { facts: &self.facts, ..Context::new(&request, NOW, MAX_AGE) };
        self.scheduler.decide(&cx, &self.candidates, &mut rng, &mut Scratch::default(), Record::No)
    }

    fn pair(&self, seed: u64) -> Result<(u32, u32), ScheduleError> {
        let decision = self.decide(seed)?;
        let pick = |profile| decision.run(profile).unwrap().picks[0];
        Ok((pick("prefill"), pick("decode")))
    }

    fn book(&self, decision: &Decision) -> Followers {
        let request = request();
        let cx = Context { facts: &self.facts, ..Context::new(&request, NOW, MAX_AGE) };
        let mut effects = Effects::default();
        self.handler.decided(&cx, decision, &mut effects);
        effects.take_followers()
    }
}

/// Endpoints in these racks, all in one region.
fn racks(racks: &[&str]) -> Candidates {
    pool(racks.len(), |index, spec| {
        spec.labels.insert("topology.kubernetes.io/rack".into(), racks[index].into());
        spec.labels.insert("topology.kubernetes.io/region".into(), "r".into());
    })
}

const LINKS: &str = "links: {rack: 10000, region: 1000}";

#[test]
fn a_near_pair_is_chosen_unless_it_waits_longer_than_the_far_one_takes() {
    let scores = [1.0, 1.0];
    let pairing = Pairing::new(LINKS, &scores, &[1.0], racks(&["a", "b", "b"]));
    // 1 s to compute, and 0.1 s of transfer instead of 1 s.
    assert_eq!(pairing.pair(1), Ok((1, 2)));
    // The near one has another prompt to compute, so 1 s more: 0.1 s too much.
    let first = pairing.decide(1).unwrap();
    let booked = pairing.book(&first);
    assert_eq!(pairing.pair(1), Ok((0, 2)));
    drop(booked);
}

#[test]
fn equal_links_make_no_difference() {
    let pairing = Pairing::new("links: {none: 1000}", &[0.9, 1.0], &[1.0, 0.5], racks(&["a", "b", "a", "b"]));
    for seed in 0..20 {
        assert_eq!(pairing.pair(seed), Ok((1, 2)), "the scores decide");
    }
}

#[test]
fn a_burst_spreads_over_both_sides_of_equal_racks() {
    let pairing = Pairing::new(LINKS, &[1.0; 4], &[1.0; 4], racks(&["a", "a", "b", "b", "a", "a", "b", "b"]));
    let mut counts = [0; 8];
    let mut booked = Vec::new();
    for seed in 0..64 {
        let decision = pairing.decide(seed).unwrap();
        let pick = |profile| decision.run(profile).unwrap().picks[0];
        counts[pick("prefill") as usize] += 1;
        assert_eq!(pick("prefill") / 2, pick("decode") / 2 - 2, "near each other");
        booked.push(pairing.book(&decision));
    }
    assert!(counts[..4].iter().all(|count| *count == 16), "{counts:?}");
}

#[test]
fn what_is_cached_need_not_be_computed() {
    let mut pairing = Pairing::new(LINKS, &[1.0, 1.0], &[1.0], racks(&["a", "b", "b"]));
    let cached = |blocks| PrefixMatch { total: 20, block_size: 50, matched: vec![blocks, 0, 0] };
    pairing.facts.set(Key::new(1), cached(16));
    assert_eq!(pairing.pair(1), Ok((1, 2)), "0.2 + 1.0 against 1.0 + 0.1");
    pairing.facts.set(Key::new(1), cached(20));
    assert_eq!(pairing.pair(1), Ok((0, 2)), "0.05 + 1.0 against 1.0 + 0.1");
}

#[test]
fn a_full_kv_cache_is_out_unless_all_are() {
    let pairing = Pairing::new("kvCacheLimit: 0.9", &[1.0], &[1.0, 0.1], racks(&["a", "a", "a"]));
    let usage = |position: usize, usage: f64| {
        pairing.candidates.snapshot().endpoints()[position].load().kv_usage.set(usage, NOW);
    };
    assert_eq!(pairing.pair(1), Ok((0, 1)));
    usage(1, 0.91);
    assert_eq!(pairing.pair(1), Ok((0, 2)));
    usage(2, 0.95);
    assert_eq!(pairing.pair(1), Ok((0, 1)));
}

#[test]
fn a_required_layer_forbids_pairs_and_has_a_reason_of_its_own() {
    let required = "constraintMode: Required, constraintLayer: rack, pairCandidates: 1";
    let table: [(&[&str], Result<(u32, u32), ScheduleError>); 3] = [
        // The best two are apart, others are not.
        (&["a", "b", "b", "a"], Ok((0, 3))),
        (&["a", "b", "b", "c"], Ok((1, 2))),
        (&["a", "b", "c", "d"], Err(ScheduleError::NoPair)),
    ];
    for (places, expected) in table {
        let pairing = Pairing::new(required, &[1.0, 0.5], &[0.5, 1.0], racks(places));
        assert_eq!(pairing.pair(1), expected, "{places:?}");
    }
    assert_eq!(ScheduleError::NoPair.dropped_reason(), Some("rejected-no-pair"));
}

#[test]
fn revisions_are_not_mixed() {
    let revisions = ["1", "2", "2", ""];
    let labelled = |label: &'static str| {
        pool(4, move |index, spec| {
            if !revisions[index].is_empty() {
                spec.labels.insert(label.into(), revisions[index].into());
            }
        })
    };
    let decode = [1.0, 0.5];
    let pair = |more: &str, label| Pairing::new(more, &[1.0, 0.9], &decode, labelled(label)).pair(1);
    assert_eq!(pair("", "disaggregatedset.x-k8s.io/revision"), Ok((1, 2)), "the totals of 0 and 3 are less");
    assert_eq!(pair("", "pod-template-hash"), Ok((0, 2)), "not the label");
    assert_eq!(pair("revisionLabel: pod-template-hash", "pod-template-hash"), Ok((1, 2)));
    assert_eq!(pair("revisionLabel: ''", "disaggregatedset.x-k8s.io/revision"), Ok((0, 2)));
}

#[test]
fn a_booking_ends_with_its_prompt_or_its_request() {
    let pairing = Pairing::new(LINKS, &[1.0, 1.0], &[1.0], racks(&["a", "b", "b"]));
    for _ in 0..100 {
        let decision = pairing.decide(1).unwrap();
        assert_eq!(decision.run("prefill").unwrap().picks[0], 1, "nothing is left of the last one");
        // Its client goes away.
        let booked = pairing.book(&decision);
        assert_eq!(pairing.pair(1), Ok((0, 2)));
        drop(booked);
    }
}

#[test]
fn picking_a_pair_and_booking_it_are_one_step() {
    let built = |pairing: &str| {
        let config = format!(
            "
plugins:
- {{type: disagg-profile-handler, parameters: {{deciders: {{prefill: always-disagg-pd-decider}}, pairing: {pairing}}}}}
- type: always-disagg-pd-decider
- type: queue-scorer
schedulingProfiles:
- {{name: prefill, plugins: [{{pluginRef: queue-scorer}}]}}
- {{name: decode, plugins: [{{pluginRef: queue-scorer}}]}}
"
        );
        pipeline(&config, &State::default()).unwrap().stages.books()
    };
    assert_eq!((built("independent"), built("joint")), (false, true));
}

#[test]
fn parameters_are_strict() {
    for (text, part) in [
        ("pairCandidates: 0", "pairCandidates can't be 0"),
        ("pairCandidates: 9", "pairCandidates can't be 9"),
        ("kvCacheLimit: 1.5", "kvCacheLimit can't be 1.5"),
        ("constraintMode: Required", "needs a constraintLayer"),
        ("constraintMode: Must, constraintLayer: rack", "constraintMode 'Must' is not known"),
        ("constraintMode: Required, constraintLayer: row", "constraintLayer 'row' is not known"),
        ("constraintLayer: rack", "constraintLayer has no effect"),
        ("links: {rack: 0}", "links.rack can't be 0"),
        ("pairs: 4", "pairs"),
    ] {
        assert!(params(text).unwrap_err().to_string().contains(part), "{text}");
    }
    for (text, part) in [
        ("{links: {rack: 1}}", "links has no effect without pairing: joint"),
        ("{pairing: independent, pairCandidates: 2}", "pairCandidates has no effect"),
        ("{pairing: both}", "pairing 'both' is not known"),
    ] {
        let error = DisaggParams::decode(&Node::parse(text).unwrap()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let shown = params("constraintMode: Required, constraintLayer: zone").unwrap().shown();
    assert_eq!(
        (&shown["pairing"], &shown["pairCandidates"], &shown["requiredLayer"]),
        (&"joint".into(), &4.into(), &"zone".into())
    );
}

/// A pool of the property test: a rack and a queue of each, scores, cached blocks.
#[derive(Clone, Debug)]
struct Drawn {
    rack: u8,
    waiting: u8,
    score: f32,
    cached: u32,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    (0u8..3, prop_oneof![3 => Just(0u8), 1 => 0u8..9], 0u8..=10, 0u32..=10).prop_map(
        |(rack, waiting, score, cached)| Drawn { rack, waiting, score: f32::from(score) / 10.0, cached },
    )
}

proptest! {
    #[test]
    fn the_pair_is_the_cheapest_of_all_pairs(
        prefill in proptest::collection::vec(drawn(), 1..=8),
        decode in proptest::collection::vec(drawn(), 1..=8),
        seed in any::<u64>(),
    ) {
        let all: Vec<Drawn> = prefill.iter().chain(&decode).cloned().collect();
        let names: Vec<String> = all.iter().map(|drawn| drawn.rack.to_string()).collect();
        let candidates = racks(&names.iter().map(String::as_str).collect::<Vec<_>>());
        for (endpoint, drawn) in candidates.snapshot().endpoints().iter().zip(&all) {
            endpoint.load().waiting.set(f64::from(drawn.waiting), NOW);
            endpoint.load().running.set(0.0, NOW);
        }
        let scores = |side: &[Drawn]| side.iter().map(|drawn| drawn.score).collect::<Vec<_>>();
        let more = format!("{LINKS}, pairCandidates: 8");
        let mut pairing = Pairing::new(&more, &scores(&prefill), &scores(&decode), candidates);
        let matched = all.iter().map(|drawn| drawn.cached).collect();
        pairing.facts.set(Key::new(1), PrefixMatch { total: 10, block_size: 100, matched });
        // Nothing was booked yet, so waiting requests are others' and of unknown length:
        // what counts is what the endpoint lacks of the prompt, and the link.
        let cost = |p: usize, d: usize| {
            let link = if prefill[p].rack == decode[d].rack { 10_000.0 } else { 1000.0 };
            (f64::from(10 - prefill[p].cached) * 100.0).max(100.0) / RATE + PROMPT as f64 / link
        };
        let least = (0..prefill.len())
            .flat_map(|p| (0..decode.len()).map(move |d| (p, d)))
            .map(|(p, d)| cost(p, d))
            .fold(f64::INFINITY, f64::min);
        let (p, d) = pairing.pair(seed).unwrap();
        let got = cost(p as usize, d as usize - prefill.len());
        prop_assert!(got <= least + 0.01, "{got} is more than {least}");
    }
}
