//! Pages of metrics.

use std::sync::{Arc, LazyLock};

use usher::endpoints::Load;
use usher::scrape::exposition::{Line, MetricSpec, Scanner, Wanted};
use usher::scrape::{Engine, EngineSpec, Field, Problems, Readings};

use super::found::{Found, LABEL, LABELLED, NAMES};
use super::input::Input;
use super::reference;

/// The first metric of the engine's.
const ENGINE: usize = 4;

static WANTED: LazyLock<Wanted> = LazyLock::new(|| Wanted::new(specs()));
static ALONE: LazyLock<Vec<Wanted>> =
    LazyLock::new(|| specs().into_iter().map(|spec| Wanted::new(vec![spec])).collect());
static VLLM: LazyLock<Arc<Engine>> = LazyLock::new(|| Arc::new(Engine::new(EngineSpec::vllm())));

fn specs() -> Vec<MetricSpec> {
    let mut specs = NAMES.map(MetricSpec::named).to_vec();
    let (name, value) = LABEL;
    specs[LABELLED].labels.push((name.to_owned(), value.to_owned()));
    specs
}

/// The first line names chunk sizes, the rest is a page.
///
/// - Every split finds the same lines, and a second page the same as the first.
/// - A metric is found whatever else is looked for.
/// - Text reads as a reader does that takes it line by line and byte by byte.
/// - A page of plain lines reads as `prometheus-parse` reads it.
/// - What reaches an endpoint's load is finite and in its range.
pub fn exposition(bytes: &[u8]) {
    let input = Input::of(bytes);
    let mut scanner = Scanner::new(&WANTED);
    let [found, others @ ..] = input.splits(0).map(|pieces| {
        let mut found = Vec::new();
        let mut take = |metric: usize, line: Line<'_>| found.push(Found::of(metric, line));
        pieces.iter().for_each(|piece| scanner.feed(piece, &mut take));
        scanner.finish(&mut take);
        found
    });
    for other in others {
        assert_eq!(found, other, "another split finds other lines");
    }
    alone(&found, input.data);
    if let Ok(page) = std::str::from_utf8(input.data) {
        assert_eq!(found, reference::read(page), "ours and the reference's");
        against_oracle(&found, page);
    }
    load(&input, &found);
}

/// Each metric, looked for alone in the whole page.
fn alone(found: &[Found], page: &[u8]) {
    for (index, wanted) in ALONE.iter().enumerate() {
        let mut list = Vec::new();
        wanted.scan(page, |_, line| list.push(Found::of(index, line)));
        let among: Vec<_> = found.iter().filter(|found| found.metric() == index).cloned().collect();
        assert_eq!(list, among, "{} is found differently alone", NAMES[index]);
    }
}

fn against_oracle(found: &[Found], page: &str) {
    if !page.lines().all(is_plain) {
        return;
    }
    let lines = page.lines().map(|line| Ok(line.to_owned()));
    let scrape = prometheus_parse::Scrape::parse(lines).expect("reading text does not fail");
    let mut theirs: Vec<Found> = Vec::new();
    for sample in scrape.samples {
        let Some(metric) = NAMES[..LABELLED].iter().position(|name| *name == sample.metric) else { continue };
        let bits = match sample.value {
            prometheus_parse::Value::Gauge(value) | prometheus_parse::Value::Untyped(value) => {
                value.to_bits()
            }
            other => panic!("no plain line gives {other:?}"),
        };
        let mut labels: Vec<_> = sample.labels.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
        labels.sort();
        theirs.push(Found::Sample { metric, labels, bits });
    }
    let ours = found.iter().filter(|line| line.metric() < LABELLED).filter_map(|line| match line {
        Found::Sample { metric, labels, bits } => {
            let mut labels = labels.clone();
            labels.sort();
            Some(Found::Sample { metric: *metric, labels, bits: *bits })
        }
        // They skip what they can't read.
        Found::Malformed { .. } => None,
    });
    let mut ours: Vec<Found> = ours.collect();
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs, "ours and the oracle's");
}

