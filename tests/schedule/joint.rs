//! `pairing: joint`: pairs and endpoints that do it all, what is forbidden, and bookings.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::{ConfigError, Node};
use usher::endpoints::{Candidates, Clock};
use usher::request::{ParserKind, Parsers, Request, RequestParser};
use usher::schedule::data::{PrefixMatch, PromptTokens};
use usher::schedule::latency::{InitialRate, Model, Reader};
use usher::schedule::{
    AlwaysDecider, Context, Decider, Decision, DisaggFamily, DisaggParams, DisaggProfileHandler, Effects,
    Facts, Joint, Key, PreRequest, Profile, ProfileHandler, Record, ResponseObservers, ScheduleError,
    Scheduler, Scratch, State,
};

use crate::pool::pipeline;
use crate::support::{Fixed, MAX_AGE, NOW, Only, id, metrics, pool, request, top};

pub(crate) const RATE: f64 = 1000.0;
/// The prompt's tokens; a token is a byte of KV cache, so that speeds are in tokens, too.
pub(crate) const PROMPT: u64 = 1000;

fn params(more: &str) -> Result<DisaggParams, ConfigError> {
    let text = format!("{{pairing: joint, kvBytesPerToken: 1, peakPrefillThroughput: 1000, {more}}}");
    DisaggParams::decode(&Node::parse(&text).unwrap())
}

/// Says yes where the endpoint that decodes is one of these.
pub(crate) struct At(pub(crate) Vec<u32>);

impl Decider for At {
    fn decide(&self, _cx: &Context<'_>, _candidates: &Candidates, decode: Option<u32>) -> bool {
        decode.is_some_and(|decode| self.0.contains(&decode))
    }
}

/// A scheduler over `prefill` endpoints and then as many that decode as there are scores.
pub(crate) struct Pairing {
    pub(crate) clock: Clock,
    pub(crate) model: Arc<Model>,
    handler: Arc<DisaggProfileHandler>,
    scheduler: Scheduler,
    pub(crate) candidates: Candidates,
    pub(crate) facts: Facts,
}

impl Pairing {
    /// Every prompt is computed by another endpoint than the one that responds.
    pub(crate) fn new(more: &str, prefill: &[f32], decode: &[f32], candidates: Candidates) -> Self {
        Self::decided_by(Some(Arc::new(AlwaysDecider)), more, prefill, decode, candidates)
    }

