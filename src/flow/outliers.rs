//! Keeps requests from endpoints that are demoted, and sends one now and then as a probe.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::endpoints::health::{Probe, Ward};
use crate::endpoints::{Candidates, Endpoint};

/// Views whose division is remembered: gateways send a handful of subsets.
const PLACES: usize = 8;

/// Divisions of the candidates of requests, remembered while somebody is demoted.
#[derive(Debug)]
pub(super) struct Sickbay {
    ward: Arc<Ward>,
    /// By where a view's indices lie: requests with the same subset share them.
    known: [ArcSwapOption<Known>; PLACES],
}

/// Candidates, and how they are divided.
#[derive(Debug)]
struct Known {
    all: Candidates,
    /// Of the ward.
    version: u64,
    division: Division,
}

/// Division of candidates by whether they may be picked.
#[derive(Debug)]
enum Division {
    /// Nobody is demoted.
    Well,
    /// Too many are: everybody.
    Overruled,
    /// Some are.
    Some {
        /// The others.
        well: Candidates,
        /// The demoted endpoints that are left out, as positions in the snapshot.
        sick: Box<[u32]>,
    },
}

/// Among whom a decision is made.
#[derive(Debug)]
pub(super) struct Choice {
    /// Candidates that may be picked: all but the demoted ones that are left out.
    pub(super) well: Candidates,
    /// A demoted endpoint that is due for a request.
    pub(super) attempt: Option<Attempt>,
}

/// A request is to go to a demoted endpoint.
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

impl Sickbay {
    pub(super) fn new(ward: Arc<Ward>) -> Self {
        Self { ward, known: Default::default() }
    }

    /// Among whom to decide; `None`: among all these candidates. `shared`: other requests
    /// have the same view. `probes`: this request may be a probe.
    pub(super) fn choice(&self, all: &Candidates, shared: bool, probes: bool, now_ms: u64) -> Option<Choice> {
        if self.ward.is_empty() {
            return None;
        }
        let known = self.divided(all, shared);
        let (well, sick) = match &known.division {
            Division::Well => return None,
            Division::Overruled => {
                self.overrule();
                return None;
            }
            Division::Some { well, sick } => (well, sick),
        };
        let attempt = if probes { attempt(all, well, sick, now_ms) } else { None };
        Some(Choice { well: well.clone(), attempt })
    }

    /// Endpoints of the pool whose room counts: one that is kept from requests has none. `None`: all.
    pub(super) fn well(&self, all: &Candidates) -> Option<Candidates> {
        if self.ward.is_empty() {
            return None;
        }
        match &self.divided(all, true).division {
            Division::Some { well, .. } => Some(well.clone()),
            Division::Well | Division::Overruled => None,
        }
    }

    /// Counts a decision among all, although some are demoted.
    pub(super) fn overrule(&self) {
        self.ward.metrics().overruled.inc();
    }

    /// Whether a probe may have fallbacks.
    pub(super) fn may_fall_back(&self) -> bool {
        self.ward.names_servers()
    }

    /// Lets go of the views, and with them of endpoints that are gone.
    pub(super) fn sweep(&self) {
        self.known.iter().for_each(|place| place.store(None));
    }

    fn divided(&self, all: &Candidates, shared: bool) -> Arc<Known> {
        // Before it is seen who is demoted: a change in between makes this out of date at
        // once, instead of hiding the change.
        let version = self.ward.version();
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
    let demoted: Vec<bool> = all.view().iter().map(|endpoint| endpoint.health().is_demoted()).collect();
    let count = |part: u8| {
        let of_part = all.view().iter().zip(&demoted).filter(|(endpoint, _)| parts(endpoint) & part != 0);
        of_part.fold((0, 0), |(sick, all), (_, demoted)| (sick + usize::from(*demoted), all + 1))
    };
    match count(u8::MAX) {
        (0, _) => return Division::Well,
        (sick, all) if sick * 2 > all => return Division::Overruled,
        _ => {}
    }
    let overruled = [1, 2, 4, 8].into_iter().filter(|part| {
        let (sick, all) = count(*part);
        sick * 2 > all
    });
    let overruled = overruled.fold(0, |parts, part| parts | part);
    let (mut well, mut sick) = (Vec::with_capacity(all.len()), Vec::new());
    for ((position, endpoint), demoted) in all.indices().iter().zip(all.view().iter()).zip(demoted) {
        let list = if demoted && parts(endpoint) & overruled == 0 { &mut sick } else { &mut well };
        list.push(*position);
    }
    if sick.is_empty() {
        return Division::Overruled;
    }
    Division::Some { well: all.narrowed(&well), sick: sick.into() }
}

/// The endpoint that is due for a probe for the longest time, and nobody in its place. One
/// whose probe the filters refused is due anew, and so behind those that waited meanwhile.
fn attempt(all: &Candidates, well: &Candidates, sick: &[u32], now_ms: u64) -> Option<Attempt> {
    let endpoints = all.snapshot().endpoints();
    let due = |position: &u32| {
        let endpoint = endpoints.get(*position as usize)?;
        let due_ms = endpoint.health().due_ms().filter(|due_ms| *due_ms <= now_ms)?;
        Some((due_ms, *position, endpoint))
    };
    let (_, position, endpoint) = sick.iter().filter_map(due).min_by_key(|(due_ms, ..)| *due_ms)?;
    // `None`: another request was faster.
    let probe = endpoint.health().claim(now_ms)?;
    let mine = parts(endpoint);
    let beside = well.indices().iter().zip(well.view().iter());
    let mut among: Vec<u32> =
        beside.filter(|(_, other)| parts(other) & mine == 0).map(|(position, _)| *position).collect();
    among.insert(among.partition_point(|other| *other < position), position);
    Some(Attempt { probe, position, among: all.narrowed(&among) })
}

#[cfg(test)]
#[path = "outliers_tests.rs"]
mod tests;
