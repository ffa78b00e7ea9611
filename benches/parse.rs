//! Reading a body from 1 KB to 1 MB, beside what else could read it: `serde_json`
//! into a borrowed struct, and a plain copy as the floor of anything that
//! collects the body first.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set itself up has nothing to measure")]

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde::Deserialize;
use serde_json::value::RawValue;
use usher::request::{ParserKind, Parsers, RequestParser};

#[path = "common/bodies.rs"]
mod bodies;

#[derive(Deserialize)]
struct Borrowed<'a> {
    #[serde(borrow)]
    model: &'a RawValue,
    #[serde(borrow)]
    prompt: &'a RawValue,
}

fn parse(c: &mut Criterion) {
    let parsers = Parsers::new(&[ParserKind::OpenAi, ParserKind::PassThrough]);
    let mut group = c.benchmark_group("parse");
    for bytes in [1_000, 10_000, 100_000, 1_000_000] {
        let chunks = bodies::completions(bytes);
        let whole: Vec<u8> = chunks.concat();
        group.throughput(Throughput::Bytes(whole.len() as u64));
        group.bench_with_input(BenchmarkId::new("usher", bytes), &chunks, |b, chunks| {
            b.iter(|| {
                let mut parser = RequestParser::new(bodies::HEADERS.into_iter().collect(), &parsers);
                chunks.iter().cloned().for_each(|chunk: Bytes| parser.push(chunk));
                parser.finish().unwrap()
            });
        });
        group.bench_with_input(BenchmarkId::new("serde_json borrowed", bytes), &whole, |b, whole| {
            b.iter(|| {
                let parsed: Borrowed<'_> = serde_json::from_slice(whole).unwrap();
                (parsed.model.get().len(), parsed.prompt.get().len())
            });
        });
        group.bench_with_input(BenchmarkId::new("copy", bytes), &whole, |b, whole| b.iter(|| whole.clone()));
    }
    group.finish();
}

criterion_group!(benches, parse);
criterion_main!(benches);