    /// The same with this decider, or with none.
    pub(crate) fn decided_by(
        decider: Option<Arc<dyn Decider>>,
        more: &str,
        prefill: &[f32],
        decode: &[f32],
        candidates: Candidates,
    ) -> Self {
        let params = params(more).unwrap();
        let clock = Clock::stopped();
        let model = Arc::new(Model::new(RATE, clock.clone()));
        let (prompt, prefix) = (Key::new(0), Key::new(1));
        let reader = Reader::new(Arc::clone(&model), InitialRate::of(RATE), prompt, prefix);
        let joint = params.joint.clone().unwrap();
        let joint =
            Joint::new(joint.clone(), reader.with_transfers(Arc::new(OnceLock::from(joint.transfers()))));
        let registry = Registry::new();
        let decisions = DisaggFamily::register(&registry).unwrap().of(&State::default(), id("handler"));
        let handler = DisaggProfileHandler::new(&params, decider, None, decisions).paired(joint);
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

    pub(crate) fn decide(&self, seed: u64) -> Result<Decision, ScheduleError> {
        self.decide_for(&request(), seed)
    }

    fn decide_for(&self, request: &Request, seed: u64) -> Result<Decision, ScheduleError> {
        let mut rng = StdRng::seed_from_u64(seed);
        let cx = Context { facts: &self.facts, ..Context::new(request, NOW, MAX_AGE) };
        self.scheduler.decide(&cx, &self.candidates, &mut rng, &mut Scratch::default(), Record::No)
    }

    /// Positions of the endpoints that compute the prompt and decode; the same if one does both.
    pub(crate) fn pair(&self, seed: u64) -> Result<(u32, u32), ScheduleError> {
        self.pair_for(&request(), seed)
    }

    /// The same for this request.
    pub(crate) fn pair_for(&self, request: &Request, seed: u64) -> Result<(u32, u32), ScheduleError> {
        let decision = self.decide_for(request, seed)?;
        let pick = |profile| decision.run(profile).map(|run| run.picks[0]);
        let decode = pick("decode").unwrap();
        Ok((pick("prefill").unwrap_or(decode), decode))
    }

    pub(crate) fn book(&self, decision: &Decision) -> ResponseObservers {
        let request = request();
        let cx = Context { facts: &self.facts, ..Context::new(&request, NOW, MAX_AGE) };
        let mut effects = Effects::default();
        self.handler.decided(&cx, decision, &mut effects);
        effects.take_observers()
    }
}

/// Endpoints in these racks, all in one region.
pub(crate) fn racks(racks: &[&str]) -> Candidates {
    pool(racks.len(), |index, spec| {
        spec.labels.insert("topology.kubernetes.io/rack".into(), racks[index].into());
        spec.labels.insert("topology.kubernetes.io/region".into(), "r".into());
    })
}

pub(crate) const LINKS: &str = "links: {rack: 10000, region: 1000}";

#[test]
fn near_pair_wins_unless_its_queue_outweighs_the_transfer() {
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
fn equal_links_leave_the_pair_to_the_scores() {
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
fn cached_blocks_reduce_the_expected_prefill_time() {
    let mut pairing = Pairing::new(LINKS, &[1.0, 1.0], &[1.0], racks(&["a", "b", "b"]));
    let cached = |blocks| PrefixMatch { total: 20, block_size: 50, matched: vec![blocks, 0, 0] };
    pairing.facts.set(Key::new(1), cached(16));
    assert_eq!(pairing.pair(1), Ok((1, 2)), "0.2 + 1.0 against 1.0 + 0.1");
    pairing.facts.set(Key::new(1), cached(20));
    assert_eq!(pairing.pair(1), Ok((0, 2)), "0.05 + 1.0 against 1.0 + 0.1");
}

#[test]
fn full_kv_cache_is_avoided_unless_all_are_full() {
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
fn required_layer_forbids_pairs_with_its_own_reason() {
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
        // Nor does it count for how often prompts come there.
        pairing.clock.set(pairing.clock.elapsed() + Duration::from_secs(600));
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
fn conflicting_prefill_rates_are_refused() {
    let built = |handler: &str, scorer: &str| {
        let config = format!(
            "
plugins:
- {{type: disagg-profile-handler, parameters: {{pairing: joint{handler}}}}}
- {{type: expected-latency-scorer, parameters: {{{scorer}}}}}
schedulingProfiles:
- {{name: prefill, plugins: [{{pluginRef: expected-latency-scorer}}]}}
- {{name: decode, plugins: [{{pluginRef: expected-latency-scorer}}]}}
"
        );
        pipeline(&config, &State::default()).map(|_| ()).map_err(|error| error.to_string())
    };
    let (one, other) = ("peakPrefillThroughput: 1000", "peakPrefillThroughput: 2000");
    for (handler, scorer) in [("", ""), ("", one), (&*format!(", {one}"), ""), (&format!(", {one}"), one)] {
        assert_eq!(built(handler, scorer), Ok(()));
    }
    let error = built(&format!(", {one}"), other).unwrap_err();
    assert!(error.contains("another plugin says"), "{error}");
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

#[test]
fn latency_targets_outrank_the_cost_of_a_pair() {
    // One that decodes is near and has a batch, the other is far and idle.
    let pairing = Pairing::new(LINKS, &[1.0], &[1.0, 1.0], racks(&["a", "a", "b"]));
    let running = |requests| pairing.candidates.snapshot().endpoints()[1].load().running.set(requests, NOW);
    running(20.0);
    let pair = |targets: &[(&str, &str)]| {
        let parsers = Parsers::new(&[ParserKind::PassThrough]);
        let request = RequestParser::new(targets.iter().copied().collect(), &parsers).without_body();
        pairing.pair_for(&request, 1)
    };
    let (ttft, tpot) = ("x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms");
    assert_eq!(pair(&[]), Ok((0, 1)), "a second of transfer costs more than the batch");
    assert_eq!(pair(&[(tpot, "1000")]), Ok((0, 1)), "any batch keeps a loose target");
    assert_eq!(pair(&[(tpot, "17")]), Ok((0, 2)));
    running(60.0);
    assert_eq!(pair(&[]), Ok((0, 2)), "now the batch costs more");
    assert_eq!(pair(&[(ttft, "1500")]), Ok((0, 1)), "the far one's first token comes a second later");
}
