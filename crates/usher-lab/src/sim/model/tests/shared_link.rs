//! Transfers that share the speed of their links.

use proptest::prelude::*;

use super::super::*;
use super::{config, drain, ms, request};
use crate::sim::EngineConfig;
use crate::sim::link::{Layer, Transfer};

// One token takes a millisecond, alone.
const LINK: Transfer = Transfer { layer: Layer::Rack, bytes_per_token: 100, bytes_per_second: 100_000 };

fn decode(id: u64, prompt_tokens: u32) -> SimRequest {
    SimRequest { kind: Kind::Decode(LINK), ..request(id, prompt_tokens, 1) }
}

// Steps that cost nothing, so that a token is there as soon as its prompt is.
fn engine(shared_link: bool) -> Engine {
    let config =
        EngineConfig { prefill_tokens_per_second: 0.0, decode_step: Duration::ZERO, shared_link, ..config() };
    Engine::new(config).unwrap()
}

#[test]
fn transfers_share_a_link_evenly_and_exactly() {
    // arrivals as (millisecond, tokens), and when each is there
    let table: [(&[(u64, u32)], &[u64]); 5] = [
        (&[(0, 100)], &[100]),
        (&[(0, 100), (0, 100)], &[200, 200]),
        // Half the speed from 50 on: 50 of 100 are left, and take 100.
        (&[(0, 100), (50, 200)], &[150, 300]),
        // The shorter one goes first, though it came later.
        (&[(0, 300), (100, 50)], &[350, 200]),
        (&[(0, 300), (60, 60), (120, 90)], &[450, 210, 330]),
    ];
    for (arrivals, want) in table {
        let mut engine = engine(true);
        let mut outputs = Vec::new();
        for (id, (at, tokens)) in (0..).zip(arrivals) {
            engine.advance(ms(*at), &mut outputs);
            engine.arrive(decode(id, *tokens), ms(*at)).unwrap();
        }
        outputs.extend(drain(&mut engine));
        outputs.sort_by_key(|output| output.id);
        let at: Vec<Duration> = outputs.iter().map(|output| output.at).collect();
        let want: Vec<Duration> = want.iter().map(|at| ms(*at)).collect();
        assert_eq!(at, want, "{arrivals:?}");
    }
}

#[test]
fn an_abort_leaves_its_share_to_the_others() {
    let mut engine = engine(true);
    engine.arrive(decode(1, 100), ms(0)).unwrap();
    engine.arrive(decode(2, 100), ms(0)).unwrap();
    engine.advance(ms(60), &mut Vec::new());
    assert_eq!(engine.next_event_at(), Some(ms(200)));
    engine.abort(2, ms(60));
    // 30 of 100 are there.
    assert_eq!(engine.next_event_at(), Some(ms(130)));
    assert_eq!(drain(&mut engine)[0].at, ms(130));
}

#[test]
fn transfers_go_on_while_a_step_is_in_progress() {
    let mut engine = Engine::new(EngineConfig { batch_factor: 0.0, shared_link: true, ..config() }).unwrap();
    // In a step until 1000, and then one of 10 ms for all of them.
    engine.arrive(request(9, 1000, 1), ms(0)).unwrap();
    engine.advance(ms(0), &mut Vec::new());
    engine.arrive(decode(1, 100), ms(0)).unwrap();
    assert_eq!(engine.next_event_at(), Some(ms(1000)));
    engine.advance(ms(1000), &mut Vec::new());
    // It set out when the step had ended.
    engine.arrive(request(8, 50, 1), ms(1000)).unwrap();
    engine.advance(ms(1001), &mut Vec::new());
    engine.arrive(decode(2, 20), ms(1001)).unwrap();
    let outputs = drain(&mut engine);
    let at = |id| outputs.iter().find(|output| output.id == id).unwrap().at;
    // The first is alone from 1000; the second sets out at 1050, and is there 40 ms later. The
    // first has 50 left at 1050, and 30 when it is alone again.
    assert_eq!((at(8), at(2), at(1)), (ms(1050), ms(1100), ms(1130)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // A link that always has work moves as many bytes as when it is not shared at all, one
    // after the other.
    #[test]
    fn a_busy_link_is_as_fast_as_one_transfer(tokens in prop::collection::vec(1..400u32, 1..20)) {
        let mut engine = engine(true);
        for (id, tokens) in (0..).zip(&tokens) {
            engine.arrive(decode(id, *tokens), ms(0)).unwrap();
        }
        let outputs = drain(&mut engine);
        let total = tokens.iter().sum::<u32>();
        let last = outputs.last().unwrap().at;
        let rounding = Duration::from_nanos(tokens.len() as u64);
        prop_assert!(last >= ms(total.into()) && last <= ms(total.into()) + rounding, "{:?} {}", last, total);
        prop_assert!(outputs.iter().map(|output| tokens[output.id as usize]).is_sorted());
        prop_assert_eq!(engine.kv().used(), 0);
    }

    // Nobody is faster than alone, and nobody slower than all others together make it.
    #[test]
    fn shared_transfer_time_is_bounded_by_one_and_all(
        arrivals in prop::collection::vec((0..200u64, 1..400u32), 1..20),
    ) {
        let mut engine = engine(true);
        let (mut now, mut outputs, mut came) = (0, Vec::new(), Vec::new());
        for (id, (gap, tokens)) in (0..).zip(&arrivals) {
            now += gap;
            engine.advance(ms(now), &mut outputs);
            engine.arrive(decode(id, *tokens), ms(now)).unwrap();
            came.push(now);
        }
        outputs.extend(drain(&mut engine));
        prop_assert_eq!(outputs.len(), arrivals.len());
        let total: u32 = arrivals.iter().map(|arrival| arrival.1).sum();
        for output in &outputs {
            let took = output.at - ms(came[output.id as usize]);
            prop_assert!(took >= ms(arrivals[output.id as usize].1.into()));
            prop_assert!(took <= ms(total.into()) + Duration::from_nanos(20));
        }
    }
}

#[test]
fn links_are_not_shared_by_default() {
    let mut engine = engine(false);
    for id in 0..3 {
        engine.arrive(decode(id, 100), ms(0)).unwrap();
    }
    assert!(drain(&mut engine).iter().all(|output| output.at == ms(100)));
}
