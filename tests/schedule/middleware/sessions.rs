//! Session affinity: tokens, bindings, and their sources.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prometheus::{IntCounter, IntGauge, Registry};
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::endpoints::{Candidates, EndpointSpec, Store, SubsetHint};
use usher::request::Request;
use usher::schedule::{
    Bindings, Context, Decision, Effects, Filter, PluginId, PreRequest, Profile, ProfileHandler, ProfileSet,
    Record, ResponseHead, Runs, ScheduleError, Scheduler, Scorer, Scratch, Served, SessionAffinity,
    SessionSource, SingleProfileHandler, State,
};

use super::{build, dispatcher, with_headers};
use crate::support::{Fixed, MAX_AGE, NOW, Only, candidates, id, metrics, top};

const TTL_MS: u64 = 1000;

fn bindings() -> Arc<Bindings> {
    let (live, evicted) = (IntGauge::new("live", "Live."), IntCounter::new("evicted", "Evicted."));
    Arc::new(Bindings::new(100, live.unwrap(), evicted.unwrap()))
}

fn by_header(bindings: &Arc<Bindings>) -> Arc<SessionAffinity> {
    let sources = vec![SessionSource::Header("x-session-id".to_owned())];
    Arc::new(SessionAffinity::by_session(sources, Arc::clone(bindings), TTL_MS, None))
}

/// A profile with the plugin as a filter, or as a scorer beside another one.
fn scheduler(plugin: &Arc<SessionAffinity>, beside: Option<(Vec<f32>, f64)>) -> Scheduler {
    let metrics = metrics();
    let mut builder = Profile::builder("default", &metrics);
    match beside {
        None => builder.filter(&id("affinity"), Arc::clone(plugin) as Arc<dyn Filter>),
        Some((scores, weight)) => {
            builder.scorer(&id("affinity"), Arc::clone(plugin) as Arc<dyn Scorer>, 1.0);
            builder.scorer(&id("other"), Arc::new(Fixed(scores)), weight);
        }
    }
    let profile = builder.picker(&PluginId::new("max-score-picker", "picker"), top(1));
    Scheduler::new(vec![profile], &id("handler"), Arc::new(SingleProfileHandler), &metrics)
}

/// One request, decided and acted upon. Returns the name of its endpoint, and the headers
/// of its response.
fn send(
    scheduler: &Scheduler,
    plugin: &SessionAffinity,
    all: &Candidates,
    request: &Request,
    now_ms: u64,
    rng: &mut StdRng,
) -> (String, Vec<(String, String)>) {
    let cx = Context::new(request, now_ms, MAX_AGE);
    let decision: Decision = scheduler.decide(&cx, all, rng, &mut Scratch::default(), Record::No).unwrap();
    let mut effects = Effects::default();
    plugin.decided(&cx, &decision, &mut effects);
    let (mut observers, mut headers) = (effects.take_observers(), Vec::new());
    let endpoint = decision.primary_endpoint();
    observers.response_headers(
        &ResponseHead { served: &Served::Unknown, endpoint, is_stream: true },
        &mut headers,
    );
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        endpoint.name().to_owned(),
        headers.iter().map(|header| (header.name.to_string(), text(&header.value))).collect(),
    )
}

fn token(id: &str) -> String {
    STANDARD.encode(id)
}

#[test]
fn a_token_names_the_endpoint() {
    let all = candidates(&[(None, None); 3]);
    let plugin = Arc::new(SessionAffinity::by_token("x-session-token", None));
    let mut rng = StdRng::seed_from_u64(1);
    let table = [
        (token("default/pod-2"), Some("pod-2")),
        (token("default/pod-0"), Some("pod-0")),
        (token("default/gone"), None),
        (token("pod-2"), None),
        (token(""), None),
        ("default/pod-2".to_owned(), None),
        (token("default/pod-2").trim_end_matches('=').to_owned(), None),
        (token(&"x".repeat(5000)), None),
    ];
    for (sent, expected) in table {
        let request = with_headers(&[("x-session-token", sent.as_str())]);
        for beside in [None, Some((vec![0.4, 0.5, 0.4], 1.0))] {
            let filters = beside.is_none();
            let scheduler = scheduler(&plugin, beside);
            let (endpoint, headers) = send(&scheduler, &plugin, &all, &request, NOW, &mut rng);
            match expected {
                Some(name) => assert_eq!(endpoint, name, "{sent}"),
                // As a scorer it leaves the choice to the other one.
                None if !filters => assert_eq!(endpoint, "pod-1", "{sent}"),
                None => {}
            }
            let header = ("x-session-token".to_owned(), token(&format!("default/{endpoint}")));
            assert_eq!(headers, [header], "{sent}: every response says who served");
            let ignored = request.headers.take_ignored().count();
            assert_eq!(ignored, usize::from(sent.len() > 1024), "{sent}");
        }
    }
}

