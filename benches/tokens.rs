//! Cost of tokenizing 8,000 tokens of text in process: from a request's body to its token ids, on one thread.
//!
//! - `new`: text that was not seen before.
//! - `repeated`: the same with some words behind it.
//!
//! By default with the small vocabulary of the tests; `USHER_TOKENIZER` names another tokenizer.json.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set itself up has nothing to measure")]
#![allow(clippy::print_stdout, reason = "what is no time is printed")]

use std::hint::black_box;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::json;
use usher::request::{Api, Body};
use usher_plugins::DirectTokenizer;

const TOKENS: usize = 8000;
/// Pages of this repository: text as people write it.
const PAGES: [&str; 4] =
    ["guide/precise-prefix.md", "guide/memory.md", "guide/explain.md", "guide/migrate-from-llm-d.md"];

fn pages() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    PAGES.map(|page| std::fs::read_to_string(folder.join(page)).unwrap()).concat()
}

fn body(text: &str) -> Body {
    let mut body = Body::default();
    body.push(Bytes::from(json!({ "model": "m", "prompt": text }).to_string()));
    body.seal();
    body
}

fn count(tokenizer: &mut DirectTokenizer, body: Body) -> usize {
    tokenizer.tokens(Api::Completions, body).unwrap().prompts.iter().map(|prompt| prompt.ids.len()).sum()
}

fn tokens(c: &mut Criterion) {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer/bytes.json");
    let path = std::env::var_os("USHER_TOKENIZER").map_or(ours, PathBuf::from);
    let open = |cache| DirectTokenizer::open(&path, cache).unwrap();
    let mut fresh = open(0);
    let pages = pages();
    let per_char = count(&mut fresh, body(&pages)) as f64 / pages.chars().count() as f64;
    let chars = (TOKENS as f64 / per_char) as usize;
    let text: String = pages.chars().cycle().take(chars).collect();
    println!("{} bytes, {} tokens", text.len(), count(&mut fresh, body(&text)));
    let mut group = c.benchmark_group("tokens");
    group.throughput(Throughput::Elements(TOKENS as u64));
    let new = body(&text);
    group.bench_function("new", |b| b.iter(|| black_box(count(&mut fresh, new.clone()))));
    let mut remembers = open(32 << 20);
    count(&mut remembers, body(&text));
    let repeated = body(&(text + "\nAnd what then?"));
    group.bench_function("repeated", |b| b.iter(|| black_box(count(&mut remembers, repeated.clone()))));
    group.finish();
}

criterion_group!(benches, tokens);
criterion_main!(benches);
