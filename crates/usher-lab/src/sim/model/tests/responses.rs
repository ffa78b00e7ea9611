//! Generated tokens whose blocks are shared.

use super::super::*;
use super::{config, drain, ms, request};
use crate::sim::EngineConfig;

// A request whose hashes cover prompt and response.
fn chat(id: u64, prompt_tokens: u32, output_tokens: u32) -> SimRequest {
    let blocks = request(7, prompt_tokens + output_tokens, 1).blocks;
    SimRequest { id, blocks, ..request(7, prompt_tokens, output_tokens) }
}

// Of each model, one with blocks of 16 tokens.
fn engines() -> [EngineConfig; 3] {
    ModelKind::ALL.map(|kind| EngineConfig { block_size: 16, ..EngineConfig::drawn(kind, 3) })
}

#[test]
fn prompt_that_continues_a_response_hits_its_blocks() {
    for config in engines() {
        let mut engine = Engine::new(config).unwrap();
        engine.arrive(chat(1, 100, 60), ms(0)).unwrap();
        drain(&mut engine);
        let now = engine.now();
        engine.arrive(chat(2, 200, 10), now).unwrap();
        // The last generated token was never computed: 159 tokens fill 9 blocks.
        assert_eq!(drain(&mut engine)[0].cached_tokens, 144, "{:?}", engine.config().model);
        assert_eq!(engine.kv().used(), 0);
    }
}

#[test]
fn a_response_is_not_known_before_it_is_generated() {
    for config in engines() {
        let mut engine = Engine::new(config).unwrap();
        // Both have the same prompt and will have the same response.
        for id in [1, 2] {
            engine.arrive(chat(id, 100, 60), ms(0)).unwrap();
        }
        let mut outputs = Vec::new();
        let mut tokens = 0;
        while let Some(at) = engine.next_event_at() {
            engine.advance(at, &mut outputs);
            tokens = tokens.max(outputs.iter().map(|output| output.generated).max().unwrap_or(0));
            // What is computed after this step may fill one more block.
            let known = engine.kv().matched(&chat(3, 100, 60).blocks);
            assert!(known as u32 <= (100 + tokens) / 16, "{known} blocks after {tokens} tokens");
        }
        let (hits, queries) = (engine.stats().prefix_hits, engine.stats().prefix_queries);
        assert!(hits <= 96 && queries == 200, "{hits} {queries}");
        assert_eq!(engine.stats().generation_tokens, 120);
    }
}

#[test]
fn hashes_beyond_the_response_are_ignored() {
    let mut engine = Engine::new(config()).unwrap();
    let blocks = request(7, 1600, 1).blocks;
    engine.arrive(SimRequest { blocks, ..request(7, 100, 60) }, ms(0)).unwrap();
    drain(&mut engine);
    assert_eq!(engine.kv().idle(), 9);
}

#[test]
fn hashes_of_the_prompt_alone_share_the_prompt_alone() {
    let mut engine = Engine::new(config()).unwrap();
    engine.arrive(request(7, 100, 60), ms(0)).unwrap();
    drain(&mut engine);
    assert_eq!(engine.kv().idle(), 6);
}

#[test]
fn preempted_response_reuses_its_remaining_blocks() {
    for config in engines() {
        let mut engine = Engine::new(EngineConfig { num_blocks: 8, ..config }).unwrap();
        for id in [1, 2] {
            let blocks = request(id, 88, 1).blocks;
            engine.arrive(SimRequest { blocks, ..request(id, 48, 40) }, ms(0)).unwrap();
        }
        let outputs = drain(&mut engine);
        for id in [1, 2] {
            let tokens: Vec<u32> = outputs.iter().filter(|o| o.id == id).map(|o| o.generated).collect();
            assert_eq!(tokens, (1..=40).collect::<Vec<_>>());
        }
        assert_eq!(engine.kv().used(), 0);
        // 87 of the last one's tokens were computed, and all full blocks of them are known.
        let last = outputs.last().unwrap().id;
        assert_eq!(engine.kv().matched(&request(last, 88, 1).blocks), 5, "{:?}", engine.config().model);
    }
}

#[test]
fn response_extends_transferred_blocks() {
    let link =
        crate::sim::Transfer { layer: crate::sim::Layer::Rack, bytes_per_token: 1, bytes_per_second: 0 };
    for config in engines() {
        let mut engine = Engine::new(config).unwrap();
        engine.arrive(SimRequest { kind: Kind::Decode(link), ..chat(1, 100, 60) }, ms(0)).unwrap();
        drain(&mut engine);
        let now = engine.now();
        engine.arrive(chat(2, 200, 10), now).unwrap();
        assert_eq!(drain(&mut engine)[0].cached_tokens, 144);
    }
}
