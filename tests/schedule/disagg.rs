//! Stages of a disaggregated request: which run, in which order, what they know of each
//! other, and what becomes of it.

use std::sync::{Arc, Mutex};

use prometheus::Registry;
use rand::Rng;
use usher::config::Node;
use usher::endpoints::{Candidates, Snapshot};
use usher::metrics::render;
use usher::schedule::data::{PrefixMatch, PromptTokens};
use usher::schedule::{
    Context, Decider, Decision, DisaggFamily, DisaggParams, DisaggProfileHandler, Effects, Facts, Filter,
    Key, PdFamily, PdParams, PdProfileHandler, PluginId, PreRequest, PrefixBasedPdDecider,
    PrefixBasedPdParams, Profile, ProfileHandler, Record, ScheduleError, Scheduler, Scratch, StageOrder,
};

use crate::pool::{Pool, asking, labelled};
use crate::support::{Fixed, MAX_AGE, NOW, Only, candidates, id, metrics, request, top};

/// State of a profile in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Not configured.
    Missing,
    /// Its filters leave nothing.
    Nobody,
    /// Picks an endpoint.
    Picks,
}

const FOUND: [Found; 3] = [Found::Missing, Found::Nobody, Found::Picks];

#[derive(Clone, Copy, Debug)]
struct Case {
    order: StageOrder,
    decode: Found,
    prefill: Found,
    encode: Found,
    prefill_decider: Option<bool>,
    encode_decider: Option<bool>,
}

/// Every combination, but for deciders of a prefill that always runs.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for order in [StageOrder::DecodeFirst, StageOrder::PrefillFirst] {
        for (decode, prefill, encode) in
            FOUND.iter().flat_map(|d| FOUND.iter().flat_map(move |p| FOUND.iter().map(move |e| (*d, *p, *e))))
        {
            for prefill_decider in [None, Some(false), Some(true)] {
                for encode_decider in [None, Some(false), Some(true)] {
                    let case = Case { order, decode, prefill, encode, prefill_decider, encode_decider };
                    if order == StageOrder::DecodeFirst || prefill_decider.is_none() {
                        cases.push(case);
                    }
                }
            }
        }
    }
    assert_eq!(cases.len(), 27 * 9 + 27 * 3);
    cases
}

/// A decision as it is seen from outside.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    /// The stages that ran, each with its peer.
    ran: Vec<(&'static str, Option<String>)>,
    /// The stages whose decider was asked, with the endpoint that decodes.
    asked: Vec<(&'static str, Option<u32>)>,
    /// Destination of the request, or why there is none.
    goes: Option<Result<String, ScheduleError>>,
    prefiller: Option<String>,
    encoders: Option<String>,
    /// Decision type that it is counted as.
    counted: Option<&'static str>,
}

type Log<T> = Arc<Mutex<Vec<T>>>;

/// A filter that removes nothing and notes that its profile runs.
struct Witness(&'static str, Log<(&'static str, Option<String>)>);

impl Filter for Witness {
    fn filter(&self, cx: &Context<'_>, _snapshot: &Snapshot, _kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        self.1.lock().unwrap().push((self.0, cx.peer.map(|peer| peer.name().to_owned())));
    }
}

/// A decider that has made up its mind, and notes that it is asked.
struct Says(&'static str, bool, Log<(&'static str, Option<u32>)>);

impl Decider for Says {
    fn decide(&self, _cx: &Context<'_>, candidates: &Candidates, decode: Option<u32>) -> bool {
        assert_eq!(candidates.len(), 6);
        self.2.lock().unwrap().push((self.0, decode));
        self.1
    }
}

