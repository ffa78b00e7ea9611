//! Plugins learn who computes a prompt from the profile handler, whatever its profile is
//! called.

use serde_json::json;
use usher::endpoints::health::Verdict;
use usher::flow::Routed;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{Served, State};

use crate::pool::{Pool, labelled, pipeline};

/// Two endpoints that compute prompts and one that decodes, and what picks the former.
fn pool(handler: &str, plugin: &str) -> Pool {
    let config = format!(
        "
plugins:
- {handler}
- type: always-disagg-pd-decider
- type: prefill-filter
- type: decode-filter
- {{name: by, {plugin}}}
schedulingProfiles:
- {{name: compute, plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: by}}]}}
- {{name: respond, plugins: [{{pluginRef: decode-filter}}, {{pluginRef: by}}]}}
"
    );
    let role = |role| -> Box<[(&str, &str)]> { Box::new([("llm-d.ai/role", role)]) };
    let roles = [role("prefill"), role("prefill"), role("decode")];
    Pool::new(&config, labelled(&[&roles[0], &roles[1], &roles[2]]))
}

const HANDLERS: [&str; 2] = [
    "{type: disagg-profile-handler, parameters: {profiles: {prefill: compute, decode: respond}, deciders: {prefill: always-disagg-pd-decider}}}",
    "{type: pd-profile-handler, parameters: {prefillProfile: compute, decodeProfile: respond, deciderPluginName: always-disagg-pd-decider}}",
];

/// A prompt of 300 tokens of its own.
fn prompt(number: usize) -> Request {
    let headers: Headers = [(":path", "/v1/completions")].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    let prompt = format!("{number:04}").repeat(300);
    parser.push(json!({"model": "m", "prompt": prompt, "stream": true}).to_string().into());
    parser.finish().unwrap()
}

fn computing(routed: &Routed) -> u32 {
    routed.decision().run("compute").unwrap().picks[0]
}

/// Total scores of the endpoints that compute prompts.
fn totals(routed: &Routed) -> Vec<f64> {
    routed.decision().run("compute").unwrap().record.as_deref().unwrap().totals.clone()
}

#[test]
fn prompt_is_cached_at_its_prefill_endpoint() {
    for handler in HANDLERS {
        let pool = pool(handler, "type: prefix-cache-scorer");
        let first = pool.ask(&prompt(1));
        let scores = totals(&pool.ask(&prompt(1)));
        let expected = [0, 1].map(|position| f64::from(u8::from(position == computing(&first))));
        assert_eq!(scores, expected, "{handler}");
    }
}

#[test]
fn cold_prompts_rotate_over_prefill_endpoints() {
    for handler in HANDLERS {
        let pool = pool(handler, "type: no-hit-lru-scorer");
        let picks: Vec<u32> = (0..4).map(|number| computing(&pool.ask(&prompt(number)))).collect();
        assert_eq!(picks, [0, 1, 0, 1], "{handler}");
    }
}

#[test]
fn expected_latency_counts_waiting_prefills() {
    for handler in HANDLERS {
        let pool = pool(handler, "type: expected-latency-scorer");
        let routed: Vec<_> = (0..8).map(|number| pool.ask(&prompt(number))).collect();
        let first = routed.iter().filter(|routed| computing(routed) == 0).count();
        assert_eq!(first, 4, "{handler}");
    }
}

#[test]
fn computed_prompt_is_no_longer_in_flight() {
    for handler in HANDLERS {
        let pool = pool(handler, "type: active-request-scorer");
        let mut first = pool.ask(&prompt(1));
        let busy = totals(&pool.ask(&prompt(2)));
        assert!(busy[computing(&first) as usize] < 1.0, "{handler}: {busy:?}");
        first.response_begins(&Served::Unknown, Verdict::Good, true);
        first.first_token();
        assert_eq!(totals(&pool.ask(&prompt(3))), [1.0, 1.0], "{handler}");
    }
}

#[test]
fn unknown_profile_name_is_noted() {
    let config = |plugin: &str| {
        format!(
            "
plugins:
- {{name: it, {plugin}}}
- type: queue-scorer
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: queue-scorer}}]}}]
"
        )
    };
    let notes = |plugin: &str| pipeline(&config(plugin), &State::default()).unwrap().notes;
    for (plugin, key) in
        [("p2p-source-producer", "prefillProfileName"), ("disagg-headers-handler", "prefillProfile")]
    {
        let names = |profile: &str| format!("type: {plugin}, parameters: {{{key}: {profile}}}");
        let expected =
            format!("plugin 'it': {key} names the scheduling profile 'compute', which doesn't exist");
        assert!(notes(&names("compute")).contains(&expected), "{:?}", notes(&names("compute")));
        for fine in [names("default"), format!("type: {plugin}")] {
            assert!(!notes(&fine).iter().any(|note| note.contains(key)), "{fine}");
        }
    }
}
