//! Tests of the producer: index, approximate match and tokens as inputs.

use bytes::Bytes;
use usher_core::endpoints::{Endpoint, EndpointSpec};
use usher_core::kv_events::{Chain, Tier, prompt_keys};
use usher_core::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher_plugin::data::{TokenizedItem, TokenizedPrompt};
use usher_plugin::testing::Harness;
use usher_plugin::{DecisionContext, Run};

use std::num::NonZeroU16;

use usher_core::prefix::{Blocks, EngineIndex};

use super::*;

/// Two endpoints, and a scorer that knows what their engines hold, in blocks of two tokens.
struct Bench {
    harness: Harness,
    plugin: PluginParts,
}

fn request(body: &str) -> Request {
    let headers = [(":path", "/v1/completions")].into_iter().collect::<Headers>();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    parser.push(Bytes::copy_from_slice(body.as_bytes()));
    parser.finish().unwrap()
}

fn of_tokens(tokens: &[u32]) -> Request {
    request(&format!(r#"{{"model":"m","prompt":{tokens:?}}}"#))
}

fn keys_of(tokens: &[u32], extras: &[(usize, &str)]) -> Vec<u64> {
    let (mut keys, size) = (Vec::new(), NonZeroU16::new(2).unwrap());
    let extras = extras.iter().map(|(place, extra)| (*place, extra.as_bytes()));
    prompt_keys(Chain::of_model(b"m"), tokens, size, extras, &mut keys);
    keys
}

impl Bench {
    fn new() -> Self {
        let endpoint = |name: &str, host| EndpointSpec::new(name, ([10, 0, 0, host], 8000));
        let mut harness = Harness::new(vec![endpoint("a", 1), endpoint("b", 2)]);
        let parameters = "tokenProcessorConfig: {blockSizeTokens: 2}";
        let plugin = harness.build(&crate::score::precise_prefix_cache::TYPE, parameters).unwrap();
        Self { harness, plugin }
    }

    fn endpoint(&self, at: usize) -> Arc<Endpoint> {
        Arc::clone(&self.harness.candidates().snapshot().endpoints()[at])
    }

    fn index(&self) -> &EngineIndex {
        self.plugin.extra::<KvEventsSource>().unwrap().caches.index()
    }

    fn holds(&self, at: usize, keys: &[u64], medium: &str) {
        let media = &self.plugin.extra::<KvEventsSource>().unwrap().settings.media;
        let tier = media.tier(Some(medium)).map(Tier::number);
        keys.iter().for_each(|key| self.index().set(self.endpoint(at).slot(), *key, tier));
        self.knows(at, EngineStatus::Complete);
    }

    fn knows(&self, at: usize, status: EngineStatus) {
        self.index().set_status(self.endpoint(at).slot(), status);
    }

    fn scores(&mut self, request: &Request) -> Vec<f32> {
        self.harness.produce(&self.plugin, request);
        self.harness.scores(&self.plugin, request).unwrap()
    }

    /// Sends a request to an endpoint. Returns of how many requests each endpoint is expected to publish blocks.
    fn published_of(&self, request: &Request, at: u32) -> Vec<u32> {
        let (mut facts, mut effects) = (Facts::default(), Effects::default());
        let (candidates, max_age) = (self.harness.candidates(), Duration::from_secs(1));
        let cx = RequestContext { request, now_ms: 1, max_age };
        self.plugin.producer.as_ref().unwrap().produce(&cx, &candidates, &mut facts);
        let run = Run { profile: 0, picks: [at].into_iter().collect(), record: None };
        let shared = DecisionContext::new(candidates, Arc::from([Arc::from("default")]), None);
        let decision = Decision::new(Arc::new(shared), [run].into_iter().collect(), 0).unwrap();
        let cx = Context { facts: &facts, ..Context::new(request, 1, max_age) };
        self.plugin.pre_request.as_ref().unwrap().decided(&cx, &decision, &mut effects);
        self.plugin.extra::<KvEventsSource>().unwrap().caches.take_served()
    }

    /// Sets the approximate match of prompts of four blocks.
    fn approximately(&mut self, matched: [u32; 2]) {
        let known = PrefixMatch { total: 4, block_size: 64, matched: matched.to_vec() };
        self.harness.learn(PREFIX_PRODUCER, known);
    }
}

#[test]
fn held_blocks_are_weighted_by_tier() {
    let mut bench = Bench::new();
    let tokens: Vec<u32> = (0..20).collect();
    let keys = keys_of(&tokens, &[]);
    bench.holds(0, &keys[..5], "gpu");
    bench.holds(1, &keys, "cpu");
    assert_eq!(bench.scores(&of_tokens(&tokens)), [0.5, 0.8]);
    assert_eq!(bench.scores(&of_tokens(&[7, 8, 9, 10])), [0.0, 0.0], "another prompt");
}

#[test]
fn unknown_caches_use_the_approximate_match() {
    let mut bench = Bench::new();
    bench.holds(0, &keys_of(&[1, 2], &[]), "gpu");
    bench.knows(0, EngineStatus::Unknown);
    bench.approximately([4, 2]);
    let tokens = of_tokens(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bench.scores(&tokens), [1.0, 0.5], "nobody was heard");
    bench.knows(0, EngineStatus::Complete);
    assert_eq!(bench.scores(&tokens), [0.25, 0.5]);
    bench.holds(1, &keys_of(&[1, 2, 3, 4, 5, 6], &[]), "gpu");
    bench.knows(1, EngineStatus::Partial);
    assert_eq!(bench.scores(&tokens), [0.25, 0.75], "what it published, and perhaps more");
    let text = request(r#"{"model":"m","prompt":"no tokens"}"#);
    assert_eq!(bench.scores(&text), [1.0, 0.5]);
}

#[test]
fn salts_and_models_keep_prompts_apart() {
    let mut bench = Bench::new();
    bench.holds(0, &keys_of(&[1, 2, 3, 4], &[]), "gpu");
    bench.holds(1, &keys_of(&[1, 2, 3, 4], &[(0, "salt")]), "gpu");
    let asked = |fields: &str| request(&format!("{{{fields},\"prompt\":[1,2,3,4]}}"));
    assert_eq!(bench.scores(&asked(r#""model":"m""#)), [1.0, 0.0]);
    assert_eq!(bench.scores(&asked(r#""model":"m","cache_salt":"salt""#)), [0.0, 1.0]);
    assert_eq!(bench.scores(&asked(r#""model":"n""#)), [0.0, 0.0]);
}

#[test]
fn media_items_change_every_block_they_cover() {
    let hash = Arc::from("cat");
    let prompt = TokenizedPrompt {
        ids: vec![0, 0, 0, 4, 5, 6],
        items: vec![TokenizedItem { offset: 1, length: 2, hash }],
    };
    let ids = PromptTokenIds { prompts: vec![prompt] };
    let blocks = keys::blocks(&of_tokens(&[9]), Some(&ids), NonZeroU16::new(2).unwrap()).unwrap();
    assert_eq!(blocks.hashes(), keys_of(&[0, 0, 0, 4, 5, 6], &[(0, "cat"), (2, "cat")]));
}

#[test]
fn engine_without_events_scores_by_decisions() {
    let mut bench = Bench::new();
    bench.holds(0, &keys_of(&[1, 2, 3, 4], &[]), "gpu");
    bench.approximately([1, 0]);
    let tokens = of_tokens(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bench.scores(&tokens), [0.5, 0.0]);
    bench.knows(0, EngineStatus::Unknown);
    assert_eq!(bench.scores(&tokens), [0.25, 0.0], "it may hold nothing any more of what it published");
    let prompt = Arc::new(Blocks::from_prompts([keys_of(&[1, 2, 3, 4], &[])]));
    bench.index().speculate(&bench.endpoint(1), &prompt, 0, u64::MAX);
    assert_eq!(bench.scores(&tokens), [0.25, 0.5], "it is about to");
    bench.knows(0, EngineStatus::Restarted);
    assert_eq!(bench.scores(&tokens), [0.0, 0.5], "decisions from before a restart count for nothing");
}

#[test]
fn missing_prompt_blocks_are_expected_as_events() {
    let bench = Bench::new();
    bench.holds(0, &keys_of(&[1, 2, 3, 4], &[]), "gpu");
    assert_eq!(bench.published_of(&of_tokens(&[1, 2, 3, 4, 5]), 0), [0; 0], "it has all full blocks already");
    assert_eq!(bench.published_of(&of_tokens(&[1, 2, 3, 4, 5, 6]), 0), [1]);
    assert_eq!(bench.published_of(&of_tokens(&[1, 2, 3, 4]), 1), [0, 1]);
    bench.knows(0, EngineStatus::Unknown);
    assert_eq!(bench.published_of(&of_tokens(&[1, 2, 3, 4]), 0), [1], "it may have it no more");
}

#[test]
fn only_full_engine_blocks_are_expected_as_events() {
    let bench = Bench::new();
    let tokens: Vec<u32> = (0..16).collect();
    bench.holds(0, &keys_of(&tokens[..8], &[]), "gpu");
    let caches = Arc::clone(&bench.plugin.extra::<KvEventsSource>().unwrap().caches);
    caches.set_block_tokens(vec![8, 0]);
    assert_eq!(bench.published_of(&of_tokens(&tokens[..14]), 0), [0; 0], "six tokens more");
    assert_eq!(bench.published_of(&of_tokens(&tokens), 0), [1]);
    // By metrics, where it has published nothing.
    bench.endpoint(1).load().block_size.set(32.0, 1);
    assert_eq!(bench.published_of(&of_tokens(&tokens), 1), [0; 0]);
    caches.set_block_tokens(vec![8, 16]);
    assert_eq!(bench.published_of(&of_tokens(&tokens), 1), [0, 1], "its events say otherwise");
}

#[test]
fn overlapping_media_items_have_no_blocks() {
    let items = |count: usize, hash: &str| {
        let item = TokenizedItem { offset: 0, length: 4000, hash: Arc::from(hash) };
        PromptTokenIds { prompts: vec![TokenizedPrompt { ids: vec![0; 4000], items: vec![item; count] }] }
    };
    let size = NonZeroU16::new(2).unwrap();
    let blocks = |ids| keys::blocks(&of_tokens(&[9]), Some(&ids), size);
    assert!(blocks(items(4, "cat")).is_some());
    assert!(blocks(items(5, "cat")).is_none());
    assert!(blocks(items(1, &"c".repeat(2000))).is_none());
}

#[test]
fn each_prompt_has_blocks_and_text_has_none() {
    let size = NonZeroU16::new(2).unwrap();
    let prompt = |ids: &[u32]| TokenizedPrompt { ids: ids.to_vec(), items: vec![] };
    let ids = PromptTokenIds { prompts: vec![prompt(&[1, 2, 3]), prompt(&[4, 5])] };
    let two = keys::blocks(&of_tokens(&[9]), Some(&ids), size).unwrap();
    assert_eq!(two.prompts().collect::<Vec<_>>(), [keys_of(&[1, 2], &[]), keys_of(&[4, 5], &[])]);
    assert_eq!(keys::blocks(&request(r#"{"model":"m","prompt":"text"}"#), None, size), None);
    assert_eq!(keys::blocks(&request(r#"{"model":"m","prompt":["a","b"]}"#), None, size), None);
}
