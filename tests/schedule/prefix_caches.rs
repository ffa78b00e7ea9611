//! Learning of prefix caches from picks, and destinations of prompts by it: from a configuration to
//! the endpoints.

use std::sync::Arc;

use prometheus::Registry;
use serde_json::{Value, json};
use usher::endpoints::EndpointSpec;
use usher::endpoints::health::Verdict;
use usher::flow::Routed;
use usher::metrics::render;
use usher::prefix::Limits;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::data::{PrefixMatch, PromptBlocks};
use usher::schedule::{
    ApproxPrefixKeys, ApproxPrefixParams, ApproxPrefixProducer, Context, Decision, Effects, Facts, Key,
    PrefixCaches, PrefixFamilies, Profile, ProfileHandler, ProfileSet, Record, RequestContext, Runs,
    ScheduleError, Scheduler, SchedulerMetrics, Scratch, Served, StagesBuilder,
};

use crate::pool::{Pool, asking, at, profile_of};
use crate::support::{self, Fixed, MAX_AGE, NOW, id, top};

const PRODUCER: &str = "approx-prefix-cache-producer";

fn four() -> Vec<EndpointSpec> {
    at(&["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000"])
}

fn completion(body: &Value, headers: &[(&str, &str)]) -> Request {
    let headers: Headers = [(":path", "/v1/completions")].iter().chain(headers).copied().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    parser.push(body.to_string().into());
    parser.finish().unwrap()
}

/// A prompt of blocks of 64 tokens, each made of one letter.
fn text(letters: &str) -> String {
    letters.chars().map(|letter| letter.to_string().repeat(256)).collect()
}

fn prompt(letters: &str) -> Request {
    completion(&json!({"model": "m", "prompt": text(letters)}), &[])
}

impl Pool {
    /// The caches of the built-in producer.
    fn caches(&self) -> Arc<PrefixCaches> {
        let mut all = self.state.all::<PrefixCaches>();
        all.retain(|(name, _)| name.starts_with(PRODUCER));
        assert_eq!(all.len(), 1);
        all.remove(0).1
    }

    /// Routes a request; what was learned before is known.
    pub(crate) fn ask(&self, request: &Request) -> Routed {
        self.state.settle();
        self.route(request).unwrap()
    }

    /// The endpoint of a request, which is over at once.
    fn place(&self, request: &Request) -> String {
        name(&self.ask(request))
    }

    /// Number of times that each of `rounds` requests goes anywhere else than to `name`.
    fn strays(&self, request: &Request, wanted: &str, rounds: usize) -> usize {
        (0..rounds).filter(|_| self.place(request) != wanted).count()
    }

