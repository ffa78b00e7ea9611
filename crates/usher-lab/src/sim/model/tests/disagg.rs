//! Requests of which one engine computes the prompt and another the rest.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::*;
use super::{config, drain, ms, request, times};
use crate::sim::EngineConfig;
use crate::sim::link::{Layer, Links, Place, Transfer};

/// One token takes a millisecond, as long as computing it does.
const LINK: Transfer = Transfer { layer: Layer::Rack, bytes_per_token: 100, bytes_per_second: 100_000 };

fn decode(id: u64, prompt_tokens: u32, output_tokens: u32) -> SimRequest {
    SimRequest { kind: Kind::Decode(LINK), ..request(id, prompt_tokens, output_tokens) }
}

fn prefill(id: u64, prompt_tokens: u32) -> SimRequest {
    SimRequest { kind: Kind::Prefill, ..request(id, prompt_tokens, 50) }
}

/// Two engines, and requests that go from the first to the second.
struct Pair {
    prefill: Engine,
    decode: Engine,
    // Requests whose prompt is being computed.
    prompts: HashMap<u64, SimRequest>,
    outputs: Vec<Output>,
}

impl Pair {
    fn new(prefill: EngineConfig, decode: EngineConfig) -> Self {
        let [prefill, decode] = [prefill, decode].map(|config| Engine::new(config).unwrap());
        Self { prefill, decode, prompts: HashMap::new(), outputs: Vec::new() }
    }

    fn arrive(&mut self, request: SimRequest, disaggregated: bool, now: Duration) {
        if !disaggregated {
            let _ = self.decode.arrive(request, now);
            return;
        }
        let prompt = SimRequest { kind: Kind::Prefill, ..request.clone() };
        match self.prefill.arrive(prompt, now) {
            Ok(()) => drop(self.prompts.insert(request.id, request)),
            // Refused: the whole is done by the other, as a sidecar would.
            Err(_) => drop(self.decode.arrive(request, now)),
        }
    }

    fn abort(&mut self, id: u64, now: Duration) {
        self.prompts.remove(&id);
        self.prefill.abort(id, now);
        self.decode.abort(id, now);
    }

    fn next_event_at(&self) -> Option<Duration> {
        self.prefill.next_event_at().into_iter().chain(self.decode.next_event_at()).min()
    }

    fn advance(&mut self, now: Duration) {
        // A prompt may be complete at an instant at which the other engine begins a step.
        while let Some(at) = self.next_event_at().filter(|at| *at <= now) {
            let mut complete = Vec::new();
            self.prefill.advance(at, &mut complete);
            for Output { id, at, finished, .. } in complete {
                assert!(finished, "a prompt ends with its first token");
                let request = self.prompts.remove(&id).unwrap();
                let _ = self.decode.arrive(SimRequest { kind: Kind::Decode(LINK), ..request }, at);
            }
            self.decode.advance(at, &mut self.outputs);
            for engine in [&self.prefill, &self.decode] {
                let kv = engine.kv();
                assert!(kv.used() + kv.idle() <= kv.total());
                assert!(engine.taken() <= engine.config().max_running);
            }
        }
    }

    fn drain(&mut self) {
        self.advance(Duration::MAX);
    }
}

#[test]
fn prefill_only_ends_at_the_first_token_and_is_cached() {
    let mut engine = Engine::new(config()).unwrap();
    engine.arrive(prefill(1, 160), ms(0)).unwrap();
    assert_eq!(times(&drain(&mut engine)), [(1, 160)]);
    assert_eq!((engine.stats().prefilled, engine.stats().generation_tokens), (1, 1));
    // Its blocks are there for anyone: ten of them, of which the last is computed again.
    assert_eq!((engine.kv().used(), engine.kv().idle()), (0, 10));
    engine.arrive(prefill(1, 160), ms(1000)).unwrap();
    assert_eq!(times(&drain(&mut engine)), [(1, 1016)]);
}

