//! Blocks of a request, from its body to the match that is found at an endpoint: kinds of prompts,
//! models, salts, and block sizes that endpoints report.

use std::sync::Arc;

use prometheus::Registry;
use serde_json::{Value, json};
use usher::config::Node;
use usher::endpoints::{Candidates, Endpoint};
use usher::prefix::Limits;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::data::PrefixMatch;
use usher::schedule::{
    ApproxPrefixKeys, ApproxPrefixParams, ApproxPrefixProducer, DataProducer, Facts, Key, PrefixCaches,
    PrefixFamilies, RequestContext,
};

use crate::support::{MAX_AGE, NOW, pool};

fn parsed(path: &str, body: &Value, more: &[(&str, &str)]) -> Request {
    let headers: Headers = [(":path", path)].iter().chain(more).copied().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&ParserKind::ALL));
    parser.push(body.to_string().into());
    parser.finish().unwrap()
}

fn completion(prompt: &Value) -> Request {
    parsed("/v1/completions", &json!({"model": "m", "prompt": prompt}), &[])
}

fn chat(content: &Value) -> Request {
    let messages = json!([{"role": "user", "content": content}]);
    parsed("/v1/chat/completions", &json!({"model": "m", "messages": messages}), &[])
}

/// A producer, and its index.
struct Approx {
    producer: ApproxPrefixProducer,
    caches: Arc<PrefixCaches>,
    keys: ApproxPrefixKeys,
}

impl Approx {
    fn new(parameters: &str) -> Self {
        let registry = Registry::new();
        let families = PrefixFamilies::register(&registry).unwrap();
        let caches = Arc::new(PrefixCaches::start(Limits::default()).unwrap());
        let keys = ApproxPrefixKeys { prefix: Key::new(0), blocks: Key::new(1) };
        let params = ApproxPrefixParams::decode(&Node::parse(parameters).unwrap()).unwrap();
        let producer = ApproxPrefixProducer::new(params, keys, Arc::clone(&caches), &families, ("p", "p"));
        Self { producer, caches, keys }
    }

    fn facts(&self, request: &Request, candidates: &Candidates) -> Facts {
        let mut facts = Facts::default();
        let cx = RequestContext { request, now_ms: NOW, max_age: MAX_AGE };
        self.producer.produce(&cx, candidates, &mut facts);
        facts
    }

    fn matched(&self, request: &Request, candidates: &Candidates) -> Option<PrefixMatch> {
        self.facts(request, candidates).get(self.keys.prefix).cloned()
    }

    /// The endpoint gets the request.
    fn learn(&self, request: &Request, candidates: &Candidates, endpoint: &Arc<Endpoint>) {
        let facts = self.facts(request, candidates);
        if let Some(blocks) = facts.get(self.keys.blocks) {
            self.caches.learn(endpoint, &blocks.0, 1000);
            self.caches.flush();
        }
    }
}

#[test]
fn block_has_sixty_four_tokens_of_any_modality() {
    let text = |bytes: usize| completion(&"a".repeat(bytes).into());
    let ids = |count: u32| completion(&(0..count).collect::<Vec<_>>().into());
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let audio = |bytes: usize| {
        chat(&json!([{"type": "input_audio", "input_audio": {"data": "a".repeat(bytes), "format": "wav"}}]))
    };
    // request, blocks; a message begins with four bytes for its role
    let table: [(Request, u32); 13] = [
        (text(1), 1),
        (text(256), 1),
        (text(257), 2),
        (ids(1), 1),
        (ids(64), 1),
        (ids(65), 2),
        // Each prompt has a last block of its own.
        (completion(&json!(["a".repeat(257), "b"])), 3),
        (chat(&"a".repeat(252).into()), 1),
        (chat(&"a".repeat(253).into()), 2),
        // An image of which nothing is known has 225 tokens, and a clip one for four bytes.
        (chat(&json!([image("http://h/a.png")])), 4),
        (chat(&json!([{"type": "text", "text": "a".repeat(116)}, image("http://h/a.png")])), 4),
        (chat(&json!([{"type": "text", "text": "a".repeat(121)}, image("http://h/a.png")])), 5),
        (audio(63 * 4 + 1), 2),
    ];
    let (approx, all) = (Approx::new("{}"), pool(1, |_, _| {}));
    for (number, (request, blocks)) in table.iter().enumerate() {
        let known = approx.matched(request, &all).unwrap();
        assert_eq!((known.total, known.block_size), (*blocks, 64), "{number}");
    }
    assert_eq!(approx.matched(&Request::default(), &all), None, "nothing to look for");
}

