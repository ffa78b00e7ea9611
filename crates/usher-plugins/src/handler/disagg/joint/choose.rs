//! The cheapest way to serve a request: a pair of the best endpoints of two profiles, or one
//! endpoint that does it all. Numbers in, positions out.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroU64};

use smallvec::SmallVec;
use usher_core::endpoints::Nearness;

use super::ways::{Place, Ways};
use crate::latency::EQUAL_CHANCE;

/// More endpoints of a side than this are never looked at together.
pub const MOST: usize = 8;

/// Costs are compared in steps of this, in seconds: what differs by less may be equal.
const STEP: f64 = 1e-4;

/// Missed latency targets are compared in steps of this.
const MISSED_STEP: f64 = EQUAL_CHANCE;

/// One side of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Side {
    /// Position in the snapshot.
    pub position: u32,
    /// Total score in its profile.
    pub score: f64,
}

/// Endpoints that serve a request, by their positions in the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The first computes the prompt, the second responds.
    Pair(u32, u32),
    /// One does both.
    Alone(u32),
}

/// Part of an endpoint that computes prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefill {
    /// Part of the cost, in seconds; what is no number is never chosen.
    pub cost: f64,
    /// Seconds until the prompt is computed.
    pub computed: f64,
}

/// Part of an endpoint that decodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// Part of the cost, in seconds; what is no number is never chosen.
    pub cost: f64,
    /// The cost of the whole request there.
    pub whole: f64,
    /// Requests that are expected to miss their latency targets there if it decodes this one.
    pub missed: f64,
    /// Requests that are expected to miss their latency targets there if it also prefills this one.
    pub whole_missed: f64,
    /// Tokens that have to come there, times how many times slower than configured its link is.
    pub moves: f64,
    /// Seconds that its link is busy with others.
    pub busy: f64,
    /// `true` if it may decode for another endpoint.
    pub is_paired: bool,
    /// Permission to do it all.
    pub alone: Alone,
}

impl Decode {
    /// An endpoint of which nothing is known.
    pub const UNKNOWN: Self = Self {
        cost: f64::NAN,
        whole: f64::NAN,
        missed: 0.0,
        whole_missed: 0.0,
        moves: 0.0,
        busy: 0.0,
        is_paired: false,
        alone: Alone::Never,
    };
}

/// Conditions under which a decoding endpoint may compute the prompt, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// Never.
    Never,
    /// Instead of a pair: if none is allowed, this isn't, either.
    Instead,
    /// Always.
    Always,
}

/// Costs and places of endpoints, by position in the snapshot.
pub struct Costs<'a, P, D, L> {
    /// Cost at an endpoint that prefills.
    pub prefill: P,
    /// Chance that TTFT misses its target if an endpoint prefills and the KV transfer takes so many
    /// seconds.
    pub late: &'a dyn Fn(u32, f64) -> f64,
    /// Cost at an endpoint that decodes.
    pub decode: D,
    /// Location of an endpoint.
    pub place: L,
    /// Links from prefill to decode endpoints.
    pub ways: Ways,
    /// Weight of a second before the first token.
    pub urgency: f64,
}

/// The choice by which the fewest requests are expected to miss their latency targets, and of those
/// the cheapest, among the `k` best of either side. Of sides with equal scores the
/// cheaper ones are better. If every pair of the best is forbidden, all pairs are looked at.
/// Equal costs prefer one endpoint alone, then the pair with the higher scores, then the first from `start`
/// on, which should be random. `None` when nothing is allowed.
pub fn cheapest<P, D, L>(
    prefill: &(impl Iterator<Item = Side> + Clone),
    decode: &(impl Iterator<Item = Side> + Clone),
    k: usize,
    start: usize,
    costs: &Costs<'_, P, D, L>,
) -> Option<Choice>
where
    P: Fn(u32) -> Prefill,
    D: Fn(u32) -> Decode,
    L: Fn(u32) -> Place,
{
    let k = k.clamp(1, MOST);
    let (ways, urgency, late) = (costs.ways, costs.urgency, costs.late);
    let of_prefill =
        |side: Side| From { side, part: (costs.prefill)(side.position), place: (costs.place)(side.position) };
    let of_decode =
        |side: Side| To { side, part: (costs.decode)(side.position), place: (costs.place)(side.position) };
    let few_prefill = best(prefill, k, start, of_prefill, |one| Price {
        missed: late(one.side.position, 0.0),
        cost: one.part.cost,
    });
    let few_decode = best(decode, k, start, of_decode, |one| one.least(&ways, urgency));
    let mut pairs = Least::default();
    for one in &few_prefill {
        few_decode.iter().for_each(|other| pairs.offer(one, other, costs));
    }
    if pairs.0.is_none() && (few_prefill.len() == k || few_decode.len() == k) {
        let groups = Groups::of(from(decode, start).map(of_decode), ways, urgency);
        for one in from(prefill, start).map(of_prefill) {
            groups.fitting(&one).for_each(|other| pairs.offer(&one, other, costs));
        }
    }
    let score = few_prefill.iter().map(|one| one.side.score).reduce(f64::max).unwrap_or_default();
    let mut least = Least::default();
    for one in &few_decode {
        let may = match one.part.alone {
            Alone::Never => false,
            Alone::Instead => pairs.0.is_some(),
            Alone::Always => true,
        };
        if may {
            least.take(one.whole(), score + one.side.score, Choice::Alone(one.side.position));
        }
    }
    match (least.0, pairs.0) {
        (Some(alone), Some(pair)) if pair.0 < alone.0 => Some(pair.1),
        (alone, pair) => alone.or(pair).map(|(_, choice)| choice),
    }
}