#[test]
fn transferred_prompt_costs_its_transfer_and_one_step() {
    // tokens that the decoder has already, prompt, when its first and its last token come
    let table = [
        (0, 100, 110, 130),
        (0, 1, 11, 31),
        (64, 100, 36 + 10, 36 + 30),
        // All of it: the block of the last token is fetched, as it would be computed.
        (160, 160, 16 + 10, 16 + 30),
    ];
    for (present, prompt, first, last) in table {
        let mut engine = Engine::new(config()).unwrap();
        if present > 0 {
            engine.arrive(request(1, present, 1), ms(0)).unwrap();
            drain(&mut engine);
        }
        let begin = engine.now().as_millis() as u64;
        engine.arrive(decode(1, prompt, 3), ms(begin)).unwrap();
        let outputs = drain(&mut engine);
        let at = |output: &Output| output.at.as_millis() as u64 - begin;
        assert_eq!(outputs.iter().map(at).collect::<Vec<_>>(), [first, first + 10, last], "{prompt}");
        let cached = outputs[0].cached_tokens;
        assert_eq!(cached, (present.min(prompt - 1)) / 16 * 16);
        let mut bytes = [0; 5];
        bytes[Layer::Rack as usize] = u64::from(prompt - cached) * 100;
        assert_eq!((engine.stats().received, engine.stats().received_bytes), (1, bytes));
        // What it got is known here now.
        engine.arrive(request(1, prompt + 1, 1), ms(10_000)).unwrap();
        assert_eq!(drain(&mut engine)[0].cached_tokens, prompt / 16 * 16);
    }
}

#[test]
fn free_link_leaves_one_step() {
    let free = Links::new([0; 5]).between(&Place::default(), &Place::default(), 1 << 20);
    let mut engine = Engine::new(config()).unwrap();
    engine.arrive(SimRequest { kind: Kind::Decode(free), ..request(1, 100, 2) }, ms(5)).unwrap();
    assert_eq!(times(&drain(&mut engine)), [(1, 15), (1, 25)]);
    let mut instant = Engine::new(EngineConfig::instant()).unwrap();
    instant.arrive(SimRequest { kind: Kind::Decode(free), ..request(1, 100, 2) }, ms(5)).unwrap();
    assert_eq!(times(&drain(&mut instant)), [(1, 5), (1, 5)]);
}

#[test]
fn decoding_continues_during_a_kv_transfer() {
    let mut engine = Engine::new(EngineConfig { batch_factor: 0.0, ..config() }).unwrap();
    engine.arrive(decode(1, 16, 20), ms(0)).unwrap();
    engine.advance(ms(20), &mut Vec::new());
    engine.arrive(decode(2, 35, 2), ms(20)).unwrap();
    engine.advance(ms(30), &mut Vec::new());
    let state = engine.state();
    // On its way it has its blocks, and counts as waiting.
    assert_eq!((state.running, state.waiting, state.receiving), (1, 1, 1));
    assert_eq!(engine.kv().used(), 2 + 3);
    let outputs = drain(&mut engine);
    let [one, two] = [1, 2].map(|id| {
        let own = times(&outputs).into_iter().filter(|(of, _)| *of == id);
        own.map(|(_, at)| at).collect::<Vec<_>>()
    });
    // Steps end at 26, 36, … It leaves at 26, is there at 61, and in the step that begins at 66.
    assert_eq!((one[0], two), (36, vec![76, 86]));
    assert!(one.is_sorted_by(|earlier, later| later - earlier == 10));
}

#[test]
fn requests_being_received_hold_batch_slots() {
    let mut engine = Engine::new(EngineConfig { max_running: 2, max_waiting: 1, ..config() }).unwrap();
    let arrivals = [1, 2, 3, 4].map(|id| engine.arrive(decode(id, 20, 1), ms(0)));
    assert_eq!(arrivals, [Ok(()), Ok(()), Ok(()), Err(Rejected::QueueFull)]);
    engine.advance(ms(0), &mut Vec::new());
    let state = engine.state();
    assert_eq!((state.running, state.waiting, state.receiving), (0, 3, 2));
    // The third sets out when the first two have left, a step of 15 ms later.
    assert_eq!(times(&drain(&mut engine)), [(1, 35), (2, 35), (3, 65)]);
}

#[test]
fn request_waits_for_blocks_held_by_a_transfer() {
    for abort in [false, true] {
        let mut engine = Engine::new(EngineConfig { num_blocks: 10, ..config() }).unwrap();
        engine.arrive(decode(1, 100, 2), ms(0)).unwrap();
        engine.arrive(request(2, 90, 1), ms(0)).unwrap();
        engine.advance(ms(0), &mut Vec::new());
        assert_eq!(engine.next_event_at(), Some(ms(100)), "not before the prompt is there");
        let first_of_two = if abort {
            engine.abort(1, ms(40));
            assert_eq!(engine.next_event_at(), Some(ms(40)), "at once");
            130
        } else {
            // Fetched at 100, its two tokens until 120.
            210
        };
        let outputs = drain(&mut engine);
        assert_eq!(times(&outputs).last(), Some(&(2, first_of_two)));
        assert_eq!(engine.kv().used(), 0);
    }
}

