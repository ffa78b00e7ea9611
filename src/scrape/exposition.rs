//! A scanner for the Prometheus text format (and OpenMetrics text) that reads
//! only the metrics in use.
//!
//! One vectorised search finds where wanted names occur, and only the lines
//! around these places are looked at: on a real page a dozen of six hundred.
//! Their content goes to a callback as slices of the page, so a scan allocates
//! nothing. The time is linear in the page, whatever its bytes are.
//!
//! A series counts as a value if it has the metric's own name, and the metric is
//! declared as anything but a distribution (histogram, summary,
//! gaugehistogram) or not declared at all. Of a metric declared as a counter
//! the series with `_total` counts too, which is its name in OpenMetrics.

use aho_corasick::{AhoCorasick, MatchKind};
use smallvec::SmallVec;

use super::labels::Labels;
pub use super::scanner::Scanner;

/// A metric that is read: its name, and labels that a series must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricSpec {
    /// Name of the metric.
    pub name: String,
    /// Labels with the value they must have; the series may have others.
    pub labels: Vec<(String, String)>,
}

impl MetricSpec {
    /// Any series of this name.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), labels: Vec::new() }
    }

    pub(super) fn allows(&self, labels: Labels<'_>) -> bool {
        self.labels.iter().all(|(name, value)| labels.get(name).is_some_and(|found| found.is(value)))
    }
}

/// Content of a line of a wanted metric.
#[derive(Clone, Copy, Debug)]
pub enum Line<'a> {
    /// A series with its value, which may be NaN or infinite.
    Sample {
        /// Labels of the series.
        labels: Labels<'a>,
        /// Value of the series.
        value: f64,
        /// Timestamp, where the line has one: milliseconds, in OpenMetrics seconds.
        timestamp: Option<f64>,
    },
    /// The line starts with the metric's name and can't be read on.
    Malformed,
}

/// The metrics to look for, compiled once.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub(super) specs: Vec<MetricSpec>,
    pub(super) names: Vec<Name>,
    /// Finds the names, without the prefix that they share: an engine's metrics
    /// all begin with its name, and so does nearly every line of its pages.
    pub(super) tails: Option<AhoCorasick>,
}

#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) bytes: Vec<u8>,
    /// Positions in `specs`.
    pub(super) specs: SmallVec<[usize; 2]>,
}

impl Wanted {
    /// Compiles the metrics. The callback of a scan gets positions in this list.
    pub fn new(specs: Vec<MetricSpec>) -> Self {
        let mut names: Vec<Name> = Vec::new();
        for (index, spec) in specs.iter().enumerate().filter(|(_, spec)| !spec.name.is_empty()) {
            match names.iter_mut().find(|name| name.bytes == spec.name.as_bytes()) {
                Some(name) => name.specs.push(index),
                None => {
                    let specs = SmallVec::from_iter([index]);
                    names.push(Name { bytes: spec.name.clone().into_bytes(), specs });
                }
            }
        }
        let shared = shared_prefix(&names);
        let tails = names.iter().map(|name| &name.bytes[shared..]);
        // Fails only when the names together are gigabytes.
        let tails = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(tails).ok();
        Self { specs, names, tails }
    }

    /// Names of the metrics, each once.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter_map(|name| std::str::from_utf8(&name.bytes).ok())
    }
}

