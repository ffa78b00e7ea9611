//! More streams at once than there is room for, with little on each.

use super::raw::Raw;
use super::*;

const STREAMS: usize = 12_000;

#[tokio::test]
async fn memory_stays_below_the_budget_for_many_streams() {
    // The ends come when all streams are open, which takes a loaded machine a while.
    let process = Process::start(small_budget(), 1, &["--body-idle-timeout=10m"]);
    let limit = process.limit();
    let connections = process.connections(4).await;
    // Below 4 KiB headers are part of what a stream counts.
    let long = "v".repeat(3500);
    let some = [COMPLETION[0], COMPLETION[1], ("x-long", &long)];
    let mut streams = Vec::new();
    for turn in 0..STREAMS {
        let stream = connections[turn % 4].stream().await;
        // It may be refused by now.
        stream.try_send(headers(&some, false));
        stream.try_send(body("{", false));
        streams.push(stream);
    }
    streams.iter().for_each(|stream| {
        // Those that were refused are gone.
        stream.try_send(body(&PROMPT[1..], true));
    });
    let responses = responses(streams.into_iter().map(reader).collect()).await;
    // Where it takes long until all are open, the slowest bodies have made room for others by then.
    assert!(responses.refused > 2000, "{responses:?}");
    assert_eq!(responses.served + responses.refused, STREAMS, "{responses:?}");
    stayed_within(&process, small_budget(), limit).await;
    // Many were refused, and the gateway went on sending there: no connection was closed for it.
    for connection in &connections {
        drop(is_served(connection).await);
    }
    // A client that a loaded machine keeps from answering pings loses its connection without one.
    assert_eq!(process.logged("ended with GOAWAY"), 0, "{:#?}", process.warnings());
}

/// A client that opens a stream need not send anything to hold it.
#[tokio::test]
async fn silent_streams_stay_below_the_memory_budget() {
    const SILENT: usize = 15_000;
    let process = Process::start(small_budget(), 1, &[]);
    let limit = process.limit();
    let connections = process.connections(4).await;
    let mut streams = Vec::new();
    for turn in 0..SILENT {
        streams.push(connections[turn % 4].stream().await);
    }
    // Refused streams are reset, and the others count. Those may make room for each other as time passes.
    let (mut open, mut refused) = (0, 0);
    settle(|| {
        refused += take_refused(&mut streams);
        let page = process.page();
        open = page.metric("usher_memory_streams_bytes") as usize / (8 << 10);
        refused == page.refused() && open + refused == SILENT
    })
    .await;
    assert!(open > 500 && refused > 2000, "{open} are open, {refused} refused");
    drop(streams);
    stayed_within(&process, small_budget(), limit).await;
}

/// A client that takes nothing can't be told that it is refused.
#[tokio::test]
async fn refused_streams_are_freed_at_any_client_window() {
    const SILENT: u32 = 12_000;
    let process = Process::start(small_budget(), 1, &[]);
    let limit = process.limit();
    let mut raw = Raw::connect(process.extproc, 0);
    let open = |page: &super::process::Page| page.metric("usher_memory_streams_bytes") as usize / (8 << 10);
    for turn in 0..SILENT {
        raw.open(2 * turn + 1);
        if turn % 500 == 499 {
            raw.frames();
        }
    }
    // A sixteenth beyond the limit, and as much for those that have not taken their refusal.
    let most = |page: &super::process::Page| (limit.max(page.limit()) * 9.0 / 8.0) as usize / (8 << 10);
    settle(|| {
        let page = process.page();
        open(&page) > 1000 && open(&page) <= most(&page)
    })
    .await;
    // Those that had room say nothing, and make room: their client can't be told either. Whoever comes
    // meanwhile may be refused.
    served_in_the_end(&process, PROMPT).await;
    // Its connection stays, with the streams for which there is room.
    raw.frames();
    assert!(open(&process.page()) > 1000);
    drop(raw);
    stayed_within(&process, small_budget(), limit).await;
}