#[test]
fn receiving_request_holds_its_adapter_slot() {
    let mut engine = Engine::new(config()).unwrap();
    for (id, adapter) in [(1, "a"), (2, "b"), (3, "a")] {
        engine.arrive(SimRequest { adapter: Some(adapter.into()), ..decode(id, 50, 1) }, ms(0)).unwrap();
    }
    engine.advance(ms(10), &mut Vec::new());
    assert_eq!(engine.state().receiving, 2);
    assert_eq!(engine.adapters(), (vec![], vec!["a".into(), "b".into()]));
    // A step of 15 ms for two, then 50 to fetch and 10 to decode.
    assert_eq!(times(&drain(&mut engine)), [(1, 65), (3, 65), (2, 125)]);
}

#[test]
fn prompt_with_lost_blocks_is_recomputed_locally() {
    let mut engine = Engine::new(EngineConfig { num_blocks: 8, ..config() }).unwrap();
    for id in [1, 2] {
        engine.arrive(decode(id, 48, 40), ms(0)).unwrap();
    }
    let outputs = drain(&mut engine);
    let stats = engine.stats();
    assert!(stats.preemptions > 0);
    // Fetched once each, whatever became of it.
    assert_eq!((stats.received, stats.received_bytes[Layer::Rack as usize]), (2, 96 * 100));
    for id in [1, 2] {
        let tokens: Vec<u32> = outputs.iter().filter(|o| o.id == id).map(|o| o.generated).collect();
        assert_eq!(tokens, (1..=40).collect::<Vec<_>>());
    }
    assert_eq!(engine.kv().used(), 0);
}

#[test]
fn an_abort_at_every_step_frees_the_blocks_on_both() {
    let config = EngineConfig { max_batched_tokens: 64, ..config() };
    let begin = || {
        let mut pair = Pair::new(config.clone(), config.clone());
        for id in 1..=3 {
            pair.arrive(request(id, 200, 6), true, ms(id * 7));
        }
        pair
    };
    let mut whole = begin();
    let mut events = vec![Duration::ZERO];
    while let Some(at) = whole.next_event_at() {
        whole.advance(at);
        events.push(at);
    }
    assert_eq!(whole.outputs.len(), 18);
    let (mut in_prefill, mut on_the_way, mut in_decode) = (0, 0, 0);
    // At each event, and between it and the next.
    for at in events.iter().flat_map(|at| [*at, *at + ms(1)]) {
        for victim in 1..=3 {
            let mut pair = begin();
            pair.advance(at);
            let aborted = |pair: &Pair| [pair.prefill.stats().aborted, pair.decode.stats().aborted];
            let receiving = pair.decode.state().receiving;
            pair.abort(victim, at);
            match aborted(&pair) {
                [1, 0] => in_prefill += 1,
                [0, 1] if pair.decode.state().receiving < receiving => on_the_way += 1,
                [0, 1] => in_decode += 1,
                other => assert_eq!(other, [0, 0]),
            }
            pair.drain();
            assert_eq!([pair.prefill.kv().used(), pair.decode.kv().used()], [0, 0], "{victim} at {at:?}");
            for other in (1..=3).filter(|id| *id != victim) {
                let tokens = pair.outputs.iter().filter(|output| output.id == other).count();
                assert_eq!(tokens, 6, "{other} when {victim} left at {at:?}");
            }
        }
    }
    assert!(in_prefill > 0 && on_the_way > 0 && in_decode > 0, "{in_prefill} {on_the_way} {in_decode}");
}

// Arrivals: milliseconds since the one before, prompt, output, family of prompts, whether
// it is disaggregated, and whether an earlier one is aborted then.
type Arrival = (u64, u32, u32, u64, bool, bool);

fn workload() -> impl Strategy<Value = Vec<Arrival>> {
    let abort = prop::bool::weighted(0.1);
    let arrival = (0..60u64, 1..300u32, 1..40u32, 0..4u64, prop::bool::weighted(0.7), abort);
    prop::collection::vec(arrival, 1..60)
}

