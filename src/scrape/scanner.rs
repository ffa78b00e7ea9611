//! The scanner of metrics pages.

use memchr::{memchr, memrchr};
use smallvec::SmallVec;

use super::exposition::{Line, Wanted};
use super::labels::{Labels, skip_blanks};

/// Type of a metric, as its `# TYPE` line declares it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Undeclared, or a type whose series are plain numbers.
    Number,
    Counter,
    Distribution,
}

/// Search for lines about wanted metrics.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    /// By the names, wherever they are. It looks at every byte with some care.
    Names,
    /// By the declarations of the metrics, each with the lines directly below it. It looks
    /// for one byte, which is several times as fast. So many more pages are read that way.
    Declarations(u8),
}

/// Scans pages that arrive in pieces. It keeps its buffer from page to page,
/// so that a page costs no allocation.
///
/// The format wants all series of a metric in one group, below its `# TYPE` line if it has
/// one. Where a page has its wanted metrics like that, and all of them declared, the next
/// pages are searched for declarations only, as long as they have the same metrics, and
/// every [`PAGES`](Self::PAGES) pages once for the names themselves.
pub struct Scanner<'w> {
    wanted: &'w Wanted,
    /// By position in `wanted.names`.
    kinds: SmallVec<[Kind; 16]>,
    /// The start of a line whose end has not arrived, up to a byte more than
    /// [`MAX_LINE_BYTES`](Self::MAX_LINE_BYTES).
    partial: Vec<u8>,
    search: Search,
    /// The metric below whose declaration the next line is, by position in `wanted.names`,
    /// if that line comes directly below the last one that was looked at.
    group: Option<usize>,
    /// `true` if the next line does.
    touches: bool,
    /// `true` if every line of a wanted metric was in its group so far.
    orderly: bool,
    /// The metrics that this page has, and those that the page searched last by names had.
    seen: SmallVec<[bool; 16]>,
    expected: SmallVec<[bool; 16]>,
}

impl<'w> Scanner<'w> {
    /// Longer lines are not read. One that begins with a wanted name is malformed.
    pub const MAX_LINE_BYTES: usize = 128 << 10;

    /// Number of pages at most that are searched for declarations only: at 20 a second, a
    /// series that is not where it should be is found within a second.
    pub const PAGES: u8 = 20;

    /// More than this is given back after a page: an odd page with a huge
    /// line shall not cost its memory for ever.
    const KEPT_BYTES: usize = 16 << 10;

    /// A scanner at the start of a page.
    pub fn new(wanted: &'w Wanted) -> Self {
        let count = wanted.names.len();
        Self {
            wanted,
            kinds: SmallVec::from_elem(Kind::Number, count),
            partial: Vec::new(),
            search: Search::Names,
            group: None,
            touches: false,
            orderly: true,
            seen: SmallVec::from_elem(false, count),
            expected: SmallVec::from_elem(false, count),
        }
    }

    /// Forgets everything about the page so far.
    pub fn restart(&mut self) {
        self.kinds.fill(Kind::Number);
        self.partial.clear();
        self.partial.shrink_to(Self::KEPT_BYTES);
        (self.group, self.touches, self.orderly) = (None, false, true);
        self.seen.fill(false);
    }

