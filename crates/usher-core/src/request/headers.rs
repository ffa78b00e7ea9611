//! Request headers as the gateway sent them.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

/// Longest name that a request may give for something that outlives its parsing (model, flow,
/// objective, session, salt, id), in bytes.
pub const MAX_NAME: usize = 1024;

/// The headers of a request, pseudo-headers (`:path`) included, in their order.
///
/// Names and values stay where they arrived: one block of bytes, and where in it each
/// of them is. An unread header costs no more than that.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    block: Bytes,
    entries: Vec<Entry>,
    ignored: Ignored,
}

/// Smaller ones are no more than the streams that they came on, in bytes.
const COUNTED: usize = 4096;

/// Headers that were read and ignored: a bit for each place, once there is one.
#[derive(Debug, Default)]
struct Ignored(OnceLock<Box<[AtomicU64]>>);

impl Ignored {
    /// Marks one of so many headers.
    #[cold]
    fn mark(&self, index: usize, headers: usize) {
        let words = self.0.get_or_init(|| (0..headers.div_ceil(64)).map(|_| AtomicU64::new(0)).collect());
        if let Some(word) = words.get(index / 64) {
            word.fetch_or(1 << (index % 64), Relaxed);
        }
    }

    /// Places of those that are marked, which are marked no more.
    fn take(&self) -> impl Iterator<Item = usize> {
        let words = self.0.get().into_iter().flatten().enumerate();
        words.flat_map(|(place, word)| {
            let bits = word.swap(0, Relaxed);
            (0..64).filter(move |bit| (bits >> bit) & 1 == 1).map(move |bit| place * 64 + bit)
        })
    }
}

/// Marks aren't copied.
impl Clone for Ignored {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Position of a header in the block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    name: (u32, u32),
    value: (u32, u32),
}

impl Headers {
    /// No headers yet, of those in `block`, of at most 4 GiB.
    pub fn of(block: Bytes) -> Self {
        // A gateway adds some to what a client sends: 20 is what a chat request comes to.
        Self { block, entries: Vec::with_capacity(20), ignored: Ignored::default() }
    }

    /// Bytes of memory that are worth counting while a request with these headers is kept: those
    /// of the block, and those of its index, from 4 KiB on.
    pub fn counted(&self) -> usize {
        let index = self.entries.capacity() * size_of::<Entry>();
        [self.block.len(), index].into_iter().filter(|bytes| *bytes >= COUNTED).sum()
    }

    /// Gives the headers memory of their own: the block may keep a larger frame alive.
    pub fn detach(&mut self) {
        self.block = Bytes::copy_from_slice(&self.block);
    }

    /// Adds the header at these places of the block.
    pub fn push(&mut self, name: Range<usize>, value: Range<usize>) {
        let place = |range: Range<usize>| (range.start as u32, range.end as u32);
        self.entries.push(Entry { name: place(name), value: place(value) });
    }

