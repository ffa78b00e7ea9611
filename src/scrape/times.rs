//! Histograms of times on the pages of engines.
//!
//! Totals change slowly and their lines are many, so they are looked for once a second and
//! not on every page, and only where something learns from them.

use std::time::Duration;

use tokio::time::Instant;

use crate::endpoints::{EngineTimes, Total};

use super::exposition::{Line, MetricSpec, Scanner, Wanted};

/// Time between two pages that are searched for totals.
const PAUSE: Duration = Duration::from_secs(1);

const STARTED: &str = "process_start_time_seconds";

/// Names of an engine's histograms, without `_sum` and `_count`. Of several names for one
/// time the first that a page has counts: the others are former ones.
struct Names {
    engine: &'static str,
    first_token: &'static [&'static str],
    prefill: &'static [&'static str],
    computed: &'static [&'static str],
    inter_token: &'static [&'static str],
    /// Means of requests.
    per_request: &'static [&'static str],
}

const ENGINES: [Names; 3] = [
    Names {
        engine: "vllm",
        first_token: &["vllm:time_to_first_token_seconds"],
        prefill: &["vllm:request_prefill_time_seconds"],
        computed: &["vllm:request_prefill_kv_computed_tokens"],
        inter_token: &["vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"],
        per_request: &[],
    },
    Names {
        engine: "sglang",
        first_token: &["sglang:time_to_first_token_seconds"],
        prefill: &[],
        computed: &[],
        inter_token: &["sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"],
        per_request: &[],
    },
    Names {
        engine: "trtllm-serve",
        first_token: &["trtllm_time_to_first_token_seconds"],
        prefill: &[],
        computed: &[],
        inter_token: &[],
        per_request: &["trtllm_time_per_output_token_seconds"],
    },
];

/// Kinds of times, in the order of the fields of [`Names`].
const KINDS: usize = 5;

/// Number that a metric feeds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Feed {
    /// Sum (0) or count (1) of the histogram at this place.
    Part(usize, usize),
    Started,
}

/// Totals to look for, compiled.
#[derive(Debug)]
pub(super) struct TimesSpec {
    wanted: Wanted,
    feeds: Vec<Feed>,
    /// Kind of each histogram.
    kinds: Vec<usize>,
}

impl TimesSpec {
    /// Histograms of the engine of this name; `None`: it has none.
    pub(super) fn of(engine: &str) -> Option<Self> {
        let names = ENGINES.iter().find(|names| names.engine == engine)?;
        let (mut metrics, mut feeds) = (vec![MetricSpec::named(STARTED)], vec![Feed::Started]);
        let mut kinds = Vec::new();
        let Names { first_token, prefill, computed, inter_token, per_request, .. } = names;
        let all: [_; KINDS] = [first_token, prefill, computed, inter_token, per_request];
        for (kind, names) in all.into_iter().enumerate() {
            for name in *names {
                for (part, suffix) in ["sum", "count"].into_iter().enumerate() {
                    metrics.push(MetricSpec::named(&format!("{name}_{suffix}")));
                    feeds.push(Feed::Part(kinds.len(), part));
                }
                kinds.push(kind);
            }
        }
        Some(Self { wanted: Wanted::new(metrics), feeds, kinds })
    }
}

/// Reads totals of every page that comes a second or more after the last one that it read.
pub(super) struct TimesReader<'a> {
    spec: &'a TimesSpec,
    scanner: Scanner<'a>,
    /// Sums and counts of the page so far, by histogram; NaN makes a total unknown.
    parts: Vec<[Option<f64>; 2]>,
    started: Option<f64>,
    /// `true` if the page is read.
    reads: bool,
    next: Option<Instant>,
}

impl<'a> TimesReader<'a> {
    pub(super) fn new(spec: &'a TimesSpec) -> Self {
        Self {
            spec,
            scanner: Scanner::new(&spec.wanted),
            parts: vec![[None; 2]; spec.kinds.len()],
            started: None,
            reads: true,
            next: None,
        }
    }

