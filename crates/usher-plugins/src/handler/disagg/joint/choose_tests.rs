//! The choice against tables, and against all pairs one by one.

use proptest::prelude::*;
use usher_core::config::Node;
use usher_core::endpoints::{EndpointSpec, PLACE_LABELS, Store};

use super::*;
use crate::handler::disagg::joint::links::Links;
use crate::latency::Transfers;

fn sides(scores: &[f64]) -> Vec<Side> {
    (0u32..).zip(scores).map(|(position, &score)| Side { position, score }).collect()
}

/// Costs of endpoints, and their places: the names of a host, a rack, a zone and a
/// region, without a name where it isn't known, and a revision.
#[derive(Clone, Debug, Default)]
struct Drawn {
    prefill: f64,
    decode: f64,
    /// The cost of all of it there; `None`: it may not.
    whole: Option<f64>,
    /// Tokens that have to come there, beside one.
    more: f64,
    names: [Option<u8>; 4],
    revision: u32,
    /// Steps of latency targets that are missed if it computes the prompt, decodes, and does both.
    missed: [u8; 3],
}

/// Latency targets that are missed, so many steps of them and a part of one that counts as none.
fn missed(steps: u8) -> f64 {
    (f64::from(steps) + 0.1) * MISSED_STEP
}

/// Seconds in place of a step: more than anything costs.
const PER_STEP: f64 = 1000.0;

impl Drawn {
    fn at(names: [Option<u8>; 4]) -> Self {
        Self { names, ..Self::default() }
    }

    fn rack(name: u8) -> Self {
        Self::at([None, Some(name), None, None])
    }

    fn prefill(&self) -> Prefill {
        Prefill { cost: self.prefill, computed: 0.0 }
    }

    fn decode(&self) -> Decode {
        Decode {
            cost: self.decode,
            whole: self.whole.unwrap_or_default(),
            missed: missed(self.missed[1]),
            whole_missed: missed(self.missed[2]),
            moves: 1.0 + self.more,
            busy: 0.0,
            is_paired: true,
            alone: self.whole.map_or(Alone::Never, |_| Alone::Instead),
        }
    }
}

/// The places of endpoints. Names of the same store are the same places.
fn places(drawn: &[Drawn]) -> Vec<Place> {
    let store = Store::default();
    let spec = |(index, drawn): (usize, &Drawn)| {
        let mut spec = EndpointSpec::new(format!("{index:03}"), ([10, 0, 0, index as u8], 80));
        for (label, name) in PLACE_LABELS.iter().zip(drawn.names) {
            spec.labels.extend(name.map(|name| ((*label).to_owned(), name.to_string())));
        }
        spec
    };
    store.replace(drawn.iter().enumerate().map(spec).collect());
    let snapshot = store.snapshot();
    let at = |(endpoint, drawn): (&std::sync::Arc<usher_core::endpoints::Endpoint>, &Drawn)| Place {
        topology: *endpoint.topology(),
        revision: NonZeroU32::new(drawn.revision),
    };
    snapshot.endpoints().iter().zip(drawn).map(at).collect()
}

/// Hundreds of tokens per second: `speeds` from the narrowest place to none.
fn ways(speeds: [f64; 5], required: Nearness) -> Ways {
    let [host, rack, zone, region, none] = speeds;
    let text = format!("{{host: {host}, rack: {rack}, zone: {zone}, region: {region}, none: {none}}}");
    let links = Links::decode(&Node::parse(&text).unwrap()).unwrap();
    Ways::new(Transfers::new(|nearness| links.speed(nearness), 100.0), required)
}

/// The choice among endpoints of which those before `split` prefill, and the others decode.
fn choose(
    scores: (&[f64], &[f64]),
    drawn: &[Drawn],
    ways: Ways,
    k: usize,
    start: usize,
) -> Option<(u32, u32)> {
    let places = places(drawn);
    let split = scores.0.len() as u32;
    let (prefill, decode) = (sides(scores.0), sides(scores.1));
    let decode = decode.into_iter().map(|side| Side { position: side.position + split, ..side });
    let costs = Costs {
        late: &|_, _| 0.0,
        prefill: |p: u32| drawn[p as usize].prefill(),
        decode: |d: u32| drawn[d as usize].decode(),
        place: |position: u32| places[position as usize],
        ways,
        urgency: 1.0,
    };
    match cheapest(&prefill.into_iter(), &decode, k, start, &costs)? {
        Choice::Pair(p, d) => Some((p, d - split)),
        Choice::Alone(d) => Some((d, d - split)),
    }
}

