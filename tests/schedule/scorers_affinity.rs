//! Scorers by what endpoints hold or are for, against their formulas.

use std::sync::Arc;

use proptest::prelude::*;
use usher::config::Node;
use usher::endpoints::{Adapters, Candidates};
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::data::{EncoderCacheMatch, PromptTokens};
use usher::schedule::{
    Context, ContextLengthAware, ContextLengthParams, Facts, Filter, HeaderLabelAffinityScorer,
    HeaderLabelParams, Key, LoraAffinityScorer, MmEmbeddingsCacheParams, MmEmbeddingsCacheScorer,
};

use crate::support::{MAX_AGE, NOW, column, pool, request};

fn node(text: &str) -> Node {
    Node::parse(text).unwrap()
}

/// Adapters in use and waited for, how many can be loaded, and the age of the reading;
/// the first is `None` where the server never reported adapters.
type Loras = (Option<(&'static [&'static str], &'static [&'static str], u32)>, Option<u64>);

fn loras(endpoints: &[Loras]) -> Candidates {
    let candidates = pool(endpoints.len(), |_, _| {});
    for (endpoint, (adapters, age)) in candidates.view().iter().zip(endpoints) {
        if let Some(age) = age {
            endpoint.load().scraped(NOW - age);
        }
        if let Some((running, waiting, max)) = adapters {
            let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
            let adapters = Adapters { running: names(running), waiting: names(waiting), max: *max };
            endpoint.load().adapters.store(Some(Arc::new(adapters)));
            if let Some(age) = age {
                endpoint.load().adapters_read.set(0.0, NOW - age);
            }
        }
    }
    candidates
}

#[test]
fn unreported_adapters_become_stale() {
    let candidates = loras(&[(Some((&["a"], &[], 2)), Some(0)), (Some((&[], &[], 2)), Some(0))]);
    let score = || column(&LoraAffinityScorer, &asking_for("a"), Facts::NONE, &candidates);
    assert_eq!(score(), [1.0, 0.8]);
    // The page is still read, without the adapters: a server that was started again.
    candidates.view().get(0).load().adapters_read.set(0.0, 1);
    assert_eq!(score(), [0.8, 0.8], "as the worst of the others");
}

fn asking_for(model: &str) -> Request {
    let mut request = Request::default();
    model.clone_into(&mut request.target_model);
    request
}

#[test]
fn the_lora_scorer_follows_its_formula() {
    let fresh = |running, waiting, max| -> Loras { (Some((running, waiting, max)), Some(0)) };
    let stale: Loras = (Some((&["a"], &[], 4)), Some(MAX_AGE.as_millis() as u64 + 1));
    let table: [(&[Loras], &[f32]); 6] = [
        (
            &[
                fresh(&["b", "a"], &[], 2),
                fresh(&["b"], &["c"], 3),
                fresh(&["b"], &["a"], 2),
                fresh(&["b"], &["c"], 2),
            ],
            &[1.0, 0.8, 0.6, 0.0],
        ),
        // Room counts before waiting, and being in use before both.
        (&[fresh(&["b"], &["a"], 3), fresh(&["a"], &["a"], 0)], &[0.8, 1.0]),
        // A server that never spoke of adapters has none.
        (&[(None, Some(0)), fresh(&[], &[], 1)], &[0.0, 0.8]),
        // What is stale or was never read is no better than the worst of the others.
        (&[stale, (None, None), fresh(&[], &[], 1), fresh(&["a"], &[], 1)], &[0.8, 0.8, 0.8, 1.0]),
        (&[stale, (None, None)], &[0.0, 0.0]),
        (&[], &[]),
    ];
    for (endpoints, expected) in table {
        let scores = column(&LoraAffinityScorer, &asking_for("a"), Facts::NONE, &loras(endpoints));
        assert_eq!(scores, expected, "{endpoints:?}");
    }
}

fn with_label(key: &str, values: &[Option<String>]) -> Candidates {
    pool(values.len(), |index, spec| {
        spec.labels.extend(values[index].clone().map(|value| (key.to_owned(), value)));
    })
}

