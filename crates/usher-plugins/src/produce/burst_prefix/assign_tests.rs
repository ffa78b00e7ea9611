//! Batches as words: a letter is a block.

use std::hash::{DefaultHasher, Hash, Hasher};

use proptest::prelude::*;

use super::*;

const ALL: usize = usize::MAX;

/// A member whose blocks are the letters of a word; a hash stands for what is before it, too.
fn member(word: &str, load: u64) -> Member<Vec<u64>> {
    let hash = |end: usize| {
        let mut hasher = DefaultHasher::new();
        word[..end].hash(&mut hasher);
        hasher.finish()
    };
    Member { hashes: (1..=word.len()).map(hash).collect(), load }
}

fn placed(words: &[&str], replicas: usize, per_replica: usize, colocate: usize) -> Vec<Option<usize>> {
    let members: Vec<_> = words.iter().map(|word| Some(member(word, 1))).collect();
    assign(&members, replicas, Rules { per_replica, colocate })
}

/// Replicas as a row of digits, a dash for who is not placed.
fn row(assigned: &[Option<usize>]) -> String {
    assigned.iter().map(|replica| replica.map_or("-".to_owned(), |replica| replica.to_string())).collect()
}

#[test]
fn equal_prompts_are_assigned_to_one_replica() {
    // prompts, replicas, most per replica, blocks to share, replicas of the prompts
    let table: [(&[&str], usize, usize, usize, &str); 21] = [
        (&[], 2, ALL, 0, ""),
        (&["a"], 2, ALL, 0, "-"),
        (&["a", "b", "c"], 2, ALL, 0, "---"),
        (&["a", "a"], 0, ALL, 0, "--"),
        (&["a", "b", "a", "a"], 2, ALL, 0, "0-00"),
        // Each where there is the least, the longest first.
        (&["a", "a", "bb", "bb"], 2, ALL, 0, "1100"),
        (&["aa", "aa", "bb", "bb", "cc", "cc"], 2, ALL, 0, "001100"),
        (&["aaa", "aaa", "aaa", "bb", "bb", "c", "c"], 2, ALL, 0, "0001111"),
        // What begins alike is not the same.
        (&["ab", "ab", "ac", "ac"], 2, ALL, 0, "0011"),
        // So many of one prompt, and then the next replica.
        (&["a", "a", "a", "a", "a"], 3, 2, 0, "00112"),
        (&["a", "a", "a", "b", "b"], 2, 2, 0, "00111"),
        (&["a", "a", "a", "a", "a"], 2, 2, 0, "0011-"),
        (&["a", "a"], 2, 1, 0, "01"),
        // Different prompts that begin alike, as far as the replica has less than its share.
        (&["ab", "ac"], 2, ALL, 1, "01"),
        (&["ab", "ac", "ad", "ae"], 2, ALL, 1, "0011"),
        (&["ab", "ac", "xy", "xz"], 2, ALL, 1, "0011"),
        (&["abc", "abd", "ax", "bx"], 1, ALL, 2, "00--"),
        (&["abc", "abd", "ax", "bx"], 1, ALL, 1, "000-"),
        // Those that are there several times come first, however short.
        (&["abcd", "abce", "ab", "ab"], 2, ALL, 2, "1100"),
        (&["abcd", "x", "x", "abx", "x"], 2, ALL, 2, "10010"),
        // Too short to share anything.
        (&["a", "b", "a"], 2, ALL, 2, "0-0"),
    ];
    for (words, replicas, per_replica, colocate, expected) in table {
        let assigned = placed(words, replicas, per_replica, colocate);
        assert_eq!(row(&assigned), expected, "{words:?} over {replicas}, {per_replica}, {colocate}");
    }
}