#[test]
fn only_the_endpoint_of_the_session_scores_one() {
    let all = candidates(&[(None, None); 3]);
    let plugin = SessionAffinity::by_token("x-session-token", None);
    for (sent, expected) in [("default/pod-1", [0.0, 1.0, 0.0]), ("default/pod-9", [0.0; 3])] {
        let token = token(sent);
        let request = with_headers(&[("x-session-token", &token)]);
        let mut out = vec![0.0; 3];
        plugin.score(&Context::new(&request, NOW, MAX_AGE), all.view(), &mut out);
        assert_eq!(out, expected);
    }
}

#[test]
fn the_first_source_that_names_a_session_counts() {
    let (bindings, all) = (bindings(), candidates(&[(None, None); 3]));
    let sources = vec![SessionSource::Header("x-session-id".to_owned()), SessionSource::Agent];
    let plugin = Arc::new(SessionAffinity::by_session(sources, Arc::clone(&bindings), TTL_MS, None));
    let pod_2_is_best = scheduler(&plugin, Some((vec![0.0, 0.0, 0.5], 1.0)));
    let pod_1_is_best = scheduler(&plugin, Some((vec![0.0, 0.5, 0.0], 1.0)));
    let mut rng = StdRng::seed_from_u64(1);
    let header = with_headers(&[("x-session-id", "s")]);
    let from_agent = |mut request: Request| {
        request.agent = Some("agent".to_owned());
        request
    };
    let (agent, both) = (from_agent(with_headers(&[])), from_agent(header.clone()));
    let empty = from_agent(with_headers(&[("x-session-id", "")]));
    let mut send = |scheduler: &Scheduler, request: &Request| {
        let (endpoint, headers) = send(scheduler, &plugin, &all, request, NOW, &mut rng);
        assert_eq!(headers, [], "clients that name their session get no header");
        endpoint
    };
    assert_eq!(send(&pod_2_is_best, &header), "pod-2");
    assert_eq!(send(&pod_1_is_best, &agent), "pod-1");
    for (request, expected) in [(&header, "pod-2"), (&agent, "pod-1"), (&both, "pod-2"), (&empty, "pod-1")] {
        assert_eq!(send(&pod_2_is_best, request), expected);
        assert_eq!(send(&pod_1_is_best, request), expected);
    }
    assert_eq!(send(&pod_1_is_best, &Request::default()), "pod-1", "without a session");
    assert_eq!(bindings.len(), 2);
}

/// Runs all profiles and returns the last one.
struct All;

impl ProfileHandler for All {
    fn next(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        (0..runs.len()).collect()
    }

    fn finish(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        Ok(runs.len() - 1)
    }
}

#[test]
fn session_affinity_may_name_another_profile() {
    let (all, metrics) = (candidates(&[(None, None); 3]), metrics());
    let profile = |name: &str, only: u32| {
        let mut builder = Profile::builder(name, &metrics);
        builder.filter(&id("only"), Arc::new(Only(vec![only])));
        builder.picker(&id("picker"), top(1))
    };
    let profiles = vec![profile("prefill", 2), profile("decode", 1)];
    let scheduler = Scheduler::new(profiles, &id("all"), Arc::new(All), &metrics);
    let mut rng = StdRng::seed_from_u64(1);
    let request = with_headers(&[("x-session-id", "s")]);
    let table = [(None, Some("pod-1")), (Some("prefill"), Some("pod-2")), (Some("encode"), None)];
    for (profile, expected) in table {
        let profile = profile.map(str::to_owned);
        let plugin = SessionAffinity::by_token("x-token", profile.clone());
        let (_, headers) = send(&scheduler, &plugin, &all, &request, NOW, &mut rng);
        let header = |pod: &str| ("x-token".to_owned(), token(&format!("default/{pod}")));
        assert_eq!(headers, expected.map(header).into_iter().collect::<Vec<_>>());
        let sources = vec![SessionSource::Header("x-session-id".to_owned())];
        let bindings = bindings();
        let plugin = SessionAffinity::by_session(sources, Arc::clone(&bindings), TTL_MS, profile);
        send(&scheduler, &plugin, &all, &request, NOW, &mut rng);
        let bound = bindings.get("s", NOW).map(|endpoint| endpoint.to_string());
        assert_eq!(bound, expected.map(|pod| format!("default/{pod}")));
    }
}

/// One request of the property test.
#[derive(Clone, Debug)]
struct Step {
    after_ms: u64,
    session: usize,
    candidates: Vec<u32>,
    best: u32,
}

fn step() -> impl Strategy<Value = Step> {
    let candidates = proptest::sample::subsequence(vec![0u32, 1, 2, 3], 1..=4);
    (prop_oneof![4 => 0u64..400, 1 => 900u64..1100], 0usize..3, candidates, 0u32..4)
        .prop_map(|(after_ms, session, candidates, best)| Step { after_ms, session, candidates, best })
}

