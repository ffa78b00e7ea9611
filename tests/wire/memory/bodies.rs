//! More bodies at once than there is room for.

use super::*;

/// The first part of a body. Large, so that few fill the room.
const CHUNK: usize = 3 * MI;

/// Less than the two seconds after which a body may count as slow, and be given up.
const FILLS: Duration = Duration::from_millis(1500);

/// Begins bodies until one is refused; returns the others, and that one. Begins again where a loaded
/// machine takes so long that slow ones may have been refused instead.
async fn fill(process: &Process, connection: &Connection, limit: f64) -> (Vec<Stream>, Stream) {
    let chunk = vec![b' '; CHUNK];
    let refused = || process.metric("usher_memory_refused_total");
    for _ in 0..30 {
        let (mut open, mut most, before) = (Vec::new(), 0.0_f64, refused());
        let start = Instant::now();
        let last = loop {
            let stream = connection.stream().await;
            stream.try_send(headers(&COMPLETION, false));
            stream.try_send(body(&chunk, false));
            let with_it = ((open.len() + 1) * CHUNK) as f64;
            settle(|| process.held() >= with_it || refused() > before).await;
            most = most.max(process.held());
            if refused() > before {
                break stream;
            }
            open.push(stream);
        };
        let after = refused();
        if start.elapsed() < FILLS {
            assert!(most <= limit, "{most} bytes of {limit}");
            assert_eq!(after, before + 1.0);
            return (open, last);
        }
        drop((open, last));
        settle(|| process.held() == 0.0 && process.limit() > limit * 0.5).await;
    }
    panic!("the room is never filled within {FILLS:?}");
}

#[tokio::test]
async fn bodies_above_the_budget_are_refused_and_room_comes_back() {
    let process = Process::start(96, 1, &[]);
    let limit = process.limit();
    assert_eq!(process.metric("usher_memory_budget_bytes"), (96 * MI) as f64);
    let connection = process.connect().await;
    for _ in 0..2 {
        let (mut open, mut last) = fill(&process, &connection, limit).await;
        // Half of the limit at least: bodies take more than what is counted.
        let held = open.len() * CHUNK;
        assert!((limit as usize / 2..limit as usize).contains(&held), "{held}");
        assert!(has_reason(&last.immediate().await, "rejected-saturated"));
        // The first, the second, the fourth … are told.
        let told = (process.metric("usher_memory_refused_total") as u64).ilog2() as usize + 1;
        settle(|| process.logged("requests are refused, as the memory budget is used up") == told).await;
        // When some are gone the others go on; a body goes with the replies that carry it, not
        // with its stream.
        open.truncate(open.len() - 2);
        let used = || process.held() + process.metric("usher_memory_connections_bytes");
        settle(|| process.limit() > used() + (2 * MI) as f64).await;
        let mut whole = open.pop().unwrap();
        whole.send(body(PROMPT, true));
        whole.request_headers().await;
        let mut received = 0;
        while received < CHUNK + PROMPT.len() {
            received += whole.request_body().await.0.len();
        }
        let kept = open.len();
        settle(|| process.metric("usher_memory_bodies_bytes") <= (kept * CHUNK) as f64).await;
        drop((open, whole, last));
        settle(|| process.held() == 0.0).await;
        settle(|| process.limit() > limit * 0.5).await;
        drop(is_served(&connection).await);
        settle(|| process.held() == 0.0).await;
    }
}

/// 384 MiB come at once to a process that may take 96.
#[tokio::test]
async fn the_process_stays_below_its_budget_whatever_bodies_come() {
    // The ends come when most of all bodies is there, which takes a loaded machine a while.
    let process = Process::start(96, 1, &["--body-idle-timeout=10m"]);
    let limit = process.limit();
    let connections = process.connections(8).await;
    let chunk = vec![b' '; MI];
    let mut streams = Vec::new();
    for turn in 0..96 {
        let stream = connections[turn % 8].stream().await;
        stream.try_send(headers(&COMPLETION, false));
        streams.push(stream);
    }
    // All but the ends first, so that nothing can leave before the most of it is there.
    for _ in 0..3 {
        streams.iter().for_each(|stream| stream.try_send(body(&chunk, false)));
    }
    let end = " ".repeat(MI - PROMPT.len()) + PROMPT;
    streams.iter().for_each(|stream| stream.try_send(body(&end, true)));
    let answers = answers(streams.into_iter().map(reader).collect()).await;
    assert!(answers.refused > 0 && answers.shed == 0, "{answers:?}");
    stayed_within(&process, 96, limit).await;
}
