//! Clients that begin to send a body and stop.

use super::*;

/// Requests with a MiB of their body each, and no more.
async fn stall(process: &Process, count: usize) -> Vec<Stream> {
    let connection = process.connect().await;
    let chunk = vec![b' '; MI];
    let mut stalled = Vec::new();
    for _ in 0..count {
        let stream = connection.stream().await;
        stream.try_send(headers(&COMPLETION, false));
        stream.try_send(body(&chunk, false));
        stalled.push(stream);
    }
    stalled
}

#[tokio::test]
async fn stalled_body_is_refused_and_its_memory_freed() {
    let process = Process::start(small_budget(), 1, &["--body-idle-timeout=1s"]);
    let mut stalled = stall(&process, 4).await;
    // One without any body, too.
    let silent = process.connect().await.stream().await;
    silent.send(headers(&COMPLETION, false));
    stalled.push(silent);
    for stream in &mut stalled {
        let refusal = stream.immediate().await;
        assert_eq!(refusal.status.unwrap().code, 408);
        assert_eq!(
            String::from_utf8(refusal.body).unwrap(),
            "inference error: RequestTimeout - no more of the request body came for too long (--body-idle-timeout)"
        );
    }
    // Headers of which only a part comes, and a stream on which nothing does.
    let mut raw = super::raw::Raw::connect(process.extproc, 1 << 20);
    raw.open(1);
    raw.frame(super::raw::DATA, 0, 1, &[&[0, 0, 0, 9, 0][..], &[0; 100]].concat());
    raw.open(3);
    raw.ended(1);
    assert!(!raw.frames().iter().any(|frame| frame.ends(3)));
    drop(raw);
    settle(|| process.held() == 0.0).await;
    is_served(&process.connect().await).await;
}

/// More of them than there is memory for.
#[tokio::test]
async fn stalled_bodies_are_shed_for_others() {
    let process = Process::start(small_budget(), 1, &["--body-idle-timeout=10m"]);
    let limit = process.limit();
    let stalled = stall(&process, 60).await;
    let refused = || process.metric("usher_memory_refused_total");
    settle(|| refused() > 0.0).await;
    let before = refused();
    // Whoever comes now may be refused until those that stall have been looked at a few times.
    let text = format!(r#"{{"model":"m","prompt":"{}"}}"#, "z".repeat(2 * MI));
    let tries = served_in_the_end(&process, &text).await;
    assert!(refused() > before + f64::from(tries), "those that stall were refused");
    drop(stalled);
    stayed_within(&process, small_budget(), limit).await;
}
