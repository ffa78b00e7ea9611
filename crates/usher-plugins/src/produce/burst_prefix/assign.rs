//! Assignment of the requests of a batch to endpoints, so that what several have in common
//! is computed once. A function of the batch; [`super::window`] says what a batch is.

use std::cmp::Reverse;
use std::collections::HashMap;

/// A request of a batch.
#[derive(Clone, Debug)]
pub(super) struct Member<H> {
    /// The hashes of its prompts' blocks; at least one.
    pub(super) hashes: H,
    /// Load that it adds to its endpoint.
    pub(super) load: u64,
}

/// Rules by which requests are put together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Most requests with one prompt at one endpoint.
    pub(super) per_replica: usize,
    /// Blocks at the beginning that different prompts have to share; 0: none are enough.
    pub(super) colocate: usize,
}

/// Requests that should be at one endpoint: all with one prompt, or one that shares its
/// beginning with others.
struct Unit<'a> {
    hashes: &'a [u64],
    members: Vec<usize>,
}

/// Replicas, by position, for the members, by theirs; `None` for a request that has nothing
/// to do with the others. Of equally loaded replicas the first is taken, so they should come
/// with the least busy one first. A member that is `None` has gone.
///
/// Prompts that are there several times are placed first, then those that share their
/// beginning, each from the longest to the shortest. Requests with one prompt go to one
/// replica until it has as many as it may, the next to another. A prompt that shares its
/// beginning goes where that is, as long as the replica has less than its share of the
/// batch. Whatever has no such place goes to the replica with the least load.
pub(super) fn assign<H: AsRef<[u64]>>(
    members: &[Option<Member<H>>],
    replicas: usize,
    rules: Rules,
) -> Vec<Option<usize>> {
    let mut assigned = vec![None; members.len()];
    if replicas == 0 {
        return assigned;
    }
    let load = |member: usize| members.get(member).and_then(Option::as_ref).map_or(0, |m| m.load);
    let total: u64 = (0..members.len()).map(load).sum();
    let share = total.div_ceil(replicas as u64);
    let mut loads = vec![0u64; replicas];
    // Who has a beginning; and which unit used a replica last, so that it does so once.
    let mut holders: HashMap<&[u64], Vec<usize>> = HashMap::new();
    let mut used_by = vec![usize::MAX; replicas];
    for (number, unit) in units(members, rules.colocate).iter().enumerate() {
        let beginning = beginning(unit.hashes, rules.colocate);
        let mut next = beginning.and_then(|beginning| {
            let holders = holders.get(beginning)?.iter().copied();
            holders
                .filter(|replica| loads[*replica] < share)
                .min_by_key(|replica| (loads[*replica], *replica))
        });
        let mut waiting = unit.members.as_slice();
        while !waiting.is_empty() {
            let least = || {
                let free = (0..replicas).filter(|replica| used_by[*replica] != number);
                free.min_by_key(|replica| (loads[*replica], *replica))
            };
            // Where every replica has as many as it may, the rest goes anywhere.
            let Some(replica) = next.take().or_else(least) else { break };
            used_by[replica] = number;
            let (here, later) = waiting.split_at(rules.per_replica.clamp(1, waiting.len()));
            for &member in here {
                assigned[member] = Some(replica);
                loads[replica] = loads[replica].saturating_add(load(member));
            }
            if let Some(beginning) = beginning {
                let holders = holders.entry(beginning).or_default();
                if !holders.contains(&replica) {
                    holders.push(replica);
                }
            }
            waiting = later;
        }
    }
    assigned
}

/// Requests that are placed together, in the order in which they are placed.
fn units<H: AsRef<[u64]>>(members: &[Option<Member<H>>], colocate: usize) -> Vec<Unit<'_>> {
    let mut same: HashMap<&[u64], Vec<usize>> = HashMap::new();
    let mut sharing: HashMap<&[u64], usize> = HashMap::new();
    for (position, member) in members.iter().enumerate() {
        let Some(member) = member else { continue };
        let hashes = member.hashes.as_ref();
        same.entry(hashes).or_default().push(position);
        if let Some(beginning) = beginning(hashes, colocate) {
            *sharing.entry(beginning).or_default() += 1;
        }
    }
    let shares = |hashes| {
        beginning(hashes, colocate)
            .and_then(|beginning| sharing.get(beginning))
            .is_some_and(|count| *count > 1)
    };
    let units = same.into_iter().filter(|(hashes, members)| members.len() > 1 || shares(hashes));
    let mut units: Vec<Unit<'_>> = units.map(|(hashes, members)| Unit { hashes, members }).collect();
    // The first member decides between equals: a map has no order.
    units.sort_by_key(|unit| {
        (unit.members.len() < 2, Reverse(unit.hashes.len()), unit.members.first().copied())
    });
    units
}

/// The first `colocate` blocks, which a prompt has to have in common with another one; `None`
/// where `colocate` is 0, as nothing is enough then, or the prompt is too short.
fn beginning(hashes: &[u64], colocate: usize) -> Option<&[u64]> {
    if colocate == 0 { None } else { hashes.get(..colocate) }
}

#[cfg(test)]
#[path = "assign_tests.rs"]
mod tests;
