//! Capacity that the prefix index learns from the responses of a model engine, which keeps less
//! than it reports.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use usher::endpoints::health::Verdict;
use usher::flow::Routed;
use usher::request::usage::Usage;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::Served;
use usher::sim::{KvCache, Lease, block_hashes};

use crate::pool::{Pool, at, profile_of};

/// Tokens of an engine's block, and the blocks that it reports: 4,000 of the index.
const ENGINE_BLOCK: u32 = 16;
const REPORTED: u32 = 16_000;
/// Tokens of the engine for one of four bytes.
const TOKENS: f64 = 1.2;

/// An engine that keeps a share of its blocks for prefixes.
struct Engine {
    cache: KvCache,
}

impl Engine {
    fn keeping(blocks: u32) -> Self {
        Self { cache: KvCache::new(blocks) }
    }

    /// Computes a prompt that is alone there.
    fn respond(&mut self, text: &str) -> Usage {
        let hashes = block_hashes("m", text.as_bytes(), ENGINE_BLOCK);
        let mut lease: Lease = self.cache.hold_prefix(&hashes);
        let matched = lease.len();
        assert!(self.cache.take(&mut lease, hashes.len() as u32 - matched));
        hashes[matched as usize..].iter().for_each(|hash| self.cache.publish(&mut lease, *hash));
        self.cache.release(lease);
        let tokens = |estimated: f64| Some((estimated * TOKENS) as u64);
        Usage {
            prompt_tokens: tokens(text.len() as f64 / 4.0),
            completion_tokens: Some(1),
            cached_tokens: tokens(f64::from(matched * ENGINE_BLOCK)),
        }
    }
}

fn completion(text: &str) -> Request {
    let headers: Headers = [(":path", "/v1/completions")].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    parser.push(json!({"model": "m", "prompt": text}).to_string().into());
    parser.finish().unwrap()
}

/// A pool of these endpoints, each of which reports its cache.
fn pool(addresses: &[&str]) -> Pool {
    let pool = Pool::new(&profile_of(&["type: prefix-cache-scorer"]), at(addresses));
    for position in 0..addresses.len() {
        let (load, now) = pool.load(position);
        load.block_size.set(f64::from(ENGINE_BLOCK), now);
        load.num_blocks.set(f64::from(REPORTED), now);
    }
    pool
}

/// Conversations that come back in no order: 5,000 blocks of the index in all.
fn conversation(number: u32) -> String {
    let block = |at: u32| format!("{number:08}-{at:06} ").repeat(16);
    (0..25).map(block).collect()
}

/// Tokens that were predicted and that were cached of the later requests, as the engine
/// counts.
fn predicted_and_cached(kept: u32, reports: bool) -> (f64, f64) {
    let (pool, mut engine) = (pool(&["10.0.0.1:8000"]), Engine::keeping(kept));
    let mut rng = StdRng::seed_from_u64(11);
    let (mut predicted, mut cached) = (0.0, 0.0);
    for number in 0..2400 {
        let text = conversation(rng.random_range(0..200));
        let mut routed = pool.ask(&completion(&text));
        let (_, share) = routed.decision().scores().next().unwrap();
        let usage = engine.respond(&text);
        if number >= 1200 {
            predicted += share * usage.prompt_tokens.unwrap() as f64;
            cached += usage.cached_tokens.unwrap() as f64;
        }
        routed.response_begins(&Served::Missing, Verdict::Good, false);
        routed.first_token();
        routed.response_ends(&if reports { usage } else { Usage { cached_tokens: None, ..usage } }, 0);
    }
    (predicted, cached)
}

#[test]
fn predictions_follow_a_cache_smaller_than_reported() {
    let (predicted, cached) = predicted_and_cached(REPORTED / 4, false);
    assert!(predicted > 2.0 * cached, "uncorrected: {predicted} and {cached}");
    let (predicted, cached) = predicted_and_cached(REPORTED / 4, true);
    let ratio = predicted / cached;
    assert!((0.85..1.15).contains(&ratio), "{predicted} and {cached}: {ratio}");
}

#[test]
fn predictions_keep_a_cache_as_large_as_reported() {
    let (predicted, cached) = predicted_and_cached(REPORTED, true);
    let ratio = predicted / cached;
    assert!((0.9..1.1).contains(&ratio), "{predicted} and {cached}: {ratio}");
}

/// The value of a family's only series.
fn value(pool: &Pool, name: &str) -> f64 {
    let families = pool.registry.gather();
    let family = families.iter().find(|family| family.name() == name).unwrap();
    let metric = &family.get_metric()[0];
    // It is one of them, and the other is 0.
    metric.get_counter().get_value() + metric.get_gauge().get_value()
}

fn ends(mut routed: Routed, served: &Served, usage: &Usage) {
    routed.response_begins(served, Verdict::Good, false);
    routed.first_token();
    routed.response_ends(usage, 0);
}

#[test]
fn predicted_and_cached_tokens_are_counted() {
    let (pool, mut engine) = (pool(&["10.0.0.1:8000"]), Engine::keeping(REPORTED));
    let text = conversation(1);
    let request = completion(&text);
    for _ in 0..3 {
        ends(pool.ask(&request), &Served::Missing, &engine.respond(&text));
    }
    // The first was not cached, and it wasn't known yet that the engine would say so.
    let tokens = (text.len() as f64 / 4.0 * TOKENS).floor();
    assert_eq!(value(&pool, "usher_prefix_index_predicted_tokens_total"), 2.0 * tokens);
    assert_eq!(value(&pool, "usher_prefix_index_cached_tokens_total"), 2.0 * tokens);
    assert_eq!(value(&pool, "usher_prefix_index_capacity_ratio"), 1.0);
    let ratio = value(&pool, "usher_prefix_index_tokens_ratio");
    assert!((ratio - TOKENS).abs() < 0.01, "{ratio}");
}

#[test]
fn a_response_of_another_endpoint_is_not_counted() {
    let pool = pool(&["10.0.0.1:8000", "10.0.0.2:8000"]);
    let request = completion(&conversation(1));
    let usage = Usage { prompt_tokens: Some(2000), completion_tokens: Some(1), cached_tokens: Some(500) };
    let (first, other) = (pool.ask(&request), ["10.0.0.2:8000", "10.0.0.1:8000"]);
    let at = usize::from(first.decision().primary_endpoint().name() != "pod-0");
    ends(first, &Served::By(other[at].to_owned()), &usage);
    assert_eq!(value(&pool, "usher_prefix_index_cached_tokens_total"), 0.0);
    ends(pool.ask(&request), &Served::Missing, &usage);
    assert_eq!(value(&pool, "usher_prefix_index_cached_tokens_total"), 500.0);
}
