//! Profile handlers, and the headers that name their decisions.

use std::sync::Arc;

use usher::endpoints::health::Verdict;
use usher::schedule::{
    Context, DisaggHeaders, DisaggHeadersParams, Effects, Header, Outcome, PreRequest, Profile,
    ProfileHandler, ProfileSet, Record, Runs, ScheduleError, Scheduler, Served, State,
};

use crate::pool::{Pool, asking, at, labelled, pipeline};
use crate::support::{Only, candidates, decide, id, metrics, top, with_context};

/// Names and values of headers to set.
fn texts(headers: &[Header]) -> Vec<(String, String)> {
    let text = |header: &Header| (header.name.to_string(), String::from_utf8(header.value.to_vec()).unwrap());
    headers.iter().map(text).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn rank_is_sent_in_a_header_to_the_primary_port() {
    // Parameters, ranks, destination, header.
    let rank = ["10.0.0.7:8003"];
    let table: [(&str, &[&str], &str, &str); 3] = [
        ("{}", &rank, "10.0.0.7:8000", "10.0.0.7:8003"),
        ("{primaryPort: 9000}", &rank, "10.0.0.7:9000", "10.0.0.7:8003"),
        ("{primaryPort: 8000}", &["[fd00::1]:8001"], "[fd00::1]:8000", "[fd00::1]:8001"),
    ];
    for (parameters, ranks, destination, header) in table {
        let config =
            format!("plugins: [{{type: data-parallel-profile-handler, parameters: {parameters}}}]\n");
        let mut routed = Pool::new(&config, at(ranks)).route(&asking(&[])).unwrap();
        assert_eq!(routed.destination(), destination);
        assert_eq!(texts(routed.headers()), pairs(&[("x-data-parallel-host-port", header)]));
        assert_eq!(routed.take_scores(), None, "they would name the ranks' own ports");
    }
}

#[test]
fn fallback_ranks_are_reached_through_the_primary_port_too() {
    let config = "
plugins:
- {type: data-parallel-profile-handler, parameters: {primaryPort: 8000}}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
";
    let routed = Pool::new(config, at(&["10.0.0.1:8001", "10.0.0.2:8002"])).route(&asking(&[])).unwrap();
    let first = routed.decision().primary_endpoint().authority().to_string();
    let expected = match first.as_str() {
        "10.0.0.1:8001" => "10.0.0.1:8000,10.0.0.2:8000",
        _ => "10.0.0.2:8000,10.0.0.1:8000",
    };
    assert_eq!(routed.destination(), expected);
    assert_eq!(texts(routed.headers()), pairs(&[("x-data-parallel-host-port", &first)]));
}

const BY_HEADER: &str = "
plugins:
- {type: header-profile-handler, parameters: {PARAMETERS}}
- type: prefill-filter
- type: decode-filter
- type: encode-filter
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}]}
- {name: decode, plugins: [{pluginRef: decode-filter}]}
- {name: encode, plugins: [{pluginRef: encode-filter}]}
";

#[test]
fn a_header_names_the_profile() {
    let role = "llm-d.ai/role";
    let pool = |parameters| {
        let config = BY_HEADER.replace("PARAMETERS", parameters);
        Pool::new(&config, labelled(&[&[(role, "prefill")], &[(role, "decode")]]))
    };
    let by_default = pool("");
    let table: [(&[(&str, &str)], Vec<u32>); 6] = [
        (&[], vec![1]),
        (&[("epp-profile", "prefill")], vec![0]),
        (&[("EPP-Profile", "decode")], vec![1]),
        (&[("epp-profile", "")], vec![1]),
        (&[("x-profile", "prefill")], vec![1]),
        // Its only filter leaves nothing.
        (&[("epp-profile", "encode")], vec![]),
    ];
    for (headers, expected) in table {
        assert_eq!(by_default.kept(&asking(headers)), expected, "{headers:?}");
    }
    let otherwise = pool("headerName: X-Profile, defaultProfile: prefill");
    assert_eq!(otherwise.kept(&asking(&[("epp-profile", "decode")])), [0]);
    assert_eq!(otherwise.kept(&asking(&[("x-profile", "decode")])), [1]);
}

#[test]
fn missing_profile_is_refused() {
    let endpoints = || labelled(&[&[]]);
    let unknown = Pool::new(&BY_HEADER.replace("PARAMETERS", ""), endpoints());
    let rejection = unknown.route(&asking(&[("epp-profile", "nope\u{7f}")])).unwrap_err();
    assert_eq!((rejection.code.status(), rejection.reason), (429, None));
    assert!(rejection.message.starts_with("failed to find target endpoint: the header epp-profile names no"));
    assert!(!rejection.message.contains("nope"), "a client's words are not repeated");
    let defaulted = Pool::new(&BY_HEADER.replace("PARAMETERS", "defaultProfile: main"), endpoints());
    let rejection = defaulted.route(&asking(&[])).unwrap_err();
    assert!(rejection.message.contains("'main'"), "{}", rejection.message);
}

#[test]
fn only_profile_runs_for_any_header() {
    let config = "
plugins: [{type: header-profile-handler}]
schedulingProfiles: [{name: main}]
";
    let pool = Pool::new(config, labelled(&[&[]]));
    assert_eq!(pool.kept(&asking(&[("epp-profile", "decode")])), [0]);
}

