//! KV event state in the explanation of a decision.

use serde_json::{Value, json};

use super::*;
use crate::explain::{exchange_of, explain, page};

/// The only decision about a request.
fn decision(picker: &Picker, id: &str) -> Value {
    page(picker, &format!("?id={id}"))["decisions"][0].take()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanation_shows_cached_blocks_of_engines() {
    let mut a = Engine::at(A, 0).await;
    let picker = picker(&format!("socketPort: {}", a.port), "").await;
    connected(&picker, &mut a, "a").await;
    a.store(None, 0..8).await;
    wait(&picker, "blocks", "a", 2.0);
    let prompt = r#"{"model":"m","stream":true,"prompt":[0,1,2,3,4,5,6,7,8,9]}"#;
    // Of which 4 tokens are cached, says the response.
    assert_eq!(exchange_of(&picker, "known", "200", prompt).await, format!("{A}:8000"));
    let known = decision(&picker, "known");
    let kv_events = |decision: &Value| [0, 1].map(|at| decision["detailed"][at]["kv_events"].clone());
    let (held, silent) = (
        json!({"state": "in sync", "cached_tokens": 8}),
        json!({"state": "not heard", "cached_tokens": null}),
    );
    assert_eq!(kv_events(&known), [held, silent.clone()]);
    assert_eq!(known["outcome"]["cached_tokens_error"], -4, "{known}");
    let (code, text, _) = explain(&picker.admin.to_string(), &["known"]).await;
    let line =
        format!("\nKV events      {A}:8000 in sync, with 8 tokens of the prompt; 4 fewer were cached\n");
    assert!(code == 0 && text.contains(&line) && text.contains("8, in sync"), "{text}");

    // Text without a tokenizer.
    let destination = exchange_of(&picker, "unknown", "200", r#"{"model":"m","prompt":"a secret"}"#).await;
    let unknown = decision(&picker, "unknown");
    assert_eq!(kv_events(&unknown), [json!({"state": "in sync", "cached_tokens": null}), silent]);
    assert_eq!(unknown["outcome"]["cached_tokens_error"], Value::Null);
    let (_, text, _) = explain(&picker.admin.to_string(), &["unknown"]).await;
    assert!(text.contains(&format!("\nKV events      {destination} ")), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanation_without_kv_events_omits_them() {
    let picker = Picker::start(&[("a", A, 8000)], &[]).await;
    exchange_of(&picker, "r", "200", r#"{"model":"m","prompt":[1,2,3,4]}"#).await;
    assert_eq!(decision(&picker, "r")["detailed"][0]["kv_events"], Value::Null);
    let (code, text, _) = explain(&picker.admin.to_string(), &["r"]).await;
    assert!(code == 0 && text.contains("\nsent to        ") && !text.contains("KV events"), "{text}");
}