/// Number of bytes that all names start with, but never a whole name.
fn shared_prefix(names: &[Name]) -> usize {
    let Some((first, others)) = names.split_first() else { return 0 };
    let shared = |other: &Name| first.bytes.iter().zip(&other.bytes).take_while(|(a, b)| a == b).count();
    let shortest = names.iter().map(|name| name.bytes.len()).min().unwrap_or(0);
    others.iter().map(shared).min().unwrap_or(0).min(shortest.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Position and value of what is found; no value where the line is malformed.
    fn scan(specs: &[MetricSpec], page: &str) -> Vec<(usize, Option<f64>)> {
        let mut list = Vec::new();
        Wanted::new(specs.to_vec()).scan(page.as_bytes(), |index, line| {
            list.push(match line {
                Line::Sample { value, .. } => (index, Some(value)),
                Line::Malformed => (index, None),
            });
        });
        list
    }

    fn values(page: &str) -> Vec<Option<f64>> {
        scan(&[MetricSpec::named("a:x")], page).into_iter().map(|(_, value)| value).collect()
    }

    #[test]
    fn sample_lines() {
        let table: [(&str, &[Option<f64>]); 22] = [
            ("a:x 1\n", &[Some(1.0)]),
            ("a:x 1", &[Some(1.0)]),
            ("a:x 1\r\na:x 2\r\n", &[Some(1.0), Some(2.0)]),
            (" \ta:x\t 1 \t\n", &[Some(1.0)]),
            ("a:x 1.5e3 1700000000000\n", &[Some(1500.0)]),
            ("a:x -1e-3 -5\n", &[Some(-0.001)]),
            ("a:x +Inf\na:x -Inf\n", &[Some(f64::INFINITY), Some(f64::NEG_INFINITY)]),
            ("a:x{} 1\na:x {b=\"c\"} 2\n", &[Some(1.0), Some(2.0)]),
            ("a:x{b=\"} 9\",} 2\n", &[Some(2.0)]),
            ("a:x{b=\"1\"}2\n", &[Some(2.0)]),
            ("a:x 1 1700000000.5 # {trace=\"t\"} 0.5 1700000000.5\n", &[Some(1.0)]),
            ("a:x 1 # {trace=\"t\"} 0.5\n# EOF\n", &[Some(1.0)]),
            ("a:xy 1\na: 1\nb 1\nx 1\na:x_total 1\na:x_sum 3\n", &[]),
            ("# a:x 1\n#a:x 1\n # a:x 1\n", &[]),
            ("\n\n \n\t\n\r\n", &[]),
            ("a:x\n", &[None]),
            ("a:x one\n", &[None]),
            ("a:x 1 soon\n", &[None]),
            ("a:x 1 2 3\n", &[None]),
            ("a:x{b=\"c\" 1\n", &[None]),
            ("a:x{b=\"c\nd\"} 1\n", &[None]),
            ("a:x 1\ra:x 2\n", &[None]),
        ];
        for (page, want) in table {
            assert_eq!(values(page), want, "{page:?}");
        }
        assert!(values("a:x NaN\n")[0].unwrap().is_nan());
    }

    #[test]
    fn declared_type_selects_the_value_samples() {
        let table: [(&str, &[Option<f64>]); 10] = [
            ("# TYPE a:x gauge\na:x 1\n", &[Some(1.0)]),
            ("# TYPE a:x counter\na:x 1\n", &[Some(1.0)]),
            ("# TYPE a:x counter\na:x_total 1\na:x_created 2\n", &[Some(1.0)]),
            ("# TYPE a:x gauge\na:x_total 1\n", &[]),
            ("#\tTYPE  a:x\tunknown \r\na:x 1\n", &[Some(1.0)]),
            ("# TYPE a:x histogram\na:x 1\na:x_sum 2\na:x_bucket{le=\"1\"} 3\n", &[]),
            (" # TYPE a:x summary\na:x{quantile=\"0.5\"} 1\n", &[]),
            ("# TYPE a:x gaugehistogram\na:x 1\n", &[]),
            ("# TYPE other histogram\na:x 1\n", &[Some(1.0)]),
            ("# TYPE a:x\n# TYPE\n# HELP a:x histogram\n#\na:x 1\n", &[Some(1.0)]),
        ];
        for (page, want) in table {
            assert_eq!(values(page), want, "{page:?}");
        }
    }

    #[test]
    fn required_labels_choose_the_series() {
        let with = |kind: &str| MetricSpec {
            name: "nv".to_owned(),
            labels: vec![("kind".to_owned(), kind.to_owned())],
        };
        let specs = [with("waiting"), with("a\"b"), MetricSpec::named("nv"), MetricSpec::named("n")];
        let page =
            "nv{gpu=\"0\",kind=\"waiting\"} 1\nnv{kind=\"a\\\"b\"} 2\nnv{kind=\"run\"} 3\nnv 4\nn 5\nnvx 6";
        let want = [(0, 1.0), (2, 1.0), (1, 2.0), (2, 2.0), (2, 3.0), (2, 4.0), (3, 5.0)];
        assert_eq!(scan(&specs, page), want.map(|(index, value)| (index, Some(value))));
        assert_eq!(scan(&[MetricSpec::default()], page), []);
        assert_eq!(scan(&[], page), []);
    }

    #[test]
    fn a_scanner_starts_each_page_anew() {
        let wanted = Wanted::new(vec![MetricSpec::named("a:x")]);
        let mut scanner = Scanner::new(&wanted);
        let mut count = 0;
        let mut found = |_: usize, _: Line<'_>| count += 1;
        scanner.feed(b"# TYPE a:x histogram\na:x 1\na:", &mut found);
        scanner.restart();
        scanner.feed(b"x 1\na:x 2\na:x", &mut found);
        scanner.feed(b" 3", &mut found);
        scanner.finish(&mut found);
        scanner.feed(b"a:x 4\n", &mut found);
        assert_eq!(count, 3);
    }
}