const EQUAL: [f64; 5] = [100.0; 5];

#[test]
fn only_the_k_best_of_either_side_are_considered() {
    let scores: (&[f64], &[f64]) = (&[0.1, 0.9, 0.8], &[0.5, 0.4]);
    let mut drawn = vec![Drawn::default(); 5];
    // The first is cheapest of all, but not among the best.
    (drawn[1].prefill, drawn[2].prefill, drawn[3].decode) = (3.0, 1.0, 10.0);
    let choose = |k| choose(scores, &drawn, ways(EQUAL, Nearness::Apart), k, 0);
    assert_eq!((choose(1), choose(2), choose(3)), (Some((1, 0)), Some((2, 1)), Some((0, 1))));
}

#[test]
fn pair_cost_includes_the_transfer() {
    let scores: (&[f64], &[f64]) = (&[1.0, 1.0], &[1.0, 1.0]);
    let mut drawn = [Drawn::rack(1), Drawn::rack(2), Drawn::rack(1), Drawn::rack(3)];
    (drawn[0].prefill, drawn[1].prefill, drawn[2].decode, drawn[3].decode) = (1.0, 5.0, 3.0, 2.0);
    // 0.5 s in a rack, 2 s apart.
    let speeds = [200.0, 200.0, 50.0, 50.0, 50.0];
    let pair = choose(scores, &drawn, ways(speeds, Nearness::Apart), 4, 0);
    assert_eq!(pair, Some((0, 0)), "1 + 0.5 + 3 is less than 1 + 2 + 2");
}

#[test]
fn incompatible_best_endpoints_leave_the_pair_to_others() {
    let scores: (&[f64], &[f64]) = (&[0.1, 0.9], &[0.5, 0.4]);
    let drawn = [1, 2, 3, 1].map(Drawn::rack);
    let required = ways(EQUAL, Nearness::Rack);
    assert_eq!(choose(scores, &drawn, required, 1, 0), Some((0, 1)));
    assert_eq!(choose(scores, &[1, 2, 3, 4].map(Drawn::rack), required, 1, 0), None);
    assert_eq!(choose((&[], &[0.5, 0.4]), &drawn[2..], required, 4, 3), None);
    let mut unknown = drawn.clone();
    unknown[0].prefill = f64::NAN;
    assert_eq!(choose(scores, &unknown, required, 4, 3), None);
}

#[test]
fn equal_costs_are_decided_by_scores_then_the_start() {
    let scores: (&[f64], &[f64]) = (&[0.5, 0.5, 0.5], &[0.1, 0.2]);
    let drawn = vec![Drawn::default(); 5];
    let choose = |k, start| choose(scores, &drawn, ways(EQUAL, Nearness::Apart), k, start);
    assert_eq!((choose(4, 0), choose(4, 1), choose(4, 5)), (Some((0, 1)), Some((1, 1)), Some((2, 1))));
    // And beyond the best: the best of either side are apart.
    let scores: (&[f64], &[f64]) = (&[0.9, 0.5, 0.5], &[0.9, 0.2, 0.3]);
    let drawn = [1, 2, 2, 3, 2, 2].map(Drawn::rack);
    let choose = |start| super::tests::choose(scores, &drawn, ways(EQUAL, Nearness::Rack), 1, start);
    assert_eq!((choose(1), choose(2)), (Some((1, 2)), Some((2, 2))));
}

#[test]
fn best_decode_endpoint_may_prefill_for_the_next_best() {
    // The best two fit nobody but themselves; the second computes prompts, and decodes at a price.
    let mut drawn = [Drawn::rack(1), Drawn::rack(2), Drawn::rack(2)];
    (drawn[1].whole, drawn[2].decode) = (Some(9.0), 1.0);
    let places = places(&drawn);
    let side = |position, score| Side { position, score };
    let costs = Costs {
        late: &|_, _| 0.0,
        prefill: |p: u32| drawn[p as usize].prefill(),
        decode: |d: u32| drawn[d as usize].decode(),
        place: |position: u32| places[position as usize],
        ways: ways(EQUAL, Nearness::Rack),
        urgency: 1.0,
    };
    let (prefill, decode) = ([side(0, 1.0), side(1, 0.0)], [side(1, 0.0), side(2, 0.0)]);
    let choice = cheapest(&prefill.into_iter(), &decode.into_iter(), 1, 0, &costs);
    assert_eq!(choice, Some(Choice::Pair(1, 2)), "2 instead of 9");
}