#[test]
fn header_label_scorer_matches_equal_values() {
    let params = HeaderLabelParams::decode(&node("{headerName: X-Tenant, labelKey: tenant}")).unwrap();
    let scorer = HeaderLabelAffinityScorer::new(&params);
    let candidates = with_label("tenant", &["a", "b", "A", ""].map(|value| Some(value.to_owned())));
    let none = with_label("other", &[Some("a".to_owned()), None]);
    let table: [(&[(&str, &str)], &[f32], &[f32]); 5] = [
        (&[("x-tenant", "a")], &[1.0, 0.0, 0.0, 0.0], &[0.0, 0.0]),
        (&[("X-TENANT", "b")], &[0.0, 1.0, 0.0, 0.0], &[0.0, 0.0]),
        (&[("x-tenant", "a"), ("x-tenant", "A")], &[0.0, 0.0, 1.0, 0.0], &[0.0, 0.0]),
        (&[("x-tenant", "")], &[0.0; 4], &[0.0, 0.0]),
        (&[], &[0.0; 4], &[0.0, 0.0]),
    ];
    for (headers, expected, without) in table {
        let headers: Headers = headers.iter().copied().collect();
        let request = RequestParser::new(headers, &Parsers::new(&[ParserKind::PassThrough])).without_body();
        assert_eq!(column(&scorer, &request, Facts::NONE, &candidates), expected, "{request:?}");
        assert_eq!(column(&scorer, &request, Facts::NONE, &none), without, "{request:?}");
    }
}

const LENGTH: u32 = 3;

fn length(tokens: u64) -> Facts {
    let mut facts = Facts::default();
    facts.set(Key::new(LENGTH), PromptTokens { count: tokens });
    facts
}

fn context_length() -> ContextLengthAware {
    ContextLengthAware::new(&ContextLengthParams::decode(&node("{}")).unwrap(), Key::new(LENGTH))
}

/// Scores, and the positions that the filter keeps.
fn by_length(facts: &Facts, labels: &[Option<String>]) -> (Vec<f32>, Vec<u32>) {
    let plugin = context_length();
    let candidates = with_label("llm-d.ai/context-length-range", labels);
    let (request, mut kept) = (request(), candidates.indices().to_vec());
    let cx = Context { facts, ..Context::new(&request, NOW, MAX_AGE) };
    plugin.filter(&cx, candidates.snapshot(), &mut kept, &mut rand::rng());
    (column(&plugin, &request, facts, &candidates), kept)
}

#[test]
fn the_context_length_scorer_follows_its_formula() {
    let labels = ["0-10000", "2000-2000", "3000-9000", "0-1000", "x", "5-", "9-1", "-1-5", "1-2-3", ""]
        .map(|label| Some(label.to_owned()));
    let labels = [&labels[..], &[None]].concat();
    let (scores, kept) = by_length(&length(2000), &labels);
    let outside = 0.3 / 2.0;
    let expected = [0.3 + 0.7 * (0.35 + 0.24), 1.0, outside, outside, 0., 0., 0., 0., 0., 0., 0.5];
    for (got, expected) in scores.iter().zip(expected) {
        assert!((got - expected).abs() < 1e-6, "{scores:?}");
    }
    assert_eq!((scores.len(), kept), (11, vec![0, 1, 10]));
    let unknown = by_length(Facts::NONE, &labels);
    assert_eq!(unknown, (vec![0.5; 11], (0..11).collect()), "nobody read the prompt");
}

#[test]
fn a_range_includes_its_ends_and_a_narrow_one_is_better() {
    let labels = ["0-1000", "1000-2000", "0-100000"].map(|label| Some(label.to_owned()));
    let (scores, kept) = by_length(&length(1000), &labels);
    assert_eq!(kept, [0, 1, 2]);
    assert!(scores[1] > scores[0] && scores[0] > scores[2] && scores[2] >= 0.3, "{scores:?}");
}

#[test]
fn the_embeddings_scorer_counts_items() {
    let params = MmEmbeddingsCacheParams::decode(&node("{}")).unwrap();
    assert_eq!(params.producer_name, "mm-embeddings-cache-producer");
    let key = Key::new(1);
    let scorer = MmEmbeddingsCacheScorer::new(key);
    let all = pool(5, |_, _| {});
    let mut facts = Facts::default();
    assert_eq!(column(&scorer, &request(), &facts, &all), [0.0; 5]);
    facts.set(key, EncoderCacheMatch { items: Vec::new(), matched: vec![0; 5] });
    assert_eq!(column(&scorer, &request(), &facts, &all), [0.0; 5]);
    facts.set(key, EncoderCacheMatch { items: vec![7, 8, 9, 10], matched: vec![0, 1, 4, 2] });
    assert_eq!(column(&scorer, &request(), &facts, &all), [0.0, 0.25, 1.0, 0.5, 0.0]);
    assert_eq!(column(&scorer, &request(), &facts, &all.narrowed(&[1, 3])), [0.25, 0.5]);
}