proptest! {
    /// A session stays where it is while that is a candidate, is bound anew where it is
    /// not, and is forgotten when it was not used for its time; whether the plugin
    /// filters, scores, or is outvoted by another scorer.
    #[test]
    fn sessions_equal_their_reference(
        steps in proptest::collection::vec(step(), 1..40),
        how in 0u8..3,
        seed: u64,
    ) {
        let (bindings, all) = (bindings(), candidates(&[(None, None); 4]));
        let plugin = by_header(&bindings);
        let mut rng = StdRng::seed_from_u64(seed);
        // The reference: endpoint and time of the last request, by session.
        let mut reference: HashMap<usize, (u32, u64)> = HashMap::new();
        let mut now = NOW;
        for step in steps {
            now += step.after_ms;
            let bound = reference.get(&step.session).copied().filter(|(_, at)| now - at < TTL_MS);
            let bound = bound.map(|(endpoint, _)| endpoint).filter(|endpoint| step.candidates.contains(endpoint));
            let mut scores = vec![0.0; 4];
            scores[step.best as usize] = 0.5;
            let scheduler = match how {
                0 => scheduler(&plugin, None),
                1 => scheduler(&plugin, Some((scores, 1.0))),
                _ => scheduler(&plugin, Some((scores, 9.0))),
            };
            let session = format!("session {}", step.session);
            let request = with_headers(&[("x-session-id", &session)]);
            let some = all.narrowed(&step.candidates);
            let (endpoint, _) = send(&scheduler, &plugin, &some, &request, now, &mut rng);
            let endpoint: u32 = endpoint.strip_prefix("pod-").unwrap().parse().unwrap();
            prop_assert!(step.candidates.contains(&endpoint));
            let is_outvoted = how == 2 && step.candidates.contains(&step.best);
            match bound {
                Some(bound) if !is_outvoted => prop_assert_eq!(endpoint, bound),
                _ if how > 0 && step.candidates.contains(&step.best) => prop_assert_eq!(endpoint, step.best),
                _ => {}
            }
            reference.insert(step.session, (bound.unwrap_or(endpoint), now));
        }
        for (session, (endpoint, _)) in reference.iter().filter(|(_, (_, at))| now - at < TTL_MS) {
            let bound = bindings.get(&format!("session {session}"), now).unwrap();
            prop_assert_eq!(&*bound, &format!("default/pod-{endpoint}"));
        }
    }
}

#[tokio::test]
async fn bindings_outlive_a_configuration() {
    let (store, state) = (Arc::new(Store::default()), State::default());
    let spec = |index: u8| EndpointSpec::new(format!("pod-{index}"), ([10, 0, 0, index], 8000));
    store.replace((1..=8).map(spec).collect());
    let config = |name: &str| {
        format!(
            "plugins: [{{name: {name}, type: session-affinity-filter, parameters: {{strategy: session_id, sessionIdConfig: {{sources: [{{attribute: SessionID}}]}}}}}}, {{type: session-id-producer, parameters: {{cookieName: sid}}}}]\n"
        )
    };
    let request = |session: usize| {
        let cookie = format!("theme=dark; sid=session-{session}");
        with_headers(&[("cookie", &cookie)])
    };
    let mut first = Vec::new();
    let before = dispatcher(&config("mine"), &store, &state);
    for session in 0..20 {
        let routed = before.enter(&Arc::new(request(session)), &SubsetHint::Missing).decided().await.unwrap();
        first.push(routed.destination());
    }
    let after = dispatcher(&config("mine"), &store, &state);
    for (session, expected) in first.iter().enumerate() {
        let routed = after.enter(&Arc::new(request(session)), &SubsetHint::Missing).decided().await.unwrap();
        assert_eq!(routed.destination(), expected);
    }
    let other = dispatcher(&config("other"), &store, &state);
    let mut moved = 0;
    for (session, expected) in first.iter().enumerate() {
        let routed = other.enter(&Arc::new(request(session)), &SubsetHint::Missing).decided().await.unwrap();
        moved += usize::from(routed.destination() != expected);
    }
    assert!(moved > 5, "sessions belong to the plugin of their name");
}

#[test]
fn the_producer_of_a_session_has_to_be_declared() {
    let affinity = |source: &str| {
        format!(
            "plugins:\n- {{type: session-affinity-scorer, parameters: {{strategy: session_id, sessionIdConfig: {{sources: [{source}]}}}}}}\n"
        )
    };
    let table = [
        (
            "{attribute: SessionID}",
            "plugin 'session-id-producer': it needs exactly one of headerName and cookieName",
        ),
        (
            "{attribute: SessionID, producer: mine}",
            "plugin 'session-affinity-scorer': it reads SessionId from the plugin 'mine', which is not declared",
        ),
    ];
    for (source, message) in table {
        let error = build(&affinity(source), &Registry::new(), &State::default()).unwrap_err();
        assert_eq!(error.position().map(|at| at.line), Some(2), "{error}");
        assert!(error.message().contains(message), "{error}");
    }
    let declared = format!(
        "{}- {{name: mine, type: session-id-producer, parameters: {{headerName: x-s}}}}\n",
        affinity("{attribute: SessionID, producer: mine}")
    );
    build(&declared, &Registry::new(), &State::default()).unwrap();
}