#[test]
fn an_endpoint_may_always_work_with_itself() {
    let both = [Side { position: 0, score: 1.0 }];
    let choose = |drawn: Drawn| {
        let costs = Costs {
            late: &|_, _| 0.0,
            prefill: |_| drawn.prefill(),
            decode: |_| drawn.decode(),
            place: |_| Place::default(),
            ways: ways([1.0; 5], Nearness::Host),
            urgency: 1.0,
        };
        cheapest(&both.iter().copied(), &both.iter().copied(), 4, 0, &costs)
    };
    assert_eq!(choose(Drawn::default()), Some(Choice::Pair(0, 0)));
    assert_eq!(choose(Drawn { whole: Some(1.0), ..Drawn::default() }), Some(Choice::Alone(0)));
}

/// One endpoint that computes prompts and one that decodes, with a second between them.
fn two(decode: Decode, required: Nearness) -> Option<Choice> {
    two_with(decode, required, &|_, _| 0.0)
}

/// The same with this chance that the first token is late.
fn two_with(decode: Decode, required: Nearness, late: &dyn Fn(u32, f64) -> f64) -> Option<Choice> {
    let [one, other] = [0, 1].map(|position| Side { position, score: 1.0 });
    let costs = Costs {
        late,
        prefill: |_| Prefill { cost: 2.0, computed: 0.5 },
        decode: |_| decode,
        place: |_| Place::default(),
        ways: ways([100.0; 5], required),
        urgency: 3.0,
    };
    cheapest(&[one].into_iter(), &[other].into_iter(), 4, 0, &costs)
}

/// An endpoint for [`two`].
const DECODE: Decode = Decode {
    cost: 4.0,
    whole: 0.0,
    missed: 0.0,
    whole_missed: 0.0,
    moves: 0.5,
    busy: 1.0,
    is_paired: true,
    alone: Alone::Instead,
};

#[test]
fn missed_targets_decide_before_costs() {
    let of = |missed: f64, whole_missed: f64, late: f64| {
        let decode = Decode { whole: 1.0, missed, whole_missed, ..DECODE };
        two_with(decode, Nearness::Apart, &|_, _| late)
    };
    let (pair, alone) = (Some(Choice::Pair(0, 1)), Some(Choice::Alone(1)));
    assert_eq!((of(0.0, 0.0, 0.0), of(0.0, 0.5, 0.0)), (alone, pair), "at eight times the cost");
    assert_eq!((of(0.3, 0.5, 0.3), of(0.2, 0.5, 0.1)), (alone, pair), "both parts may miss");
    assert_eq!(of(0.0, 0.05, 0.0), alone, "a twentieth of a request counts as none");
}

#[test]
fn transfer_time_counts_against_the_ttft_target() {
    let decode = Decode { whole: 20.0, whole_missed: 0.5, ..DECODE };
    // Half a second for the KV cache, and half a second until the link is free.
    let within =
        |slack: f64| two_with(decode, Nearness::Apart, &|_, after| if after > slack { 0.95 } else { 0.0 });
    assert_eq!((within(0.99), within(1.01)), (Some(Choice::Alone(1)), Some(Choice::Pair(0, 1))));
}

#[test]
fn single_endpoint_competes_with_pairs() {
    let decode = DECODE;
    // 2 + 4 + 3 · (0.5 + what is left of 1 s of others after 0.5 s).
    let whole = |whole: f64| two(Decode { whole, ..decode }, Nearness::Apart);
    assert_eq!((whole(8.9), whole(9.1)), (Some(Choice::Alone(1)), Some(Choice::Pair(0, 1))));
    let of = |is_paired: bool, alone: Alone, required: Nearness| {
        two(Decode { is_paired, alone, ..decode }, required)
    };
    let (apart, near) = (Nearness::Apart, Nearness::Host);
    assert_eq!(of(true, Alone::Never, apart), Some(Choice::Pair(0, 1)));
    assert_eq!(of(true, Alone::Instead, near), None, "no pair that it could replace");
    assert_eq!(of(true, Alone::Always, near), Some(Choice::Alone(1)));
    assert_eq!(of(false, Alone::Always, apart), Some(Choice::Alone(1)));
    assert_eq!(of(false, Alone::Never, apart), None);
}

