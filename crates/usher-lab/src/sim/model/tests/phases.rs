//! Steps that are either prefill or decoding.

use super::super::*;
use super::{drain, ms, request, times};
use crate::sim::EngineConfig;

// A token of a prompt takes a millisecond, a step of decoding ten.
fn model() -> PrefillFirst {
    PrefillFirst {
        launch: 0.0,
        seconds_per_token: 1e-3,
        attention_seconds: 0.0,
        base: 1e-2,
        per_sequence: 0.0,
        kv_read: 0.0,
        max_prefill_steps: u32::MAX,
        reserve_ratio: 0.3,
    }
}

fn config(model: PrefillFirst) -> EngineConfig {
    EngineConfig {
        model: EngineModel::PrefillFirst(model),
        max_batched_tokens: 100,
        jitter: 0.0,
        ..EngineConfig::default()
    }
}

// When a request's tokens are there, in milliseconds.
fn of(id: u64, outputs: &[Output]) -> Vec<u64> {
    times(outputs).into_iter().filter(|(of, _)| *of == id).map(|(_, at)| at).collect()
}

#[test]
fn decoding_pauses_during_prefill() {
    let mut engine = Engine::new(config(model())).unwrap();
    engine.arrive(request(1, 100, 5), ms(0)).unwrap();
    engine.advance(ms(110), &mut Vec::new());
    engine.arrive(request(2, 60, 2), ms(112)).unwrap();
    engine.arrive(request(3, 70, 2), ms(112)).unwrap();
    let outputs = drain(&mut engine);
    // Two whole prompts don't fit into a step of 100 tokens.
    assert_eq!(of(1, &outputs), [120, 260, 270]);
    assert_eq!((of(2, &outputs), of(3, &outputs)), (vec![180, 260], vec![250, 260]));
}

#[test]
fn whole_prompts_share_a_step_and_long_ones_run_alone() {
    let mut engine = Engine::new(config(model())).unwrap();
    for (id, prompt) in [(1, 40), (2, 60), (3, 250), (4, 10)] {
        engine.arrive(request(id, prompt, 1), ms(0)).unwrap();
    }
    // Chunks of 100, 100 and 50, whose last has room for the fourth and doesn't take it.
    assert_eq!(times(&drain(&mut engine)), [(1, 100), (2, 100), (3, 350), (4, 360)]);
}

#[test]
fn decoding_gets_a_turn_after_some_prefill_steps() {
    // steps in a row, when the first request's tokens are there
    let table = [
        (1, [100, 110, 220, 330, 440]),
        (2, [100, 110, 320, 430, 440]),
        (u32::MAX, [100, 110, 420, 430, 440]),
    ];
    for (max_prefill_steps, want) in table {
        let mut engine = Engine::new(config(PrefillFirst { max_prefill_steps, ..model() })).unwrap();
        engine.arrive(request(1, 100, 5), ms(0)).unwrap();
        let mut outputs = Vec::new();
        engine.advance(ms(102), &mut outputs);
        engine.arrive(request(2, 300, 1), ms(103)).unwrap();
        outputs.extend(drain(&mut engine));
        assert_eq!(of(1, &outputs), want, "{max_prefill_steps}");
    }
}

#[test]
fn room_is_reserved_for_a_share_of_the_responses() {
    // ratio, whether the second prompt is computed before the first response is complete
    for (reserve_ratio, together) in [(0.0, true), (0.3, true), (0.4, false), (1.0, false)] {
        let mut engine =
            Engine::new(EngineConfig { num_blocks: 20, ..config(PrefillFirst { reserve_ratio, ..model() }) })
                .unwrap();
        // Six blocks each for prompts; eight are left for two responses of 200 tokens.
        for id in [1, 2] {
            engine.arrive(request(id, 96, 200), ms(0)).unwrap();
        }
        engine.advance(ms(150), &mut Vec::new());
        assert_eq!(engine.state().running, if together { 2 } else { 1 }, "{reserve_ratio}");
        assert_eq!(drain(&mut engine).last().unwrap().generated, 200);
        assert_eq!(engine.kv().used(), 0);
    }
}

