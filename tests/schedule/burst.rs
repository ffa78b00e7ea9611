//! Requests that come together, from a configuration to the endpoints, in paused time.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;
use usher::endpoints::{EndpointSpec, SubsetHint};
use usher::metrics::render;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};

use crate::pool::{Pool, asking, at};

const WINDOW: Duration = Duration::from_millis(50);

fn pool(parameters: &str, endpoints: Vec<EndpointSpec>) -> Pool {
    let config = format!(
        "
plugins:
- {{name: burst, type: burst-prefix-cache-producer, parameters: {{windowDurationMs: 50{parameters}}}}}
- {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: burst}}}}
"
    );
    Pool::new(&config, endpoints)
}

fn four() -> Vec<EndpointSpec> {
    at(&["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000"])
}

/// A prompt whose letters are blocks of 64 tokens.
fn prompt(letters: &str) -> Request {
    let headers: Headers = [(":path", "/v1/completions")].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    let text: String = letters.chars().map(|letter| letter.to_string().repeat(256)).collect();
    parser.push(json!({"model": "m", "prompt": text}).to_string().into());
    parser.finish().unwrap()
}

impl Pool {
    /// Destinations of requests that come at once: the position of the endpoint and its score.
    async fn burst(&self, prompts: &[&str]) -> Vec<(u32, f64)> {
        let requests: Vec<Request> = prompts.iter().map(|letters| prompt(letters)).collect();
        let routed = join_all(requests.iter().map(|request| self.dispatch(request))).await;
        let pick = |routed: &usher::flow::Routed| {
            let run = routed.decision().primary();
            let record = run.record.as_deref().unwrap();
            let at = record.survivors.iter().position(|survivor| *survivor == run.picks[0]).unwrap();
            (run.picks[0], record.totals[at])
        };
        routed.iter().map(|routed| pick(routed.as_ref().unwrap())).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn simultaneous_equal_prompts_share_an_endpoint() {
    let (pool, start) = (pool("", four()), Instant::now());
    let places = pool.burst(&["ab", "cd", "ab", "ef", "cd", "ab", "cd", "alone"]).await;
    assert_eq!(start.elapsed(), WINDOW);
    let of = |indices: &[usize]| indices.iter().map(|index| places[*index]).collect::<Vec<_>>();
    assert!(of(&[0, 2, 5]).iter().all(|place| *place == (places[0].0, 1.0)), "{places:?}");
    assert!(of(&[1, 4, 6]).iter().all(|place| *place == (places[1].0, 1.0)), "{places:?}");
    assert_ne!(places[0].0, places[1].0, "each to its own");
    // Who has nothing in common with the others is drawn nowhere.
    assert_eq!((places[3].1, places[7].1), (0.0, 0.0));
    // What was, counts no more: the next ones are placed anew.
    assert_eq!(pool.burst(&["ab"]).await[0].1, 0.0);
    assert_eq!(start.elapsed(), 2 * WINDOW);
}

#[tokio::test(start_paused = true)]
async fn batch_parameters_control_the_placement() {
    let most = pool(", maxPerReplica: 2", four());
    let places = most.burst(&["ab"; 8]).await;
    for endpoint in 0..4 {
        assert_eq!(places.iter().filter(|place| **place == (endpoint, 1.0)).count(), 2, "{places:?}");
    }
    let sharing = pool(", minColocateBlocks: 1", at(&["10.0.0.1:8000", "10.0.0.2:8000"]));
    let places = sharing.burst(&["ab", "ac", "xy", "xz"]).await;
    assert!(places[0] == places[1] && places[2] == places[3] && places[0].0 != places[2].0, "{places:?}");
    // Two long prompts weigh as much as six short ones.
    let tokens = pool(", balanceBy: tokens", at(&["10.0.0.1:8000", "10.0.0.2:8000"]));
    let places = tokens.burst(&["abcdef", "abcdef", "g", "g", "h", "h", "i", "i"]).await;
    assert!(places[2..].iter().all(|place| place.0 != places[0].0), "{places:?}");
}

#[tokio::test(start_paused = true)]
async fn only_prompts_are_held_and_not_too_many() {
    let pool = pool(", maxBatchSize: 2", four());
    let without = asking(&[]);
    assert!(pool.dispatch(&without).now_or_never().unwrap().is_ok(), "it has no prompt");
    let (one, two, three) = (prompt("ab"), prompt("ab"), prompt("ab"));
    let mut first = Box::pin(pool.dispatch(&one));
    let mut second = Box::pin(pool.dispatch(&two));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    assert!(pool.dispatch(&three).now_or_never().unwrap().is_ok(), "two are held already");
    let line = r#"usher_burst_not_held_total{plugin_name="burst"} 1"#;
    assert!(render(&pool.registry).lines().any(|found| found == line));
    // A client that goes makes room, and doesn't count.
    drop(first);
    let mut third = Box::pin(pool.dispatch(&three));
    assert!(third.as_mut().now_or_never().is_none());
    let (second, third) = (second.await.unwrap(), third.await.unwrap());
    assert_eq!(second.decision().primary().picks, third.decision().primary().picks);
    pool.store.replace(Vec::new());
    let empty = pool.reloaded("plugins: [{name: burst, type: burst-prefix-cache-producer}]\n");
    assert_eq!(empty.dispatch(&one).now_or_never().unwrap().unwrap_err().code.status(), 503);
}

#[tokio::test(start_paused = true)]
async fn held_request_goes_to_an_endpoint_of_the_current_pool() {
    let pool = pool("", at(&["10.0.0.1:8000"]));
    let (one, two) = (prompt("ab"), prompt("ab"));
    let mut held = Box::pin(pool.dispatch(&one));
    assert!(held.as_mut().now_or_never().is_none());
    let mut other = Box::pin(pool.dispatch(&two));
    assert!(other.as_mut().now_or_never().is_none());
    pool.store.replace(vec![EndpointSpec::new("new", ([10, 0, 0, 9], 8000))]);
    for routed in [held.await.unwrap(), other.await.unwrap()] {
        assert_eq!(routed.destination(), "10.0.0.9:8000");
        assert!(routed.decision().scores().all(|(_, score)| score == 0.0), "where they should go is gone");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_not_delayed_without_a_holding_plugin() {
    let pool = Pool::new("plugins: [{type: prefix-cache-scorer}]\n", four());
    let request = prompt("ab");
    assert!(pool.dispatch(&request).now_or_never().unwrap().is_ok());
    assert!(pool.try_dispatch(&request, &SubsetHint::Missing).is_some());
    let holding = self::pool("", four());
    holding.dispatch(&request).await.unwrap();
    assert!(holding.try_dispatch(&request, &SubsetHint::Missing).is_none());
}