    /// The value of a header, however long it is; of several with its name, the last.
    /// `name` is in lower case; case is ignored.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.find(name).map(|index| self.at(self.entries[index].value))
    }

    /// The value of a header that gives a name: [ignored](Self::take_ignored) if it has more than
    /// [`MAX_NAME`] bytes.
    pub fn name(&self, name: &str) -> Option<&[u8]> {
        let index = self.find(name)?;
        let value = self.at(self.entries[index].value);
        if value.len() > MAX_NAME {
            self.ignored.mark(index, self.entries.len());
            return None;
        }
        Some(value)
    }

    /// Notes that a header is ignored: a name in it is too long. `name` is in lower case.
    pub fn ignore(&self, name: &str) {
        if let Some(index) = self.find(name) {
            self.ignored.mark(index, self.entries.len());
        }
    }

    /// Headers that gave names which were too long to be read, each once: those since the last call.
    pub fn take_ignored(&self) -> impl Iterator<Item = &[u8]> {
        self.ignored.take().filter_map(|index| self.entries.get(index)).map(|entry| self.at(entry.name))
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.entries.iter().rposition(|entry| {
            (entry.name.1 - entry.name.0) as usize == name.len()
                && self.at(entry.name).eq_ignore_ascii_case(name.as_bytes())
        })
    }

    /// The values of every header with this name, in their order. `name` is in lower
    /// case; case is ignored.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let of_name = move |entry: &&Entry| self.at(entry.name).eq_ignore_ascii_case(name.as_bytes());
        self.entries.iter().filter(of_name).map(|entry| self.at(entry.value))
    }

    fn at(&self, (start, end): (u32, u32)) -> &[u8] {
        self.block.get(start as usize..end as usize).unwrap_or_default()
    }

    /// The value of a header that gives a [name](Self::name), if it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.name(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The first of these headers that is there and not empty.
    pub fn first_text(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.text(name).filter(|value| !value.is_empty()))
    }

    /// Number of headers.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Headers {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(iter: I) -> Self {
        let (mut block, mut entries) = (Vec::new(), Vec::new());
        let mut add = |text: &str| {
            let start = block.len() as u32;
            block.extend_from_slice(text.as_bytes());
            (start, block.len() as u32)
        };
        for (name, value) in iter {
            entries.push(Entry { name: add(name), value: add(value) });
        }
        Self { block: block.into(), entries, ignored: Ignored::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Headers, MAX_NAME};
    use bytes::Bytes;

    #[test]
    fn last_header_of_a_name_counts_in_any_case() {
        let headers: Headers =
            [("X-Id", "1"), ("other", "x"), ("x-id", "2"), ("x-none", "")].into_iter().collect();
        assert_eq!(headers.text("x-id"), Some("2"));
        assert_eq!(headers.all("x-id").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!(headers.text("x-missing"), None);
        assert_eq!(headers.first_text(&["x-none", "x-id"]), Some("2"));
        assert_eq!(headers.len(), 4);
    }

    #[test]
    fn large_headers_count_and_can_own_their_memory() {
        for (len, counted) in [(0, 0), (4095, 0), (4096, 4096), (60_000, 60_000)] {
            let block = Bytes::from(vec![b'x'; len]);
            let mut headers = Headers::of(block.clone());
            assert_eq!(headers.counted(), counted);
            headers.push(0..len / 2, len / 2..len);
            assert!(len == 0 || !block.is_unique());
            headers.detach();
            assert!(len == 0 || block.is_unique());
            assert_eq!(headers.get(&"x".repeat(len / 2)), Some(&block[len / 2..]));
        }
    }

    #[test]
    fn many_headers_count_with_their_index() {
        let headers: Headers = std::iter::repeat_n(("", ""), 10_000).collect();
        assert!(headers.counted() >= 160_000, "{}", headers.counted());
    }

    #[test]
    fn overlong_names_in_headers_are_ignored() {
        let (long, longest) = ("x".repeat(MAX_NAME + 1), "y".repeat(MAX_NAME));
        let headers: Headers =
            [("X-Long", long.as_str()), ("x-longest", &longest), ("x-other", &long)].into_iter().collect();
        assert_eq!(headers.text("x-longest"), Some(longest.as_str()));
        assert_eq!(headers.get("x-long"), Some(long.as_bytes()));
        let ignored = |headers: &Headers| -> Vec<_> {
            headers.take_ignored().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
        };
        assert!(ignored(&headers).is_empty());
        assert_eq!((headers.text("x-long"), headers.name("x-long")), (None, None));
        assert_eq!(headers.first_text(&["x-long", "x-longest"]), Some(longest.as_str()));
        headers.ignore("x-other");
        headers.ignore("x-missing");
        assert_eq!(ignored(&headers), ["X-Long", "x-other"]);
        assert!(ignored(&headers).is_empty(), "each counts once");
        assert_eq!(headers.text("x-long"), None);
        assert_eq!(ignored(&headers), ["X-Long"]);
    }

    #[test]
    fn every_overlong_name_in_headers_is_noted() {
        let long = "x".repeat(MAX_NAME + 1);
        let names: Vec<_> = (0..200).map(|number| format!("x-{number}")).collect();
        let headers: Headers = names.iter().map(|name| (name.as_str(), long.as_str())).collect();
        names.iter().step_by(3).for_each(|name| assert_eq!(headers.name(name), None));
        assert!(headers.take_ignored().eq(names.iter().step_by(3).map(|name| name.as_bytes())));
    }

    #[test]
    fn headers_are_read_without_a_copy() {
        let mut headers = Headers::of(Bytes::from_static(b"..a=1,b=22;"));
        assert!(headers.is_empty());
        headers.push(2..3, 4..5);
        headers.push(6..7, 8..10);
        assert_eq!((headers.text("a"), headers.text("b")), (Some("1"), Some("22")));
    }
}
