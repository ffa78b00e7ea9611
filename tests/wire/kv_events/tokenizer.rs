//! Prompts that Usher tokenizes by itself, and blocks that an engine holds.

use serde_json::{Value, json};

use super::*;

/// Files of a model, and what they come to: `tests/data/tokenizer/make.py` made them.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer");

fn reference() -> Value {
    let text = std::fs::read_to_string(format!("{FOLDER}/reference.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Tokens of a text, the one that begins a completion among them.
fn ids(reference: &Value, text: &Value) -> Vec<u32> {
    let rows = reference["texts"].as_array().unwrap();
    let row = rows.iter().find(|row| row["text"] == *text).unwrap();
    serde_json::from_value(row["bytes"].clone()).unwrap()
}

async fn picker_by(port: u16, local: &str) -> Picker {
    let more = format!(
        ", {{type: token-producer, parameters: {{modelName: m, local: {{path: {FOLDER}/bytes.json{local}}}}}}}"
    );
    picker(&format!("socketPort: {port}"), &more).await
}

fn count(picker: &Picker, result: &str) -> Option<f64> {
    let labels = format!("plugin_name=\"token-producer\",result=\"{result}\"");
    picker.metric(&format!("usher_tokens_rendered_total{{{labels}}}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_prompts_use_tokens_of_the_local_tokenizer() {
    let reference = reference();
    let chat = &reference["chats"][1];
    assert_eq!(chat["template"], "chatml");
    let text = "Requests wait for 50 ms at most, and it's 12345678 tokens.\n\nThen:\n    - one\n\t- two  \n";
    let mut a = Engine::at(A, 0).await;
    let mut b = Engine::at(B, a.port).await;
    // Long, as this machine may be busy.
    let picker = picker_by(b.port, ", timeout: 30s").await;
    connected(&picker, &mut a, "a").await;
    connected(&picker, &mut b, "b").await;
    // A completion begins with <|bos|>, a chat with what its template says.
    let completion = ids(&reference, &json!(text));
    let rendered = ids(&reference, &chat["text"]);
    for (path, held, mut body) in [
        ("/v1/completions", &completion[..], json!({"prompt": text})),
        ("/v1/chat/completions", &rendered[1..], chat["body"].clone()),
    ] {
        // The other one lacks the last block: all tokens have to agree.
        let full = held.len() / BLOCK as usize;
        let most = &held[..(full - 1) * BLOCK as usize];
        for (engine, endpoint, ids, blocks) in [(&mut a, "a", most, full - 1), (&mut b, "b", held, full)] {
            engine.clear().await;
            wait(&picker, "blocks", endpoint, 0.0);
            engine.hold(ids).await;
            wait(&picker, "blocks", endpoint, blocks as f64);
        }
        body["model"] = "m".into();
        assert_eq!(destinations_of(&picker, path, &body.to_string()).await, [format!("{B}:8000")], "{path}");
    }
    assert_eq!(count(&picker, "rendered"), Some(32.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_refused_by_the_template_is_served_and_counted() {
    let port = Engine::at(A, 0).await.port;
    let picker = picker_by(port, &format!(", timeout: 30s, chatTemplate: {FOLDER}/turns.jinja")).await;
    let body = r#"{"model":"m","messages":[{"role":"assistant","content":"I begin."}]}"#;
    assert!(!destinations_of(&picker, "/v1/chat/completions", body).await.is_empty());
    assert_eq!(count(&picker, "failed"), Some(16.0));
    // Images are tokens that only an engine knows.
    let image = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a/b.png"}}]}]}"#;
    assert!(!destinations_of(&picker, "/v1/chat/completions", image).await.is_empty());
    assert_eq!((count(&picker, "failed"), count(&picker, "rendered")), (Some(16.0), Some(0.0)));
}
