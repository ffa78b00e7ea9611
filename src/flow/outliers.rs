//! Keeps requests from endpoints that are ejected, and sends one now and then as a probe.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rand::{Rng, RngExt};
use smallvec::SmallVec;

use crate::endpoints::health::{OutlierDetector, Probe};
use crate::endpoints::{Candidates, Endpoint};

/// Views whose division is remembered: gateways send a handful of subsets.
const PLACES: usize = 8;

/// Divisions of the candidates of requests, cached while an endpoint is ejected.
#[derive(Debug)]
pub(super) struct OutlierFilter {
    outliers: Arc<OutlierDetector>,
    /// By where a view's indices lie: requests with the same subset share them.
    known: [ArcSwapOption<Known>; PLACES],
}

/// Candidates, and how they are divided.
#[derive(Debug)]
struct Known {
    all: Candidates,
    /// Version of the detector's state.
    version: u64,
    division: Division,
}

/// Division of candidates by whether they may be picked.
#[derive(Debug)]
enum Division {
    /// No endpoint is ejected.
    Healthy,
    /// Some are.
    Some {
        /// The others, and the ejected ones that do a part of the work which no other does.
        healthy: Candidates,
        /// The ejected endpoints that are left out, as positions in the snapshot.
        ejected: Box<[u32]>,
        /// The parts of the work of which more than half is ejected.
        shortages: Box<[Shortage]>,
    },
}

/// A part of the work of which more than half of the endpoints are ejected.
#[derive(Debug)]
struct Shortage {
    /// Bits of the parts, as of [`parts`].
    parts: u8,
    /// Number of endpoints that do it, and how many of them are healthy.
    all: usize,
    healthy: usize,
    /// The others, as positions in the snapshot.
    ejected: Box<[u32]>,
}

/// Among whom a decision is made.
#[derive(Debug)]
pub(super) struct Choice {
    /// Candidates that may be picked: all but the ejected ones that are left out.
    pub(super) healthy: Candidates,
    /// Candidates in their place for a request that is too much for the healthy ones: one ejected
    /// endpoint for each part of the work that has a shortage, and the healthy ones of the others.
    pub(super) relief: Option<Candidates>,
    /// A ejected endpoint that is due for a request.
    pub(super) attempt: Option<Attempt>,
}

/// A request is to go to an ejected endpoint.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Guard that excludes other probes of it.
    pub(super) probe: Probe,
    /// Position in the snapshot.
    pub(super) position: u32,
    /// The endpoint, and those of the others that do another part of a request's work: none can
    /// be picked in its place.
    pub(super) among: Candidates,
}

impl OutlierFilter {
    pub(super) fn new(outliers: Arc<OutlierDetector>) -> Self {
        Self { outliers, known: Default::default() }
    }

    /// Among whom to decide; `None`: among all these candidates. `shared`: other requests
    /// have the same view. `probes`: this request may be a probe.
    pub(super) fn choice(
        &self,
        all: &Candidates,
        shared: bool,
        probes: bool,
        now_ms: u64,
        rng: &mut dyn Rng,
    ) -> Option<Choice> {
        if self.outliers.is_empty() {
            return None;
        }
        let known = self.divided(all, shared);
        let Division::Some { healthy, ejected, shortages } = &known.division else { return None };
        let relief = if shortages.is_empty() { None } else { relief(all, healthy, shortages, rng) };
        let others = relief.as_ref().unwrap_or(healthy);
        let attempt = if probes { attempt(all, others, ejected, now_ms) } else { None };
        Some(Choice { healthy: healthy.clone(), relief, attempt })
    }

    /// Endpoints of the pool whose room counts: one that is kept from requests has none. `None`: all.
    pub(super) fn healthy(&self, all: &Candidates) -> Option<Candidates> {
        if self.outliers.is_empty() {
            return None;
        }
        match &self.divided(all, true).division {
            Division::Some { healthy, .. } => Some(healthy.clone()),
            Division::Healthy => None,
        }
    }

    /// Counts a decision that takes ejected endpoints although it is no probe.
    pub(super) fn count_fallback(&self) {
        self.outliers.metrics().overruled.inc();
    }

    /// Returns `true` if a probe may have fallbacks.
    pub(super) fn may_fall_back(&self) -> bool {
        self.outliers.names_servers()
    }

    /// Lets go of the views, and with them of endpoints that are gone.
    pub(super) fn sweep(&self) {
        self.known.iter().for_each(|place| place.store(None));
    }

    fn divided(&self, all: &Candidates, shared: bool) -> Arc<Known> {
        // Before it is seen who is ejected: a change in between makes this out of date at
        // once, instead of hiding the change.
        let version = self.outliers.version();
        let divide = || Arc::new(Known { all: all.clone(), version, division: divide(all) });
        // Allocations differ by more than a few bytes.
        let at = all.indices().as_ptr().addr() / 64 % PLACES;
        let Some(place) = self.known.get(at).filter(|_| shared) else { return divide() };
        if let Some(known) = place.load().as_ref()
            && known.version == version
            && known.all.is_same(all)
        {
            return Arc::clone(known);
        }
        let known = divide();
        place.store(Some(Arc::clone(&known)));
        known
    }
}

/// The parts of a request's work that an endpoint does, a bit each: encode, prefill,
/// decode, and one for those of no known role.
fn parts(endpoint: &Endpoint) -> u8 {
    let role = endpoint.role();
    match u8::from(role.encode) | u8::from(role.prefill) << 1 | u8::from(role.decode) << 2 {
        0 => 8,
        parts => parts,
    }
}

