//! The cheapest pair of the best endpoints of two profiles. Numbers in, positions out.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroU64};

use smallvec::SmallVec;

use super::ways::{Place, Ways};
use crate::endpoints::Nearness;

/// More endpoints of a side than this are never looked at together.
pub const MOST: usize = 8;

/// Costs are compared in steps of this, in seconds: what differs by less may be equal.
const STEP: f64 = 1e-4;

/// One side of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Side {
    /// Position in the snapshot.
    pub position: u32,
    /// Total score in its profile.
    pub score: f64,
}

/// Positions of a prefill and a decode endpoint in the snapshot.
pub type Pair = (u32, u32);

/// What a pair costs, in seconds. Everything is by position in the snapshot; what costs
/// no number is never chosen.
pub struct Costs<P, D, L> {
    /// Until the first token is computed.
    pub prefill: P,
    /// Until the decoding endpoint takes the request.
    pub decode: D,
    /// Where an endpoint is.
    pub place: L,
    /// From the one to the other.
    pub ways: Ways,
}

/// The cheapest pair of the `k` best of either side. If every pair of the best is
/// forbidden, all are looked at. Of pairs that cost the same, the one with the higher
/// scores; of equals, the first from `start` on, which should be random. `None` when
/// every pair is forbidden.
pub fn cheapest<P, D, L>(
    prefill: &(impl Iterator<Item = Side> + Clone),
    decode: &(impl Iterator<Item = Side> + Clone),
    k: usize,
    start: usize,
    costs: &Costs<P, D, L>,
) -> Option<Pair>
where
    P: Fn(u32) -> f64,
    D: Fn(u32) -> f64,
    L: Fn(u32) -> Place,
{
    let k = k.clamp(1, MOST);
    let priced = |side: Side, cost: f64| Priced { side, cost, place: (costs.place)(side.position) };
    let of_prefill = |side: Side| priced(side, (costs.prefill)(side.position));
    let of_decode = |side: Side| priced(side, (costs.decode)(side.position));
    let (few_prefill, few_decode) = (best(prefill, k, start), best(decode, k, start));
    let few: SmallVec<[Priced; MOST]> = few_decode.iter().copied().map(of_decode).collect();
    let mut least = Least::default();
    for one in few_prefill.iter().copied().map(of_prefill) {
        few.iter().for_each(|other| least.offer(&one, other, &costs.ways));
    }
    if least.pair().is_some() || (few_prefill.len() < k && few_decode.len() < k) {
        return least.pair();
    }
    let groups = Groups::of(from(decode, start).map(of_decode), costs.ways);
    for one in from(prefill, start).map(of_prefill) {
        groups.fitting(&one).for_each(|other| least.offer(&one, other, &costs.ways));
    }
    least.pair()
}

/// All sides, the one at `start` first, modulo how many there are.
fn from<'a>(
    sides: &'a (impl Iterator<Item = Side> + Clone),
    start: usize,
) -> impl Iterator<Item = Side> + 'a {
    let start = start % sides.clone().count().max(1);
    sides.clone().skip(start).chain(sides.clone().take(start))
}

/// The `k` with the highest scores, the best first; of equals those that come first
/// from `start` on.
fn best(sides: &(impl Iterator<Item = Side> + Clone), k: usize, start: usize) -> SmallVec<[Side; MOST]> {
    let mut best: SmallVec<[Side; MOST]> = SmallVec::new();
    for side in from(sides, start) {
        let place = best.iter().position(|other| side.score > other.score).unwrap_or(best.len());
        if place < k {
            best.truncate(k - 1);
            best.insert(place, side);
        }
    }
    best
}

/// One side with what it costs.
#[derive(Clone, Copy)]
struct Priced {
    side: Side,
    cost: f64,
    place: Place,
}

/// Which of two is better: the one that costs fewer steps, then the one with more score.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Rank(i64, f64);

impl Rank {
    /// `None` for what costs no number.
    fn of(cost: f64, score: f64) -> Option<Self> {
        // Saturates, as casts from floats do.
        (!cost.is_nan()).then(|| Self((cost / STEP).round() as i64, -score))
    }
}

/// The best pair so far; the first of equals.
#[derive(Default)]
struct Least(Option<(Rank, Pair)>);

impl Least {
    fn offer(&mut self, prefill: &Priced, decode: &Priced, ways: &Ways) {
        let (p, d) = (prefill.side, decode.side);
        let way =
            if p.position == d.position { Some(0.0) } else { ways.between(&prefill.place, &decode.place) };
        let rank = way.and_then(|way| Rank::of(prefill.cost + way + decode.cost, p.score + d.score));
        if let Some(rank) = rank.filter(|rank| self.0.is_none_or(|(least, _)| *rank < least)) {
            self.0 = Some((rank, (p.position, d.position)));
        }
    }

    fn pair(&self) -> Option<Pair> {
        self.0.map(|(_, pair)| pair)
    }
}

/// The decoding endpoints by the places and revisions that a pair has to share. The wider
/// a place, the slower the way, so of each group only the cheapest has to be looked at: if
/// it is nearer than the group says, it costs less than was thought. That makes as many
/// steps as there are endpoints, and not as many as there are pairs.
struct Groups {
    decodes: Vec<Priced>,
    /// The best of each place; `None`: of all places.
    best: HashMap<(Option<NonZeroU64>, Revisions), Best>,
    /// The same endpoint, whatever it shares with itself.
    own: HashMap<u32, usize>,
    ways: Ways,
}

/// The revisions of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Revisions {
    /// This one, or those without any.
    Of(Option<NonZeroU32>),
    /// All but those without any.
    Known,
}

/// The best of a group, by its place in the list.
type Best = (Rank, usize);

impl Groups {
    fn of(decodes: impl Iterator<Item = Priced>, ways: Ways) -> Self {
        let mut groups = Self { decodes: decodes.collect(), best: HashMap::new(), own: HashMap::new(), ways };
        for (index, decode) in groups.decodes.iter().enumerate() {
            groups.own.insert(decode.side.position, index);
            let Some(rank) = Rank::of(decode.cost, decode.side.score) else { continue };
            for place in shared(&decode.place, &ways) {
                let of = Revisions::Of(decode.place.revision);
                let known = decode.place.revision.map(|_| Revisions::Known);
                for revisions in [Some(of), known].into_iter().flatten() {
                    let best = groups.best.entry((place, revisions)).or_insert((rank, index));
                    if rank < best.0 {
                        *best = (rank, index);
                    }
                }
            }
        }
        groups
    }

    /// Of those that fit a prefill endpoint, one as good as any other, and some more.
    fn fitting<'a>(&'a self, prefill: &'a Priced) -> impl Iterator<Item = &'a Priced> {
        let own = self.own.get(&prefill.side.position).copied();
        // Who has no revision fits those of all.
        let others = prefill.place.revision.map_or(Revisions::Known, |own| Revisions::Of(Some(own)));
        let keys = shared(&prefill.place, &self.ways)
            .flat_map(move |place| [(place, Revisions::Of(None)), (place, others)]);
        let best = keys.filter_map(|key| self.best.get(&key).map(|(_, index)| *index));
        own.into_iter().chain(best).filter_map(|index| self.decodes.get(index))
    }
}

/// The places of an endpoint that a pair may share, the narrowest first; `None`: it need
/// not share any.
fn shared<'a>(place: &'a Place, ways: &Ways) -> impl Iterator<Item = Option<NonZeroU64>> + 'a {
    ways.allowed().filter_map(|nearness| match nearness {
        Nearness::Apart => Some(None),
        nearness => place.topology.place(nearness).map(Some),
    })
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
