//! Entries of the stream of learned state: a snapshot of a replica in parts, each with records of one plugin. No I/O.
//!
//! | bytes | content |
//! |--:|---|
//! | 1 | version, 1 |
//! | 8 | check, XXH3 of all that is behind it |
//! | 16 | origin, random at each start of a replica |
//! | 8 | number of the snapshot, rising |
//! | 2, 2 | part of the snapshot, and number of its parts |
//! | 8 | time on the writer's clock, in milliseconds |
//! | 1 + n, 1 + n | name of the plugin, format of its records |
//! | each 4 + n | records |
//!
//! Numbers are little-endian. A part is read without the others.

use usher_plugin::MAX_RECORD;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

const VERSION: u8 = 1;
const CHECKED_FROM: usize = 9;
const HEAD: usize = CHECKED_FROM + 16 + 8 + 2 + 2 + 8;

/// Bytes of an entry at most.
pub(super) const MAX_BYTES: usize = 64 << 10;

/// Bytes of a snapshot at most: some 150,000 sessions, or 8,000 endpoints. The records that a plugin passes first have room.
pub(super) const MAX_SNAPSHOT: usize = 4 << 20;

/// Reason to leave an entry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryError {
    /// Another version.
    Version,
    /// Damaged, or with more than an entry has.
    Malformed,
}

/// Part of a snapshot, checked and not copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) origin: u128,
    pub(super) number: u64,
    pub(super) parts: u16,
    pub(super) written_ms: u64,
    pub(super) plugin: &'a str,
    pub(super) format: &'a str,
    records: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Reads an entry.
    ///
    /// # Errors
    /// `EntryError` if the bytes are no entry of this version.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, EntryError> {
        match bytes.first() {
            Some(&VERSION) if bytes.len() <= MAX_BYTES => Self::read(bytes).ok_or(EntryError::Malformed),
            Some(&VERSION) | None => Err(EntryError::Malformed),
            Some(_) => Err(EntryError::Version),
        }
    }

    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes.get(1..)?;
        let check = u64::from_le_bytes(take(&mut rest)?);
        if xxh3_64(rest) != check {
            return None;
        }
        let origin = u128::from_le_bytes(take(&mut rest)?);
        let number = u64::from_le_bytes(take(&mut rest)?);
        let [part, parts] = [take(&mut rest)?, take(&mut rest)?].map(u16::from_le_bytes);
        let written_ms = u64::from_le_bytes(take(&mut rest)?);
        let (plugin, format) = (text(&mut rest)?, text(&mut rest)?);
        let entry = Self { origin, number, parts, written_ms, plugin, format, records: rest };
        let is_whole = record_lengths(rest).all(|length| length.is_some_and(|length| length <= MAX_RECORD));
        (part < parts && is_whole).then_some(entry)
    }

    /// Its records.
    pub(super) fn records(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.records;
        std::iter::from_fn(move || record(&mut rest))
    }
}

/// Lengths of records; `None` in place of one that is cut off, which is the last.
fn record_lengths(mut records: &[u8]) -> impl Iterator<Item = Option<usize>> {
    std::iter::from_fn(move || {
        let is_end = records.is_empty();
        let length = record(&mut records).map(<[u8]>::len);
        if length.is_none() {
            records = &[];
        }
        (!is_end).then_some(length)
    })
}

fn record<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_le_bytes(take(rest)?);
    split(rest, usize::try_from(length).ok()?)
}

fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let [length] = take(rest)?;
    std::str::from_utf8(split(rest, usize::from(length))?).ok()
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*taken)
}

fn split<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(taken)
}

/// A snapshot that is being made.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// Parts without their heads.
    parts: Vec<Vec<u8>>,
    bytes: usize,
    /// Beginning of the parts of the plugin whose records come now.
    begin: Vec<u8>,
}

impl Draft {
    /// Records of this plugin in this format come next. Returns `false` for names that have no room.
    pub(super) fn begin(&mut self, plugin: &str, format: &str) -> bool {
        self.begin.clear();
        for text in [plugin, format] {
            let Ok(length) = u8::try_from(text.len()) else { return false };
            self.begin.push(length);
            self.begin.extend(text.as_bytes());
        }
        self.parts.retain(|part| !part.is_empty());
        self.parts.push(Vec::new());
        true
    }

    /// Adds a record. Returns `false` if there is no more room; one that is too long is left out.
    pub(super) fn add(&mut self, record: &[u8]) -> bool {
        if record.len() > MAX_RECORD {
            return true;
        }
        let more = 4 + record.len();
        if self.bytes + more > MAX_SNAPSHOT {
            return false;
        }
        let room = MAX_BYTES - HEAD;
        if self.parts.last().is_none_or(|part| part.is_empty() || part.len() + more > room) {
            self.parts.retain(|part| !part.is_empty());
            self.parts.push(self.begin.clone());
            self.bytes += HEAD + self.begin.len();
        }
        if let Some(part) = self.parts.last_mut() {
            part.extend(u32::try_from(record.len()).unwrap_or_default().to_le_bytes());
            part.extend(record);
            self.bytes += more;
        }
        true
    }

    /// A hash of it; `None` if it is empty.
    pub(super) fn hash(&self) -> Option<u64> {
        let mut hash = Xxh3Default::new();
        self.parts.iter().for_each(|part| hash.update(part));
        (self.bytes > 0).then(|| hash.digest())
    }

