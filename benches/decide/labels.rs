//! Cost of plugins that go by labels, each alone on 1,000 endpoints with the labels of a usual pod;
//! and of the same when labels are looked up for every decision.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use criterion::Criterion;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::Node;
use usher::endpoints::{Candidates, EndpointSpec, Snapshot, Store, View};
use usher::request::{Headers, ParserKind, Parsers, RequestParser};
use usher::schedule::data::PromptTokens;
use usher::schedule::{
    ByLabelFilter, ByLabelParams, Context, ContextLengthAware, ContextLengthParams, Facts, Filter,
    HeaderLabelAffinityScorer, HeaderLabelParams, Key, LabelSelector, LabelSelectorFilter, MinAffinity,
    RoleFilter, Scorer, TopologyAffinityFilter, TopologyAffinityScorer,
};

const COUNT: u32 = 1000;

/// Two of three endpoints decode, one of four belongs to the tenant that asks, and half
/// of them are for short prompts.
fn labels(index: u32) -> Vec<(&'static str, String)> {
    let role = if index.is_multiple_of(3) { "prefill" } else { "decode" };
    let range = if index.is_multiple_of(2) { "0-8192" } else { "8193-131072" };
    vec![
        ("app.kubernetes.io/component", "model-server".to_owned()),
        ("app.kubernetes.io/instance", "llama-70b".to_owned()),
        ("app.kubernetes.io/managed-by", "Helm".to_owned()),
        ("app.kubernetes.io/name", "vllm".to_owned()),
        ("kubernetes.io/hostname", format!("node-{}", index / 8)),
        ("llm-d.ai/context-length-range", range.to_owned()),
        ("llm-d.ai/engine-type", "vllm".to_owned()),
        ("llm-d.ai/inference-serving", "true".to_owned()),
        ("llm-d.ai/model", "llama-70b-instruct".to_owned()),
        ("llm-d.ai/role", role.to_owned()),
        ("pod-template-hash", format!("{:010x}", index / 100)),
        ("tenant", format!("tenant-{}", index % 4)),
        ("topology.kubernetes.io/region", "eu-central-1".to_owned()),
        ("topology.kubernetes.io/zone", format!("eu-central-1{}", ["a", "b", "c"][index as usize % 3])),
    ]
}

fn pool() -> Candidates {
    let store = Store::default();
    let spec = |index: u32| EndpointSpec {
        labels: labels(index).into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        ..EndpointSpec::new(format!("pod-{index}"), (Ipv4Addr::from(0x0a00_0000 + index), 8000))
    };
    store.replace((0..COUNT).map(spec).collect());
    store.snapshot().all()
}

fn node(text: &str) -> Node {
    Node::parse(text).unwrap()
}

/// Keeps what has a label with this value.
struct LookUp(&'static str, &'static str);

impl Filter for LookUp {
    fn filter(&self, _cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        kept.retain(|at| snapshot.endpoints()[*at as usize].label(self.0) == Some(self.1));
    }
}

impl Scorer for LookUp {
    fn score(&self, _cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        for (score, endpoint) in out.iter_mut().zip(candidates.iter()) {
            *score = f32::from(endpoint.label(self.0) == Some(self.1));
        }
    }
}

/// Keeps what a selector matches.
struct SelectorLookUp(LabelSelector);

impl Filter for SelectorLookUp {
    fn filter(&self, _cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        kept.retain(|at| self.0.matches(|key| snapshot.endpoints()[*at as usize].label(key)));
    }
}

pub fn labels_of(c: &mut Criterion) {
    let all = pool();
    let headers: Headers = [("x-tenant", "tenant-1")].into_iter().collect();
    let request = RequestParser::new(headers, &Parsers::new(&[ParserKind::PassThrough])).without_body();
    let mut facts = Facts::default();
    facts.set(Key::new(0), PromptTokens { count: 3000 });
    let peer = &all.snapshot().endpoints()[17];
    let cx =
        Context { facts: &facts, peer: Some(peer), ..Context::new(&request, 10, Duration::from_secs(2)) };

    let selector = "{matchLabels: {llm-d.ai/model: llama-70b-instruct, llm-d.ai/role: decode}, matchExpressions: [{key: tenant, operator: In, values: [tenant-1, tenant-2]}]}";
    let by_label = "{label: tenant, validValues: [tenant-1, tenant-2]}";
    let length = || ContextLengthAware::new(&ContextLengthParams::decode(&node("{}")).unwrap(), Key::new(0));
    let selector = || LabelSelector::decode(&node(selector)).unwrap();
    let tenant = HeaderLabelParams::decode(&node("{headerName: x-tenant, labelKey: tenant}")).unwrap();
    let filters: [(&str, Box<dyn Filter>); 7] = [
        ("decode-filter", Box::new(RoleFilter::Decode)),
        ("by-label", Box::new(ByLabelFilter::new(ByLabelParams::decode(&node(by_label)).unwrap()))),
        ("label-selector-filter", Box::new(LabelSelectorFilter::new(selector()))),
        ("label-selector looked up", Box::new(SelectorLookUp(selector()))),
        ("context-length-aware", Box::new(length())),
        ("topology-affinity-filter", Box::new(TopologyAffinityFilter::new(MinAffinity::Zone))),
        ("one label looked up", Box::new(LookUp("tenant", "tenant-1"))),
    ];
    let mut rng = StdRng::seed_from_u64(1);
    let mut group = c.benchmark_group("labels/filter");
    for (name, filter) in filters {
        let mut kept = Vec::new();
        group.bench_function(name, |b| {
            b.iter(|| {
                kept.clear();
                kept.extend_from_slice(all.indices());
                filter.filter(&cx, all.snapshot(), &mut kept, &mut rng);
                black_box(kept.len())
            });
        });
    }
    group.finish();
    let scorers: [(&str, Box<dyn Scorer>); 4] = [
        ("header-label-affinity-scorer", Box::new(HeaderLabelAffinityScorer::new(&tenant))),
        ("context-length-aware", Box::new(length())),
        ("topology-affinity-scorer", Box::new(TopologyAffinityScorer)),
        ("one label looked up", Box::new(LookUp("tenant", "tenant-1"))),
    ];
    let mut group = c.benchmark_group("labels/score");
    for (name, scorer) in scorers {
        let mut column = vec![0.0; all.len()];
        group.bench_function(name, |b| {
            b.iter(|| {
                scorer.score(&cx, all.view(), &mut column);
                black_box(column[0])
            });
        });
    }
    group.finish();
}
