//! Reading one page of a vLLM server: the scanner, the floor (finding the lines
//! and nothing else), and a parser that reads everything.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use usher::scrape::exposition::{Line, MetricSpec, Scanner, Wanted};

#[path = "common/page.rs"]
mod page;

use page::page;

fn wanted() -> Wanted {
    let names = [
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
        "vllm:lora_requests_info",
    ];
    Wanted::new(names.map(MetricSpec::named).to_vec())
}

fn exposition(c: &mut Criterion) {
    let page = page();
    let wanted = wanted();
    let mut group = c.benchmark_group("exposition");
    group.throughput(Throughput::Bytes(page.len() as u64));
    group.bench_function("scanner", |b| {
        b.iter(|| {
            let mut sum = 0.0;
            wanted.scan(black_box(page.as_bytes()), |_, line| {
                if let Line::Sample { value, .. } = line {
                    sum += value;
                }
            });
            sum
        });
    });
    group.bench_function("scanner_in_16k_pieces", |b| {
        let mut scanner = Scanner::new(&wanted);
        b.iter(|| {
            let mut sum = 0.0;
            let mut found = |_: usize, line: Line<'_>| {
                if let Line::Sample { value, .. } = line {
                    sum += value;
                }
            };
            black_box(page.as_bytes()).chunks(16 << 10).for_each(|piece| scanner.feed(piece, &mut found));
            scanner.finish(&mut found);
            sum
        });
    });
    group.bench_function("line_scan", |b| {
        b.iter(|| {
            let mut longest = 0;
            let mut start = 0;
            for end in memchr::memchr_iter(b'\n', black_box(page.as_bytes())) {
                longest = longest.max(end - start);
                start = end + 1;
            }
            longest
        });
    });
    group.sample_size(20);
    group.bench_function("prometheus_parse", |b| {
        b.iter(|| {
            let lines = black_box(page.as_str()).lines().map(|line| Ok(line.to_owned()));
            prometheus_parse::Scrape::parse(lines).map(|scrape| scrape.samples.len())
        });
    });
    group.finish();
}

criterion_group!(benches, exposition);
criterion_main!(benches);
