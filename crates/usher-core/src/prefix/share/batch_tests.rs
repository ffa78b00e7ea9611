//! Batches that are written and read again, and bytes that are none.

use proptest::prelude::*;

use super::*;

const FINGERPRINT: Fingerprint = Fingerprint(0x0807_0605_0403_0201);
const ORIGIN: OriginId = OriginId(*b"0123456789abcdef");

fn held(endpoint: u64, hashes: impl IntoIterator<Item = u64>) -> EndpointBlocks {
    EndpointBlocks { endpoint: EndpointId(endpoint), capacity: 31_250, hashes: hashes.into_iter().collect() }
}

/// All batches of these blocks.
fn batches(held: Vec<EndpointBlocks>) -> Vec<Vec<u8>> {
    let mut held = VecDeque::from(held);
    let mut batches = vec![encode(FINGERPRINT, ORIGIN, &mut held)];
    while !held.is_empty() {
        batches.push(encode(FINGERPRINT, ORIGIN, &mut held));
    }
    batches
}

/// A body with a checksum that is right.
fn checked(body: &[u8]) -> Vec<u8> {
    [&[1], xxh3_64(body).to_le_bytes().as_slice(), body].concat()
}

#[test]
fn a_batch_is_read_from_bytes_written_by_hand() {
    let body = [
        &[1, 2, 3, 4, 5, 6, 7, 8],
        b"0123456789abcdef".as_slice(),
        &[2, 0],
        &[7, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x7a, 0, 2, 0],
        &[9, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 1, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0xf0],
    ]
    .concat();
    let bytes = checked(&body);
    let batch = Batch::parse(&bytes).unwrap();
    assert_eq!((batch.fingerprint(), batch.origin(), batch.blocks()), (FINGERPRINT, ORIGIN, 3));
    let mut published = vec![
        held(7, [1, 2]),
        EndpointBlocks { capacity: u32::MAX, ..held(0x0100_0000_0000_0009, [0xf000_0000_0000_0003]) },
    ];
    assert_eq!(batches(published.clone()).as_slice(), std::slice::from_ref(&bytes));
    published[1].capacity = 0x00ff_ffff;
    assert_eq!(batch.held().collect::<Vec<_>>(), published);
}

#[test]
fn empty_batch_names_its_origin() {
    let bytes = encode(FINGERPRINT, ORIGIN, &mut VecDeque::new());
    let batch = Batch::parse(&bytes).unwrap();
    assert_eq!((bytes.len(), batch.origin(), batch.held().count()), (35, ORIGIN, 0));
}

#[test]
fn a_full_batch_takes_at_most_ten_bytes_a_block() {
    for (endpoints, most) in [(1u64, 8.01f64), (100, 8.23), (500, 9.1), (900, 10.0)] {
        let each = 60_000 / endpoints;
        let published = (0..endpoints).map(|endpoint| held(endpoint, 0..each)).collect();
        // The last one is not full.
        let mut batches = batches(published);
        batches.pop();
        assert!(!batches.is_empty());
        // One batch with a piece of each: as small as runs come.
        let piece = (ROOM as u64 - 13 * endpoints) / 8 / endpoints;
        let published = (0..endpoints).map(|endpoint| held(endpoint, 0..piece)).collect();
        batches.extend(self::batches(published));
        for bytes in batches {
            let per_block = bytes.len() as f64 / Batch::parse(&bytes).unwrap().blocks() as f64;
            assert!(per_block <= most, "{endpoints}: {per_block}");
        }
    }
}

#[test]
fn the_end_of_a_run_that_does_not_fit_comes_first() {
    let all: Vec<u64> = (0..10_000).collect();
    let batches = batches(vec![held(1, [5]), held(2, all.clone())]);
    let runs = |bytes: &Vec<u8>| Batch::parse(bytes).unwrap().held().collect::<Vec<_>>();
    let published: Vec<Vec<EndpointBlocks>> = batches.iter().map(runs).collect();
    let split = all.len() - published[0][1].hashes.len();
    assert_eq!(
        published,
        [vec![held(1, [5]), held(2, all[split..].to_vec())], vec![held(2, all[..split].to_vec())]]
    );
    assert_eq!(batches[0].len().div_ceil(8) * 8, Batch::MAX_BYTES);
}

fn runs() -> impl Strategy<Value = Vec<EndpointBlocks>> {
    let run = (0..40u64, any::<u32>(), prop::collection::vec(any::<u64>(), 0..2000)).prop_map(
        |(endpoint, capacity, hashes)| EndpointBlocks { capacity: capacity >> 8, ..held(endpoint, hashes) },
    );
    prop::collection::vec(run, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn batches_have_all_that_was_put_in(published in runs()) {
        let mut left = published.clone();
        left.retain(|held| !held.hashes.is_empty());
        for bytes in batches(published) {
            prop_assert!(bytes.len() <= Batch::MAX_BYTES);
            for held in Batch::parse(&bytes).unwrap().held() {
                let first = left.first_mut().unwrap();
                prop_assert_eq!((first.endpoint, first.capacity), (held.endpoint, held.capacity));
                let rest = first.hashes.strip_suffix(held.hashes.as_slice()).unwrap().to_vec();
                first.hashes = rest;
                if first.hashes.is_empty() {
                    left.remove(0);
                }
            }
        }
        prop_assert!(left.is_empty());
    }

    #[test]
    fn damaged_batches_are_refused(published in runs(), at: prop::sample::Index, bit in 0..8u8, cut: prop::sample::Index) {
        let mut bytes = batches(published).remove(0);
        prop_assert!(Batch::parse(&bytes[..cut.index(bytes.len())]).is_err());
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let is_version = at == 0;
        prop_assert_eq!(matches!(Batch::parse(&bytes), Err(BatchError::Version(_))), is_version);
        prop_assert!(Batch::parse(&bytes).is_err());
        bytes[at] ^= 1 << bit;
        bytes.push(0);
        prop_assert!(Batch::parse(&bytes).is_err());
    }

    /// Also with a checksum that is right: a process that lies can make that.
    #[test]
    fn lying_bytes_stand_for_no_more_blocks_than_they_have(body in prop::collection::vec(any::<u8>(), 0..600), runs in prop::option::of(0..4u8), count in prop::option::of(0..40u8)) {
        let mut body = body;
        // A count that may be right, so that some get further.
        if let (Some(runs), Some(place)) = (runs, body.get_mut(24..26)) {
            place.copy_from_slice(&[runs, 0]);
        }
        if let (Some(count), Some(place)) = (count, body.get_mut(37..39)) {
            place.copy_from_slice(&[count, 0]);
        }
        let _ = Batch::parse(&body);
        let bytes = checked(&body);
        if let Ok(batch) = Batch::parse(&bytes) {
            let published: Vec<EndpointBlocks> = batch.held().collect();
            let blocks: usize = published.iter().map(|held| held.hashes.len()).sum();
            prop_assert_eq!(blocks, batch.blocks());
            prop_assert!(blocks * 8 + published.len() * 13 + 35 == bytes.len());
        }
    }
}

#[test]
fn a_batch_that_is_too_long_is_refused() {
    assert_eq!(Batch::parse(&checked(&[0; 64 << 10])).unwrap_err(), BatchError::Length);
    assert_eq!(Batch::parse(&[]).unwrap_err(), BatchError::Length);
    assert_eq!(Batch::parse(&[2, 0]).unwrap_err(), BatchError::Version(2));
}
