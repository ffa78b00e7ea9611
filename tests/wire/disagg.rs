//! Endpoints that decode, compute the prompt and encode, as the sidecar of a pod reads them.

use serde_json::json;

use crate::support::*;

/// Endpoints 127.0.0.1, 127.0.0.2 and so on, of these roles.
async fn picker(config: &str, roles: &[&str]) -> Picker {
    let entry = |(number, role): (usize, &&str)| {
        format!(
            "- {{name: p{number}, address: 127.0.0.{number}, port: '80', labels: {{llm-d.ai/role: {role}}}}}\n"
        )
    };
    let entries: String = (1..).zip(roles).map(entry).collect();
    Picker::start_with(&entries, &[&format!("--config-text={config}")]).await
}

/// The stages' profiles and their filters, and these plugins.
fn config(plugins: &str) -> String {
    format!(
        "
plugins:
- {{type: encode-filter}}
- {{type: prefill-filter}}
- {{type: decode-filter}}
- {{type: always-disagg-pd-decider}}
- {{type: always-disagg-multimodal-decider}}
- {{name: all, type: max-score-picker, parameters: {{maxNumOfEndpoints: 9}}}}
- {{name: one, type: max-score-picker}}
{plugins}
schedulingProfiles:
- {{name: encode, plugins: [{{pluginRef: encode-filter}}, {{pluginRef: all}}]}}
- {{name: prefill, plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: all}}]}}
- {{name: decode, plugins: [{{pluginRef: decode-filter}}, {{pluginRef: one}}]}}
"
    )
}

const PREFILLER: &str = "x-prefiller-host-port";
const ENCODERS: &str = "x-encoder-hosts-ports";
/// Headers that a client forges to steer its request.
const FORGED: [(&str, &str); 3] =
    [(PREFILLER, "9.9.9.9:9"), (ENCODERS, "9.9.9.9:9"), ("x-data-parallel-host-port", "9.9.9.9:9")];

/// Asks about a text, or about a picture with it, with forged headers.
async fn ask(picker: &Picker, picture: bool) -> Mutation {
    let mut stream = picker.stream().await;
    let base = [(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")];
    stream.send(headers(&[&base[..], &FORGED[..]].concat(), false));
    let mut content = vec![json!({"type": "text", "text": "What is this?"})];
    if picture {
        content.push(json!({"type": "image_url", "image_url": {"url": "http://example.com/cat.png"}}));
    }
    let text = json!({"model": "m", "messages": [{"role": "user", "content": content}]}).to_string();
    stream.send(body(text, true));
    let mutation = stream.request_headers().await;
    // What is not set is gone.
    for (name, _) in FORGED {
        let is_removed = mutation.removed.iter().any(|removed| removed == name);
        assert_ne!(mutation.get(name).is_some(), is_removed, "{name}: {mutation:?}");
    }
    mutation
}

fn sorted(list: Option<&str>) -> Vec<&str> {
    let mut all: Vec<_> = list.into_iter().flat_map(|list| list.split(',')).collect();
    all.sort_unstable();
    all
}

fn decisions(picker: &Picker, family: &str, kind: &str) -> Option<f64> {
    picker.metric(&format!("{family}{{decision_type=\"{kind}\",model_name=\"m\"}}"))
}

const OLDER: &str = "llm_d_inference_scheduler_disagg_decision_total";

#[tokio::test]
async fn each_stage_gets_its_endpoints() {
    let handler = "- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider, encode: always-disagg-multimodal-decider}}}";
    let picker = picker(&config(handler), &["encode", "prefill", "decode", "encode"]).await;
    let text = ask(&picker, false).await;
    assert_eq!(text.destination(), "127.0.0.3:80");
    assert_eq!((text.get(PREFILLER), text.get(ENCODERS)), (Some("127.0.0.2:80"), None));
    for _ in 0..3 {
        let picture = ask(&picker, true).await;
        assert_eq!(picture.destination(), "127.0.0.3:80");
        assert_eq!(picture.get(PREFILLER), Some("127.0.0.2:80"));
        assert_eq!(sorted(picture.get(ENCODERS)), ["127.0.0.1:80", "127.0.0.4:80"], "all of them");
    }
    assert_eq!(decisions(&picker, OLDER, "prefill-decode"), Some(1.0));
    assert_eq!(decisions(&picker, OLDER, "encode-prefill-decode"), Some(3.0));
    assert_eq!(
        picker.metric(
            "llm_d_epp_disagg_decision_total{decision_type=\"prefill-decode\",model_name=\"m\",plugin_name=\"disagg-profile-handler\",plugin_type=\"disagg-profile-handler\"}"
        ),
        Some(1.0)
    );
}

#[tokio::test]
async fn one_prefill_endpoint_is_named() {
    let handler =
        "- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}";
    let picker = picker(&config(handler), &["prefill", "decode", "prefill", "prefill-decode"]).await;
    for _ in 0..10 {
        let asked = ask(&picker, false).await;
        let prefiller = asked.get(PREFILLER).unwrap();
        assert!(["127.0.0.1:80", "127.0.0.3:80", "127.0.0.4:80"].contains(&prefiller), "{prefiller}");
        assert!(["127.0.0.2:80", "127.0.0.4:80"].contains(&asked.destination()));
    }
}

#[tokio::test]
async fn only_a_missing_decode_endpoint_refuses_the_request() {
    let handler = "- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider, encode: always-disagg-multimodal-decider}}}";
    let prefill_first = handler.replace(
        "{deciders: {prefill: always-disagg-pd-decider, ",
        "{stageOrder: prefill-first, deciders: {",
    );
    for handler in [handler, &prefill_first] {
        let picker = picker(&config(handler), &["decode"]).await;
        let asked = ask(&picker, true).await;
        assert_eq!(asked.destination(), "127.0.0.1:80");
        assert_eq!((asked.get(PREFILLER), asked.get(ENCODERS)), (None, None));
        assert_eq!(decisions(&picker, OLDER, "decode-only"), Some(1.0));
    }
    let picker = picker(&config(handler), &["encode", "prefill"]).await;
    let mut stream = picker.stream().await;
    stream.send(headers(&[(":path", "/v1/completions")], false));
    stream.send(body(PROMPT, true));
    let immediate = stream.immediate().await;
    assert_eq!(immediate.status.unwrap().code, 429);
    let text = String::from_utf8(immediate.body).unwrap();
    assert_eq!(text, "inference error: ResourceExhausted - no endpoints available for the given request");
    assert_eq!(decisions(&picker, OLDER, "decode-only"), None, "nothing was decided");
}

#[tokio::test]
async fn pd_profile_handler_names_prefill_and_decode_endpoints() {
    let plugins = "- {type: prefill-header-handler}\n- {type: pd-profile-handler, parameters: {deciderPluginName: always-disagg-pd-decider, primaryPort: 8000}}";
    let picker = picker(&config(plugins), &["prefill", "decode"]).await;
    let asked = ask(&picker, true).await;
    assert_eq!(asked.destination(), "127.0.0.2:8000", "the pod's port");
    assert_eq!(asked.get("x-data-parallel-host-port"), Some("127.0.0.2:80"), "its rank");
    assert_eq!((asked.get(PREFILLER), asked.get(ENCODERS)), (Some("127.0.0.1:80"), None));
    let older = "llm_d_inference_scheduler_pd_decision_total";
    assert_eq!(decisions(&picker, older, "prefill-decode"), Some(1.0));
}