#[test]
fn assignment_balances_token_loads() {
    let members: Vec<_> = [("aa", 100), ("aa", 100), ("b", 10), ("b", 10), ("c", 5), ("c", 5)]
        .map(|(w, l)| Some(member(w, l)))
        .into();
    let assigned = assign(&members, 2, Rules { per_replica: ALL, colocate: 0 });
    assert_eq!(row(&assigned), "001111");
}

#[test]
fn cancelled_requests_are_not_assigned() {
    let mut members: Vec<_> = ["a", "a", "b", "b"].map(|word| Some(member(word, 1))).into();
    members[1] = None;
    let assigned = assign(&members, 2, Rules { per_replica: ALL, colocate: 0 });
    assert_eq!(row(&assigned), "--00");
}

/// The same rule over words, pair by pair.
fn reference(words: &[(String, u64)], replicas: usize, cap: usize, colocate: usize) -> Vec<Option<usize>> {
    let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let alike = |a: &str, b: &str| colocate > 0 && common(a, b) >= colocate;
    let mut units: Vec<Vec<usize>> = Vec::new();
    for (index, (word, _)) in words.iter().enumerate() {
        match units.iter_mut().find(|unit| words[unit[0]].0 == *word) {
            Some(unit) => unit.push(index),
            None => units.push(vec![index]),
        }
    }
    units.retain(|unit| {
        let others = (0..words.len()).filter(|other| *other != unit[0]);
        unit.len() > 1 || others.into_iter().any(|other| alike(&words[other].0, &words[unit[0]].0))
    });
    units.sort_by(|one, other| {
        let length = |unit: &[usize]| words[unit[0]].0.len();
        let group = |unit: &[usize]| unit.len() > 1;
        group(other).cmp(&group(one)).then(length(other).cmp(&length(one))).then(one[0].cmp(&other[0]))
    });
    let total: u64 = words.iter().map(|(_, load)| load).sum();
    let share = if replicas == 0 { 0 } else { total.div_ceil(replicas as u64) };
    let mut assigned: Vec<Option<usize>> = vec![None; words.len()];
    let mut placed: Vec<Vec<usize>> = vec![Vec::new(); replicas];
    for unit in units {
        let mut fresh: Vec<usize> = (0..replicas).collect();
        for (count, member) in unit.iter().enumerate() {
            if count % cap != 0 {
                let before = assigned[unit[count - 1]];
                assigned[*member] = before;
                placed[before.unwrap()].push(*member);
                continue;
            }
            let load = |replica: usize| placed[replica].iter().map(|m| words[*m].1).sum::<u64>();
            let holds =
                |replica: usize| placed[replica].iter().any(|m| alike(&words[*m].0, &words[unit[0]].0));
            let near = |replica: &&usize| count == 0 && holds(**replica) && load(**replica) < share;
            let least = |replica: &&usize| (load(**replica), **replica);
            let Some(replica) =
                fresh.iter().filter(near).min_by_key(least).or(fresh.iter().min_by_key(least))
            else {
                break;
            };
            let replica = *replica;
            fresh.retain(|other| *other != replica);
            assigned[*member] = Some(replica);
            placed[replica].push(*member);
        }
    }
    assigned
}

proptest! {
    #[test]
    fn batches_are_placed_as_pair_by_pair(
        words in prop::collection::vec(("[ab]{1,4}", 1u64..5), 0..20),
        replicas in 0usize..5,
        cap in 1usize..6,
        colocate in 0usize..4,
    ) {
        let members: Vec<_> = words.iter().map(|(word, load)| Some(member(word, *load))).collect();
        let assigned = assign(&members, replicas, Rules { per_replica: cap, colocate });
        prop_assert_eq!(&assigned, &reference(&words, replicas, cap, colocate));
        // No replica has more of one prompt than it may.
        for (word, _) in &words {
            for replica in 0..replicas {
                let here = words.iter().zip(&assigned).filter(|((w, _), a)| w == word && **a == Some(replica));
                prop_assert!(here.count() <= cap);
            }
        }
    }
}