#[test]
fn equal_scores_are_considered_by_cost() {
    let (scores, mut drawn) = ([1.0; 20], vec![Drawn::default(); 40]);
    for (number, drawn) in drawn.iter_mut().enumerate() {
        (drawn.prefill, drawn.decode) = ((number * 7 % 20) as f64, (number * 3 % 20) as f64);
    }
    let cheapest = |decodes: bool| {
        let cost = |number: &usize| if decodes { drawn[20 + number].decode } else { drawn[*number].prefill };
        (0..20).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap() as u32
    };
    let expected = Some((cheapest(false), cheapest(true)));
    for start in 0..20 {
        assert_eq!(choose((&scores, &scores), &drawn, ways(EQUAL, Nearness::Apart), 1, start), expected);
    }
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let name = || proptest::option::weighted(0.8, 0u8..4);
    // Costs that are often equal, and some that are no numbers.
    let cost = || prop_oneof![4 => (0u8..4).prop_map(f64::from), 4 => 0.0..4.0f64, 1 => Just(f64::NAN)];
    let whole = prop_oneof![1 => Just(None), 1 => (0u8..8).prop_map(|whole| Some(f64::from(whole)))];
    let more = prop_oneof![2 => Just(0.0), 1 => 0.0..9.0f64];
    let names = [name(), name(), name(), name()];
    let missed = prop_oneof![Just([0; 3]), proptest::array::uniform3(0u8..3)];
    (cost(), cost(), whole, more, names, 0u32..4, missed).prop_map(
        |(prefill, decode, whole, more, names, revision, missed)| Drawn {
            prefill,
            decode,
            whole,
            more,
            names,
            revision,
            missed,
        },
    )
}

fn scores(most: usize) -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    proptest::collection::vec((any::<prop::sample::Index>(), 0u8..6), 0..most)
}

/// The sides that were drawn, each endpoint once.
fn of(drawn: &[(prop::sample::Index, u8)], endpoints: usize) -> Vec<Side> {
    let mut sides: Vec<Side> = Vec::new();
    for (index, score) in drawn {
        let position = index.index(endpoints) as u32;
        if sides.iter().all(|side| side.position != position) {
            sides.push(Side { position, score: f64::from(*score) });
        }
    }
    sides
}