    /// Scans the next piece of the page.
    pub fn feed(&mut self, piece: &[u8], found: &mut impl FnMut(usize, Line<'_>)) {
        let Some(last) = memrchr(b'\n', piece) else { return self.keep(piece) };
        let mut whole = &piece[..=last];
        if !self.partial.is_empty() {
            let first = memchr(b'\n', whole).unwrap_or(last);
            self.keep(&whole[..=first]);
            self.end_partial(found);
            whole = &whole[first + 1..];
        }
        self.lines(whole, found);
        self.keep(&piece[last + 1..]);
    }

    /// Ends the page, whose last line need not end with a newline.
    pub fn finish(&mut self, found: &mut impl FnMut(usize, Line<'_>)) {
        self.end_partial(found);
        self.search = match self.search {
            Search::Names if self.orderly && self.seen.contains(&true) => {
                self.expected.clone_from(&self.seen);
                Search::Declarations(Self::PAGES)
            }
            Search::Declarations(left) if left > 1 && self.seen == self.expected => {
                Search::Declarations(left - 1)
            }
            _ => Search::Names,
        };
        self.restart();
    }

    /// Keeps the start of a line.
    fn keep(&mut self, start: &[u8]) {
        let room = (Self::MAX_LINE_BYTES + 1).saturating_sub(self.partial.len());
        self.partial.extend_from_slice(&start[..room.min(start.len())]);
    }

    fn end_partial(&mut self, found: &mut impl FnMut(usize, Line<'_>)) {
        let mut line = std::mem::take(&mut self.partial);
        self.lines(&line, found);
        line.clear();
        self.partial = line;
    }

    /// Looks at whole lines, each with its newline; only the last of a page, and one that
    /// is too long, may come without.
    fn lines(&mut self, bytes: &[u8], found: &mut impl FnMut(usize, Line<'_>)) {
        match self.search {
            Search::Names => self.lines_with_names(bytes, found),
            Search::Declarations(_) => self.groups(bytes, found),
        }
    }

    /// Looks at the lines in which a wanted name occurs, whatever they are.
    fn lines_with_names(&mut self, bytes: &[u8], found: &mut impl FnMut(usize, Line<'_>)) {
        let Some(tails) = &self.wanted.tails else { return };
        let mut rest = bytes;
        while let Some(hit) = tails.find(rest) {
            let start = memrchr(b'\n', &rest[..hit.start()]).map_or(0, |newline| newline + 1);
            let end = memchr(b'\n', &rest[hit.end()..]).map_or(rest.len(), |length| hit.end() + length);
            if start > 0 || !self.touches {
                self.group = None;
            }
            self.line(&rest[start..end], found);
            self.touches = true;
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        self.touches &= rest.is_empty();
    }

    /// Looks at declarations of wanted metrics and at what is directly below them.
    fn groups(&mut self, bytes: &[u8], found: &mut impl FnMut(usize, Line<'_>)) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut start = 0;
            if self.group.is_none() {
                let Some(hash) = memchr(b'#', rest) else { return };
                start = memrchr(b'\n', &rest[..hash]).map_or(0, |newline| newline + 1);
            }
            let end = memchr(b'\n', &rest[start..]).map_or(rest.len(), |length| start + length);
            let line = &rest[start..end];
            // A `#` is no comment in the middle of a line.
            if self.group.is_some() || skip_blanks(line).first() == Some(&b'#') {
                self.line(line, found);
            }
            rest = rest.get(end + 1..).unwrap_or_default();
        }
    }

    fn line(&mut self, line: &[u8], found: &mut impl FnMut(usize, Line<'_>)) {
        let too_long = line.len() > Self::MAX_LINE_BYTES;
        let line = skip_blanks(line.get(..Self::MAX_LINE_BYTES).unwrap_or(line));
        if line.first() == Some(&b'#') {
            self.comment(line);
        } else {
            self.series(line, too_long, found);
        }
    }

    /// A line that may be a series of a wanted metric.
    fn series(&mut self, line: &[u8], too_long: bool, found: &mut impl FnMut(usize, Line<'_>)) {
        let mut in_group = false;
        for (number, (name, &kind)) in self.wanted.names.iter().zip(&self.kinds).enumerate() {
            let Some(rest) = line.strip_prefix(name.bytes.as_slice()) else { continue };
            let rest = match rest.strip_prefix(b"_total") {
                Some(rest) if kind == Kind::Counter => rest,
                _ => rest,
            };
            let ends = matches!(rest.first(), None | Some(b'{' | b' ' | b'\t' | b'\r'));
            if !ends || kind == Kind::Distribution {
                continue;
            }
            in_group |= self.group == Some(number);
            self.orderly &= self.group == Some(number);
            self.seen[number] = true;
            let sample = if too_long { None } else { sample(rest) };
            for &index in &name.specs {
                match sample {
                    Some((labels, value, timestamp)) if self.wanted.specs[index].allows(labels) => {
                        found(index, Line::Sample { labels, value, timestamp });
                    }
                    Some(_) => {}
                    None => found(index, Line::Malformed),
                }
            }
        }
        if !in_group {
            self.group = None;
        }
    }

    /// Reads a comment: only `# TYPE name kind` has a meaning.
    fn comment(&mut self, line: &[u8]) {
        let Some(declared) = line[1..].trim_ascii_start().strip_prefix(b"TYPE") else { return };
        if !declared.first().is_some_and(u8::is_ascii_whitespace) {
            return;
        }
        let mut words = declared.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let Some(name) = words.next() else { return };
        self.group = self.wanted.names.iter().position(|known| known.bytes == name);
        if let (Some(number), Some(kind)) = (self.group, words.next()) {
            self.kinds[number] = match kind {
                b"counter" => Kind::Counter,
                b"histogram" | b"summary" | b"gaugehistogram" => Kind::Distribution,
                _ => Kind::Number,
            };
        }
    }
}

impl Wanted {
    /// Scans a whole page. `found` gets the position of a metric and its line;
    /// a series that several metrics allow is found once for each.
    pub fn scan(&self, page: &[u8], mut found: impl FnMut(usize, Line<'_>)) {
        let mut scanner = Scanner::new(self);
        scanner.feed(page, &mut found);
        scanner.finish(&mut found);
    }
}

/// Reads labels, value and timestamp of a series; `rest` is what follows its name.
fn sample(rest: &[u8]) -> Option<(Labels<'_>, f64, Option<f64>)> {
    let rest = skip_blanks(rest);
    let (labels, rest) = match rest.strip_prefix(b"{") {
        Some(inside) => Labels::split(inside)?,
        None => (Labels::default(), rest),
    };
    let (value, rest) = number(rest)?;
    // A timestamp may follow, and in OpenMetrics an exemplar after a `#`.
    let rest = skip_blanks(rest);
    let (timestamp, rest) = match rest.first() {
        None | Some(b'#' | b'\r') => (None, rest),
        Some(_) => number(rest).map(|(timestamp, rest)| (Some(timestamp), skip_blanks(rest)))?,
    };
    matches!(rest, [] | [b'\r'] | [b'#', ..]).then_some((labels, value, timestamp))
}

/// Reads a number up to the next blank.
fn number(bytes: &[u8]) -> Option<(f64, &[u8])> {
    let bytes = skip_blanks(bytes);
    let length = bytes.iter().take_while(|b| !matches!(b, b' ' | b'\t' | b'\r')).count();
    let (number, rest) = bytes.split_at(length);
    Some((std::str::from_utf8(number).ok()?.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::exposition::MetricSpec;

    const PAGE: &str = "# HELP a:x Help.\n# TYPE a:x gauge\na:x 1\na:x{b=\"#\"} 2\n# TYPE h histogram\n\
                        h_bucket{le=\"1\"} 1\nh_sum 1\n# TYPE a:y counter\n# HELP a:y Help.\na:y_total 3\nz 1\n";

    /// Content of each page after the other, by position of the metric; `None`: a malformed line.
    fn read(pages: &[&str], size: usize) -> Vec<Vec<(usize, Option<f64>)>> {
        let wanted = Wanted::new(["a:x", "a:y"].map(MetricSpec::named).to_vec());
        let mut scanner = Scanner::new(&wanted);
        let mut pages_found = Vec::new();
        for page in pages {
            let mut found = Vec::new();
            let mut take = |metric: usize, line: Line<'_>| {
                found.push(match line {
                    Line::Sample { value, .. } => (metric, Some(value)),
                    Line::Malformed => (metric, None),
                });
            };
            page.as_bytes().chunks(size).for_each(|piece| scanner.feed(piece, &mut take));
            scanner.finish(&mut take);
            pages_found.push(found);
        }
        pages_found
    }

    #[test]
    fn pages_in_order_read_the_same_by_their_declarations() {
        let late = PAGE.replace("z 1\n", "z 1\n# TYPE late gauge\n# TYPE a:y counter\n a:y 4");
        for size in [1, 7, 1000] {
            let found = read(&[PAGE, PAGE, &late, PAGE], size);
            let want = vec![(0, Some(1.0)), (0, Some(2.0)), (1, Some(3.0))];
            assert_eq!((&found[0], &found[1], &found[3]), (&want, &want, &want), "{size}");
            assert_eq!(found[2], [want, vec![(1, Some(4.0))]].concat(), "a declared group is found anywhere");
        }
    }

    #[test]
    fn samples_out_of_order_are_found_after_a_full_scan() {
        let apart = PAGE.replace("z 1\n", "z 1\na:x 9\n");
        let want = 4;
        let mut pages = vec![PAGE];
        pages.extend([apart.as_str(); 2 * Scanner::PAGES as usize]);
        let counts: Vec<usize> = read(&pages, 1000).iter().map(Vec::len).collect();
        let late = counts.iter().skip(1).position(|count| *count == want).unwrap();
        assert_eq!(late, usize::from(Scanner::PAGES));
        assert!(counts.iter().skip(1 + late).all(|count| *count == want), "and from then on: {counts:?}");
        // Without declarations, or with less on it than before, a page is never trusted.
        for page in ["a:x 1\nz 2\n", "# TYPE a:x gauge\na:x 1\n# TYPE z gauge\na:y 1\n"] {
            let found = read(&[page, page, &format!("{page}a:x 7\n")], 1000);
            assert_eq!(found[2].len(), found[1].len() + 1, "{page}");
        }
        let less = "# TYPE a:x gauge\na:x 1\n";
        let found = read(&[PAGE, less, &format!("{less}b 1\na:x 7\n")], 1000);
        assert_eq!(found[2], [(0, Some(1.0)), (0, Some(7.0))]);
    }

    #[test]
    fn huge_line_is_skipped_at_any_split() {
        let line = |name: &str, length: usize| format!("{name}{{b=\"{}\"}} 1\n", "c".repeat(length));
        let mega = 1 << 20;
        let page = line("z", mega) + &line("a:x", mega) + "a:y 1\n" + &line("a:y", 60 << 10);
        let want = vec![(0, None), (1, Some(1.0)), (1, Some(1.0))];
        for size in [1000, 64 << 10, 4 << 20] {
            assert_eq!(read(&[&page, &page], size), [want.clone(), want.clone()], "{size}");
        }
        let edge = Scanner::MAX_LINE_BYTES - "a:x{b=\"\"} 1".len();
        for (length, value) in [(edge, Some(1.0)), (edge + 1, None)] {
            for size in [1000, mega] {
                assert_eq!(read(&[&line("a:x", length)], size), [[(0, value)]], "{length}");
            }
        }
        let wanted = Wanted::new(vec![MetricSpec::named("a:x")]);
        let mut scanner = Scanner::new(&wanted);
        page.as_bytes().chunks(1000).for_each(|piece| scanner.feed(piece, &mut |_, _| {}));
        scanner.feed(line("z", mega).trim_end().as_bytes(), &mut |_, _| {});
        assert!(scanner.partial.capacity() <= 2 * Scanner::MAX_LINE_BYTES, "{}", scanner.partial.capacity());
    }
}