#[test]
fn parameters_are_strict() {
    let error = |text: &str| HeaderLabelParams::decode(&node(text)).unwrap_err().to_string();
    let table = [
        ("{}", "'headerName' is missing"),
        ("{headerName: a}", "'labelKey' is missing"),
        ("{headerName: '', labelKey: b}", "'headerName' is empty"),
        ("{headerName: a, labelKey: ''}", "'labelKey' is empty"),
        ("{headerName: a, labelKey: b, more: c}", "unknown field 'more'"),
    ];
    for (text, message) in table {
        assert!(error(text).contains(message), "{text}: {}", error(text));
    }
    let params = ContextLengthParams::decode(&node("{label: '', enableFiltering: true}")).unwrap();
    let default = ContextLengthParams::decode(&node("{}")).unwrap();
    assert_eq!((params.label.as_str(), params.enable_filtering), (default.label.as_str(), true));
    assert_eq!((default.label.as_str(), default.enable_filtering), ("llm-d.ai/context-length-range", false));
    for text in ["{labels: a}", "{enableFiltering: maybe}", "{label: 3}"] {
        assert!(ContextLengthParams::decode(&node(text)).is_err(), "{text}");
    }
    assert!(MmEmbeddingsCacheParams::decode(&node("{producer: a}")).is_err());
}

/// The formulas once more, in loops over plain values.
mod reference {
    pub(super) fn context_length(label: Option<&(u64, u64)>, length: u64) -> (f64, bool) {
        let Some(&(min, max)) = label else { return (0.5, true) };
        let (min, max, length) = (min as f64, max as f64, length as f64);
        if min > max {
            return (0.0, false);
        }
        if length < min {
            return (0.3 / (1.0 + (min - length) / 1000.0), false);
        }
        if length > max {
            return (0.3 / (1.0 + (length - max) / 1000.0), false);
        }
        let width = max - min;
        let raw = match width {
            0.0 => 1.0,
            width => 0.7 / (1.0 + width / 10_000.0) + 0.3 * (max - length) / width,
        };
        (0.3 + 0.7 * raw, true)
    }

    #[derive(Debug)]
    pub(super) struct Endpoint {
        pub(super) running: Vec<u8>,
        pub(super) waiting: Vec<u8>,
        pub(super) max: u32,
        pub(super) fresh: bool,
    }

    pub(super) fn lora(endpoints: &[Endpoint], model: u8) -> Vec<f32> {
        let known = |endpoint: &Endpoint| {
            if endpoint.running.contains(&model) {
                return 1.0;
            }
            if (endpoint.running.len() + endpoint.waiting.len()) < endpoint.max as usize {
                return 0.8;
            }
            if endpoint.waiting.contains(&model) { 0.6 } else { 0.0 }
        };
        let mut worst = None;
        for score in endpoints.iter().filter(|endpoint| endpoint.fresh).map(known) {
            if worst.is_none_or(|worst| score < worst) {
                worst = Some(score);
            }
        }
        let score = |e: &Endpoint| if e.fresh { known(e) } else { worst.unwrap_or(0.0) };
        endpoints.iter().map(score).collect()
    }
}

proptest! {
    #[test]
    fn lengths_are_scored_as_by_the_reference(
        ranges in prop::collection::vec(prop::option::weighted(0.9, (0u64..50_000, 0u64..50_000)), 1..20),
        tokens in 0u64..60_000,
    ) {
        let labels: Vec<_> = ranges.iter().map(|range| range.map(|(min, max)| format!("{min}-{max}"))).collect();
        let (scores, kept) = by_length(&length(tokens), &labels);
        for (position, (score, range)) in scores.into_iter().zip(&ranges).enumerate() {
            let (expected, keeps) = reference::context_length(range.as_ref(), tokens);
            prop_assert!((f64::from(score) - expected).abs() < 1e-6, "{score} {expected}");
            prop_assert_eq!(kept.contains(&(position as u32)), keeps);
        }
    }

    #[test]
    fn adapters_are_scored_as_by_the_reference(
        endpoints in prop::collection::vec(
            (prop::collection::vec(0u8..6, 0..4), prop::collection::vec(0u8..6, 0..4), 0u32..6, prop::bool::weighted(0.8))
                .prop_map(|(running, waiting, max, fresh)| reference::Endpoint { running, waiting, max, fresh }),
            1..20,
        ),
        model in 0u8..6,
    ) {
        let candidates = pool(endpoints.len(), |_, _| {});
        for (endpoint, given) in candidates.view().iter().zip(&endpoints) {
            let names = |list: &[u8]| list.iter().map(u8::to_string).collect();
            let adapters = Adapters { running: names(&given.running), waiting: names(&given.waiting), max: given.max };
            endpoint.load().adapters.store(Some(Arc::new(adapters)));
            endpoint.load().scraped(if given.fresh { NOW } else { 1 });
            endpoint.load().adapters_read.set(0.0, if given.fresh { NOW } else { 1 });
        }
        let scores = column(&LoraAffinityScorer, &asking_for(&model.to_string()), Facts::NONE, &candidates);
        prop_assert_eq!(scores, reference::lora(&endpoints, model));
    }
}
