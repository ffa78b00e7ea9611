//! Estimates of what a full engine can do.

use super::super::*;
use super::request;
use crate::sim::EngineConfig;
use usher_core::random::mix;

// Lengths of the requests of a load: prompt, the first tokens of it that all share, response.
const LOADS: [(u32, u32, u32); 5] =
    [(1000, 0, 50), (300, 0, 200), (4000, 3200, 100), (8000, 0, 100), (100, 0, 400)];

// Seconds per request of an engine that has always enough to do, between its first and its
// last batches.
fn measured(config: &EngineConfig, (prompt, shared, output): (u32, u32, u32)) -> f64 {
    let count = 10 * config.max_running as u64;
    let mut engine = Engine::new(EngineConfig { max_waiting: 100_000, ..config.clone() }).unwrap();
    for id in 0..count {
        // Responses of half to one and a half times the length, so that they don't end together.
        let output = output / 2 + (mix(id) % u64::from(output + 1)) as u32;
        let block = |at: u32| {
            if at < shared / config.block_size { at.into() } else { (id + 1) << 32 | u64::from(at) }
        };
        let blocks = (0..prompt / config.block_size).map(block).collect();
        engine.arrive(SimRequest { blocks, ..request(id, prompt, output) }, Duration::ZERO).unwrap();
    }
    let (mut outputs, mut ends) = (Vec::new(), Vec::new());
    while let Some(at) = engine.next_event_at() {
        engine.advance(at, &mut outputs);
        ends.extend(outputs.drain(..).filter(|output| output.finished).map(|output| output.at));
    }
    let (from, to) = (ends.len() / 4, ends.len() * 3 / 4);
    (ends[to] - ends[from]).as_secs_f64() / (to - from) as f64
}

fn check(config: &EngineConfig, load: (u32, u32, u32)) {
    let (prompt, shared, output) = load;
    let shared = shared / config.block_size * config.block_size;
    let estimate = config.work((prompt - shared).into(), prompt.into(), output.into());
    let off = measured(config, load) / estimate - 1.0;
    assert!(off.abs() < 0.05, "{:?} {load:?}: {off:.3}", config.model);
}

#[test]
fn a_full_engine_takes_as_long_as_estimated() {
    for kind in ModelKind::ALL {
        for (seed, load) in (0..).zip(LOADS) {
            let config = EngineConfig {
                jitter: 0.0,
                max_running: 64,
                num_blocks: 50_000,
                ..EngineConfig::drawn(kind, seed)
            };
            check(&config, load);
        }
        // Of the size that is drawn, where the tokens of a step are too few for all.
        check(&EngineConfig { jitter: 0.0, ..EngineConfig::drawn(kind, 9) }, (1000, 0, 30));
    }
}

#[test]
fn a_full_cache_bounds_the_batch_of_the_estimate() {
    for kind in [ModelKind::ChunkedPrefill, ModelKind::PrefillFirst] {
        for seed in 0..2 {
            let drawn = EngineConfig::drawn(kind, seed);
            let num_blocks = 60_000 / drawn.block_size;
            check(&EngineConfig { jitter: 0.0, max_running: 64, num_blocks, ..drawn }, (2000, 0, 300));
        }
    }
}

#[test]
fn cached_tokens_are_not_computed() {
    for kind in ModelKind::ALL {
        let config = EngineConfig::drawn(kind, 1);
        let [all, half] = [4000.0, 2000.0].map(|computed| config.work(computed, 4000.0, 10.0));
        assert!((0.4..0.8).contains(&(half / all)), "{kind}: {half} of {all}");
    }
    // As before there were other models.
    let linear = EngineConfig { max_running: 11, ..EngineConfig::default() };
    let want = 1000.0 / 15_928.0 + 50.0 * 0.008 * (1.0 + 0.01 * 10.0) / 11.0;
    assert!((linear.work(1000.0, 1000.0, 50.0) / want - 1.0).abs() < 1e-12);
}
