//! Bodies that can't be read: a response comes as soon as that is known, and their memory goes.

use super::*;

/// Sends a body in messages of up to a MiB and its end only if it `ends`. Returns the response's text.
async fn refusal(process: &Process, text: &str, ends: bool) -> String {
    let mut stream = process.connect().await.stream().await;
    stream.try_send(headers(&COMPLETION, false));
    for chunk in text.as_bytes().chunks(MI) {
        stream.try_send(body(chunk, false));
    }
    if ends {
        stream.try_send(body("", true));
    }
    let refusal = stream.immediate().await;
    assert_eq!(refusal.status.unwrap().code, 400);
    // The stream is still there, and takes no memory for its body.
    settle(|| process.metric("usher_memory_bodies_bytes") == 0.0).await;
    String::from_utf8(refusal.body).unwrap()
}

#[tokio::test]
async fn a_body_is_refused_at_its_first_wrong_byte() {
    let process = Process::start(256, 1, &[]);
    let prefix = "inference error: BadRequest - the request body is not valid JSON: ";
    let long = format!(r#"{{"model":"m","prompt":"{}"#, "z".repeat(10 * MI));
    let wrong_in_the_middle = format!("{long}\n{}", "z".repeat(10 * MI));
    let unescaped = format!("control character 0x0a inside a string at byte {}; escape it", long.len());
    let cut_off = format!("it ends after {} bytes, inside a value", long.len());
    let table = [
        ("<html>", false, "unexpected '<' at byte 0"),
        (&*long, true, &*cut_off),
        (&wrong_in_the_middle, false, &unescaped),
    ];
    for (text, ends, want) in table {
        assert_eq!(refusal(&process, text, ends).await, format!("{prefix}{want}"));
        // Whether its end came with it or not.
        if !ends {
            assert_eq!(refusal(&process, text, true).await, format!("{prefix}{want}"));
        }
    }
}

/// However much is behind it: nothing of that is kept.
#[tokio::test]
async fn bytes_after_an_invalid_byte_take_no_memory() {
    let process = Process::start(small_budget(), 1, &[]);
    let limit = process.limit();
    for _ in 0..8 {
        refusal(&process, &format!("<{}", " ".repeat(20 * MI)), true).await;
    }
    assert_eq!(process.metric("usher_memory_refused_total"), 0.0);
    stayed_within(&process, small_budget(), limit).await;
}