/// Returns `true` if both parsers mean to read a line alike: the oracle knows no escapes,
/// no commas, braces or equals signs inside of a value, no exemplars and no colons in
/// names, and has its own idea of counters and distributions.
fn is_plain(line: &str) -> bool {
    let blank = |c: char| c == ' ' || c == '\t';
    let line = line.trim_matches(blank);
    if let Some(comment) = line.strip_prefix('#') {
        let words: Vec<&str> = comment.split(blank).filter(|word| !word.is_empty()).collect();
        return match words[..] {
            ["TYPE", name, "gauge" | "untyped" | "unknown"] => comment.starts_with(blank) && is_name(name),
            _ => !comment.contains("TYPE") && is_ascii_text(comment),
        };
    }
    if line.is_empty() {
        return true;
    }
    let name = line.split(|c: char| c == '{' || blank(c)).next().unwrap_or_default();
    let rest = &line[name.len()..];
    let rest = match rest.strip_prefix('{') {
        Some(rest) => match rest.split_once('}') {
            Some((labels, rest)) if are_labels(labels) => rest,
            _ => return false,
        },
        None => rest,
    };
    let words: Vec<&str> = rest.split(blank).filter(|word| !word.is_empty()).collect();
    let is_number = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let is_time = |word: &str| word.strip_prefix('-').unwrap_or(word).bytes().all(|b| b.is_ascii_digit());
    is_name(name)
        && rest.starts_with(blank)
        && match words[..] {
            [value] => is_number(value),
            [value, time] => is_number(value) && is_time(time) && time != "-",
            _ => false,
        }
}

fn is_name(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

fn is_ascii_text(text: &str) -> bool {
    text.bytes().all(|b| b == b'\t' || (b' '..=b'~').contains(&b))
}

fn are_labels(labels: &str) -> bool {
    let mut names = Vec::new();
    labels.split(',').all(|label| {
        let Some((name, value)) = label.split_once("=\"") else { return false };
        let Some(value) = value.strip_suffix('"') else { return false };
        let new = !names.contains(&name);
        names.push(name);
        new && is_name(name) && is_ascii_text(value) && !value.contains(['"', '\\', '=', '{', '\t'])
    })
}

/// Reads the page for an endpoint in every split.
fn load(input: &Input<'_>, found: &[Found]) {
    let mut readings = Readings::new(Arc::clone(&VLLM));
    let mut scanner = Scanner::new(VLLM.wanted());
    let load = Load::default();
    let mut before: Option<(Problems, [Option<f64>; 5])> = None;
    for pieces in input.splits(0) {
        let load = Load::default();
        let mut take = |metric: usize, line: Line<'_>| readings.take(metric, line);
        pieces.iter().for_each(|piece| scanner.feed(piece, &mut take));
        scanner.finish(&mut take);
        let now = check_load(&mut readings, &load, found);
        assert_eq!(before.get_or_insert(now), &now, "another split gives another load");
    }
    // What was never restarted can't leak into the next page.
    scanner.finish(&mut |metric, line| readings.take(metric, line));
    readings.apply(&load, 2);
    assert_eq!(load.scraped_at_ms(), None, "an empty page brings nothing");
}

fn check_load(readings: &mut Readings, load: &Load, found: &[Found]) -> (Problems, [Option<f64>; 5]) {
    let problems = readings.apply(load, 1);
    let gauges = [
        (Field::Waiting, &load.waiting, f64::MAX),
        (Field::Running, &load.running, f64::MAX),
        (Field::KvUsage, &load.kv_usage, 1.0),
        (Field::BlockSize, &load.block_size, f64::from(u32::MAX)),
        (Field::NumBlocks, &load.num_blocks, f64::MAX),
    ];
    let values = gauges.map(|(field, gauge, most)| {
        let value = gauge.read_at_ms().map(|_| gauge.last());
        assert!(value.is_none_or(|value| (0.0..=most).contains(&value)), "{field:?} is {value:?}");
        let reported = problems.missing.has(field) || problems.refused.has(field);
        assert_eq!(value.is_none(), reported, "{field:?} is {value:?} with {problems:?}");
        value
    });
    for (index, (field, _, _)) in gauges[..3].iter().enumerate() {
        let mut lines = found.iter().filter(|line| line.metric() == ENGINE + index).peekable();
        assert_eq!(problems.missing.has(*field), lines.peek().is_none());
        let bad = |line: &Found| match line {
            Found::Sample { bits, .. } => !(0.0..f64::INFINITY).contains(&f64::from_bits(*bits)),
            Found::Malformed { .. } => true,
        };
        assert!(!lines.any(bad) || problems.refused.has(*field), "{field:?} has a bad line");
    }
    (problems, values)
}
