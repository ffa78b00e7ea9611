//! Malformed and hostile recordings.

use std::io::Write;
use std::path::PathBuf;

use proptest::prelude::*;
use usher_core::recording::{EndpointLine, Header, Line, MAX_BLOCKS, Outcome, RequestLine};

use super::bounds::{MOST_OUTPUT, MOST_PROMPT};
use super::tests::{FILE, endpoint, header, of, request, text};
use super::*;
use crate::replay::MOST_SERVERS;
use crate::sim::EngineConfig;

fn read(lines: &[Line]) -> Result<Recording, ReadError> {
    Recording::parse(FILE, text(lines).as_bytes())
}

fn begun() -> Vec<Line> {
    vec![Line::Header(header("r")), endpoint(1)]
}

/// Reads a file; its text of an error.
fn error(path: &PathBuf) -> String {
    let error = Recording::read(std::slice::from_ref(path)).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[test]
fn prompts_of_more_blocks_than_a_picker_numbers_are_broken() {
    let tiny = Header { block_tokens: 1, ..header("r") };
    let mut lines = vec![Line::Header(tiny), endpoint(1), of(request(1, 1, 8000, &[(0, MAX_BLOCKS as u32)]))];
    let long = [vec![(0, MAX_BLOCKS as u32 + 1)], vec![(0, 5_000_000), (9_000_000, 4_000_000)]];
    lines.extend(long.iter().map(|blocks| of(request(2, 1, 8000, blocks))));
    let recording = read(&lines).unwrap();
    assert_eq!(recording.requests.len(), 1);
    assert_eq!(recording.notes, ["a.jsonl:4: this and 1 more lines are broken, and were left out"]);
}

#[test]
fn lines_with_impossible_numbers_are_broken() {
    let with = |outcome| of(RequestLine { outcome: Some(outcome), ..request(2, 1, 9, &[]) });
    let mut lines = begun();
    lines.extend([
        of(request(1, 1, 9, &[])),
        of(request(2, 1, MOST_PROMPT + 1, &[])),
        of(RequestLine { waited_us: u64::MAX, ..request(2, 1, 9, &[]) }),
        with(Outcome { total_us: u64::MAX, ..Outcome::default() }),
        with(Outcome { first_token_us: Some(1 << 60), ..Outcome::default() }),
        with(Outcome { output_tokens: Some(MOST_OUTPUT + 1), ..Outcome::default() }),
        with(Outcome { seen_tokens: u64::MAX, ..Outcome::default() }),
    ]);
    let recording = read(&lines).unwrap();
    assert_eq!(recording.requests.len(), 1);
    assert_eq!(recording.notes, ["a.jsonl:4: this and 5 more lines are broken, and were left out"]);
}

#[test]
fn request_beyond_the_span_is_an_error() {
    let mut lines = begun();
    lines.extend([request(7, 1, 9, &[]), request(u64::MAX, 1, 9, &[]), request(5, 1, 9, &[])].map(of));
    let error = read(&lines).unwrap_err().to_string();
    assert!(error.starts_with("a.jsonl:4: this request comes "), "{error}");
    assert!(error.contains(" hours after that of a.jsonl:5, and a replay has 720 hours at most"), "{error}");
}

#[test]
fn impossible_headers_are_ignored() {
    for broken in [
        Header { started_unix_ms: u64::MAX, ..header("r") },
        Header { block_tokens: 0, ..header("r") },
        Header { token_bytes: 0, ..header("r") },
        header(&"r".repeat(5000)),
    ] {
        let request = of(request(1, 1, 9, &[]));
        let lines = [Line::Header(broken.clone()), endpoint(1), request.clone()];
        assert!(matches!(read(&lines), Err(ReadError::NoRecording(_))), "{broken:?}");
        // What follows is of nobody knows which run.
        let mut lines = begun();
        lines.extend([request.clone(), Line::Header(broken), endpoint(2), request.clone()]);
        lines.extend([Line::Header(header("later")), endpoint(3), request]);
        let recording = read(&lines).unwrap();
        assert_eq!((recording.requests.len(), recording.members.len()), (2, 2));
        assert_eq!(recording.notes, ["a.jsonl:4: this and 2 more lines are broken, and were left out"]);
    }
    let good = text(&begun()) + &text(&[of(request(1, 1, 9, &[]))]);
    let cut = good.clone() + "{\"header\":{\"format\":\"ush\n" + &good[good.find('\n').unwrap() + 1..];
    assert_eq!(Recording::parse(FILE, cut.as_bytes()).unwrap().requests.len(), 1);
}

#[test]
fn more_endpoints_than_a_replay_has_are_an_error() {
    let mut lines = vec![Line::Header(header("r"))];
    lines.extend((0..=MOST_SERVERS as u32).map(endpoint));
    let error = read(&lines).unwrap_err().to_string();
    assert!(error.starts_with("a.jsonl:10002: one endpoint more than the 10000"), "{error}");
}

#[test]
fn impossible_names_and_cache_sizes_are_ignored() {
    let Line::Endpoint(good) = endpoint(1) else { unreachable!() };
    let mut long = good.clone();
    long.name = "x".repeat(5000).into();
    let mut labelled = good.clone();
    labelled.labels = [("a".to_owned(), "x".repeat(20_000))].into();
    let mut small = good.clone();
    (small.block_size, small.num_blocks) = (Some(0), Some(1));
    let lines = [long, labelled, small].map(Line::Endpoint);
    let lines = [vec![Line::Header(header("r"))], lines.into(), vec![of(request(1, 1, 9, &[]))]].concat();
    let recording = read(&lines).unwrap();
    assert_eq!(recording.notes, ["a.jsonl:2: this and 1 more lines are broken, and were left out"]);
    assert_eq!((recording.members[0].block_size, recording.members[0].num_blocks), (None, None));
    let servers = recording.servers(&EngineConfig::default());
    assert!(servers.iter().all(|server| server.engine.validate().is_ok()));
}

#[test]
fn file_without_line_ends_is_not_read_on() {
    assert_eq!(
        error(&"/dev/zero".into()),
        "/dev/zero is no recording: its first line is no header; give a file that usher serve --record wrote"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a\nb.jsonl");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(text(&begun()).as_bytes()).unwrap();
    file.write_all(text(&[of(request(1, 1, 9, &[]))]).as_bytes()).unwrap();
    // A hole of a terabyte, and a line behind it.
    file.set_len(1 << 40).unwrap();
    let recording = Recording::read(&[path]).unwrap();
    assert_eq!((recording.requests.len(), recording.notes.len()), (1, 2));
    let [broken, rest] = &recording.notes[..] else { unreachable!() };
    assert!(broken.ends_with("a\u{fffd}b.jsonl:4: the line is broken, and was left out"), "{broken}");
    assert!(rest.ends_with(":4: what follows was left out: the line is longer than 16 MiB"), "{rest}");
}

#[test]
fn damaged_rotated_file_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    let before = folder.path().join("r.jsonl.1");
    std::fs::write(&path, text(&begun()) + &text(&[of(request(1, 1, 9, &[]))])).unwrap();
    let newer = "{\"header\":{\"format\":\"usher-recording\",\"version\":2}}\n";
    for (damaged, expected) in [("\u{0}\u{0}", "is no recording: its first"), (newer, ":1: version 2 of the")]
    {
        std::fs::write(&before, damaged).unwrap();
        let recording = Recording::read(std::slice::from_ref(&path)).unwrap();
        let [note] = &recording.notes[..] else { panic!("{:?}", recording.notes) };
        assert!(note.starts_with("not used: ") && note.contains("r.jsonl.1"), "{note}");
        assert!(note.contains(expected) && note.lines().count() == 1, "{note}");
        // Whoever names it wants it.
        let error = Recording::read(&[path.clone(), before.clone()]).unwrap_err().to_string();
        assert!(error.contains("r.jsonl.1") && error.contains(expected), "{error}");
    }
    // A damaged file behind a good one isn't passed over.
    std::fs::rename(&path, &before).unwrap();
    std::fs::write(&path, "notes\n").unwrap();
    assert!(error(&path).contains("r.jsonl is no recording"));
}

#[test]
fn block_sizes_are_bounded_and_equal_names_are_numbered() {
    let Line::Endpoint(good) = endpoint(1) else { unreachable!() };
    let sized = |size: u32| {
        let address = format!("10.0.0.1:{size}").into();
        Line::Endpoint(EndpointLine { id: size, address, block_size: Some(size), ..good.clone() })
    };
    let mut lines = vec![Line::Header(header("r"))];
    lines.extend((1..=18).map(sized));
    let mut alike = good.clone();
    (alike.name, alike.block_size) = ("default/pod-1 (10.0.0.1:2)".into(), None);
    lines.insert(1, Line::Endpoint(alike));
    lines.push(of(request(1, 1, 9, &[])));
    let recording = read(&lines).unwrap();
    assert_eq!(recording.notes, ["a.jsonl:19: this and 1 more lines are broken, and were left out"]);
    let mut names: Vec<_> =
        recording.servers(&EngineConfig::default()).into_iter().map(|server| server.name).collect();
    assert_eq!((names.len(), &*names[2]), (17, "default/pod-1 (10.0.0.1:2)'"));
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 17);
}