#[test]
fn differing_content_changes_all_later_blocks() {
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let long = text(&"a".repeat(252));
    let of = |model: &str, salt: Option<&str>, headers: &[(&str, &str)]| {
        let mut body = json!({"model": model, "prompt": "a".repeat(512)});
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        parsed("/v1/completions", &body, headers)
    };
    let plain = || of("m", None, &[]);
    let rewrite: &[(&str, &str)] = &[("x-llm-d-model-name-rewrite", "m")];
    // what an endpoint got, what is asked for, blocks that match and all blocks
    let table = [
        (plain(), plain(), 2, 2),
        // A LoRA adapter is a model of its own, whatever it is based on.
        (plain(), of("adapter", None, &[]), 0, 2),
        // The model that serves counts, not the one that was asked for.
        (plain(), of("other", None, rewrite), 2, 2),
        (plain(), of("m", Some("s"), &[]), 0, 2),
        (of("m", Some("s"), &[]), of("m", Some("s"), &[]), 2, 2),
        (of("m", Some("s"), &[]), of("m", Some("t"), &[]), 0, 2),
        (plain(), of("m", Some(""), &[]), 2, 2),
        // Token ids are not the text that they stand for.
        (completion(&"aaaa".into()), completion(&json!([0x6161_6161])), 1, 1),
        (completion(&json!([1, 2, 3])), completion(&json!([1, 2, 4])), 0, 1),
        // The same text before another image, and the other way around.
        (chat(&json!([long, image("http://h/a.png")])), chat(&json!([long, image("http://h/b.png")])), 1, 5),
        (
            chat(&json!([image("http://h/a.png"), long])),
            chat(&json!([image("http://h/a.png"), text("b")])),
            3,
            4,
        ),
    ];
    for (number, (got, asked, matches, total)) in table.iter().enumerate() {
        let (approx, all) = (Approx::new("{}"), pool(1, |_, _| {}));
        approx.learn(got, &all, &all.snapshot().endpoints()[0]);
        let known = approx.matched(asked, &all).unwrap();
        assert_eq!((known.matched, known.total), (vec![*matches], *total), "{number}");
    }
}

#[test]
fn first_candidate_decides_the_block_size() {
    let all = pool(3, |_, _| {});
    for (endpoint, size) in all.snapshot().endpoints().iter().zip([128.0, 256.0, 0.0]) {
        endpoint.load().block_size.set(size, NOW);
    }
    let request = completion(&"a".repeat(4096).into());
    // parameters, candidates, tokens of a block
    let table: [(&str, &[u32], u32); 7] = [
        ("{}", &[0, 1, 2], 128),
        ("{}", &[1, 2], 256),
        // Who reports nothing leaves it to the parameters.
        ("{}", &[2], 64),
        ("{blockSizeTokens: 512}", &[2], 512),
        ("{blockSizeTokens: 512}", &[0], 128),
        ("{autoTune: false, blockSizeTokens: 512}", &[0], 512),
        ("{autoTune: false}", &[0], 64),
    ];
    for (parameters, candidates, size) in table {
        let known = Approx::new(parameters).matched(&request, &all.narrowed(candidates)).unwrap();
        assert_eq!((known.block_size, known.total), (size, 1024 / size), "{parameters} {candidates:?}");
    }
}

#[test]
fn match_is_a_prefix_up_to_the_configured_maximum() {
    let letters = |letters: &str| -> Request {
        let text: String = letters.chars().map(|letter| letter.to_string().repeat(256)).collect();
        completion(&text.into())
    };
    let all = pool(3, |_, _| {});
    let endpoints = all.snapshot().endpoints();
    for (parameters, expected, total) in [
        ("{}", [4, 2, 0], 4),
        ("{maxPrefixTokensToMatch: 192}", [3, 2, 0], 3),
        ("{maxPrefixTokensToMatch: 0, maxPrefixBlocksToMatch: 1}", [1, 1, 0], 1),
    ] {
        let approx = Approx::new(parameters);
        approx.learn(&letters("abcd"), &all, &endpoints[0]);
        approx.learn(&letters("abxd"), &all, &endpoints[1]);
        approx.learn(&letters("xbcd"), &all, &endpoints[2]);
        let known = approx.matched(&letters("abcd"), &all).unwrap();
        assert_eq!((known.matched, known.total), (expected.to_vec(), total), "{parameters}");
    }
}
