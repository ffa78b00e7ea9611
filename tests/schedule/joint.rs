//! `pairing: joint`: the cheapest pair against all pairs, what is forbidden, and bookings.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::{ConfigError, Node};
use usher::endpoints::{Candidates, Clock};
use usher::schedule::data::{PrefixMatch, PromptTokens};
use usher::schedule::latency::{InitialRate, Model, Reader, Work};
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
    clock: Clock,
    model: Arc<Model>,
    handler: Arc<DisaggProfileHandler>,
    scheduler: Scheduler,
    candidates: Candidates,
    facts: Facts,
}

impl Pairing {
    fn new(more: &str, prefill: &[f32], decode: &[f32], candidates: Candidates) -> Self {
        let params = params(more).unwrap();
        let clock = Clock::stopped();
        let model = Arc::new(Model::new(RATE, clock.clone()));
        let (prompt, prefix) = (Key::new(0), Key::new(1));
        let reader = Reader::new(Arc::clone(&model), InitialRate::of(RATE), prompt, prefix);
        let joint = Joint::new(params.joint.clone().unwrap(), reader);
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
        Self { clock, model, handler, scheduler, candidates, facts }
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

/// An endpoint of the property test.
#[derive(Clone, Debug)]
struct Drawn {
    /// Names of its rack and its zone, and its revision; 0: it has none.
    places: [u8; 2],
    revision: u8,
    /// Requests that wait and that run, as it says; how full its KV cache is, in tenths.
    waiting: Option<u8>,
    running: Option<u8>,
    kv_usage: Option<u8>,
    /// Requests of ours that are under way there, beside those whose prompts are booked, and
    /// whether its numbers show them.
    in_flight: u8,
    is_seen: bool,
    /// Prompts that are booked there, in tokens.
    backlog: Vec<u64>,
    /// Seconds for which a request holds a slot.
    hold: u8,
    cached: u32,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let few = |most: u8| prop_oneof![2 => Just(Some(0u8)), 4 => (0..most).prop_map(Some), 1 => Just(None)];
    let backlog = prop_oneof![1 => Just(Vec::new()), 2 => proptest::collection::vec(0u64..3000, 0..3)];
    let places = (0u8..4, 0u8..3, 0u8..3);
    let in_flight = (0u8..4, any::<bool>());
    (places, few(9), few(9), few(11), in_flight, backlog, 0u8..3, 0u32..=10).prop_map(
        |((rack, zone, revision), waiting, running, kv_usage, in_flight, backlog, hold, cached)| Drawn {
            places: [rack, zone],
            revision,
            waiting,
            running,
            kv_usage,
            in_flight: in_flight.0,
            is_seen: in_flight.1,
            backlog,
            hold,
            cached,
        },
    )
}

/// One side: endpoints, and how its profile likes them, no two of them equally.
fn side() -> impl Strategy<Value = Vec<(Drawn, f32)>> {
    proptest::collection::vec(drawn(), 1..12).prop_flat_map(|drawn| {
        let scores: Vec<f32> = (0..drawn.len()).map(|rank| rank as f32 / 16.0).collect();
        Just(scores).prop_shuffle().prop_map(move |scores| drawn.iter().cloned().zip(scores).collect())
    })
}

/// What pairs may do, as parameters and as numbers.
#[derive(Clone, Copy, Debug)]
struct Rules {
    k: usize,
    /// Bytes per second in a rack, in a zone, and apart.
    speeds: [u32; 3],
    /// The level of `speeds` that pairs need at least; 2: none.
    required: usize,
    has_revisions: bool,
    kv_limit: u8,
}

impl Rules {
    fn written(&self) -> String {
        let Self { k, speeds: [rack, zone, none], required, has_revisions, kv_limit } = self;
        let mode =
            ["Required, constraintLayer: rack", "Required, constraintLayer: zone", "Preferred"][*required];
        let label = if *has_revisions { "revision" } else { "''" };
        format!(
            "pairCandidates: {k}, links: {{rack: {rack}, zone: {zone}, none: {none}}}, constraintMode: {mode}, \
             revisionLabel: {label}, kvCacheLimit: {:.1}",
            f64::from(*kv_limit) / 10.0
        )
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let speeds = proptest::array::uniform3(prop_oneof![Just(1000u32), 100u32..20_000]);
    (1usize..=8, speeds, 0usize..3, any::<bool>(), 5u8..=10).prop_map(
        |(k, mut speeds, required, has_revisions, kv_limit)| {
            speeds.sort_unstable_by(|a, b| b.cmp(a));
            Rules { k, speeds, required, has_revisions, kv_limit }
        },
    )
}

/// Seconds to a first token with nothing to compute, and more per request there, before
/// anything is learned.
const FIRST: f64 = 0.03;
const FIRST_PER_REQUEST: f64 = 5e-4;

/// What the model is taken to know, worked out again.
struct Plain {
    /// Mean tokens of the prompts that were booked, the recent ones counting more.
    mean: f64,
    /// Seconds since the last of them was.
    passed: f64,
}

impl Plain {
    /// Requests that wait and that run.
    fn queue(side: &[(Drawn, f32)], drawn: &Drawn) -> (f64, f64) {
        let longest = side.iter().filter_map(|(drawn, _)| drawn.waiting).max().unwrap_or(0);
        let waiting = f64::from(drawn.waiting.unwrap_or(longest));
        let running = drawn.running.map_or(f64::from(drawn.in_flight) - waiting, f64::from);
        (waiting, running.max(0.0))
    }

    /// Requests of ours there, and those of them that its numbers don't show.
    fn ours(drawn: &Drawn) -> (f64, f64) {
        let in_flight = f64::from(drawn.in_flight);
        (in_flight.max(drawn.backlog.len() as f64), if drawn.is_seen { 0.0 } else { in_flight })
    }

    fn requests(side: &[(Drawn, f32)], drawn: &Drawn) -> f64 {
        let ((waiting, running), (ours, unseen)) = (Self::queue(side, drawn), Self::ours(drawn));
        (waiting + running + unseen).max(ours)
    }

    /// Only a full KV cache makes wait, as no number of slots is known.
    fn slot_wait(side: &[(Drawn, f32)], drawn: &Drawn) -> f64 {
        if drawn.kv_usage.is_none_or(|tenths| tenths < 10) {
            return 0.0;
        }
        let (_, running) = Self::queue(side, drawn);
        let ahead = (Self::requests(side, drawn) - running).max(0.0) + 1.0;
        ahead * f64::from(drawn.hold) / running.max(1.0)
    }

    fn ttft(&self, side: &[(Drawn, f32)], drawn: &Drawn) -> f64 {
        let ((waiting, running), (ours, unseen)) = (Self::queue(side, drawn), Self::ours(drawn));
        let others = (waiting + running - (ours - unseen).max(0.0)).clamp(0.0, waiting);
        // Only of the first some is computed.
        let first = drawn.backlog.first().map_or(0.0, |first| *first as f64);
        let booked = drawn.backlog.iter().sum::<u64>() as f64 - first.min(self.passed * RATE);
        let uncached = (f64::from(10 - drawn.cached) * 100.0).max(100.0);
        let computing = (booked + others * self.mean + uncached) / RATE;
        FIRST + FIRST_PER_REQUEST * Self::requests(side, drawn) + computing + Self::slot_wait(side, drawn)
    }
}

/// The least that a pair of these costs; `None`: they are all forbidden.
fn least(
    prefill: &[(Drawn, f32)],
    decode: &[(Drawn, f32)],
    cost: impl Fn(&Drawn, &Drawn) -> Option<f64>,
) -> Option<f64> {
    let pairs = prefill.iter().flat_map(|(p, _)| decode.iter().map(|(d, _)| cost(p, d)));
    pairs.flatten().reduce(f64::min)
}

/// The `k` that the profile likes best.
fn best(side: &[(Drawn, f32)], k: usize) -> Vec<(Drawn, f32)> {
    let mut side = side.to_vec();
    side.sort_by(|a, b| b.1.total_cmp(&a.1));
    side.truncate(k);
    side
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_pair_is_the_cheapest_of_all_pairs(
        prefill in side(),
        decode in side(),
        rules in rules(),
        passed in 0u64..2000,
        seed in any::<u64>(),
    ) {
        let all: Vec<Drawn> = prefill.iter().chain(&decode).map(|(drawn, _)| drawn.clone()).collect();
        let candidates = pool(all.len(), |index, spec| {
            let [rack, zone] = all[index].places;
            let names = [
                ("topology.kubernetes.io/rack", rack),
                ("topology.kubernetes.io/zone", zone),
                ("revision", all[index].revision),
            ];
            let known = names.into_iter().filter(|(_, name)| *name > 0);
            spec.labels.extend(known.map(|(label, name)| (label.to_owned(), name.to_string())));
        });
        let scores = |side: &[(Drawn, f32)]| side.iter().map(|(_, score)| *score).collect::<Vec<_>>();
        let mut pairing = Pairing::new(&rules.written(), &scores(&prefill), &scores(&decode), candidates);
        let matched = all.iter().map(|drawn| drawn.cached).collect();
        pairing.facts.set(Key::new(1), PrefixMatch { total: 10, block_size: 100, matched });
        let endpoints = pairing.candidates.snapshot().endpoints().to_vec();
        let (mut in_flight, mut booked, mut mean) = (Vec::new(), Vec::new(), 0.0);
        for (endpoint, drawn) in endpoints.iter().zip(&all) {
            let mut held = pairing.model.book(&Work::whole(endpoint, 0, true));
            held.first_token();
            pairing.clock.set(pairing.clock.elapsed() + Duration::from_secs(u64::from(drawn.hold)));
            held.finish(None);
        }
        for (endpoint, drawn) in endpoints.iter().zip(&all) {
            let load = endpoint.load();
            for (gauge, reading) in [(&load.waiting, drawn.waiting), (&load.running, drawn.running)] {
                reading.into_iter().for_each(|reading| gauge.set(f64::from(reading), NOW));
            }
            drawn.kv_usage.into_iter().for_each(|usage| load.kv_usage.set(f64::from(usage) / 10.0, NOW));
            in_flight.extend((0..drawn.in_flight).map(|_| load.book()));
            if drawn.is_seen {
                load.seen(load.sent());
            }
            for &tokens in &drawn.backlog {
                booked.push(pairing.model.book(&Work::whole(endpoint, tokens, true)));
                mean = if mean == 0.0 { tokens as f64 } else { mean * 0.98 + tokens as f64 * 0.02 };
            }
        }
        pairing.clock.set(pairing.clock.elapsed() + Duration::from_millis(passed));

        let plain = Plain { mean, passed: passed as f64 / 1000.0 };
        let cost = |p: &Drawn, d: &Drawn| {
            let shares = |level: usize| p.places[level] > 0 && p.places[level] == d.places[level];
            let level = (0..2).find(|level| shares(*level)).unwrap_or(2);
            let is_mixed = rules.has_revisions && p.revision * d.revision > 0 && p.revision != d.revision;
            let total = plain.ttft(&prefill, p)
                + PROMPT as f64 / f64::from(rules.speeds[level])
                + Plain::slot_wait(&decode, d);
            (level <= rules.required && !is_mixed).then_some(total)
        };
        let expected = |decode: &[(Drawn, f32)]| {
            least(&best(&prefill, rules.k), &best(decode, rules.k), cost).or_else(|| least(&prefill, decode, cost))
        };
        let has_room = |(drawn, _): &&(Drawn, f32)| drawn.kv_usage.is_none_or(|usage| usage <= rules.kv_limit);
        let with_room: Vec<_> = decode.iter().filter(has_room).cloned().collect();
        let expected = expected(&with_room).or_else(|| expected(&decode));
        let got = pairing.pair(seed).map(|(p, d)| {
            cost(&prefill[p as usize].0, &decode[d as usize - prefill.len()].0)
        });
        match (got, expected) {
            (Ok(Some(got)), Some(least)) => prop_assert!((got - least).abs() < 1e-3, "{got} is not {least}"),
            (got, expected) => prop_assert_eq!((got, expected), (Err(ScheduleError::NoPair), None)),
        }
    }
}