    /// Metrics that it looks for.
    pub(super) fn wanted(&self) -> &'a Wanted {
        &self.spec.wanted
    }

    /// Takes a piece of a page.
    pub(super) fn feed(&mut self, piece: &[u8]) {
        if self.reads {
            let (parts, started, spec) = (&mut self.parts, &mut self.started, self.spec);
            self.scanner.feed(piece, &mut |metric, line| take(spec, parts, started, metric, &line));
        }
    }

    /// Totals of the page, now that it is complete; `None` where it wasn't read.
    pub(super) fn finish(&mut self, now: Instant) -> Option<EngineTimes> {
        let times = self.reads.then(|| {
            let (parts, started, spec) = (&mut self.parts, &mut self.started, self.spec);
            self.scanner.finish(&mut |metric, line| take(spec, parts, started, metric, &line));
            self.times()
        });
        self.restart();
        if times.is_some() {
            self.next = Some(now + PAUSE);
        }
        // Pages come at once after this, or a scrape interval later.
        self.reads = self.next.is_none_or(|next| now >= next);
        times
    }

    /// Forgets a page that didn't become complete.
    pub(super) fn restart(&mut self) {
        self.scanner.restart();
        self.parts.fill([None; 2]);
        self.started = None;
    }

    fn times(&self) -> EngineTimes {
        let total = |kind: usize| {
            let of_kind = self.spec.kinds.iter().zip(&self.parts).filter(|(other, _)| **other == kind);
            let mut totals = of_kind.filter_map(|(_, [sum, count])| {
                let total = Total { sum: (*sum)?, count: (*count)? };
                (total.sum.is_finite() && total.count.is_finite()).then_some(total)
            });
            totals.next()
        };
        EngineTimes {
            first_token: total(0),
            prefill: total(1),
            computed: total(2),
            inter_token: total(3),
            per_request: total(4),
            started: self.started.filter(|started| started.is_finite()),
        }
    }
}

/// A line of the metric at this place. Series of several engines in one process add up.
fn take(
    spec: &TimesSpec,
    parts: &mut [[Option<f64>; 2]],
    started: &mut Option<f64>,
    metric: usize,
    line: &Line<'_>,
) {
    let value = match line {
        Line::Sample { value, .. } if *value >= 0.0 => *value,
        _ => f64::NAN,
    };
    match spec.feeds.get(metric) {
        Some(Feed::Part(histogram, part)) => {
            let cell = &mut parts[*histogram][*part];
            *cell = Some(cell.unwrap_or(0.0) + value);
        }
        Some(Feed::Started) => *started = Some(value),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# HELP process_start_time_seconds Start time.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 3.0
vllm:time_to_first_token_seconds_count{engine="0"} 3.0
vllm:time_to_first_token_seconds_sum{engine="0"} 0.75
vllm:time_to_first_token_seconds_count{engine="1"} 2.0
vllm:time_to_first_token_seconds_sum{engine="1"} 0.25
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_count 2.0
vllm:request_prefill_time_seconds_sum NaN
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_count 40.0
vllm:inter_token_latency_seconds_sum 1.0
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_count 41.0
vllm:time_per_output_token_seconds_sum 9.0
"#;

    fn read(engine: &str, page: &str) -> EngineTimes {
        let spec = TimesSpec::of(engine).unwrap();
        let mut reader = TimesReader::new(&spec);
        page.as_bytes().chunks(7).for_each(|piece| reader.feed(piece));
        reader.finish(Instant::now()).unwrap()
    }

    #[test]
    fn series_add_up_and_former_names_do_not_count_twice() {
        let times = read("vllm", PAGE);
        assert_eq!(times.first_token, Some(Total { sum: 1.0, count: 5.0 }));
        assert_eq!(times.inter_token, Some(Total { sum: 1.0, count: 40.0 }));
        assert_eq!((times.prefill, times.computed), (None, None));
        assert_eq!(times.started, Some(1.7e9));
        let former = PAGE.replace("inter_token_latency", "inter_something");
        assert_eq!(read("vllm", &former).inter_token, Some(Total { sum: 9.0, count: 41.0 }));
    }

    #[test]
    fn engines_have_their_own_names_or_none() {
        let page = PAGE.replace("vllm:", "sglang:");
        assert_eq!(read("sglang", &page).first_token, Some(Total { sum: 1.0, count: 5.0 }));
        let page = PAGE.replace("vllm:", "trtllm_");
        let times = read("trtllm-serve", &page);
        assert_eq!(
            times.per_request,
            Some(Total { sum: 9.0, count: 41.0 }),
            "one per request, not per token"
        );
        assert_eq!(times.inter_token, None);
        assert_eq!(read("vllm", &page), EngineTimes { started: Some(1.7e9), ..EngineTimes::default() });
        assert!(TimesSpec::of("triton").is_none() && TimesSpec::of("other").is_none());
    }

    #[test]
    fn one_page_in_a_second_is_read() {
        let spec = TimesSpec::of("vllm").unwrap();
        let mut reader = TimesReader::new(&spec);
        let start = Instant::now();
        let mut read_at = Vec::new();
        for n in 0..50u64 {
            reader.feed(PAGE.as_bytes());
            if let Some(times) = reader.finish(start + Duration::from_millis(50 * n)) {
                assert_eq!(times, read("vllm", PAGE), "page {n}");
                read_at.push(n);
            }
        }
        assert_eq!(read_at, [0, 21, 42]);
    }

    #[test]
    fn truncated_page_changes_nothing() {
        let spec = TimesSpec::of("vllm").unwrap();
        let mut reader = TimesReader::new(&spec);
        reader.feed(PAGE.as_bytes());
        reader.restart();
        reader.feed(b"process_start_time_seconds 5\n");
        let only = EngineTimes { started: Some(5.0), ..EngineTimes::default() };
        assert_eq!(reader.finish(Instant::now()), Some(only));
    }
}