/// A recording with all kinds of lines and fields.
fn valid() -> String {
    let mut lines = begun();
    lines.push(endpoint(2));
    lines.extend((0..6).map(|n| {
        let outcome = request(0, 1, 0, &[]).outcome.map(|outcome| Outcome {
            prompt_tokens: Some(300),
            cached_tokens: Some(20),
            served: (n == 3).then_some(2),
            ..outcome
        });
        let targets = (n == 2).then_some(25.0);
        of(RequestLine {
            outcome,
            waited_us: n,
            session: Some(n),
            ttft_target_ms: targets,
            tpot_target_ms: targets,
            ..request(n * 1_000_000, 1, 320, &[(0, 8), (8 + 2 * n, 2)])
        })
    }));
    text(&lines)
}

/// A change of some bytes of a text.
#[derive(Clone, Debug)]
enum Mutation {
    Set(u8),
    Insert(Vec<u8>),
    Remove(usize),
    Repeat(usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let text = ["9", "999999", "18446744073709551615", "e300", "-", "\n", "\"", "[[", "}}\n{", "\0\0"];
    prop_oneof![
        any::<u8>().prop_map(Mutation::Set),
        proptest::sample::select(text.to_vec()).prop_map(|text| Mutation::Insert(text.into())),
        (1usize..40).prop_map(Mutation::Remove),
        (1usize..400).prop_map(Mutation::Repeat),
    ]
}

proptest! {
    #[test]
    fn damaged_recording_is_read_or_refused(
        changes in proptest::collection::vec((0.0..1.0f64, mutation()), 1..4),
    ) {
        let mut bytes = valid().into_bytes();
        for (place, change) in changes {
            let at = (bytes.len() as f64 * place) as usize;
            let until = |count: usize| at..bytes.len().min(at + count);
            match change {
                Mutation::Set(byte) => bytes[at] = byte,
                Mutation::Insert(more) => drop(bytes.splice(at..at, more)),
                Mutation::Remove(count) => drop(bytes.drain(until(count))),
                Mutation::Repeat(count) => {
                    let again = bytes[until(count)].to_vec();
                    drop(bytes.splice(at..at, again));
                }
            }
        }
        match Recording::parse(FILE, &bytes) {
            Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
            Ok(recording) => check(&recording, bytes.len()),
        }
    }
}

/// Checks what every recording that was read from so many bytes has.
fn check(recording: &Recording, bytes: usize) {
    assert!(!recording.requests.is_empty());
    assert!(recording.notes.len() <= 6 && recording.notes.iter().all(|note| note.lines().count() == 1));
    let arrivals = recording.arrivals(1);
    let mut before = std::time::Duration::ZERO;
    for (recorded, arrival) in recording.requests.iter().zip(&arrivals) {
        assert_eq!(u64::from(arrival.prompt_tokens()), recorded.prompt_tokens);
        assert!(before <= recorded.at && recorded.prompt_tokens <= MOST_PROMPT);
        before = recorded.at;
    }
    let parts: usize = arrivals.iter().map(|arrival| arrival.prompt.len()).sum();
    // A run of blocks takes six bytes, and is cut where another one begins or ends.
    assert!(parts <= (bytes / 6).pow(2), "{parts}");
    let servers = recording.servers(&EngineConfig::default());
    assert_eq!(
        (servers.len(), recording.outcomes().requests.len()),
        (recording.members.len(), arrivals.len())
    );
    assert!(servers.iter().all(|server| server.engine.validate().is_ok()));
}
