//! Properties of all engine models, and differences between them.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::*;
use super::{drain, ms, request};
use crate::sim::EngineConfig;
use crate::sim::kv::block_hashes;

// Prompts that take turns share their beginning: milliseconds since the arrival before, tokens
// of the conversation before, tokens of the response, conversation, whether an earlier request
// is aborted.
type Arrival = (u64, u32, u32, u64, bool);

fn workload() -> impl Strategy<Value = Vec<Arrival>> {
    let arrival = (0..400u64, 1..3000u32, 1..60u32, 0..4u64, prop::bool::weighted(0.05));
    prop::collection::vec(arrival, 1..80)
}

fn small(kind: ModelKind, constants: u64, seed: u64, num_blocks: u32) -> EngineConfig {
    let drawn = EngineConfig::drawn(kind, constants);
    EngineConfig {
        num_blocks: num_blocks * 16 / drawn.block_size.min(32),
        max_running: 6,
        max_waiting: 1000,
        max_batched_tokens: 1000,
        seed,
        ..drawn
    }
}

fn conversation(family: u64, id: u64, arrival: &Arrival, config: &EngineConfig) -> SimRequest {
    let (_, prompt_tokens, output_tokens, ..) = *arrival;
    let text = vec![b'a' + family as u8; (prompt_tokens + output_tokens) as usize * 4];
    let blocks = block_hashes("model", &text, config.block_size);
    SimRequest { blocks, ..request(id, prompt_tokens, output_tokens) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_load_ends_with_all_tokens_and_all_blocks(
        workload in workload(), constants in 0..1000u64, seed: u64, blocks in 200..400u32,
    ) {
        for kind in ModelKind::ALL {
            let config = small(kind, constants, seed, blocks);
            let mut engine = Engine::new(config.clone()).unwrap();
            let (mut now, mut outputs, mut tokens) = (0, Vec::new(), HashMap::new());
            let mut last = Duration::ZERO;
            let mut check = |engine: &Engine, outputs: &mut Vec<Output>| {
                prop_assert!(engine.kv().used() + engine.kv().idle() <= engine.kv().total());
                prop_assert!(engine.state().running <= config.max_running);
                prop_assert!(engine.next_event_at().is_none_or(|at| at >= engine.now()));
                for output in outputs.drain(..) {
                    prop_assert!(output.at >= last, "time went back");
                    last = output.at;
                    let before = tokens.insert(output.id, output.generated).unwrap_or(0);
                    prop_assert_eq!(output.generated, before + 1);
                    prop_assert_eq!(output.finished, output.generated == workload[output.id as usize].2);
                    prop_assert!(output.cached_tokens < workload[output.id as usize].1);
                }
                Ok(())
            };
            for (id, arrival) in (0..).zip(&workload) {
                now += arrival.0;
                let _ = engine.arrive(conversation(arrival.3, id, arrival, &config), ms(now));
                if arrival.4 {
                    engine.abort(id / 2, ms(now));
                }
                engine.advance(ms(now), &mut outputs);
                check(&engine, &mut outputs)?;
            }
            // No step is without work, so this bounds how long anybody waits.
            let steps = 100_000;
            for _ in 0..steps {
                let Some(at) = engine.next_event_at() else { break };
                engine.advance(at, &mut outputs);
                check(&engine, &mut outputs)?;
            }
            let (state, stats) = (engine.state(), engine.stats());
            prop_assert_eq!((state.running, state.waiting, state.kv_used_blocks), (0, 0, 0));
            prop_assert_eq!(engine.next_event_at(), None);
            let finished = stats.finished_length + stats.finished_stop;
            prop_assert_eq!(finished + stats.aborted + stats.rejected, workload.len() as u64);
            prop_assert_eq!(stats.generation_tokens, tokens.values().map(|count| u64::from(*count)).sum::<u64>());
            prop_assert_eq!(stats.e2e.count(), finished);
            let first = stats.time_to_first_token.count();
            prop_assert_eq!(first, tokens.len() as u64);
            prop_assert_eq!(stats.inter_token.count(), stats.generation_tokens - first);
        }
    }
}

// The longest time between two tokens of one who decodes when a prompt of 24,000 tokens
// arrives.
fn longest_pause(kind: ModelKind, seed: u64) -> Duration {
    let config = EngineConfig { jitter: 0.0, ..EngineConfig::drawn(kind, seed) };
    let mut engine = Engine::new(config).unwrap();
    engine.arrive(request(1, 500, 300), ms(0)).unwrap();
    let mut outputs = Vec::new();
    engine.advance(ms(500), &mut outputs);
    engine.arrive(request(2, 24_000, 2), ms(500)).unwrap();
    outputs.extend(drain(&mut engine));
    let decoded: Vec<Duration> = outputs.iter().filter(|o| o.id == 1).map(|o| o.at).collect();
    decoded.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
}

#[test]
fn a_long_prompt_stalls_decoding_longer_when_prefill_goes_first() {
    for seed in 0..20 {
        let [chunked, first] =
            [ModelKind::ChunkedPrefill, ModelKind::PrefillFirst].map(|kind| longest_pause(kind, seed));
        assert!(first > chunked.mul_f64(1.05), "seed {seed}: {first:?} and {chunked:?}");
    }
}

// Seconds of a request alone on an engine of the model.
fn alone(kind: ModelKind, prompt: u32, output: u32) -> f64 {
    let config = EngineConfig { jitter: 0.0, ..EngineConfig::drawn(kind, 1) };
    let mut engine = Engine::new(config).unwrap();
    engine.arrive(request(1, prompt, output), ms(0)).unwrap();
    drain(&mut engine).last().unwrap().at.as_secs_f64()
}

#[test]
fn long_prompts_cost_more_than_in_proportion() {
    for (kind, most) in [(ModelKind::ChunkedPrefill, 2.6), (ModelKind::PrefillFirst, 2.3)] {
        let times = alone(kind, 32_768, 1) / (16.0 * alone(kind, 2048, 1));
        assert!((1.1..most).contains(&times), "{kind}: {times}");
    }
    let linear = alone(ModelKind::Linear, 32_768, 1) / (16.0 * alone(ModelKind::Linear, 2048, 1));
    assert!((linear - 1.0).abs() < 1e-6);
}

#[test]
fn histograms_add_up_for_every_model() {
    for kind in ModelKind::ALL {
        let mut engine =
            Engine::new(EngineConfig { max_running: 8, ..EngineConfig::drawn(kind, 5) }).unwrap();
        let mut outputs = Vec::new();
        for id in 0..40 {
            engine.arrive(request(id, 3000, 20), ms(id * 20)).unwrap();
            engine.advance(ms(id * 20), &mut outputs);
        }
        outputs.extend(drain(&mut engine));
        let (mut ttft, mut between, mut last) = (0.0, 0.0, HashMap::<u64, Duration>::new());
        for output in &outputs {
            let arrived = ms(output.id * 20);
            if output.generated == 1 {
                ttft += (output.at - arrived).as_secs_f64();
            } else {
                between += (output.at - last[&output.id]).as_secs_f64();
            }
            last.insert(output.id, output.at);
        }
        let stats = engine.stats();
        assert_eq!([stats.prefill.count(), stats.time_to_first_token.count(), stats.queue.count()], [40; 3]);
        assert_eq!(stats.inter_token.count(), 40 * 19);
        assert!((stats.time_to_first_token.sum() - ttft).abs() < 1e-6, "{kind}");
        assert!((stats.inter_token.sum() - between).abs() < 1e-6, "{kind}");
        assert!((stats.decode.sum() - between).abs() < 1e-6, "{kind}");
        // From the arrival to the batch, and from there to the first token.
        assert!((stats.queue.sum() + stats.prefill.sum() - ttft).abs() < 1e-6, "{kind}");
        assert!(stats.queue.sum() > 0.0 && stats.prefill.sum() > 0.0);
        let config = engine.config();
        if let EngineModel::PrefillFirst(model) = config.model {
            // Each was computed whole, in a step of its own or with others.
            let least = 40.0 * (model.launch + 3000.0 * model.seconds_per_token);
            assert!(stats.prefill.sum() >= least * (1.0 - config.jitter), "{}", stats.prefill.sum());
        }
    }
}

#[test]
fn slower_engine_scales_all_times() {
    for kind in ModelKind::ALL {
        let play = |times: u32| {
            let mut config = EngineConfig::drawn(kind, 2);
            config.slow_down(times.into());
            let mut engine = Engine::new(config).unwrap();
            (0..10).for_each(|id| engine.arrive(request(id, 700, 20), ms(0)).unwrap());
            drain(&mut engine).last().unwrap().at.as_secs_f64()
        };
        assert!((play(3) / play(1) - 3.0).abs() < 1e-6, "{kind}");
    }
}

#[test]
fn model_names_are_read_back() {
    for kind in ModelKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
        assert_eq!(EngineConfig::drawn(kind, 1).model.kind(), kind);
    }
    assert!("vllm".parse::<ModelKind>().unwrap_err().to_string().contains("known are linear"));
}

#[test]
fn constants_out_of_range_are_refused() {
    let EngineModel::PrefillFirst(model) = PrefillFirst::drawn(1).model else { panic!() };
    let EngineModel::ChunkedPrefill(chunked) = ChunkedPrefill::drawn(1).model else { panic!() };
    let bad = [
        EngineModel::PrefillFirst(PrefillFirst { base: f64::NAN, ..model }),
        EngineModel::PrefillFirst(PrefillFirst { max_prefill_steps: 0, ..model }),
        EngineModel::PrefillFirst(PrefillFirst { reserve_ratio: 2.0, ..model }),
        EngineModel::ChunkedPrefill(ChunkedPrefill { kv_read: -1.0, ..chunked }),
        EngineModel::ChunkedPrefill(ChunkedPrefill { weight_read: f64::INFINITY, ..chunked }),
    ];
    for model in bad {
        let config = EngineConfig { model, ..EngineConfig::default() };
        assert!(config.validate().unwrap_err().to_string().contains("constants"));
    }
}