#[test]
fn a_handler_of_one_profile_is_refused_with_two() {
    for handler in ["single-profile-handler", "data-parallel-profile-handler"] {
        let config =
            format!("plugins: [{{type: {handler}}}]\nschedulingProfiles: [{{name: a}}, {{name: b}}]\n");
        let error = pipeline(&config, &State::default()).unwrap_err();
        let message = format!("{handler} can't choose among multiple scheduling profiles, and there are 2");
        assert!(error.message().contains(&message), "{error}");
    }
}

/// Runs every profile and returns the one called `decode`.
struct Everything;

impl ProfileHandler for Everything {
    fn next(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        (0..runs.len()).filter(|profile| matches!(runs.outcome(*profile), Outcome::Waiting)).collect()
    }

    fn finish(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        runs.find("decode").ok_or_else(|| ScheduleError::NoTarget("no decode".into()))
    }
}

/// The headers for profiles, each with the endpoints that it picks.
fn disagg_headers(params: DisaggHeadersParams, profiles: &[(&str, &[u32])]) -> Vec<(String, String)> {
    let metrics = metrics();
    let profile = |(name, picks): &(&str, &[u32])| {
        let mut builder = Profile::builder(*name, &metrics);
        builder.filter(&id("only"), Arc::new(Only(picks.to_vec())));
        builder.picker(&id("picker"), top(picks.len().max(1)))
    };
    let profiles = profiles.iter().map(profile).collect();
    let scheduler = Scheduler::new(profiles, &id("everything"), Arc::new(Everything), &metrics);
    let decision = decide(&scheduler, &candidates(&[(None, None); 4]), 5, Record::No).unwrap();
    let mut effects = Effects::default();
    with_context(|cx| DisaggHeaders::new(params).decided(cx, &decision, &mut effects));
    texts(effects.headers())
}

#[test]
fn the_pods_of_other_stages_are_named_in_headers() {
    let default = || DisaggHeadersParams { prefill_profile: None, encode_profile: "encode".into() };
    let (prefiller, encoders) = ("x-prefiller-host-port", "x-encoder-hosts-ports");
    assert_eq!(disagg_headers(default(), &[("decode", &[0])]), []);
    assert_eq!(
        disagg_headers(default(), &[("decode", &[0]), ("prefill", &[2])]),
        pairs(&[(prefiller, "10.0.0.3:8000")])
    );
    assert_eq!(
        disagg_headers(default(), &[("encode", &[3]), ("prefill", &[]), ("decode", &[0])]),
        pairs(&[(encoders, "10.0.0.4:8000")]),
        "a stage that found nothing is left out"
    );
    let both = disagg_headers(default(), &[("prefill", &[1, 2]), ("decode", &[0]), ("encode", &[2, 3])]);
    assert!(["10.0.0.2:8000", "10.0.0.3:8000"].contains(&both[0].1.as_str()), "one that computes: {both:?}");
    let all = ["10.0.0.3:8000,10.0.0.4:8000", "10.0.0.4:8000,10.0.0.3:8000"];
    assert!(all.contains(&both[1].1.as_str()), "all that encode: {both:?}");
    let named = DisaggHeadersParams { prefill_profile: Some("p".into()), encode_profile: "e".into() };
    let profiles: [(&str, &[u32]); 4] = [("decode", &[0]), ("prefill", &[1]), ("p", &[2]), ("e", &[3])];
    assert_eq!(
        disagg_headers(named, &profiles),
        pairs(&[(prefiller, "10.0.0.3:8000"), (encoders, "10.0.0.4:8000")])
    );
}

#[test]
fn both_types_of_the_header_handler_write_headers() {
    for writer in ["disagg-headers-handler", "prefill-header-handler"] {
        let config = BY_HEADER.replace("PARAMETERS", "");
        let config = config.replace(
            "plugins:\n- {type: header",
            &format!("plugins:\n- {{type: {writer}}}\n- {{type: header"),
        );
        let pool = Pool::new(&config, labelled(&[&[("llm-d.ai/role", "both")]]));
        let routed = pool.route(&asking(&[("epp-profile", "prefill")])).unwrap();
        assert_eq!(texts(routed.headers()), pairs(&[("x-prefiller-host-port", "10.0.0.1:8000")]), "{writer}");
        assert!(pool.route(&asking(&[])).unwrap().headers().is_empty());
    }
}

#[test]
fn verifier_header_names_the_serving_endpoint() {
    let pool = Pool::new("plugins: [{type: destination-endpoint-served-verifier}]\n", labelled(&[&[]]));
    let table = [
        (Served::Unknown, "fail: missing envoy lb metadata"),
        (Served::Missing, "fail: missing destination endpoint served metadata"),
        (Served::By("10.0.0.1:8000".into()), "10.0.0.1:8000"),
        (Served::By("192.0.2.1:3000".into()), "192.0.2.1:3000"),
    ];
    for (served, expected) in table {
        let mut routed = pool.route(&asking(&[])).unwrap();
        let headers = routed.response_begins(&served, Verdict::Good, true);
        assert_eq!(texts(&headers), pairs(&[("x-conformance-test-served-endpoint", expected)]));
    }
}
