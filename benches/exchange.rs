//! A whole exchange without its wire: parse, decide, send the body on, read the
//! response. By size of the request's body.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set itself up has nothing to measure")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

#[path = "common/bodies.rs"]
mod bodies;
#[path = "common/drive.rs"]
mod drive;
#[path = "common/picker.rs"]
mod picker;

fn exchange(c: &mut Criterion) {
    let picker = picker::Picker::new(10);
    let response = picker::response();
    let mut group = c.benchmark_group("exchange");
    for bytes in [800, 40_000, 400_000] {
        let chunks = bodies::completions(bytes);
        group.throughput(Throughput::Bytes(chunks.iter().map(|c| c.len() as u64).sum()));
        group.bench_with_input(BenchmarkId::from_parameter(bytes), &chunks, |b, chunks| {
            b.iter(|| drive::run(&picker, &bodies::HEADERS, chunks, &response));
        });
    }
    group.finish();
}

criterion_group!(benches, exchange);
criterion_main!(benches);
