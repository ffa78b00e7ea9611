//! `pairing: joint`: the choice against all pairs, and all endpoints that do it alone.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use usher::schedule::data::PrefixMatch;
use usher::schedule::latency::{Pool, Work};
use usher::schedule::{AlwaysDecider, Decider, Key, ScheduleError};

use crate::joint::{At, PROMPT, Pairing, RATE};
use crate::reported::{
    FIRST, FIRST_PER_REQUEST, Numbers, OUTPUT, STEP, STEP_PER_CACHED, STEP_PER_REQUEST, longest, numbers,
};
use crate::support::pool;

/// An endpoint of the property test.
#[derive(Clone, Debug)]
struct Drawn {
    /// Position of the endpoint.
    number: usize,
    /// Names of its rack and its zone, and its revision; 0: it has none.
    places: [u8; 2],
    revision: u8,
    numbers: Numbers,
    /// Seconds for which a request holds a slot.
    hold: u8,
    cached: u32,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let places = (0u8..4, 0u8..3, 0u8..3);
    (places, numbers(0..=2999, 10), 0u8..3, 0u32..=10).prop_map(
        |((rack, zone, revision), numbers, hold, cached)| Drawn {
            number: 0,
            places: [rack, zone],
            revision,
            numbers,
            hold,
            cached,
        },
    )
}

/// One side: endpoints, and how its profile likes them, no two of them equally.
fn side() -> impl Strategy<Value = Vec<(Drawn, f32)>> {
    proptest::collection::vec(drawn(), 1..12).prop_flat_map(|drawn| {
        let scores: Vec<f32> = (0..drawn.len()).map(|rank| rank as f32 / 16.0).collect();
        Just(scores).prop_shuffle().prop_map(move |scores| drawn.iter().cloned().zip(scores).collect())
    })
}

/// Rules for pairs, as parameters and as numbers.
#[derive(Clone, Copy, Debug)]
struct Rules {
    k: usize,
    /// Bytes per second in a rack, in a zone, and apart.
    speeds: [u32; 3],
    /// The level of `speeds` that pairs need at least; 2: none.
    required: usize,
    has_revisions: bool,
    kv_limit: u8,
}

impl Rules {
    fn written(&self) -> String {
        let Self { k, speeds: [rack, zone, none], required, has_revisions, kv_limit } = self;
        let mode =
            ["Required, constraintLayer: rack", "Required, constraintLayer: zone", "Preferred"][*required];
        let label = if *has_revisions { "revision" } else { "''" };
        format!(
            "pairCandidates: {k}, links: {{rack: {rack}, zone: {zone}, none: {none}}}, constraintMode: {mode}, \
             revisionLabel: {label}, kvCacheLimit: {:.1}",
            f64::from(*kv_limit) / 10.0
        )
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let speeds = proptest::array::uniform3(prop_oneof![Just(1000u32), 100u32..20_000]);
    (1usize..=8, speeds, 0usize..3, any::<bool>(), 5u8..=10).prop_map(
        |(k, mut speeds, required, has_revisions, kv_limit)| {
            speeds.sort_unstable_by(|a, b| b.cmp(a));
            Rules { k, speeds, required, has_revisions, kv_limit }
        },
    )
}

/// Weight of a second before a first token where none has been seen.
const URGENT: f64 = 2.0;

/// The model's knowledge, worked out again.
struct Plain {
    /// Mean tokens of the prompts that were booked, the recent ones counting more.
    mean: f64,
    /// Seconds since the last of them was.
    passed: f64,
    /// Rate of prompts at each endpoint.
    owns: Vec<Pool>,
}

impl Plain {
    fn longest(side: &[(Drawn, f32)]) -> u8 {
        longest(side.iter().map(|(drawn, _)| &drawn.numbers))
    }

    fn requests(side: &[(Drawn, f32)], drawn: &Drawn) -> f64 {
        drawn.numbers.requests(Self::longest(side))
    }