/// All sides, the one at `start` first, modulo how many there are.
fn from<'a>(
    sides: &'a (impl Iterator<Item = Side> + Clone),
    start: usize,
) -> impl Iterator<Item = Side> + 'a {
    let start = start % sides.clone().count().max(1);
    sides.clone().skip(start).chain(sides.clone().take(start))
}

/// The `k` with the highest scores, the best first; of equals the cheapest, and then those that
/// come first from `start` on. Only what may be among them is priced.
fn best<T: Sided>(
    sides: &(impl Iterator<Item = Side> + Clone),
    k: usize,
    start: usize,
    price: impl Fn(Side) -> T,
    cost: impl Fn(&T) -> Price,
) -> SmallVec<[T; MOST]> {
    let mut best: SmallVec<[T; MOST]> = SmallVec::new();
    for side in from(sides, start) {
        let is_worse = |last: &T| side.score < last.side().score;
        if best.len() == k && best.last().is_some_and(is_worse) {
            continue;
        }
        let one = price(side);
        let is_better = |other: &T| {
            let other_score = other.side().score;
            side.score > other_score || (side.score == other_score && cost(&one).is_less(&cost(other)))
        };
        let place = best.iter().position(is_better).unwrap_or(best.len());
        if place < k {
            best.truncate(k - 1);
            best.insert(place, one);
        }
    }
    best
}

/// Price of a choice, or of a part of one.
#[derive(Clone, Copy)]
struct Price {
    /// Requests that are expected to miss their latency targets for it.
    missed: f64,
    /// In seconds.
    cost: f64,
}

impl Price {
    /// Missed targets in steps. Saturates, as casts from floats do.
    fn steps(&self) -> i64 {
        (self.missed / MISSED_STEP) as i64
    }

    /// Returns `true` if fewer targets are missed, or as many and it costs less by a step; what costs no
    /// number is the most.
    fn is_less(&self, other: &Self) -> bool {
        if self.cost.is_nan() || other.cost.is_nan() {
            return !self.cost.is_nan();
        }
        match self.steps().cmp(&other.steps()) {
            Ordering::Equal => self.cost + STEP < other.cost,
            order => order.is_lt(),
        }
    }
}

/// One side with its part of the cost.
trait Sided {
    fn side(&self) -> Side;
}

/// An endpoint that computes prompts.
#[derive(Clone, Copy)]
struct From {
    side: Side,
    part: Prefill,
    place: Place,
}

/// An endpoint that decodes.
#[derive(Clone, Copy)]
struct To {
    side: Side,
    part: Decode,
    place: Place,
}

impl Sided for From {
    fn side(&self) -> Side {
        self.side
    }
}

impl Sided for To {
    fn side(&self) -> Side {
        self.side
    }
}

impl To {
    /// Part of the cost, with the way from an endpoint that is so near.
    fn cost_from(&self, per_token: f64, urgency: f64) -> f64 {
        self.part.cost + urgency * per_token * self.part.moves
    }

    /// The price of the whole request there.
    fn whole(&self) -> Price {
        Price { missed: self.part.whole_missed, cost: self.part.whole }
    }

    /// The least that it may cost.
    fn least(&self, ways: &Ways, urgency: f64) -> Price {
        let cost = self.cost_from(ways.per_token(Nearness::Host), urgency);
        let (paired, whole) = (Price { missed: self.part.missed, cost }, self.whole());
        match self.part.alone {
            Alone::Never => paired,
            _ if !self.part.is_paired || whole.is_less(&paired) => whole,
            _ => paired,
        }
    }
}

/// Order of two choices: better is the one by which fewer targets are missed, then the one that costs
/// less, both in steps, then the one with more score.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Rank(i64, i64, f64);

impl Rank {
    /// `None` for what costs no number.
    fn of(price: Price, score: f64) -> Option<Self> {
        // Saturates, as casts from floats do.
        let cost = (price.cost / STEP).round() as i64;
        (!price.cost.is_nan()).then(|| Self(price.steps(), cost, -score))
    }
}

/// The best choice so far; the first of equals.
#[derive(Default)]
struct Least(Option<(Rank, Choice)>);

