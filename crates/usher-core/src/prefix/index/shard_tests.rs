//! A shard compared with a map of sets.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::table::LookUp;
use super::*;

/// Slots in every word of a map that a pool may need, and the last one.
const SLOTS: [u16; 24] = [
    0, 1, 2, 3, 62, 63, 64, 65, 127, 128, 130, 191, 200, 300, 400, 500, 640, 777, 900, 1000, 1023, 1024,
    4000, 65_534,
];

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, usize),
    Remove(u64, usize),
    Fit,
}

/// Steps with the first so many of the slots. Tags are close to each other, and to the end
/// of the table.
fn steps(slots: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..40u64, 0..slots).prop_map(|(tag, slot)| Step::Insert(tag, slot)),
        8 => (0..40u64, 0..slots).prop_map(|(tag, slot)| Step::Remove(tag, slot)),
        1 => Just(Step::Fit),
    ];
    prop::collection::vec(step, 0..400)
}

fn tag(number: u64) -> Tag {
    let spread = number << 32;
    Tag::from_bits(if number.is_multiple_of(2) { (1 << Tag::BITS) - 1 - spread } else { spread })
}

fn look_up(table: &Table, tag: Tag) -> LookUp<'_> {
    let mut look_up = table.look_up(tag);
    look_up.find();
    look_up
}

fn held(table: &Table, tag: Tag) -> BTreeSet<u16> {
    let mut words = [u64::MAX; 1024];
    look_up(table, tag).held(0, &mut words);
    // Set by the free lanes of lists; no candidate's bit is there.
    words[1023] &= !(1 << 63);
    let bits = |word: u64| (0..64u16).filter(move |bit| word >> bit & 1 == 1);
    (0u16..)
        .zip(words)
        .filter(|(_, word)| *word != 0)
        .flat_map(|(at, word)| bits(word).map(move |bit| at * 64 + bit))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn shard_matches_a_map_of_sets((steps, slots) in (2..=SLOTS.len()).prop_flat_map(|n| (steps(n), Just(n)))) {
        let mut shard = Shard::new();
        let mut map = BTreeMap::<u64, BTreeSet<u16>>::new();
        for step in steps {
            let before = Arc::clone(shard.table());
            let renewed = match step {
                Step::Insert(number, slot) => {
                    map.entry(number).or_default().insert(SLOTS[slot]);
                    shard.insert(tag(number), SLOTS[slot]).unwrap()
                }
                Step::Remove(number, slot) => {
                    if let Some(set) = map.get_mut(&number) {
                        set.remove(&SLOTS[slot]);
                    }
                    map.retain(|_, set| !set.is_empty());
                    shard.remove(tag(number), SLOTS[slot])
                }
                Step::Fit => shard.fit(),
            };
            prop_assert_eq!(renewed, !Arc::ptr_eq(&before, shard.table()));
            if let Step::Insert(number, _) | Step::Remove(number, _) = step {
                let want = map.get(&number).cloned().unwrap_or_default();
                prop_assert_eq!(held(shard.table(), tag(number)), want);
            }
        }
        for number in 0..40 {
            let want = map.get(&number).cloned().unwrap_or_default();
            prop_assert_eq!(held(shard.table(), tag(number)), want, "{} of {} slots", number, slots);
        }
        let taken = shard.table().blocks.iter().filter(|place| place.load(Relaxed) != 0).count();
        prop_assert_eq!((shard.used, taken), (map.len(), map.len()));
        // What is there has a set of the form that it needs, or one of the next larger.
        let width = shard.table().width;
        let needed: usize =
            map.values().map(|set| set.len()).filter(|len| *len > 1).map(|len| Form::of(len + len / 4 + 1, width).cells(width)).sum();
        prop_assert!(shard.cells.live() <= needed, "{} cells, {needed} needed", shard.cells.live());
        for (number, set) in map {
            set.into_iter().for_each(|slot| {
                shard.remove(tag(number), slot);
            });
        }
        shard.fit();
        prop_assert_eq!((shard.table().blocks.len(), shard.table().cells.len()), (0, 0));
    }
}

/// A part of a set's words can be asked for: what is known of other candidates is left out.
#[test]
fn words_of_a_set_can_be_read_alone() {
    for slots in [vec![70], vec![3, 70, 200], (0..128).chain([200]).collect()] {
        let mut shard = Shard::new();
        for slot in &slots {
            shard.insert(tag(1), *slot).unwrap();
        }
        let mut words = [0; 2];
        look_up(shard.table(), tag(1)).held(1, &mut words);
        let bit = |slot: u16| words[usize::from(slot / 64) - 1] >> (slot % 64) & 1 == 1;
        let read: Vec<u16> = (64..192).filter(|slot| bit(*slot)).collect();
        let want: Vec<u16> = slots.iter().copied().filter(|slot| (64..192).contains(slot)).collect();
        assert_eq!(read, want);
    }
}

/// Bytes per block that one slot holds, and per holder where many hold it, as the table
/// grows: at most 12.5 and some for the first set.
#[test]
fn a_table_grows_in_small_steps() {
    let mut shard = Shard::new();
    for number in 0..5000u64 {
        shard.insert(Tag::from_bits(number * 50_000_017 % (1 << Tag::BITS)), 1).unwrap();
        let each = shard.table().bytes() as f64 / shard.used as f64;
        assert!(number < 1000 || each < 12.7, "{each} bytes at {number}");
    }
    // Two to twenty holders each, in a pool of 1,000.
    let mut holders = 5000;
    for number in 0..5000u64 {
        for slot in 0..number as u16 % 20 {
            let slot = (number * 7 % 900) as u16 + 2 + slot * 5;
            shard.insert(Tag::from_bits(number * 50_000_017 % (1 << Tag::BITS)), slot).unwrap();
            holders += 1;
        }
    }
    let each = shard.table().bytes() as f64 / f64::from(holders);
    assert!(each < 8.0, "{each} bytes for each of {holders} holders");
}