    /// Only a full KV cache makes wait, as no number of slots is known.
    fn slot_wait(side: &[(Drawn, f32)], drawn: &Drawn) -> f64 {
        if drawn.numbers.kv_usage.is_none_or(|tenths| tenths < 10) {
            return 0.0;
        }
        let (_, running) = drawn.numbers.queue(Self::longest(side));
        let ahead = (Self::requests(side, drawn) - running).max(0.0) + 1.0;
        ahead * f64::from(drawn.hold) / running.max(1.0)
    }

    fn ttft(&self, side: &[(Drawn, f32)], drawn: &Drawn) -> f64 {
        // Only of the first some is computed.
        let queued = drawn.numbers.queued(Self::longest(side), self.mean, self.passed * RATE);
        let computing = (queued + Self::uncached(drawn)) / RATE;
        FIRST + FIRST_PER_REQUEST * Self::requests(side, drawn) + computing + Self::slot_wait(side, drawn)
    }

    /// Tokens that are not there; the end of a prompt is computed again.
    fn missing(drawn: &Drawn) -> f64 {
        f64::from(10 - drawn.cached) * 100.0
    }

    fn uncached(drawn: &Drawn) -> f64 {
        Self::missing(drawn).max(100.0)
    }

    /// Rate of prompts there, and times that they make decoding longer: a token takes as long
    /// for those who decode as for those who wait for it.
    fn own(&self, drawn: &Drawn) -> (Pool, f64) {
        let own = self.owns[drawn.number];
        (own, 1.0 / (1.0 - own.busy.min(0.9)))
    }

    /// Until the prompt is computed, and the delay of those who decode beside it and of those
    /// who come behind it.
    fn prefill(&self, side: &[(Drawn, f32)], drawn: &Drawn) -> f64 {
        let (own, stretch) = self.own(drawn);
        let decoding = (Self::requests(side, drawn) - drawn.numbers.backlog.len() as f64).max(0.0);
        let (takes, first) = (Self::uncached(drawn) / RATE, self.ttft(side, drawn));
        URGENT * first + takes * (decoding + own.arrivals * takes) * stretch
    }

    /// Response, and those beside it.
    fn response(&self, side: &[(Drawn, f32)], drawn: &Drawn) -> f64 {
        let requests = Self::requests(side, drawn);
        let (own, others) = (PROMPT as f64 + OUTPUT / 2.0, requests * self.mean);
        let step = STEP + STEP_PER_REQUEST * (requests + 1.0) + STEP_PER_CACHED * (others + own);
        let beside = (STEP_PER_REQUEST + STEP_PER_CACHED * own) * requests;
        OUTPUT * (step + beside) * self.own(drawn).1
    }

    fn decode(&self, side: &[(Drawn, f32)], drawn: &Drawn) -> f64 {
        URGENT * Self::slot_wait(side, drawn) + self.response(side, drawn)
    }