/// All parts of the work.
const ALL: u8 = 0b1111;

/// Divides candidates by whether they may be picked. Those are the healthy ones, and the ejected ones that
/// do a part of the work which no healthy one does.
fn divide(all: &Candidates) -> Division {
    // Read once, so that what is counted is what is left out.
    let is_ejected: Vec<bool> = all.view().iter().map(|endpoint| endpoint.health().is_ejected()).collect();
    if !is_ejected.contains(&true) {
        return Division::Healthy;
    }
    let members = || all.indices().iter().zip(all.view().iter()).zip(&is_ejected);
    let shortage = |of: u8| {
        let mine = || members().filter(move |((_, endpoint), _)| parts(endpoint) & of != 0);
        let ejected: Box<[u32]> =
            mine().filter(|(_, is_ejected)| **is_ejected).map(|((position, _), _)| *position).collect();
        let all = mine().count();
        (ejected.len() * 2 > all).then(|| Shortage { parts: of, all, healthy: all - ejected.len(), ejected })
    };
    let mut shortages: Vec<Shortage> = [1, 2, 4, 8].into_iter().filter_map(shortage).collect();
    if shortages.is_empty() {
        // Where endpoints do several parts, half of each may be more than half of all.
        shortages.extend(shortage(ALL));
    }
    let needed = shortages.iter().filter(|shortage| shortage.healthy == 0);
    let needed = needed.fold(0, |parts, shortage| parts | shortage.parts);
    let (mut healthy, mut ejected) = (Vec::with_capacity(all.len()), Vec::new());
    for ((position, endpoint), is_ejected) in members() {
        let list = if *is_ejected && parts(endpoint) & needed == 0 { &mut ejected } else { &mut healthy };
        list.push(*position);
    }
    Division::Some { healthy: all.narrowed(&healthy), ejected: ejected.into(), shortages: shortages.into() }
}

/// Candidates for a request that is too much for the healthy ones; `None` if it isn't.
///
/// Each of `healthy` among `all` gets two shares of the requests, `2 × healthy / all` together: as many as
/// where half is ejected. The ejected ones share the rest evenly, as scorers would prefer those that fail
/// fast. One that refuses connections gets some only if all do and none is healthy.
fn relief(
    all: &Candidates,
    healthy: &Candidates,
    shortages: &[Shortage],
    rng: &mut dyn Rng,
) -> Option<Candidates> {
    let endpoints = all.snapshot().endpoints();
    let listens = |position: &&u32| {
        let endpoint = endpoints.get(**position as usize);
        endpoint.is_some_and(|endpoint| endpoint.health().due_ms() != Some(u64::MAX))
    };
    let any_of = |positions: &[u32], rng: &mut dyn Rng| {
        let at = (!positions.is_empty()).then(|| rng.random_range(0..positions.len()));
        at.and_then(|at| positions.get(at)).copied()
    };
    let (mut relieved, mut taken) = (0, SmallVec::<[u32; 4]>::new());
    for shortage in shortages {
        if rng.random_range(0..shortage.all) < 2 * shortage.healthy {
            continue;
        }
        let listening: SmallVec<[u32; 16]> = shortage.ejected.iter().filter(listens).copied().collect();
        let position = match any_of(&listening, rng) {
            None if shortage.healthy == 0 => any_of(&shortage.ejected, rng),
            listening => listening,
        };
        let Some(position) = position else { continue };
        let Some(endpoint) = endpoints.get(position as usize) else { continue };
        relieved |= shortage.parts & parts(endpoint);
        taken.push(position);
    }
    if taken.is_empty() {
        return None;
    }
    Some(replace_candidates(healthy, relieved, &taken))
}

/// Candidates with these, given as positions in the snapshot, in place of all that do these parts of the
/// work. One stays that does another part as well, which no other endpoint does.
fn replace_candidates(candidates: &Candidates, replaced: u8, by: &[u32]) -> Candidates {
    let all = || candidates.indices().iter().zip(candidates.view().iter());
    let kept = all().filter(|(_, endpoint)| parts(endpoint) & replaced == 0);
    let covered = kept.fold(0, |covered, (_, endpoint)| covered | parts(endpoint));
    let uncovered = ALL & !(covered | replaced);
    let stays = |endpoint: &Endpoint| parts(endpoint) & replaced == 0 || parts(endpoint) & uncovered != 0;
    let others = all().filter(|(_, endpoint)| stays(endpoint)).map(|(position, _)| position);
    let mut among: Vec<u32> = others.chain(by).copied().collect();
    among.sort_unstable();
    among.dedup();
    candidates.narrowed(&among)
}

/// The endpoint that is due for a probe for the longest time, and nobody in its place. One
/// whose probe the filters refused is due anew, and so behind those that waited meanwhile.
fn attempt(all: &Candidates, others: &Candidates, ejected: &[u32], now_ms: u64) -> Option<Attempt> {
    let endpoints = all.snapshot().endpoints();
    let due = |position: &u32| {
        let endpoint = endpoints.get(*position as usize)?;
        let due_ms = endpoint.health().due_ms().filter(|due_ms| *due_ms <= now_ms)?;
        Some((due_ms, *position, endpoint))
    };
    let (_, position, endpoint) = ejected.iter().filter_map(due).min_by_key(|(due_ms, ..)| *due_ms)?;
    // `None`: another request was faster.
    let probe = endpoint.health().claim(now_ms)?;
    Some(Attempt { probe, position, among: replace_candidates(others, parts(endpoint), &[position]) })
}

#[cfg(test)]
#[path = "outliers_tests.rs"]
mod tests;
