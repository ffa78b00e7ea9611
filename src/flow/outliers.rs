//! Keeps requests from endpoints that are ejected, and sends one now and then as a probe.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::endpoints::health::{OutlierDetector, Probe};
use crate::endpoints::{Candidates, Endpoint};

/// Views whose division is remembered: gateways send a handful of subsets.
const PLACES: usize = 8;

/// Divisions of the candidates of requests, remembered while somebody is ejected.
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
    /// Of the detector.
    version: u64,
    division: Division,
}

/// Division of candidates by whether they may be picked.
#[derive(Debug)]
enum Division {
    /// Nobody is ejected.
    Healthy,
    /// Too many are: everybody.
    Overruled,
    /// Some are.
    Some {
        /// The others.
        healthy: Candidates,
        /// The ejected endpoints that are left out, as positions in the snapshot.
        ejected: Box<[u32]>,
    },
}

/// Among whom a decision is made.
#[derive(Debug)]
pub(super) struct Choice {
    /// Candidates that may be picked: all but the ejected ones that are left out.
    pub(super) healthy: Candidates,
    /// A ejected endpoint that is due for a request.
    pub(super) attempt: Option<Attempt>,
}

/// A request is to go to an ejected endpoint.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Held while nobody else may probe it.
    pub(super) probe: Probe,
    /// Its position in the snapshot.
    pub(super) position: u32,
    /// It, and those of the others that do another part of a request's work: nobody can
    /// be picked in its place.
    pub(super) among: Candidates,
}

impl OutlierFilter {
    pub(super) fn new(outliers: Arc<OutlierDetector>) -> Self {
        Self { outliers, known: Default::default() }
    }

    /// Among whom to decide; `None`: among all these candidates. `shared`: other requests
    /// have the same view. `probes`: this request may be a probe.
    pub(super) fn choice(&self, all: &Candidates, shared: bool, probes: bool, now_ms: u64) -> Option<Choice> {
        if self.outliers.is_empty() {
            return None;
        }
        let known = self.divided(all, shared);
        let (healthy, ejected) = match &known.division {
            Division::Healthy => return None,
            Division::Overruled => {
                self.overrule();
                return None;
            }
            Division::Some { healthy, ejected } => (healthy, ejected),
        };
        let attempt = if probes { attempt(all, healthy, ejected, now_ms) } else { None };
        Some(Choice { healthy: healthy.clone(), attempt })
    }

    /// Endpoints of the pool whose room counts: one that is kept from requests has none. `None`: all.
    pub(super) fn healthy(&self, all: &Candidates) -> Option<Candidates> {
        if self.outliers.is_empty() {
            return None;
        }
        match &self.divided(all, true).division {
            Division::Some { healthy, .. } => Some(healthy.clone()),
            Division::Healthy | Division::Overruled => None,
        }
    }

    /// Counts a decision among all, although some are ejected.
    pub(super) fn overrule(&self) {
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

/// Divides candidates by whether they may be picked. Never more than half of them are left out, nor
/// of those that do one part of the work: then all of these are used.
fn divide(all: &Candidates) -> Division {
    // Read once, so that what is counted is what is left out.
    let is_ejected: Vec<bool> = all.view().iter().map(|endpoint| endpoint.health().is_ejected()).collect();
    let count = |part: u8| {
        let of_part = all.view().iter().zip(&is_ejected).filter(|(endpoint, _)| parts(endpoint) & part != 0);
        of_part.fold((0, 0), |(ejected, all), (_, is_ejected)| (ejected + usize::from(*is_ejected), all + 1))
    };
    match count(u8::MAX) {
        (0, _) => return Division::Healthy,
        (ejected, all) if ejected * 2 > all => return Division::Overruled,
        _ => {}
    }
    let overruled = [1, 2, 4, 8].into_iter().filter(|part| {
        let (ejected, all) = count(*part);
        ejected * 2 > all
    });
    let overruled = overruled.fold(0, |parts, part| parts | part);
    let (mut healthy, mut ejected) = (Vec::with_capacity(all.len()), Vec::new());
    for ((position, endpoint), is_ejected) in all.indices().iter().zip(all.view().iter()).zip(is_ejected) {
        let list = if is_ejected && parts(endpoint) & overruled == 0 { &mut ejected } else { &mut healthy };
        list.push(*position);
    }
    if ejected.is_empty() {
        return Division::Overruled;
    }
    Division::Some { healthy: all.narrowed(&healthy), ejected: ejected.into() }
}

/// The endpoint that is due for a probe for the longest time, and nobody in its place. One
/// whose probe the filters refused is due anew, and so behind those that waited meanwhile.
fn attempt(all: &Candidates, healthy: &Candidates, ejected: &[u32], now_ms: u64) -> Option<Attempt> {
    let endpoints = all.snapshot().endpoints();
    let due = |position: &u32| {
        let endpoint = endpoints.get(*position as usize)?;
        let due_ms = endpoint.health().due_ms().filter(|due_ms| *due_ms <= now_ms)?;
        Some((due_ms, *position, endpoint))
    };
    let (_, position, endpoint) = ejected.iter().filter_map(due).min_by_key(|(due_ms, ..)| *due_ms)?;
    // `None`: another request was faster.
    let probe = endpoint.health().claim(now_ms)?;
    let mine = parts(endpoint);
    let beside = healthy.indices().iter().zip(healthy.view().iter());
    let mut among: Vec<u32> =
        beside.filter(|(_, other)| parts(other) & mine == 0).map(|(position, _)| *position).collect();
    among.insert(among.partition_point(|other| *other < position), position);
    Some(Attempt { probe, position, among: all.narrowed(&among) })
}

#[cfg(test)]
#[path = "outliers_tests.rs"]
mod tests;
