//! The engine in virtual time.

mod disagg;
mod models;
mod phases;
mod responses;
mod shared_link;
mod work;

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::sim::{EngineConfig, Stats};

fn config() -> EngineConfig {
    EngineConfig {
        prefill_tokens_per_second: 1000.0,
        decode_step: Duration::from_millis(10),
        batch_factor: 0.5,
        jitter: 0.0,
        ..EngineConfig::default()
    }
}

fn request(id: u64, prompt_tokens: u32, output_tokens: u32) -> SimRequest {
    let blocks = (0..u64::from(prompt_tokens) / 16).map(|block| id * 1_000_000 + block).collect();
    SimRequest {
        id,
        prompt_tokens,
        blocks,
        output_tokens,
        finish: Finish::Length,
        adapter: None,
        kind: Kind::Whole,
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn drain(engine: &mut Engine) -> Vec<Output> {
    let mut outputs = Vec::new();
    while let Some(at) = engine.next_event_at() {
        engine.advance(at, &mut outputs);
    }
    outputs
}

// (request, millisecond) of each token.
fn times(outputs: &[Output]) -> Vec<(u64, u64)> {
    outputs.iter().map(|output| (output.id, output.at.as_millis() as u64)).collect()
}

#[test]
fn one_request_takes_its_prefill_and_its_decode_steps() {
    let mut engine = Engine::new(config()).unwrap();
    engine.arrive(request(1, 100, 4), ms(5)).unwrap();
    let outputs = drain(&mut engine);
    assert_eq!(times(&outputs), [(1, 105), (1, 115), (1, 125), (1, 135)]);
    assert_eq!(outputs.iter().map(|o| o.finished).collect::<Vec<_>>(), [false, false, false, true]);
    assert_eq!(engine.state().kv_used_blocks, 0);
}

#[test]
fn a_batch_takes_longer_per_step_but_less_per_token() {
    let mut engine = Engine::new(config()).unwrap();
    for id in 0..2 {
        engine.arrive(request(id, 50, 2), ms(0)).unwrap();
    }
    // Both prompts in one step of 100 ms, then one step for both of 10 ms * 1.5.
    assert_eq!(times(&drain(&mut engine)), [(0, 100), (1, 100), (0, 115), (1, 115)]);
}

#[test]
fn chunked_prefill_does_not_stop_decoding() {
    let mut engine = Engine::new(EngineConfig { max_batched_tokens: 101, ..config() }).unwrap();
    engine.arrive(request(1, 100, 9), ms(0)).unwrap();
    let mut outputs = Vec::new();
    engine.advance(ms(100), &mut outputs);
    engine.arrive(request(2, 300, 1), ms(101)).unwrap();
    outputs.extend(drain(&mut engine));
    // Request 2 enters after the step in progress; each step has 1 decode token of
    // request 1 and 100 prompt tokens of request 2.
    let first_two: Vec<_> = times(&outputs).into_iter().take(6).collect();
    assert_eq!(first_two, [(1, 100), (1, 110), (1, 220), (1, 330), (1, 440), (2, 440)]);
}

#[test]
fn an_arrival_at_the_end_of_a_step_is_in_the_next() {
    let mut engine = Engine::new(config()).unwrap();
    engine.arrive(request(1, 100, 5), ms(0)).unwrap();
    engine.advance(ms(0), &mut Vec::new());
    engine.arrive(request(2, 10, 1), ms(100)).unwrap();
    assert_eq!(times(&drain(&mut engine))[..3], [(1, 100), (1, 120), (2, 120)]);
}

#[test]
fn a_present_prefix_cuts_the_time_to_the_first_token() {
    let mut engine = Engine::new(config()).unwrap();
    engine.arrive(request(1, 160, 1), ms(0)).unwrap();
    drain(&mut engine);
    let mut longer = request(1, 320, 1);
    longer.id = 2;
    engine.arrive(longer, ms(1000)).unwrap();
    let second = drain(&mut engine);
    assert_eq!((second[0].cached_tokens, second[0].at), (160, ms(1160)));
    // All blocks present: the last is computed again, as the first token comes from it.
    engine.arrive(request(1, 160, 1), ms(2000)).unwrap();
    let third = drain(&mut engine);
    assert_eq!((third[0].cached_tokens, third[0].at), (144, ms(2016)));
    assert_eq!((engine.stats().prefix_queries, engine.stats().prefix_hits), (640, 304));
}

#[test]
fn old_prefixes_are_evicted_for_new_ones() {
    let mut engine = Engine::new(EngineConfig { num_blocks: 20, ..config() }).unwrap();
    for (id, at) in [(1, 0), (2, 1000), (1, 2000), (3, 3000)] {
        engine.arrive(request(id, 128, 1), ms(at)).unwrap();
        drain(&mut engine);
    }
    // 8 blocks each in a cache of 20: the last to come took the place of 2, not of 1.
    let cached = |engine: &mut Engine, id, at| {
        engine.arrive(request(id, 128, 1), ms(at)).unwrap();
        drain(engine)[0].cached_tokens
    };
    assert_eq!(cached(&mut engine, 1, 4000), 112);
    assert!(cached(&mut engine, 2, 5000) < 112);
}

#[test]
fn request_is_refused_when_running_and_queue_are_full() {
    let mut engine = Engine::new(EngineConfig { max_running: 2, max_waiting: 3, ..config() }).unwrap();
    let arrivals: Vec<_> = (0..7).map(|id| engine.arrive(request(id, 16, 2), ms(0))).collect();
    assert_eq!(arrivals[..5], [Ok(()); 5]);
    assert_eq!(arrivals[5..], [Err(Rejected::QueueFull); 2]);
    engine.advance(ms(0), &mut Vec::new());
    assert_eq!((engine.state().running, engine.state().waiting), (2, 3));
    assert_eq!(drain(&mut engine).len(), 10);
    assert_eq!(engine.stats().rejected, 2);
}

#[test]
fn request_larger_than_the_kv_cache_is_refused() {
    let mut engine = Engine::new(EngineConfig { num_blocks: 4, ..config() }).unwrap();
    assert_eq!(engine.arrive(request(1, 60, 5), ms(0)), Err(Rejected::TooLong { limit: 64 }));
    let huge = SimRequest { prompt_tokens: u32::MAX, ..request(2, 1, 5) };
    assert_eq!(engine.arrive(huge, ms(0)), Err(Rejected::TooLong { limit: 64 }));
    assert_eq!(engine.arrive(request(3, 60, 4), ms(0)), Ok(()));
    assert_eq!(drain(&mut engine).len(), 4);
}

#[test]
fn last_admitted_request_is_preempted_and_recomputed() {
    let mut engine = Engine::new(EngineConfig { num_blocks: 8, ..config() }).unwrap();
    for id in [1, 2] {
        engine.arrive(request(id, 48, 40), ms(0)).unwrap();
    }
    let outputs = drain(&mut engine);
    assert!(engine.stats().preemptions > 0);
    for id in [1, 2] {
        let tokens: Vec<u32> = outputs.iter().filter(|o| o.id == id).map(|o| o.generated).collect();
        assert_eq!(tokens, (1..=40).collect::<Vec<_>>(), "no token is lost or given twice");
    }
    let finished = |id| outputs.iter().find(|o| o.id == id && o.finished).unwrap().at;
    assert!(finished(1) < finished(2));
    assert_eq!(engine.state().kv_used_blocks, 0);
}

#[test]
fn an_adapter_without_a_place_is_overtaken() {
    let mut engine = Engine::new(config()).unwrap();
    for (id, adapter) in [(1, Some("a")), (2, Some("b")), (3, None), (4, Some("a"))] {
        let adapter = adapter.map(Arc::from);
        engine.arrive(SimRequest { adapter, ..request(id, 10, 2) }, ms(0)).unwrap();
    }
    engine.advance(ms(0), &mut Vec::new());
    assert_eq!((engine.state().running, engine.state().waiting), (3, 1));
    assert_eq!(engine.adapters(), (vec!["a".into()], vec!["b".into()]));
    let outputs = drain(&mut engine);
    assert_eq!(outputs.last().map(|o| o.id), Some(2));
}

#[test]
fn aborted_request_frees_everything() {
    let mut engine = Engine::new(EngineConfig { max_running: 1, ..config() }).unwrap();
    for id in [1, 2, 3] {
        engine.arrive(request(id, 100, 50), ms(0)).unwrap();
    }
    engine.advance(ms(50), &mut Vec::new());
    engine.abort(1, ms(50));
    engine.abort(2, ms(50));
    engine.abort(99, ms(50));
    assert_eq!((engine.state().running, engine.state().waiting), (0, 1));
    let outputs = drain(&mut engine);
    assert!(outputs.iter().all(|output| output.id == 3));
    assert_eq!((outputs.len(), engine.stats().aborted, engine.kv().used()), (50, 2, 0));
}

#[test]
fn zero_cost_engine_responds_instantly() {
    let mut engine = Engine::new(EngineConfig::instant()).unwrap();
    engine.arrive(request(1, 100_000, 500), ms(7)).unwrap();
    let mut outputs = Vec::new();
    engine.advance(ms(7), &mut outputs);
    assert_eq!((outputs.len(), engine.next_event_at()), (500, None));
    assert!(outputs.iter().all(|output| output.at == ms(7)));
}

// Arrivals (milliseconds since the one before, prompt, output, family of prompts), some
// of them aborted at the time of a later arrival.
fn workload() -> impl Strategy<Value = Vec<(u64, u32, u32, u64, bool)>> {
    prop::collection::vec((0..60u64, 1..300u32, 1..40u32, 0..4u64, prop::bool::weighted(0.1)), 1..60)
}

fn play(config: EngineConfig, workload: &[(u64, u32, u32, u64, bool)]) -> (Vec<Output>, Stats, EngineState) {
    let mut engine = Engine::new(config).unwrap();
    let (mut now, mut outputs) = (0, Vec::new());
    for (id, (gap, prompt, output, family, abort)) in (0..).zip(workload) {
        now += gap;
        let blocks = request(*family, *prompt, 1).blocks;
        // Refusals are part of the load.
        let _ = engine.arrive(SimRequest { blocks, ..request(id, *prompt, *output) }, ms(now));
        if *abort {
            engine.abort(id / 2, ms(now));
        }
        engine.advance(ms(now), &mut outputs);
    }
    outputs.extend(drain(&mut engine));
    (outputs, engine.stats().clone(), engine.state())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_load_ends_in_order_and_frees_all_blocks(workload in workload(), seed: u64, blocks in 22..80u32) {
        let config = EngineConfig {
            num_blocks: blocks, max_running: 6, max_waiting: 10, max_batched_tokens: 64, seed, jitter: 0.3,
            ..config()
        };
        let (outputs, stats, state) = play(config.clone(), &workload);
        prop_assert!(outputs.is_sorted_by_key(|output| output.at));
        prop_assert_eq!((state.running, state.waiting, state.kv_used_blocks), (0, 0, 0));
        let mut last = std::collections::HashMap::new();
        for output in &outputs {
            let before = last.insert(output.id, output.generated).unwrap_or(0);
            prop_assert_eq!(output.generated, before + 1);
            prop_assert_eq!(output.finished, output.generated == workload[output.id as usize].2);
        }
        let finished = outputs.iter().filter(|output| output.finished).count() as u64;
        prop_assert_eq!(finished + stats.aborted + stats.rejected, workload.len() as u64);
        // The same seed: the same tokens at the same times.
        prop_assert_eq!(play(config, &workload), (outputs, stats, state));
    }
}

#[test]
fn another_seed_gives_other_times() {
    let workload = [(0, 100, 20, 0, false), (30, 80, 20, 1, false)];
    let [one, two] = [1, 2].map(|seed| play(EngineConfig { seed, jitter: 0.1, ..config() }, &workload).0);
    assert_eq!(one.len(), two.len());
    assert_ne!(one, two);
}
