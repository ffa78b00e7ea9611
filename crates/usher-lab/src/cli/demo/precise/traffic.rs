//! Requests of conversations that share long beginnings.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use futures_util::stream::{StreamExt, iter};
use serde_json::json;
use usher_core::random::mix;

use crate::cli::demo::client::Client;
use crate::cli::demo::replay::Outcome;
use crate::cli::demo::trace::MODEL;

/// Servers for each request that is on its way at once.
const SERVERS_EACH: usize = 2;
/// Beginnings for each server: more than its cache has room for.
const PER_SERVER: u64 = 7;
/// Tokens of a beginning, and of what follows it.
const SHARED: u32 = 1000;
const OWN: u32 = 105;
/// Tokens of a response.
const OUTPUT: u32 = 8;

/// Sends requests with these numbers through a gateway of so many servers.
pub(super) async fn send(
    client: &Client,
    to: SocketAddr,
    servers: usize,
    numbers: Range<usize>,
) -> Vec<Outcome> {
    let begun = Instant::now();
    let exchange = async |number: usize| {
        let due = Instant::now();
        let response = client.completion(to, body(number as u64, servers as u64)).await;
        Outcome {
            due: due - begun,
            first: response.as_ref().ok().and_then(|response| response.first).map(|first| first - due),
            total: due.elapsed(),
            response: response.map_err(|error| format!("{error:#}")),
        }
    };
    iter(numbers).map(exchange).buffer_unordered(servers.div_ceil(SERVERS_EACH)).collect().await
}

/// A prompt by its tokens: of a beginning, some of which are asked for more than others, and its own.
fn body(number: u64, servers: u64) -> Bytes {
    let groups = servers * PER_SERVER;
    let [one, other] = [2 * number, 2 * number + 1].map(|draw| mix(draw) % groups);
    // The lower one of two: the first is drawn most, the last least.
    let group = u32::try_from(one.min(other)).unwrap_or(0);
    let own = u32::try_from(number % 1_000_000).unwrap_or(0);
    let shared = (0..SHARED).map(|at| group * SHARED + at);
    let tokens: Vec<u32> = shared.chain((0..OWN).map(|at| (1 << 30) + own * OWN + at)).collect();
    json!({"model": MODEL, "prompt": tokens, "max_tokens": OUTPUT}).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_prefixes_only() {
        let prompt = |number: u64| {
            let body: serde_json::Value = serde_json::from_slice(&body(number, 2)).unwrap();
            let tokens = body["prompt"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap());
            tokens.collect::<Vec<_>>()
        };
        let prompts: Vec<_> = (0..100).map(prompt).collect();
        let mut beginnings: Vec<_> =
            prompts.iter().map(|prompt| prompt[..SHARED as usize].to_vec()).collect();
        beginnings.sort();
        beginnings.dedup();
        assert!((7..=14).contains(&beginnings.len()), "{}", beginnings.len());
        let mut own: Vec<_> = prompts.iter().map(|prompt| prompt[SHARED as usize..].to_vec()).collect();
        own.sort();
        own.dedup();
        assert_eq!((own.len(), own[0].len()), (100, OWN as usize));
    }
}
