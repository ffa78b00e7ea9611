//! The bound compared with a list of all entries.

use proptest::prelude::*;

use super::*;

fn id(number: u64) -> EntryId {
    EntryId { ms: number / 4, seq: number % 4 }
}

#[test]
fn entry_ids_parse_and_compare_as_numbers() {
    let id: EntryId = "1700000000000-12".parse().unwrap();
    assert_eq!((id.ms, id.seq, id.to_string().as_str()), (1_700_000_000_000, 12, "1700000000000-12"));
    assert!("9-3".parse::<EntryId>().unwrap() < "10-0".parse().unwrap());
    for text in ["", "1", "1-", "-1", "1-2-3", "a-b", "99999999999999999999-0"] {
        assert_eq!(text.parse::<EntryId>(), Err(NoEntryId), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn the_stream_stays_within_its_bound(
        limit in prop::sample::select(&[1u64 << 20, 4 << 20]),
        payloads in prop::collection::vec(prop_oneof![1 => Just(35usize), 2 => 35..65_537usize], 200..600),
        read_backwards in 0..100u64,
    ) {
        let mut bound = StreamBound::new(limit);
        // What the store has: the first entries were there before, and are read from the last on.
        let mut stream: VecDeque<(EntryId, usize)> = VecDeque::new();
        let size = |stream: &VecDeque<(EntryId, usize)>| {
            stream.iter().map(|(_, bytes)| *bytes as u64 + StreamBound::ENTRY).sum::<u64>()
        };
        for (number, payload) in (0u64..).zip(payloads.iter().copied()) {
            stream.push_back((id(number), payload));
            if number < read_backwards {
                if number + 1 == read_backwards {
                    stream.iter().rev().for_each(|(id, bytes)| bound.entry(*id, *bytes));
                }
            } else {
                bound.entry(id(number), payload);
                // Seen already.
                bound.entry(id(number), payload);
            }
            let before = size(&stream);
            if number + 1 >= read_backwards {
                prop_assert_eq!(bound.bytes(), before);
                if let Some(first) = bound.trim() {
                    stream.retain(|(id, _)| *id >= first);
                    prop_assert!(before > limit / 16 * 15);
                    prop_assert!(size(&stream) >= limit / 16 * 15 - (64 << 10) - StreamBound::ENTRY);
                }
                prop_assert_eq!(bound.bytes(), size(&stream));
                prop_assert!(size(&stream) <= limit);
            }
            prop_assert!(bound.segments.len() <= 2 * SEGMENTS as usize + 2);
        }
    }
}

#[test]
fn many_small_entries_take_little_memory_to_count() {
    let mut bound = StreamBound::new(StreamBound::DEFAULT);
    for number in 0..2_000_000 {
        bound.entry(id(number), 35);
        let _ = bound.trim();
    }
    assert!(bound.segments.len() <= SEGMENTS as usize && bound.bytes() <= StreamBound::DEFAULT);
    assert!(bound.bytes() > StreamBound::DEFAULT / 16 * 15);
}

#[test]
fn reading_backwards_ends_where_the_bound_is_full() {
    let mut bound = StreamBound::new(1 << 20);
    let mut read = 0;
    while !bound.is_full() {
        bound.entry(id(1000 - read), 10_000);
        read += 1;
    }
    assert_eq!(read, 101);
    bound.clear();
    assert_eq!((bound.bytes(), bound.trim()), (0, None));
}

#[test]
fn entries_that_others_dropped_are_not_counted() {
    let mut bound = StreamBound::new(1 << 20);
    (0..100).for_each(|number| bound.entry(id(number), 4096 - StreamBound::ENTRY as usize));
    bound.begins_at(Some(id(0)));
    assert_eq!(bound.bytes(), 100 << 12);
    bound.begins_at(Some(id(60)));
    assert_eq!(bound.bytes(), 40 << 12);
    bound.begins_at(None);
    assert_eq!((bound.bytes(), bound.trim()), (0, None));
}
