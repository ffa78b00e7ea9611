//! The list of an endpoint compared with a vector.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Add(u8, u16),
    AddOldest(u8, u16),
    Pop,
    Begin,
    GoOn(u8),
    Retire(u16),
    MarkUnpublished,
    Fit,
}

/// Another process.
const OTHER: u16 = 8;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let added = (any::<u8>(), prop::sample::select(&[OWN, OWN | PUBLISHED, RESTORED, OTHER, OTHER << 1]));
    let oldest = (any::<u8>(), prop::sample::select(&[RESTORED, OTHER]));
    let step = prop_oneof![
        12 => added.prop_map(|(block, sources)| Step::Add(block, sources)),
        3 => oldest.prop_map(|(block, sources)| Step::AddOldest(block, sources)),
        6 => Just(Step::Pop),
        3 => Just(Step::Begin),
        1 => any::<u8>().prop_map(Step::GoOn),
        1 => prop::sample::select(&[OTHER, OTHER << 1, OTHER | OTHER << 1]).prop_map(Step::Retire),
        1 => Just(Step::MarkUnpublished),
        1 => Just(Step::Fit),
    ];
    prop::collection::vec(step, 0..600)
}

proptest! {
    #[test]
    fn a_block_is_listed_behind_the_one_added_before_it(steps in steps(), room in 1..200usize) {
        // The most recent first; `next`: where the next block is added.
        let (mut recent, mut list, mut next) = (LruList::default(), Vec::<(Key, u16)>::new(), 0);
        for step in steps {
            match step {
                Step::Add(block, sources) => {
                    let key = Key::of(u64::from(block));
                    let had = list.iter().position(|(held, _)| *held == key);
                    let before = had.map_or(0, |at| list.remove(at).1);
                    if had.is_some_and(|at| at < next) {
                        next -= 1;
                    }
                    list.insert(next, (key, before | sources));
                    next += 1;
                    let touched = recent.touch(key, sources);
                    prop_assert_eq!(touched, had.map(|_| before));
                    if touched.is_none() {
                        recent.push(key, sources, room);
                    }
                }
                Step::AddOldest(block, sources) => {
                    let key = Key::of(u64::from(block));
                    let had = list.iter_mut().find(|(held, _)| *held == key);
                    prop_assert_eq!(recent.confirm(key, sources), had.is_some());
                    match had {
                        Some((_, before)) => *before |= sources,
                        None => {
                            list.push((key, sources));
                            recent.push_oldest(key, sources, room);
                        }
                    }
                }
                Step::Pop => {
                    prop_assert_eq!(recent.pop(), list.pop().map(|(key, _)| key));
                    next = next.min(list.len());
                }
                Step::Begin => {
                    next = 0;
                    recent.begin();
                }
                Step::GoOn(block) => {
                    let key = Key::of(u64::from(block));
                    let at = list.iter().position(|(held, _)| *held == key);
                    next = at.map_or(next, |at| at + 1);
                    prop_assert_eq!(recent.continue_after(key), at.is_some());
                }
                Step::Retire(sources) => {
                    recent.retire(sources);
                    for (_, had) in list.iter_mut().filter(|(_, had)| *had & sources != 0) {
                        *had &= !sources;
                        *had |= if *had & !PUBLISHED == 0 { RESTORED } else { 0 };
                    }
                }
                Step::MarkUnpublished => {
                    recent.mark_unpublished(true);
                    list.iter_mut().for_each(|(_, sources)| *sources &= !PUBLISHED);
                }
                Step::Fit => recent.fit(),
            }
            prop_assert_eq!(recent.len(), list.len());
            prop_assert_eq!(recent.has_earlier(), next < list.len());
            prop_assert_eq!(&recent.recent_first().collect::<Vec<_>>(), &list);
            prop_assert!(recent.iter().eq(list.iter().rev().copied()));
        }
        recent.fit();
        let sources = if list.iter().all(|(_, sources)| *sources == OWN) { 0 } else { 2 };
        prop_assert!(recent.bytes() <= places(list.len()) * (12 + sources.max(2)));
    }
}

#[test]
fn list_grows_to_its_limit_and_shrinks_when_half_empty() {
    let mut recent = LruList::default();
    let room = 31_250;
    for block in 0..room as u64 {
        recent.push(Key::of(block), OWN, room);
        let bytes_each = recent.bytes() as f64 / recent.len() as f64;
        assert!(recent.len() < 100 || bytes_each < 19.0, "{bytes_each} bytes at {block}");
    }
    assert_eq!(recent.bytes(), places(room) * 12);
    while recent.len() > 100 {
        recent.pop();
    }
    assert!(recent.bytes() <= 2 * places(100) * 12, "{}", recent.bytes());
}