    fn whole(&self, side: &[(Drawn, f32)], drawn: &Drawn) -> f64 {
        self.prefill(side, drawn) + self.response(side, drawn)
    }
}

/// The least that a pair of these costs; `None`: they are all forbidden.
fn least(
    prefill: &[(Drawn, f32)],
    decode: &[(Drawn, f32)],
    cost: impl Fn(&Drawn, &Drawn) -> Option<f64>,
) -> Option<f64> {
    let pairs = prefill.iter().flat_map(|(p, _)| decode.iter().map(|(d, _)| cost(p, d)));
    pairs.flatten().reduce(f64::min)
}

/// The `k` that the profile likes best.
fn best(side: &[(Drawn, f32)], k: usize) -> Vec<(Drawn, f32)> {
    let mut side = side.to_vec();
    side.sort_by(|a, b| b.1.total_cmp(&a.1));
    side.truncate(k);
    side
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn joint_choice_is_the_cheapest(
        prefill in side(),
        decode in side(),
        rules in rules(),
        always in any::<bool>(),
        passed in 0u64..2000,
        seed in any::<u64>(),
    ) {
        let (mut prefill, mut decode) = (prefill, decode);
        for (number, (drawn, _)) in prefill.iter_mut().chain(&mut decode).enumerate() {
            drawn.number = number;
        }
        let all: Vec<Drawn> = prefill.iter().chain(&decode).map(|(drawn, _)| drawn.clone()).collect();
        let candidates = pool(all.len(), |index, spec| {
            let [rack, zone] = all[index].places;
            let names = [
                ("topology.kubernetes.io/rack", rack),
                ("topology.kubernetes.io/zone", zone),
                ("revision", all[index].revision),
            ];
            let known = names.into_iter().filter(|(_, name)| *name > 0);
            spec.labels.extend(known.map(|(label, name)| (label.to_owned(), name.to_string())));
        });
        let scores = |side: &[(Drawn, f32)]| side.iter().map(|(_, score)| *score).collect::<Vec<_>>();
        let decider: Arc<dyn Decider> =
            if always { Arc::new(AlwaysDecider) } else { Arc::new(At((0..all.len() as u32).collect())) };
        let (written, sides) = (rules.written(), (scores(&prefill), scores(&decode)));
        let mut pairing = Pairing::decided_by(Some(decider), &written, &sides.0, &sides.1, candidates);
        let matched = all.iter().map(|drawn| drawn.cached).collect();
        pairing.facts.set(Key::new(1), PrefixMatch { total: 10, block_size: 100, matched });
        let endpoints = pairing.candidates.snapshot().endpoints().to_vec();
        let (mut in_flight, mut booked, mut mean) = (Vec::new(), Vec::new(), 0.0);
        for (endpoint, drawn) in endpoints.iter().zip(&all) {
            let mut held = pairing.model.book(&Work::whole(endpoint, 0, true));
            held.first_token();
            pairing.clock.set(pairing.clock.elapsed() + Duration::from_secs(u64::from(drawn.hold)));
            held.finish(None);
        }
        for (endpoint, drawn) in endpoints.iter().zip(&all) {
            in_flight.extend(drawn.numbers.report(endpoint.load()));
            for &tokens in &drawn.numbers.backlog {
                booked.push(pairing.model.book(&Work::whole(endpoint, tokens, true)));
                mean = if mean == 0.0 { tokens as f64 } else { mean * 0.98 + tokens as f64 * 0.02 };
            }
        }
        pairing.clock.set(pairing.clock.elapsed() + Duration::from_millis(passed));

        let table = pairing.model.read();
        let owns = endpoints.iter().map(|endpoint| table.own(endpoint, 1.0)).collect();
        let plain = Plain { mean, passed: passed as f64 / 1000.0, owns };
        let cost = |p: &Drawn, d: &Drawn| {
            let shares = |level: usize| p.places[level] > 0 && p.places[level] == d.places[level];
            let level = (0..2).find(|level| shares(*level)).unwrap_or(2);
            let is_mixed = rules.has_revisions && p.revision * d.revision > 0 && p.revision != d.revision;
            let way = URGENT * Plain::missing(d) / f64::from(rules.speeds[level]);
            let total = plain.prefill(&prefill, p) + way + plain.decode(&decode, d);
            (level <= rules.required && !is_mixed).then_some(total)
        };
        let whole = |d: &Drawn| plain.whole(&decode, d);
        let expected = |decode: &[(Drawn, f32)]| {
            let few = best(decode, rules.k);
            let pair = least(&best(&prefill, rules.k), &few, cost).or_else(|| least(&prefill, decode, cost));
            let alone = few.iter().map(|(d, _)| whole(d)).filter(|_| !always);
            pair.map(|pair| alone.fold(pair, f64::min))
        };
        let has_room = |(drawn, _): &&(Drawn, f32)| drawn.numbers.kv_usage.is_none_or(|usage| usage <= rules.kv_limit);
        let with_room: Vec<_> = decode.iter().filter(has_room).cloned().collect();
        let expected = expected(&with_room).or_else(|| expected(&decode));
        let got = pairing.pair(seed).map(|(p, d)| {
            let decodes = &decode[d as usize - prefill.len()].0;
            if p == d { Some(whole(decodes)) } else { cost(&prefill[p as usize].0, decodes) }
        });
        match (got, expected) {
            (Ok(Some(got)), Some(least)) => prop_assert!((got - least).abs() < 1e-3, "{got} is not {least}"),
            (got, expected) => prop_assert_eq!((got, expected), (Err(ScheduleError::NoPair), None)),
        }
    }
}
