//! More bodies at once than there is room for.

use futures_util::future::join_all;

use super::*;
use crate::support::streamed;

/// The first part of a body. Large, so that few fill the room.
const CHUNK: usize = 3 * MI;

/// Begins bodies until one is refused. Returns those that have room, and how many have none: on a
/// loaded machine the first take so long meanwhile that they count as slow, and are given up for the
/// last.
async fn fill(process: &Process, connection: &Connection, limit: f64) -> (Vec<Stream>, usize) {
    let chunk = vec![b' '; CHUNK];
    let (mut open, mut most, before) = (Vec::new(), 0.0_f64, process.page().refused());
    loop {
        let stream = connection.stream().await;
        stream.try_send(headers(&COMPLETION, false));
        stream.try_send(body(&chunk, false));
        open.push(stream);
        let (with_it, mut is_full) = ((open.len() * CHUNK) as f64, false);
        settle(|| {
            let page = process.page();
            (most, is_full) = (most.max(page.held()), page.refused() > before);
            is_full || page.held() >= with_it
        })
        .await;
        if is_full {
            break;
        }
    }
    let mut refused = 0;
    settle(|| {
        refused += take_refused(&mut open);
        refused == process.page().refused() - before
    })
    .await;
    // The last may take what those are about to give back that are given up.
    let most_allowed = if refused == 1 { limit } else { limit / 16.0 * 17.0 };
    assert!(most <= most_allowed, "{most} bytes of {limit}");
    (open, refused)
}

/// Ends bodies, the newest first, until one is served. The budget shrinks as the process runs more of
/// its code, and those may be given up for that which have been silent meanwhile: three at most.
async fn first_served(open: &mut Vec<Stream>) -> Stream {
    for _ in 0..4 {
        let mut stream = open.pop().expect("no body is left");
        stream.try_send(body(PROMPT, true));
        match stream.reply().await.response {
            Some(Reply::RequestHeaders(_)) => return stream,
            Some(Reply::ImmediateResponse(refusal)) => {
                assert!(has_reason(&refusal, "rejected-saturated"), "{refusal:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("no body goes on");
}

#[tokio::test]
async fn bodies_above_the_budget_are_refused_until_memory_is_freed() {
    let process = Process::start(medium_budget(), 1, &["--body-idle-timeout=10m"]);
    let limit = process.limit();
    assert_eq!(process.metric("usher_memory_budget_bytes"), (medium_budget() * MI) as f64);
    let connection = process.connect().await;
    for _ in 0..2 {
        let (mut open, refused) = fill(&process, &connection, limit).await;
        // Half of the limit at least: bodies take more than what is counted.
        let held = open.len() * CHUNK;
        assert!((limit as usize / 2..limit as usize).contains(&held), "{held}, {refused} refused");
        // The first, the second, the fourth … are logged.
        settle(|| {
            let logged = process.page().refused().ilog2() as usize + 1;
            process.logged("requests rejected: the memory budget is used up") == logged
        })
        .await;
        // When some are gone the others go on; a body goes with the replies that carry it, not
        // with its stream.
        open.truncate(open.len() - 2);
        settle(|| {
            let page = process.page();
            let used = page.held() + page.metric("usher_memory_connections_bytes");
            page.limit() > used + (2 * MI) as f64
        })
        .await;
        let mut whole = first_served(&mut open).await;
        let mut received = 0;
        while received < CHUNK + PROMPT.len() {
            received += whole.request_body().await.0.len();
        }
        let kept = open.len();
        settle(|| process.metric("usher_memory_bodies_bytes") <= (kept * CHUNK) as f64).await;
        drop((open, whole));
        settle(|| process.held() == 0.0).await;
        settle(|| process.limit() > limit * 0.5).await;
        drop(is_served(&connection).await);
        settle(|| process.held() == 0.0).await;
    }
}

/// Waits until a request is refused, or all of its body is there again; `None`: its connection was
/// closed.
async fn is_refused(mut stream: Stream) -> Option<bool> {
    loop {
        match stream.next().await.ok()?.response {
            Some(Reply::RequestHeaders(_)) => {}
            Some(Reply::RequestBody(body)) => {
                if streamed(body.response.unwrap().body_mutation.unwrap().mutation).1 {
                    return Some(false);
                }
            }
            Some(Reply::ImmediateResponse(refusal)) => {
                assert!(has_reason(&refusal, "rejected-saturated"), "{refusal:?}");
                return Some(true);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// 384 MiB come at once to a process with a medium budget. A connection may be closed for that, as the one with
/// the most unread data.
#[tokio::test]
async fn memory_stays_below_the_budget_for_any_bodies() {
    // The ends come when most of all bodies is there, which takes a loaded machine a while.
    let process = Process::start(medium_budget(), 1, &["--body-idle-timeout=10m"]);
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
    let outcomes = join_all(streams.into_iter().map(is_refused)).await;
    assert!(outcomes.contains(&Some(true)), "{outcomes:?}");
    let closed = process.metric("usher_connections_evicted_total");
    assert!(closed > 0.0 || !outcomes.contains(&None), "a connection was closed for another reason");
    drop(connections);
    stayed_within(&process, medium_budget(), limit).await;
}