impl Least {
    fn offer<P, D, L>(&mut self, prefill: &From, decode: &To, costs: &Costs<'_, P, D, L>) {
        let (ways, urgency) = (&costs.ways, costs.urgency);
        let (p, d) = (prefill.side, decode.side);
        if !decode.part.is_paired {
            return;
        }
        if p.position == d.position {
            let choice = match decode.part.alone {
                Alone::Never => Choice::Pair(p.position, d.position),
                _ => Choice::Alone(d.position),
            };
            return self.take(decode.whole(), p.score + d.score, choice);
        }
        let Some(per_token) = ways.between(&prefill.place, &decode.place) else { return };
        let waits = (decode.part.busy - prefill.part.computed).max(0.0);
        let cost = prefill.part.cost + decode.cost_from(per_token, urgency) + urgency * waits;
        let missed = decode.part.missed + (costs.late)(p.position, per_token * decode.part.moves + waits);
        self.take(Price { missed, cost }, p.score + d.score, Choice::Pair(p.position, d.position));
    }

    fn take(&mut self, price: Price, score: f64, choice: Choice) {
        let rank = Rank::of(price, score);
        if let Some(rank) = rank.filter(|rank| self.0.is_none_or(|(least, _)| *rank < least)) {
            self.0 = Some((rank, choice));
        }
    }
}

/// The decoding endpoints by the places and revisions that a pair has to share. The wider
/// a place, the slower the way, so of each group only the cheapest other one has to be looked at: if
/// it is nearer than the group says, it costs less than was thought. That makes as many
/// steps as there are endpoints, and not as many as there are pairs. What is on their links
/// counts in full here, however long the prompt takes.
struct Groups {
    decodes: Vec<To>,
    /// The best two of each place; `None`: of all places. One may be who computes the prompt.
    best: HashMap<(Option<NonZeroU64>, Revisions), BestTwo>,
    /// Index of each endpoint by position, for pairs with itself.
    own: HashMap<u32, usize>,
    ways: Ways,
}

/// The revisions of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Revisions {
    /// Endpoints of this revision, or without one.
    Of(Option<NonZeroU32>),
    /// Endpoints of any revision.
    Known,
}

/// The best two of a group, by their places in the list.
#[derive(Default)]
struct BestTwo([Option<(Rank, usize)>; 2]);

impl BestTwo {
    fn offer(&mut self, rank: Rank, index: usize) {
        let [best, second] = &mut self.0;
        let beats = |other: &Option<(Rank, usize)>| other.is_none_or(|(other, _)| rank < other);
        if beats(best) {
            *second = best.replace((rank, index));
        } else if beats(second) {
            *second = Some((rank, index));
        }
    }

    /// Best endpoint other than `own`.
    fn other_than(&self, own: Option<usize>) -> Option<usize> {
        self.0.iter().flatten().map(|(_, index)| *index).find(|index| Some(*index) != own)
    }
}

impl Groups {
    fn of(decodes: impl Iterator<Item = To>, ways: Ways, urgency: f64) -> Self {
        let decodes = decodes.filter(|decode| decode.part.is_paired).collect();
        let mut groups = Self { decodes, best: HashMap::new(), own: HashMap::new(), ways };
        for (index, decode) in groups.decodes.iter().enumerate() {
            groups.own.insert(decode.side.position, index);
            for (nearness, place) in shared(&decode.place, &ways) {
                let cost = decode.cost_from(ways.per_token(nearness), urgency) + urgency * decode.part.busy;
                let price = Price { missed: decode.part.missed, cost };
                let Some(rank) = Rank::of(price, decode.side.score) else { continue };
                let of = Revisions::Of(decode.place.revision);
                let known = decode.place.revision.map(|_| Revisions::Known);
                for revisions in [Some(of), known].into_iter().flatten() {
                    groups.best.entry((place, revisions)).or_default().offer(rank, index);
                }
            }
        }
        groups
    }

    /// Decode endpoints that may pair with a prefill endpoint, with the best of them and some more.
    fn fitting<'a>(&'a self, prefill: &'a From) -> impl Iterator<Item = &'a To> {
        let own = self.own.get(&prefill.side.position).copied();
        // Who has no revision fits those of all.
        let others = prefill.place.revision.map_or(Revisions::Known, |own| Revisions::Of(Some(own)));
        let keys = shared(&prefill.place, &self.ways)
            .flat_map(move |(_, place)| [(place, Revisions::Of(None)), (place, others)]);
        let best = keys.filter_map(move |key| self.best.get(&key)?.other_than(own));
        own.into_iter().chain(best).filter_map(|index| self.decodes.get(index))
    }
}

/// The places of an endpoint that a pair may share, and how near it is then, the narrowest
/// first; `None`: it need not share any.
fn shared<'a>(place: &'a Place, ways: &Ways) -> impl Iterator<Item = (Nearness, Option<NonZeroU64>)> + 'a {
    ways.allowed().filter_map(|nearness| match nearness {
        Nearness::Apart => Some((nearness, None)),
        nearness => place.topology.place(nearness).map(|place| (nearness, Some(place))),
    })
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