/// The `k` with the highest scores, and of equals those that cost the least, by sorting.
fn sorted(sides: &[Side], k: usize, start: usize, cost: impl Fn(u32) -> f64) -> Vec<Side> {
    let mut sides = sides.to_vec();
    let middle = start % sides.len().max(1);
    sides.rotate_left(middle);
    // No number is the most.
    let cost = |side: &Side| Some(cost(side.position)).filter(|cost| !cost.is_nan()).unwrap_or(f64::INFINITY);
    sides.sort_by(|a, b| b.score.total_cmp(&a.score).then(cost(a).total_cmp(&cost(b))));
    sides.truncate(k);
    sides
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn chosen_pair_is_the_cheapest(
        drawn in proptest::collection::vec(drawn(), 1..24),
        (prefill, decode) in (scores(24), scores(24)),
        speeds in proptest::array::uniform5(prop_oneof![Just(100.0), 20.0..1000.0f64]),
        required in proptest::sample::select(Nearness::ALL.to_vec()),
        k in 1usize..=MOST,
        start in any::<usize>(),
    ) {
        let mut speeds = speeds;
        speeds.sort_by(|a, b| b.total_cmp(a));
        let (prefill, decode) = (of(&prefill, drawn.len()), of(&decode, drawn.len()));
        let places = places(&drawn);
        let ways = ways(speeds, required);
        let costs = Costs {
            late: &|p, _| missed(drawn[p as usize].missed[0]),
            prefill: |p: u32| drawn[p as usize].prefill(),
            decode: |d: u32| drawn[d as usize].decode(),
            place: |position: u32| places[position as usize],
            ways,
            urgency: 1.0,
        };
        let steps = |position: u32, part: usize| f64::from(drawn[position as usize].missed[part]) * PER_STEP;
        let whole = |d: u32| drawn[d as usize].whole.map(|whole| whole + steps(d, 2));
        // Names and speeds as they were drawn, level by level.
        let cost = |p: u32, d: u32| -> Option<f64> {
            let (from, to) = (&drawn[p as usize], &drawn[d as usize]);
            let shared = (0..4).find(|level| from.names[*level].is_some() && from.names[*level] == to.names[*level]);
            let level = shared.unwrap_or(4);
            let is_near = level <= 4 - required as usize;
            let is_mixed = from.revision != 0 && to.revision != 0 && from.revision != to.revision;
            let way = (1.0 + to.more) * 100.0 / speeds[level];
            let total = if p == d {
                to.whole.unwrap_or(0.0) + steps(d, 2)
            } else {
                from.prefill + way + to.decode + steps(p, 0) + steps(d, 1)
            };
            (p == d || (is_near && !is_mixed)).then_some(total).filter(|total| !total.is_nan())
        };
        let least = |prefill: &[Side], decode: &[Side]| {
            let pairs = prefill.iter().flat_map(|p| decode.iter().map(|d| cost(p.position, d.position)));
            pairs.flatten().reduce(f64::min)
        };
        let fastest = |d: u32| {
            let to = &drawn[d as usize];
            let paired = to.decode + (1.0 + to.more) * 100.0 / speeds[0] + steps(d, 1);
            whole(d).map_or(paired, |whole| paired.min(whole))
        };
        let few = sorted(&decode, k, start, fastest);
        let near = least(&sorted(&prefill, k, start, |p| drawn[p as usize].prefill + steps(p, 0)), &few);
        let pair = near.or_else(|| least(&prefill, &decode));
        let alone = few.iter().filter_map(|side| whole(side.position));
        let expected = pair.map(|pair| alone.fold(pair, f64::min));
        let got = cheapest(&prefill.iter().copied(), &decode.iter().copied(), k, start, &costs);
        let got = got.map(|choice| match choice {
            Choice::Pair(p, d) => cost(p, d),
            Choice::Alone(d) => whole(d),
        });
        match (got, expected) {
            // Rounding to steps, of the group's and of the pair's.
            (Some(Some(got)), Some(least)) => prop_assert!(got <= least + 2.0 * STEP, "{got} {least}"),
            (got, expected) => prop_assert_eq!((got, expected), (None, None)),
        }
    }

    #[test]
    fn best_endpoints_match_a_full_sort(
        scores in proptest::collection::vec(0u8..20, 0..30),
        k in 1usize..=MOST,
        start in any::<usize>(),
    ) {
        let sides = sides(&scores.iter().map(|score| f64::from(*score / 4)).collect::<Vec<_>>());
        let cost = |position: u32| f64::from(scores[position as usize] % 4);
        let price = |side: Side| From {
            side,
            part: Prefill { cost: cost(side.position), computed: 0.0 },
            place: Place::default(),
        };
        let got = best(&sides.iter().copied(), k, start, price, |one| Price { missed: 0.0, cost: one.part.cost });
        let got: Vec<Side> = got.iter().map(Sided::side).collect();
        prop_assert_eq!(got, sorted(&sides, k, start, cost));
    }

    #[test]
    fn work_grows_with_endpoints_instead_of_pairs(
        racks in 1u8..8,
        revisions in 1u32..4,
        endpoints in 50usize..250,
    ) {
        let drawn: Vec<Drawn> = (0..endpoints)
            .map(|index| Drawn { revision: 1 + index as u32 % revisions, ..Drawn::rack(index as u8 % racks) })
            .collect();
        let places = places(&drawn);
        let side = |position: u32| Side { position, score: 0.0 };
        let place = |position: u32| places[position as usize];
        let to = |position: u32| To {
            side: side(position),
            part: Drawn::default().decode(),
            place: place(position),
        };
        let groups = Groups::of((0..endpoints as u32).map(to), ways(EQUAL, Nearness::Rack), 1.0);
        for position in 0..endpoints as u32 {
            let part = Prefill { cost: 0.0, computed: 0.0 };
            let from = From { side: side(position), part, place: place(position) };
            // Itself, and one of its rack; nobody there is without a revision.
            prop_assert_eq!(groups.fitting(&from).count(), 2);
        }
    }
}
