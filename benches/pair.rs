//! Cost of choosing prefill and decode together beside each profile picking alone, with half of the
//! endpoints for either, in racks of eight: the whole decision, without the wire and without
//! producers, and its bookings. Then the same where pairs need a rack of their own, so that the
//! best of either side don't fit together and all are looked at.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set itself up has nothing to measure")]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::EndpointPickerConfig;
use usher::endpoints::{Candidates, EndpointSpec, Store};
use usher::registry::Pipeline;
use usher::request::{Headers, ParserKind, Parsers, RequestParser};
use usher::schedule::{Context, Effects, Record, SchedulerMetrics, Scratch, State};

/// Endpoints in racks of so many, of two revisions: every other pair is of the second one.
fn candidates(count: u32, rack: u32) -> Candidates {
    let store = Store::default();
    let spec = |index: u32| {
        let address = (Ipv4Addr::from(0x0a00_0000 + index), 8000);
        let mut spec = EndpointSpec::new(format!("pod-{index}"), address);
        let role = if index.is_multiple_of(2) { "prefill" } else { "decode" };
        spec.labels.insert("llm-d.ai/role".to_owned(), role.to_owned());
        spec.labels.insert("topology.kubernetes.io/rack".to_owned(), format!("rack-{}", index / rack));
        spec.labels.insert("revision".to_owned(), format!("{}", index / 2 % 2));
        spec
    };
    store.replace((0..count).map(spec).collect());
    let snapshot = store.snapshot();
    for (index, endpoint) in (0u32..).zip(snapshot.endpoints()) {
        endpoint.load().waiting.set(f64::from(index * 7 % 17), 1);
        endpoint.load().running.set(f64::from(index * 3 % 13), 1);
        endpoint.load().kv_usage.set(f64::from(index * 5 % 23) / 23.0, 1);
    }
    snapshot.all()
}

fn pipeline(handler: &str, metrics: &SchedulerMetrics) -> Pipeline {
    let text = format!(
        "
plugins:
- type: always-disagg-pd-decider
- {{type: disagg-profile-handler, parameters: {{deciders: {{prefill: always-disagg-pd-decider}}, {handler}}}}}
- type: prefill-filter
- type: decode-filter
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: max-score-picker
schedulingProfiles:
- {{name: prefill, plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: queue-scorer}}, {{pluginRef: max-score-picker}}]}}
- {{name: decode, plugins: [{{pluginRef: decode-filter}}, {{pluginRef: kv-cache-utilization-scorer}}, {{pluginRef: max-score-picker}}]}}
"
    );
    let config = EndpointPickerConfig::parse(&text).unwrap();
    Pipeline::build(Some(&config), false, metrics, &State::default()).unwrap()
}

fn pair(c: &mut Criterion) {
    let parsers = Parsers::new(&[ParserKind::PassThrough]);
    let request = RequestParser::new(Headers::default(), &parsers).without_body();
    let cx = Context::new(&request, 10, Duration::from_secs(2));
    for count in [16, 100, 1000] {
        let (candidates, pairs) = (candidates(count, 8), candidates(count, 2));
        let mut group = c.benchmark_group(format!("pair/{count} endpoints"));
        for (name, candidates, handler) in [
            ("independent", &candidates, "pairing: independent"),
            ("joint, best 4", &candidates, "pairing: joint, links: {rack: 1.0e+11, none: 1.0e+10}"),
            (
                "joint, best 8",
                &candidates,
                "pairing: joint, pairCandidates: 8, links: {rack: 1.0e+11, none: 1.0e+10}",
            ),
            (
                "joint, best forbidden",
                &pairs,
                "pairing: joint, pairCandidates: 1, constraintMode: Required, constraintLayer: rack, revisionLabel: revision",
            ),
            (
                "joint, all forbidden",
                &pairs,
                "pairing: joint, constraintMode: Required, constraintLayer: host, revisionLabel: revision",
            ),
        ] {
            let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
            let pipeline = pipeline(handler, &metrics);
            let (mut rng, mut scratch) = (StdRng::seed_from_u64(1), Scratch::default());
            group.bench_function(BenchmarkId::from_parameter(name), |b| {
                b.iter(|| {
                    let scheduler = &pipeline.scheduler;
                    let decision = scheduler.decide(&cx, candidates, &mut rng, &mut scratch, Record::No);
                    let mut effects = Effects::default();
                    if let Ok(decision) = &decision {
                        pipeline.stages.act(&cx, decision, &mut effects);
                    }
                    black_box((decision, effects))
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, pair);
criterion_main!(benches);