#[test]
fn newest_request_is_preempted_when_blocks_run_out() {
    let config = EngineConfig { num_blocks: 8, ..config(PrefillFirst { reserve_ratio: 0.0, ..model() }) };
    let mut engine = Engine::new(config).unwrap();
    for id in [1, 2] {
        engine.arrive(request(id, 48, 40), ms(0)).unwrap();
    }
    let outputs = drain(&mut engine);
    assert!(engine.stats().preemptions > 0);
    let finished = |id| outputs.iter().find(|o| o.id == id && o.finished).unwrap().at;
    assert!(finished(1) < finished(2));
    assert_eq!((outputs.len(), engine.stats().generation_tokens), (80, 80));
}

// Of a queue of `others`, whether the one with a cached prefix is first.
fn cached_is_first(others: u64) -> bool {
    let mut engine = Engine::new(EngineConfig { max_running: 1, ..config(model()) }).unwrap();
    engine.arrive(request(1000, 96, 1), ms(0)).unwrap();
    drain(&mut engine);
    engine.arrive(request(0, 96, 10), ms(200)).unwrap();
    engine.advance(ms(200), &mut Vec::new());
    for id in 1..=others {
        engine.arrive(request(id, 96, 1), ms(201)).unwrap();
    }
    engine.arrive(SimRequest { id: 9999, ..request(1000, 96, 1) }, ms(202)).unwrap();
    let order: Vec<u64> = drain(&mut engine).iter().filter(|o| o.finished).map(|o| o.id).collect();
    // Those without are in the order of arrival.
    assert!(order.iter().filter(|id| **id != 9999).is_sorted());
    order[1] == 9999
}

#[test]
fn longest_cached_prefix_is_first_in_a_short_queue() {
    assert!(cached_is_first(5));
    assert!(cached_is_first(126));
    assert!(!cached_is_first(127));
}

#[test]
fn requests_without_a_cached_prefix_are_not_overtaken_forever() {
    let mut engine = Engine::new(EngineConfig { max_running: 1, ..config(model()) }).unwrap();
    engine.arrive(request(1000, 96, 1), ms(0)).unwrap();
    drain(&mut engine);
    let mut outputs = Vec::new();
    // One that is cached but for its last block comes whenever one has left, and another waits.
    for id in 1..1000 {
        let now = engine.now();
        engine.arrive(SimRequest { id, ..request(1000, 96, 1) }, now).unwrap();
        if id == 1 {
            engine.arrive(request(2000, 96, 1), now).unwrap();
        }
        engine.arrive(SimRequest { id: 3000 + id, ..request(1000, 96, 1) }, now).unwrap();
        engine.advance(now, &mut outputs);
        let next = engine.next_event_at().unwrap();
        engine.advance(next, &mut outputs);
        if outputs.iter().any(|output| output.id == 2000) {
            break;
        }
    }
    let overtaken = outputs.iter().position(|output| output.id == 2000).unwrap();
    assert!((64..300).contains(&overtaken), "{overtaken}");
}

#[test]
fn an_oldest_prompt_in_chunks_survives_a_decoder_without_blocks() {
    // The long prompt is in the batch first; the short one arrives from elsewhere, and finds
    // no block for its second token.
    let mut engine = Engine::new(EngineConfig {
        num_blocks: 21,
        ..config(PrefillFirst { max_prefill_steps: 1, reserve_ratio: 0.0, ..model() })
    })
    .unwrap();
    let link =
        crate::sim::Transfer { layer: crate::sim::Layer::Rack, bytes_per_token: 1, bytes_per_second: 0 };
    engine.arrive(request(1, 304, 2), ms(0)).unwrap();
    engine.arrive(SimRequest { kind: Kind::Decode(link), ..request(2, 16, 20) }, ms(0)).unwrap();
    let outputs = drain(&mut engine);
    assert_eq!((of(1, &outputs).len(), of(2, &outputs).len()), (2, 20));
    assert_eq!(engine.kv().used(), 0);
}