    /// Entries of the snapshot with this number, by this origin, each with the time of its clock when it is taken. The most
    /// useful records come last: a start reads from the end, and a full stream drops its beginning.
    pub(super) fn entries(
        self,
        origin: u128,
        number: u64,
        now_ms: impl Fn() -> u64,
    ) -> impl Iterator<Item = Vec<u8>> {
        let parts = self.parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
        let count = u16::try_from(parts.len()).unwrap_or(u16::MAX);
        let numbered: Vec<_> = (0..count).zip(parts).collect();
        numbered.into_iter().rev().map(move |(part, body)| {
            let mut entry = Vec::with_capacity(HEAD + body.len());
            entry.push(VERSION);
            entry.extend([0; CHECKED_FROM - 1]);
            entry.extend(origin.to_le_bytes());
            entry.extend(number.to_le_bytes());
            entry.extend([part, count].map(u16::to_le_bytes).concat());
            entry.extend(now_ms().to_le_bytes());
            entry.extend(body);
            let check = xxh3_64(entry.get(CHECKED_FROM..).unwrap_or_default());
            if let Some(place) = entry.get_mut(1..CHECKED_FROM) {
                place.copy_from_slice(&check.to_le_bytes());
            }
            entry
        })
    }
}

#[cfg(test)]
mod tests {
    use usher_core::random::mix;

    use super::*;

    fn draft(plugins: &[(&str, &[&[u8]])]) -> Draft {
        let mut draft = Draft::default();
        for (plugin, records) in plugins {
            assert!(draft.begin(plugin, "f/1"));
            assert!(records.iter().all(|record| draft.add(record)));
        }
        draft
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        let draft = draft(&[("a", &[b"one", b"", b"three"]), ("none", &[]), ("b", &[b"four"])]);
        let entries: Vec<_> = draft.entries(7, 8, || 9).collect();
        // The first is the last.
        let read: Vec<_> = entries.iter().rev().map(|entry| Entry::parse(entry).unwrap()).collect();
        let records = |entry: &Entry<'_>| entry.records().map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert_eq!(read.len(), 2);
        assert_eq!(records(&read[0]), [&b"one"[..], b"", b"three"]);
        assert_eq!((read[1].plugin, read[1].format, records(&read[1])), ("b", "f/1", vec![b"four".to_vec()]));
        for entry in read {
            assert_eq!((entry.origin, entry.number, entry.parts, entry.written_ms), (7, 8, 2, 9));
        }
    }

    #[test]
    fn snapshots_are_bounded() {
        let mut draft = Draft::default();
        assert!(!draft.begin(&"x".repeat(256), "f") && draft.begin("p", "f"));
        assert!(draft.add(&vec![1; MAX_RECORD + 1]) && draft.hash().is_none(), "too long");
        let added = (0..).take_while(|_| draft.add(&[1; 10_000])).count();
        assert!((400..420).contains(&added), "{added}");
        assert!(draft.hash().is_some());
        let entries: Vec<_> = draft.entries(1, 2, || 3).collect();
        assert!(entries.iter().all(|entry| entry.len() <= MAX_BYTES));
        assert!(entries.iter().map(Vec::len).sum::<usize>() <= MAX_SNAPSHOT);
        let records = entries.iter().map(|entry| Entry::parse(entry).unwrap().records().count());
        assert_eq!(records.sum::<usize>(), added);
    }

    #[test]
    fn hash_changes_with_the_content() {
        let hash = |records: &[&[u8]]| draft(&[("a", records)]).hash();
        assert_eq!(hash(&[b"one"]), hash(&[b"one"]));
        assert_ne!(hash(&[b"one"]), hash(&[b"two"]));
        assert_eq!(hash(&[]), None);
    }

    #[test]
    fn damaged_entries_are_refused() {
        let entry = draft(&[("a", &[b"one", b"two"])]).entries(7, 8, || 9).next().unwrap();
        for at in 1..entry.len() {
            let mut damaged = entry.clone();
            damaged[at] ^= 1 << (at % 8);
            assert_eq!(Entry::parse(&damaged).unwrap_err(), EntryError::Malformed, "{at}");
            assert_eq!(Entry::parse(&entry[..at]).unwrap_err(), EntryError::Malformed, "{at}");
        }
        assert_eq!(Entry::parse(&[2, 0]).unwrap_err(), EntryError::Version);
        assert_eq!(Entry::parse(&vec![1; MAX_BYTES + 1]).unwrap_err(), EntryError::Malformed);
    }

    #[test]
    fn entries_whose_check_is_right_may_still_be_malformed() {
        let entry = draft(&[("a", &[b"one", &[5; 300]])]).entries(7, 8, || 9).next().unwrap();
        let mut read = 0;
        for seed in 0..5000u64 {
            let mut damaged = entry.clone();
            for n in 0..1 + seed % 3 {
                let number = mix(seed * 4 + n) as usize;
                let at = CHECKED_FROM + number % (entry.len() - CHECKED_FROM);
                damaged[at] = (number >> 32) as u8;
            }
            damaged.truncate(entry.len() - (seed % 7) as usize);
            let check = xxh3_64(&damaged[CHECKED_FROM..]).to_le_bytes();
            damaged[1..CHECKED_FROM].copy_from_slice(&check);
            if let Ok(entry) = Entry::parse(&damaged) {
                assert!(entry.records().all(|record| record.len() <= MAX_RECORD));
                read += 1;
            }
        }
        assert!((100..4900).contains(&read), "{read}");
    }
}