fn play(pair: &mut Pair, workload: &[Arrival]) {
    let mut now = 0;
    for (id, (gap, prompt, output, family, disaggregated, abort)) in (0..).zip(workload) {
        now += gap;
        pair.advance(ms(now));
        let blocks = request(*family, *prompt, 1).blocks;
        pair.arrive(SimRequest { blocks, ..request(id, *prompt, *output) }, *disaggregated, ms(now));
        if *abort {
            pair.abort(id / 2, ms(now));
        }
    }
    pair.drain();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // One request by itself, against the sum of its parts.
    #[test]
    fn a_request_alone_takes_the_sum_of_its_parts(prompt in 1..2000u32, output in 1..50u32, present in 0..2000u32) {
        let mut pair = Pair::new(config(), config());
        let mut begin = 0;
        if present > 0 {
            pair.arrive(request(9, present, 1), false, ms(0));
            pair.drain();
            begin = u64::from(present);
        }
        let blocks = request(9, prompt, 1).blocks;
        pair.outputs.clear();
        pair.arrive(SimRequest { blocks, ..request(1, prompt, output) }, true, ms(begin));
        pair.drain();
        let cached = present.min(prompt - 1) / 16 * 16;
        let first = begin + u64::from(prompt) + u64::from(prompt - cached) + 10;
        let want: Vec<_> = (0..u64::from(output)).map(|token| (1, first + 10 * token)).collect();
        prop_assert_eq!(times(&pair.outputs), want);
    }

    #[test]
    fn any_load_ends_with_all_tokens_and_all_blocks(
        workload in workload(), seed: u64, prefill_blocks in 22..60u32, decode_blocks in 22..80u32, bounded: bool,
    ) {
        let engine = |num_blocks| EngineConfig {
            num_blocks,
            max_running: 6,
            max_waiting: if bounded { 4 } else { 1000 },
            max_batched_tokens: 64,
            seed,
            jitter: 0.3,
            ..config()
        };
        let mut pair = Pair::new(engine(prefill_blocks), engine(decode_blocks));
        play(&mut pair, &workload);
        for engine in [&pair.prefill, &pair.decode] {
            let state = engine.state();
            prop_assert_eq!((state.running, state.waiting, state.kv_used_blocks), (0, 0, 0));
            prop_assert_eq!(engine.next_event_at(), None);
        }
        prop_assert!(pair.prompts.is_empty());
        prop_assert!(pair.outputs.is_sorted_by_key(|output| output.at));
        let mut tokens = HashMap::new();
        for output in &pair.outputs {
            let before = tokens.insert(output.id, output.generated).unwrap_or(0);
            prop_assert_eq!(output.generated, before + 1);
            prop_assert_eq!(output.finished, output.generated == workload[output.id as usize].2);
        }
        let (prefill, decode) = (pair.prefill.stats(), pair.decode.stats());
        let finished = pair.outputs.iter().filter(|output| output.finished).count() as u64;
        // Each ended where it was, or was refused where it went last.
        let ends = finished + prefill.aborted + decode.aborted + decode.rejected;
        prop_assert_eq!(ends, workload.len() as u64);
        prop_assert_eq!(prefill.generation_tokens, prefill.prefilled);
        prop_assert!(decode.received <= prefill.prefilled);
        // What crossed the link is what was computed there and is not here.
        let bytes: u64 = decode.received_bytes.iter().sum();
        prop_assert_eq!(bytes, decode.received_bytes[Layer::Rack as usize]);
        prop_assert!(bytes <= prefill.prompt_tokens * LINK.bytes_per_token);

        // As many tokens as without disaggregation, if nobody was refused and nobody left.
        if !bounded && workload.iter().all(|arrival| !arrival.5) {
            let together: Vec<Arrival> = workload.iter().map(|&(a, b, c, d, _, f)| (a, b, c, d, false, f)).collect();
            let mut one = Pair::new(engine(prefill_blocks), engine(decode_blocks));
            play(&mut one, &together);
            prop_assert_eq!(one.outputs.len(), pair.outputs.len());
            prop_assert_eq!(one.decode.stats().generation_tokens, decode.generation_tokens);
            prop_assert_eq!(one.decode.stats().prompt_tokens, decode.prompt_tokens);
            prop_assert_eq!(one.prefill.stats().prompt_tokens, 0);
        }
    }
}
