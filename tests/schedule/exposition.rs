//! The exposition scanner against a parser that reads everything, and against
//! bytes that nobody would send.

use proptest::prelude::*;
use usher::scrape::exposition::{Line, MetricSpec, Scanner, Wanted};

/// Name, labels in order, bits of the value: comparable, and equal for equal NaNs.
type Series = (String, Vec<(String, String)>, u64);

const WANTED: [&str; 3] = ["queue_depth", "queue", "cache_usage"];

fn wanted() -> Wanted {
    Wanted::new(WANTED.map(MetricSpec::named).to_vec())
}

fn series(metric: usize, line: Line<'_>) -> Option<Series> {
    let Line::Sample { labels, value, .. } = line else { return None };
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let mut labels: Vec<_> = labels.iter().map(|(n, v)| (text(n), v.text().into_owned())).collect();
    labels.sort();
    Some((WANTED[metric].to_owned(), labels, value.to_bits()))
}

fn ours(page: &str) -> Vec<Series> {
    let mut found = Vec::new();
    wanted().scan(page.as_bytes(), |metric, line| found.extend(series(metric, line)));
    found.sort();
    found
}

fn oracle(page: &str) -> Vec<Series> {
    let scrape = prometheus_parse::Scrape::parse(page.lines().map(|line| Ok(line.to_owned()))).unwrap();
    let mut found: Vec<Series> = (scrape.samples.iter())
        .filter(|sample| WANTED.contains(&sample.metric.as_str()))
        .filter_map(|sample| {
            let value = match sample.value {
                prometheus_parse::Value::Counter(v)
                | prometheus_parse::Value::Gauge(v)
                | prometheus_parse::Value::Untyped(v) => v,
                prometheus_parse::Value::Histogram(_) | prometheus_parse::Value::Summary(_) => return None,
            };
            let mut labels: Vec<_> = sample.labels.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
            labels.sort();
            Some((sample.metric.clone(), labels, value.to_bits()))
        })
        .collect();
    found.sort();
    found
}

fn blank() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![" ", "  ", "\t", " \t"])
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<u32>().prop_map(|v| v.to_string()),
        any::<f64>().prop_map(|v| if v.is_nan() { "NaN".to_owned() } else { v.to_string() }),
        (-1e6..1e6).prop_map(|v| format!("{v:e}")),
        prop::sample::select(vec!["NaN", "+Inf", "-Inf", "0", "-0", "1e3", "+5", ".5"])
            .prop_map(str::to_owned),
    ]
}

/// Labels as both parsers read them: the oracle knows no escapes, and no
/// commas, braces or equals signs inside a value.
fn labels() -> impl Strategy<Value = String> {
    prop::collection::btree_map("[a-z_]{1,6}", "[ -!#-+.-<>-\\[^-z|~]{0,12}", 0..4).prop_map(|labels| {
        if labels.is_empty() {
            return String::new();
        }
        let list: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        format!("{{{}}}", list.join(","))
    })
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "queue_depth",
        "queue",
        "cache_usage",
        "queue_depths",
        "other",
        "cache_usage_total",
    ])
}

fn family() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec![None, Some("gauge"), Some("untyped"), Some("unknown")]);
    let samples = prop::collection::vec((labels(), blank(), value(), any::<Option<i32>>(), blank()), 0..5);
    (name(), kind, any::<bool>(), samples).prop_map(|(name, kind, help, samples)| {
        let mut text = String::new();
        if help {
            text += &format!("# HELP {name} About {name} {{and}} more.\n");
        }
        if let Some(kind) = kind {
            text += &format!("# TYPE {name} {kind}\n");
        }
        for (labels, first, value, timestamp, second) in samples {
            let timestamp = timestamp.map_or(String::new(), |at| format!("{second}{at}"));
            text += &format!("{name}{labels}{first}{value}{timestamp}\n");
        }
        text
    })
}

fn histogram() -> impl Strategy<Value = String> {
    (name(), any::<u16>()).prop_map(|(name, count)| {
        let series = format!("{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum 1.5\n{name}_count {count}\n");
        format!("# TYPE {name} histogram\n{series}# TYPE {name} gauge\n")
    })
}

fn page() -> impl Strategy<Value = String> {
    let block = prop_oneof![4 => family(), 1 => histogram(), 1 => "(\n|# [a-z ]{0,20}\n)"];
    (prop::collection::vec(block, 0..12), any::<bool>(), any::<bool>()).prop_map(|(blocks, crlf, newline)| {
        let mut page = blocks.concat();
        if !newline {
            page.truncate(page.trim_end_matches('\n').len());
        }
        if crlf { page.replace('\n', "\r\n") } else { page }
    })
}

proptest! {
    #[test]
    fn a_page_reads_as_a_full_parser_reads_it(page in page()) {
        prop_assert_eq!(ours(&page), oracle(&page));
    }

    #[test]
    fn pieces_read_as_the_whole(page in page(), size in 1_usize..200) {
        let wanted = wanted();
        let mut scanner = Scanner::new(&wanted);
        for _ in 0..2 {
            let mut found = Vec::new();
            let mut take = |metric: usize, line: Line<'_>| found.extend(series(metric, line));
            page.as_bytes().chunks(size).for_each(|piece| scanner.feed(piece, &mut take));
            scanner.finish(&mut take);
            found.sort();
            prop_assert_eq!(found, ours(&page));
        }
    }

    #[test]
    fn any_label_values_round_trip(text in any::<String>()) {
        let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let page = format!("queue{{a=\"x\",b=\"{escaped}\"}} 4\n");
        let want = vec![("a".to_owned(), "x".to_owned()), ("b".to_owned(), text)];
        prop_assert_eq!(ours(&page), vec![("queue".to_owned(), want, 4_f64.to_bits())]);
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in odd_bytes(), size in 1_usize..64) {
        let wanted = wanted();
        let mut whole = 0;
        wanted.scan(&bytes, |_, line| {
            whole += 1;
            // Reading what was found must not fail either.
            series(0, line);
        });
        let mut pieces = 0;
        let mut scanner = Scanner::new(&wanted);
        let mut take = |_: usize, _: Line<'_>| pieces += 1;
        bytes.chunks(size).for_each(|piece| scanner.feed(piece, &mut take));
        scanner.finish(&mut take);
        prop_assert_eq!(whole, pieces);
    }
}

/// Bytes that get far into the scanner more often than random ones do.
fn odd_bytes() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&[u8]> = vec![
        b"queue",
        b"queue_depth",
        b"cache_usage",
        b"_total",
        b"{",
        b"}",
        b"a=",
        b"\"",
        b"\\",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b",",
        b"1",
        b"e9",
        b"NaN",
        b"#",
        b"# TYPE queue ",
        b"histogram",
        b"counter",
        b"\xff",
        b"\0",
    ];
    let word = prop_oneof![
        9 => prop::sample::select(words).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(word, 0..60).prop_map(|words| words.concat())
}