    #[track_caller]
    fn shows(&self, line: &str) {
        let text = render(&self.registry);
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

fn name(routed: &Routed) -> String {
    routed.decision().primary_endpoint().name().to_owned()
}

fn by_prefix() -> String {
    profile_of(&["type: prefix-cache-scorer"])
}

#[test]
fn repeated_prompt_goes_to_the_same_endpoint() {
    let pool = Pool::new(&by_prefix(), four());
    let homes: Vec<(String, String)> =
        ["ab", "cd", "ef", "gh", "ij"].map(|letters| (letters.into(), pool.place(&prompt(letters)))).into();
    for (letters, home) in homes {
        assert_eq!(pool.strays(&prompt(&letters), &home, 5), 0, "the same");
        assert_eq!(pool.strays(&prompt(&format!("{letters}xyz")), &home, 5), 0, "and what goes on");
    }
}

#[test]
fn recreated_pod_has_an_empty_cache() {
    let of = |uid: &str| {
        let mut all = at(&["10.0.0.1:8000"]);
        all[0].uid = Some(uid.to_owned());
        all
    };
    let pool = Pool::new(&by_prefix(), of("1"));
    let is_cached = |pool: &Pool| pool.ask(&prompt("abcd")).decision().scores().any(|(_, score)| score > 0.0);
    let cached_blocks = |pool: &Pool| {
        pool.state.settle();
        let snapshot = pool.store.snapshot();
        pool.state.sweep(&snapshot, NOW);
        snapshot.endpoints()[0].load().cached_blocks()
    };
    pool.place(&prompt("abcd"));
    assert_eq!((is_cached(&pool), cached_blocks(&pool)), (true, 4));
    // What is said of it anew changes nothing, another pod does.
    for (uid, blocks) in [("1", 4), ("2", 0)] {
        pool.store.replace(of(uid));
        assert_eq!(cached_blocks(&pool), blocks, "{uid}");
        assert_eq!(is_cached(&pool.reloaded(&by_prefix())), blocks > 0, "{uid}");
    }
}

#[test]
fn other_models_and_salts_share_nothing() {
    let pool = Pool::new(&by_prefix(), four());
    let body = |model: &str, salt: &str| json!({"model": model, "cache_salt": salt, "prompt": text("abc")});
    let home = pool.place(&completion(&body("m", "s"), &[]));
    assert_eq!(pool.strays(&completion(&body("m", "s"), &[]), &home, 5), 0);
    for (model, salt) in [("n", "s"), ("m", "t")] {
        let routed = pool.ask(&completion(&body(model, salt), &[]));
        assert!(routed.decision().scores().all(|(_, score)| score == 0.0), "{model} {salt}");
    }
}

#[test]
fn each_of_several_prompts_counts() {
    let pool = Pool::new(&by_prefix(), at(&["10.0.0.1:8000"]));
    let prompts = |list: &[&str]| {
        let list: Vec<String> = list.iter().map(|letters| text(letters)).collect();
        completion(&json!({"model": "m", "prompt": list}), &[])
    };
    let score = |request: &Request| pool.ask(request).decision().scores().next().unwrap().1;
    assert_eq!(score(&prompts(&["ab", "cd"])), 0.0);
    // Two blocks of the first and one of the second, of six.
    assert_eq!(score(&prompts(&["abx", "cyz"])), 0.5);
    // A prompt begins anew: what is behind another's beginning is no beginning.
    assert_eq!(score(&prompts(&["b", "d"])), 0.0);
}

#[test]
fn scores_are_kept_until_taken() {
    let pool = Pool::new(&by_prefix(), four());
    let mut routed = pool.ask(&prompt("abcd"));
    assert!(routed.decision().runs().iter().any(|run| run.record.is_some()));
    assert_eq!(routed.take_scores().unwrap().len(), 4);
    assert!(routed.decision().runs().iter().all(|run| run.record.is_none()), "a stream lives for minutes");
}

#[test]
fn prompt_is_also_cached_at_the_serving_endpoint() {
    let pool = Pool::new(&by_prefix(), at(&["10.0.0.1:8000", "10.0.0.2:8000"]));
    let mut routed = pool.ask(&prompt("abcd"));
    let other = if name(&routed) == "pod-0" { 2 } else { 1 };
    routed.response_begins(&Served::By(format!("10.0.0.{other}:8000")), Verdict::Good, true);
    let scores: Vec<f64> = pool.ask(&prompt("abcd")).decision().scores().map(|(_, score)| score).collect();
    assert_eq!(scores, [1.0, 1.0]);
    // Not where nobody served it.
    let mut routed = pool.ask(&prompt("efgh"));
    routed.response_begins(&Served::Missing, Verdict::Good, true);
    let scores: Vec<f64> = pool.ask(&prompt("efgh")).decision().scores().map(|(_, score)| score).collect();
    assert_eq!(scores.iter().sum::<f64>(), 1.0);
}

#[test]
fn prompt_recency_counts_from_the_end_of_its_response() {
    let pool = Pool::new(&by_prefix(), at(&["10.0.0.1:8000"]));
    let (load, now) = pool.load(0);
    load.block_size.set(64.0, now);
    load.num_blocks.set(8.0, now);
    let matches = |letters: &str| {
        let mut routed = pool.ask(&prompt(letters));
        routed.response_begins(&Served::Missing, Verdict::Good, true);
        let score = routed.decision().scores().next().unwrap().1;
        (score, routed)
    };
    let (_, first) = matches("abcd");
    let (_, second) = matches("efgh");
    drop((second, first));
    // Of the two, the one that ended last is the last to go.
    assert_eq!((matches("ijkl").0, matches("abcd").0), (0.0, 1.0));
    assert_eq!(matches("efgh").0, 0.0);
}

#[test]
fn reloaded_configuration_keeps_the_prefix_index() {
    let pool = Pool::new(&by_prefix(), four());
    let home = pool.place(&prompt("abcd"));
    let other = profile_of(&["type: queue-scorer", "type: prefix-cache-scorer"]);
    assert_eq!(pool.reloaded(&other).strays(&prompt("abcd"), &home, 20), 0);
}

#[test]
fn blocks_of_another_size_are_never_those_of_the_running_index() {
    /// Fingerprint and number of blocks of each index that is shared.
    fn shared(pool: &Pool) -> Vec<(String, usize)> {
        pool.state.sweep(&pool.store.snapshot(), NOW);
        pool.state.settle();
        let caches = pool.state.all::<PrefixCaches>();
        let shared = caches.iter().filter_map(|(_, caches)| caches.shared());
        let mut shared: Vec<_> =
            shared.map(|(fingerprint, writer)| (fingerprint.to_string(), writer.index().entries())).collect();
        shared.sort_unstable();
        shared
    }
    let config = |tokens: u32| {
        let producer = format!("- {{type: {PRODUCER}, parameters: {{blockSizeTokens: {tokens}}}}}");
        by_prefix().replacen("plugins:", &format!("plugins:\n{producer}"), 1)
    };
    let mut pool = Pool::new(&config(64), four());
    let held = pool.ask(&prompt("abcd"));
    let before = shared(&pool);
    assert_eq!(before.len(), 1);
    assert_eq!(before[0].1, 4);
    // Built, and not taken.
    drop(pool.reloaded(&config(128)));
    assert_eq!(shared(&pool), before);
    pool = pool.reloaded(&config(128));
    let after = shared(&pool);
    assert_eq!((after.len(), after[0].1), (1, 0));
    assert_ne!(after[0].0, before[0].0);
    let labels = format!("plugin_name=\"{PRODUCER}\",plugin_type=\"{PRODUCER}\"");
    pool.shows(&format!("llm_d_epp_prefix_indexer_size{{{labels}}} 0"));
    drop(held);
    assert_eq!(shared(&pool), after, "the last request of the first configuration");
}

#[test]
fn removed_endpoint_is_dropped_from_the_index() {
    let pool = Pool::new(&by_prefix(), four());
    let home = pool.place(&prompt("abcd"));
    pool.state.settle();
    assert_eq!(pool.caches().index().entries(), 4);
    let others = four().into_iter().filter(|spec| spec.name != home).collect();
    pool.store.replace(others);
    pool.state.sweep(&pool.store.snapshot(), 1);
    pool.state.settle();
    assert_eq!(pool.caches().index().entries(), 0);
    pool.store.replace(four());
    let routed = pool.reloaded(&by_prefix()).ask(&prompt("abcd"));
    assert!(routed.decision().scores().all(|(_, score)| score == 0.0));
}

#[test]
fn endpoints_report_the_size_of_blocks_and_of_caches() {
    let pool = Pool::new(&by_prefix(), at(&["10.0.0.1:8000"]));
    let score = |request: &Request| pool.ask(request).decision().scores().next().unwrap().1;
    let (load, now) = pool.load(0);
    load.block_size.set(128.0, now);
    // 256 tokens are two blocks, and the second has changed.
    assert_eq!((score(&prompt("abcd")), score(&prompt("abcx"))), (0.0, 0.5));
    // Sixteen of an engine's blocks of 16 tokens are four here.
    load.block_size.set(16.0, now);
    load.num_blocks.set(16.0, now);
    assert_eq!((score(&prompt("efgh")), score(&prompt("efgh"))), (0.0, 1.0));
    assert_eq!(score(&prompt("i")), 0.0);
    assert_eq!(score(&prompt("efgh")), 0.75, "the last block goes first");
    // Of more than the cache holds the beginning is left.
    assert_eq!((score(&prompt("jklmnopq")), score(&prompt("jklmnopq"))), (0.0, 0.5));
}

#[test]
fn hit_metrics_are_exported_under_both_names() {
    let pool = Pool::new(&by_prefix(), at(&["10.0.0.1:8000"]));
    for letters in ["ab", "abcd", "abcd"] {
        pool.place(&prompt(letters));
    }
    // A request without a prompt finds nothing, and doesn't count.
    pool.place(&asking(&[]));
    pool.state.settle();
    let labels = format!(r#"{{plugin_name="{PRODUCER}",plugin_type="{PRODUCER}"}}"#);
    for (family, labels) in [("llm_d_epp", labels.as_str()), ("inference_extension", "")] {
        pool.shows(&format!("{family}_prefix_indexer_size{labels} 4"));
        pool.shows(&format!("{family}_prefix_indexer_hit_ratio_sum{labels} 1.5"));
        pool.shows(&format!("{family}_prefix_indexer_hit_ratio_count{labels} 3"));
        pool.shows(&format!("{family}_prefix_indexer_hit_bytes_sum{labels} 1536"));
    }
    pool.shows(&format!("usher_prefix_index_dropped_total{labels} 0"));
    assert!(render(&pool.registry).contains("usher_prefix_index_bytes{"));
}

#[test]
fn conditional_request_goes_only_to_a_cached_prefix() {
    let pool = Pool::new(&by_prefix(), at(&["10.0.0.1:8000", "10.0.0.2:8000"]));
    let conditional = |letters: &str| {
        let body = json!({"model": "m", "prompt": text(letters)});
        completion(&body, &[("prefer", "if-available")])
    };
    let refused = pool.route(&conditional("ab")).unwrap_err();
    assert_eq!(refused.code.status(), 412);
    assert_eq!(
        refused.body(),
        "inference error: PreconditionFailed - no decode worker has the requested KV cache"
    );
    // Refused, it was not sent, and nothing was learned.
    pool.state.settle();
    assert_eq!(pool.route(&conditional("ab")).unwrap_err().code.status(), 412);
    let home = pool.place(&prompt("ab"));
    assert_eq!(pool.place(&conditional("abcd")), home, "some of it is enough");
    assert_eq!(pool.route(&conditional("xb")).unwrap_err().code.status(), 412);
}

#[test]
fn cold_prompts_rotate_over_endpoints() {
    let config = profile_of(&["type: no-hit-lru-scorer"]);
    let pool = Pool::new(&config, four());
    let cold = |number: usize| prompt(&char::from(b'A' + number as u8).to_string());
    let places: Vec<String> = (0..6).map(|number| pool.place(&cold(number))).collect();
    assert_eq!(places, ["pod-0", "pod-1", "pod-2", "pod-3", "pod-0", "pod-1"]);
    // A warm prompt is no business of it, and moves nobody who holds it.
    let warm = pool.ask(&cold(2));
    assert!(warm.decision().scores().all(|(_, score)| score == 0.5));
    assert_eq!(pool.reloaded(&config).place(&cold(9)), "pod-2", "a new configuration goes on");
}

#[test]
fn requests_stick_until_their_endpoint_is_saturated() {
    let filter = "type: prefix-cache-affinity-filter, parameters: {maxTTFTPenaltyMs: 1000, peakPrefillThroughput: 1000}";
    let pool = Pool::new(&profile_of(&[filter, "type: token-load-scorer"]), four());
    let home = pool.place(&prompt("abcd"));
    pool.state.settle();
    // Each adds a block of 64 tokens to its four. Where nothing is cached it adds five.
    let mut more = ('A'..='Z').map(|letter| prompt(&format!("abcd{letter}")));
    let mut under_way = Vec::new();
    let mut routed = pool.route(&more.next().unwrap()).unwrap();
    while name(&routed) == home {
        under_way.push(routed);
        routed = pool.route(&more.next().unwrap()).unwrap();
    }
    // 16 of 64 tokens are more than a second's.
    assert_eq!(under_way.len(), 16);
    let other = name(&routed);
    drop((routed, under_way));
    pool.state.settle();
    let place = pool.place(&prompt("abcd"));
    assert!([home, other].contains(&place), "{place} has nothing of it, and those who have it have room");
}

/// Runs both profiles and returns the first one's pick.
struct Both;

impl ProfileHandler for Both {
    fn next(&self, _cx: &Context<'_>, _runs: &Runs<'_>) -> ProfileSet {
        [0, 1].into_iter().collect()
    }

    fn finish(&self, _cx: &Context<'_>, _runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        Ok(0)
    }
}

/// A decision among three endpoints: the first profile picks the first, the other the
/// second one.
fn decide(
    other: &str,
    metrics: &SchedulerMetrics,
    cx: &Context<'_>,
    all: &usher::endpoints::Candidates,
) -> Decision {
    let profile = |name: &str, scores: [f32; 3]| {
        let mut builder = Profile::builder(name, metrics);
        builder.scorer(&id("fixed"), Arc::new(Fixed(scores.to_vec())), 1.0);
        builder.picker(&id("picker"), top(2))
    };
    let profiles = vec![profile("decode", [1.0, 0.5, 0.0]), profile(other, [0.5, 1.0, 0.0])];
    let scheduler = Scheduler::new(profiles, &id("both"), Arc::new(Both), metrics);
    scheduler.decide(cx, all, &mut rand::rng(), &mut Scratch::default(), Record::No).unwrap()
}

#[test]
fn prefill_endpoint_also_caches_the_prompt() {
    for (other, expected) in [("prefill", [2, 2, 0]), ("encode", [2, 0, 0])] {
        let registry = Registry::new();
        let metrics = SchedulerMetrics::register(&registry).unwrap();
        let keys =
            ApproxPrefixKeys { prefix: Key::<PrefixMatch>::new(0), blocks: Key::<PromptBlocks>::new(1) };
        let caches = Arc::new(PrefixCaches::start(Limits::default()).unwrap());
        let families = PrefixFamilies::register(&registry).unwrap();
        let params = ApproxPrefixParams::default();
        let plugin = ApproxPrefixProducer::new(params, keys, Arc::clone(&caches), &families, ("p", PRODUCER));
        let plugin = Arc::new(plugin);
        let mut stages = StagesBuilder::new(&metrics);
        stages.producer(&id("p"), Arc::clone(&plugin) as _);
        stages.pre_request(&id("p"), plugin);
        let stages = stages.build(false, None);
        let (all, request) = (support::pool(3, |_, _| {}), prompt("ab"));
        let cx = RequestContext { request: &request, now_ms: NOW, max_age: MAX_AGE };
        let matched = || {
            let mut facts = Facts::default();
            stages.produce(&cx, &all, &mut facts);
            (facts.get(keys.prefix).unwrap().matched.clone(), facts)
        };
        let (before, facts) = matched();
        assert_eq!(before, [0; 3]);
        let cx = Context { facts: &facts, ..Context::new(&request, NOW, MAX_AGE) };
        let decision = decide(other, &metrics, &cx, &all);
        stages.act(&cx, &decision, &mut Effects::default());
        caches.flush();
        assert_eq!(matched().0, expected, "{other}");
    }
}