/// Decode picks pod 0, prefill pod 1 before pod 2, encode pod 4 before pod 3.
fn profiles(case: &Case, ran: &Log<(&'static str, Option<String>)>) -> Vec<Profile> {
    let metrics = metrics();
    let scores = [0.0, 1.0, 0.0, 0.0, 1.0, 0.0];
    let stages: [(&'static str, Found, &[u32]); 3] =
        [("encode", case.encode, &[3, 4]), ("prefill", case.prefill, &[1, 2]), ("decode", case.decode, &[0])];
    let profile = |(name, found, picks): (&'static str, Found, &[u32])| {
        let mut builder = Profile::builder(name, &metrics);
        builder.filter(&id("witness"), Arc::new(Witness(name, Arc::clone(ran))));
        let only = if found == Found::Picks { picks.to_vec() } else { Vec::new() };
        builder.filter(&id("only"), Arc::new(Only(only)));
        builder.scorer(&id("fixed"), Arc::new(Fixed(scores.to_vec())), 1.0);
        builder.picker(&id("top"), top(2))
    };
    stages.into_iter().filter(|(_, found, _)| *found != Found::Missing).map(profile).collect()
}

/// Decides with a handler, and does what follows from it.
fn see<H: ProfileHandler + PreRequest + 'static>(
    case: &Case,
    make: impl FnOnce(&Registry, Option<Arc<dyn Decider>>, Option<Arc<dyn Decider>>) -> H,
    older_name: &str,
) -> Seen {
    let (ran, asked, registry) = (Log::default(), Log::default(), Registry::new());
    let decider = |stage, says: Option<bool>| {
        says.map(|says| Arc::new(Says(stage, says, Arc::clone(&asked))) as Arc<dyn Decider>)
    };
    let handler = Arc::new(make(
        &registry,
        decider("prefill", case.prefill_decider),
        decider("encode", case.encode_decider),
    ));
    let scheduler =
        Scheduler::new(profiles(case, &ran), &id("handler"), Arc::clone(&handler) as _, &metrics());
    let mut request = request();
    request.target_model = "m".into();
    let cx = Context::new(&request, NOW, MAX_AGE);
    let all = candidates(&[(None, None); 6]);
    let decided = scheduler.decide(&cx, &all, &mut rand::rng(), &mut Scratch::default(), Record::No);
    let mut effects = Effects::default();
    if let Ok(decision) = &decided {
        handler.decided(&cx, decision, &mut effects);
    }
    assert_eq!(effects.port(), None);
    let header = |name: &str| {
        let found = effects.headers().iter().find(|header| &*header.name == name);
        found.map(|header| String::from_utf8(header.value.to_vec()).unwrap())
    };
    let page = render(&registry);
    let counted = ["decode-only", "prefill-decode", "encode-decode", "encode-prefill-decode"];
    let counted = counted.into_iter().filter(|kind| {
        page.contains(&format!("\n{older_name}{{decision_type=\"{kind}\",model_name=\"m\"}} 1\n"))
    });
    let counted: Vec<_> = counted.collect();
    assert!(counted.len() <= 1, "{page}");
    let goes = decided.map(|decision| decision.primary_endpoint().name().to_owned());
    Seen {
        ran: std::mem::take(&mut ran.lock().unwrap()),
        asked: std::mem::take(&mut asked.lock().unwrap()),
        goes: Some(goes),
        prefiller: header("x-prefiller-host-port"),
        encoders: header("x-encoder-hosts-ports"),
        counted: counted.first().copied(),
    }
}

/// The rules as they are written down, one step after the other.
fn by_the_book(case: &Case) -> Seen {
    let mut seen = Seen::default();
    let workers = "failed to find available decode workers".to_owned();
    if case.decode == Found::Missing {
        return Seen { goes: Some(Err(ScheduleError::NoTarget(workers))), ..seen };
    }
    let (mut prefills, mut encodes) = (false, false);
    let encode = |seen: &mut Seen, decode| {
        if case.encode == Found::Missing || case.encode_decider.is_none() {
            return false;
        }
        seen.asked.push(("encode", decode));
        if case.encode_decider == Some(false) {
            return false;
        }
        seen.ran.push(("encode", None));
        case.encode == Found::Picks
    };
    match case.order {
        StageOrder::DecodeFirst => {
            seen.ran.push(("decode", None));
            if case.decode == Found::Picks {
                encodes = encode(&mut seen, Some(0));
                if case.prefill != Found::Missing
                    && let Some(says) = case.prefill_decider
                {
                    seen.asked.push(("prefill", Some(0)));
                    if says {
                        seen.ran.push(("prefill", Some("pod-0".into())));
                        prefills = case.prefill == Found::Picks;
                    }
                }
            }
        }
        StageOrder::PrefillFirst => {
            if case.prefill != Found::Missing {
                seen.ran.push(("prefill", None));
                prefills = case.prefill == Found::Picks;
            }
            encodes = encode(&mut seen, None);
            seen.ran.push(("decode", prefills.then(|| "pod-1".into())));
        }
    }
    if case.decode == Found::Nobody {
        return Seen { goes: Some(Err(ScheduleError::Drained)), ..seen };
    }
    seen.goes = Some(Ok("pod-0".into()));
    seen.prefiller = prefills.then(|| "10.0.0.2:8000".into());
    seen.encoders = encodes.then(|| "10.0.0.5:8000,10.0.0.4:8000".into());
    seen.counted = Some(match (prefills, encodes) {
        (false, false) => "decode-only",
        (true, false) => "prefill-decode",
        (false, true) => "encode-decode",
        (true, true) => "encode-prefill-decode",
    });
    seen
}

fn params(text: &str) -> DisaggParams {
    DisaggParams::decode(&Node::parse(text).unwrap()).unwrap()
}

#[test]
fn stages_run_as_their_order_and_their_deciders_say() {
    for case in cases() {
        let order = if case.order == StageOrder::DecodeFirst { "decode-first" } else { "prefill-first" };
        let params = params(&format!("{{stageOrder: {order}}}"));
        let seen = see(
            &case,
            |registry, prefill, encode| {
                let family = DisaggFamily::register(registry).unwrap();
                let decisions = family
                    .of(&usher::schedule::State::default(), PluginId::new("disagg-profile-handler", "h"));
                DisaggProfileHandler::new(&params, prefill, encode, decisions)
            },
            "llm_d_inference_scheduler_disagg_decision_total",
        );
        assert_eq!(seen, by_the_book(&case), "{case:?}");
    }
}

#[test]
fn pd_profile_handler_has_two_stages_and_no_header() {
    let params = PdParams::decode(&Node::parse("{}").unwrap()).unwrap();
    let of_it = |case: &Case| {
        case.order == StageOrder::DecodeFirst
            && case.encode_decider.is_none()
            && case.prefill_decider.is_some()
    };
    for case in cases().into_iter().filter(of_it) {
        let seen = see(
            &case,
            |registry, prefill, _| {
                let family = PdFamily::register(registry).unwrap();
                let decisions =
                    family.of(&usher::schedule::State::default(), PluginId::new("pd-profile-handler", "h"));
                PdProfileHandler::new(&params, prefill.unwrap(), decisions)
            },
            "llm_d_inference_scheduler_pd_decision_total",
        );
        assert_eq!(seen, Seen { prefiller: None, ..by_the_book(&case) }, "{case:?}");
    }
}

/// A decision of which so many blocks of 64 tokens are cached at each of two endpoints, and
/// only the first may decode.
fn with_cached(tokens: u64, matched: [u32; 2]) -> Decision {
    let (prompt, prefix) = (Key::new(0), Key::new(1));
    let mut facts = Facts::default();
    facts.set(prompt, PromptTokens { count: tokens });
    facts.set(prefix, PrefixMatch { total: 32, block_size: 64, matched: matched.to_vec() });
    let decider = PrefixBasedPdParams { non_cached_tokens: 100, prompt_tokens: 0 };
    let decider = Arc::new(PrefixBasedPdDecider::new(decider, prompt, prefix));
    let decisions = DisaggFamily::register(&Registry::new()).unwrap();
    let decisions =
        decisions.of(&usher::schedule::State::default(), PluginId::new("disagg-profile-handler", "h"));
    let handler = DisaggProfileHandler::new(&params("{}"), Some(decider), None, decisions);
    let metrics = metrics();
    let profile = |name: &str, only: u32| {
        let mut builder = Profile::builder(name, &metrics);
        builder.filter(&id("only"), Arc::new(Only(vec![only])));
        builder.picker(&id("top"), top(1))
    };
    let profiles = vec![profile("decode", 0), profile("prefill", 1)];
    let scheduler = Scheduler::new(profiles, &id("h"), Arc::new(handler), &metrics);
    let request = request();
    let cx = Context { facts: &facts, ..Context::new(&request, NOW, MAX_AGE) };
    let all = candidates(&[(None, None); 2]);
    scheduler.decide(&cx, &all, &mut rand::rng(), &mut Scratch::default(), Record::No).unwrap()
}

#[test]
fn prompt_cached_at_the_decode_endpoint_skips_prefill() {
    // Tokens, cached blocks of the decoding endpoint and of the other, another one computes.
    let table = [
        (99, [0, 0], false),
        (100, [0, 0], true),
        (164, [1, 0], true),
        (163, [1, 0], false),
        // The other one's cache doesn't matter.
        (163, [0, 2], true),
        (2048, [32, 0], false),
        (2048, [30, 32], true),
    ];
    for (tokens, matched, elsewhere) in table {
        let decision = with_cached(tokens, matched);
        assert_eq!(decision.run("prefill").is_some(), elsewhere, "{tokens} {matched:?}");
        assert_eq!(decision.primary_endpoint().name(), "pod-0");
    }
}

const NEAR: &str = "
plugins:
- {type: prefill-filter}
- {type: decode-filter}
- {type: topology-affinity-filter}
- {type: always-disagg-pd-decider}
- {type: disagg-profile-handler, parameters: {PARAMETERS}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, SECOND-OF-PREFILL]}
- {name: decode, plugins: [{pluginRef: decode-filter}, SECOND-OF-DECODE]}
";

#[test]
fn second_stage_is_picked_near_the_first() {
    let pod = |role, host| [("llm-d.ai/role", role), ("kubernetes.io/hostname", host)];
    let pods = [
        pod("decode", "a"),
        pod("decode", "b"),
        pod("decode", "c"),
        pod("prefill", "b"),
        pod("prefill", "c"),
        pod("prefill", "a"),
    ];
    let near = ["10.0.0.1:8000 10.0.0.6:8000", "10.0.0.2:8000 10.0.0.4:8000", "10.0.0.3:8000 10.0.0.5:8000"];
    let labels: Vec<&[(&str, &str)]> = pods.iter().map(|pod| &pod[..]).collect();
    for (parameters, second) in [
        ("deciders: {prefill: always-disagg-pd-decider}", "SECOND-OF-PREFILL"),
        ("stageOrder: prefill-first", "SECOND-OF-DECODE"),
    ] {
        let config =
            NEAR.replace("PARAMETERS", parameters).replace(second, "{pluginRef: topology-affinity-filter}");
        let config = config.replace(", SECOND-OF-PREFILL", "").replace(", SECOND-OF-DECODE", "");
        let pool = Pool::new(&config, labelled(&labels));
        let mut seen = Vec::new();
        for _ in 0..60 {
            let routed = pool.route(&asking(&[])).unwrap();
            let prefiller = std::str::from_utf8(&routed.headers()[0].value).unwrap().to_owned();
            seen.push(format!("{} {prefiller}", routed.decision().primary_endpoint().authority()));
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen, near, "{parameters}");
    }
}

#[test]
fn ranks_that_decode_are_reached_through_the_primary_port() {
    let config = "
plugins:
- {type: prefill-filter}
- {type: decode-filter}
- {type: prefill-header-handler}
- {type: always-disagg-pd-decider}
- {type: pd-profile-handler, parameters: {deciderPluginName: always-disagg-pd-decider, primaryPort: 9000}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}]}
- {name: decode, plugins: [{pluginRef: decode-filter}]}
";
    let role = "llm-d.ai/role";
    let pool = Pool::new(config, labelled(&[&[(role, "prefill")], &[(role, "decode")]]));
    let mut routed = pool.route(&asking(&[])).unwrap();
    assert_eq!(routed.destination(), "10.0.0.2:9000");
    assert_eq!(routed.take_scores(), None, "they would name the rank's own port");
    let mut headers: Vec<_> = routed.headers().iter().map(|header| (&*header.name, &*header.value)).collect();
    headers.sort();
    let expected: [(&str, &[u8]); 2] =
        [("x-data-parallel-host-port", b"10.0.0.2:8000"), ("x-prefiller-host-port", b"10.0.0.1:8000")];
    assert_eq!(headers, expected);
}
