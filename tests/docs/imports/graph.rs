//! Rings in a graph.

use std::collections::{BTreeMap, BTreeSet};

use super::resolve::Import;

/// Sets of files that reach each other over imports, the largest first.
pub fn rings(imports: &[Import]) -> Vec<BTreeSet<usize>> {
    let mut next: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for import in imports {
        next.entry(import.from).or_default().push(import.to);
    }
    let reached: BTreeMap<usize, BTreeSet<usize>> =
        next.keys().map(|from| (*from, reached_from(*from, &next))).collect();
    let mut rings: Vec<BTreeSet<usize>> = Vec::new();
    for (from, reach) in &reached {
        if rings.iter().any(|ring| ring.contains(from)) {
            continue;
        }
        let ring: BTreeSet<usize> = reach
            .iter()
            .copied()
            .filter(|to| reached.get(to).is_some_and(|back| back.contains(from)))
            .collect();
        if !ring.is_empty() {
            rings.push(ring);
        }
    }
    rings.sort_by_key(|ring| std::cmp::Reverse(ring.len()));
    rings
}

/// Files that are reached over at least one import.
fn reached_from(from: usize, next: &BTreeMap<usize, Vec<usize>>) -> BTreeSet<usize> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        for to in next.get(&file).into_iter().flatten() {
            if reached.insert(*to) {
                open.push(*to);
            }
        }
    }
    reached
}

#[test]
fn import_ring_is_found() {
    let import = |from, to| Import { from, to, names: BTreeSet::new() };
    let imports =
        [import(0, 1), import(1, 2), import(2, 1), import(2, 3), import(4, 0), import(5, 6), import(6, 5)];
    assert_eq!(rings(&imports), [BTreeSet::from([1, 2]), BTreeSet::from([5, 6])]);
    assert!(rings(&imports[..2]).is_empty());
}
