//! Reading of recordings: valid, damaged and cut short.

use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;
use usher_core::recording::{
    BLOCK_TOKENS, Ending, EndpointLine, EndpointLoad, FORMAT, Header, Line, Outcome, Pick, ProfilePicks,
    RequestLine, VERSION,
};

use super::*;
use crate::replay::Arrival;
use crate::replay::workload::Piece;
use crate::sim::EngineConfig;

pub(super) const FILE: &str = "a.jsonl";

pub(super) fn header(run: &str) -> Header {
    Header {
        format: FORMAT.into(),
        version: VERSION,
        usher: "0".into(),
        run: run.into(),
        started_unix_ms: 1_700_000_000_000,
        pool: "p".into(),
        block_tokens: BLOCK_TOKENS,
        token_bytes: 4,
    }
}

pub(super) fn endpoint(id: u32) -> Line {
    Line::Endpoint(EndpointLine {
        at_us: 0,
        id,
        name: format!("default/pod-{id}").into(),
        address: format!("10.0.0.{id}:8000").into(),
        labels: [("tier".to_owned(), "gold".to_owned())].into(),
        block_size: Some(16),
        num_blocks: Some(27_000),
    })
}

fn pick(id: u32) -> ProfilePicks {
    let load = EndpointLoad { id, ..EndpointLoad::default() };
    ProfilePicks { is_primary: true, picks: vec![Pick { load, in_flight: 0 }], ..ProfilePicks::default() }
}

pub(super) fn request(at_us: u64, id: u32, tokens: u64, blocks: &[(u64, u32)]) -> RequestLine {
    RequestLine {
        at_us,
        model: "m".into(),
        prompt_tokens: Some(tokens),
        blocks: blocks.into(),
        picks: vec![pick(id)],
        outcome: Some(Outcome {
            first_token_us: Some(100_000),
            total_us: 300_000,
            output_tokens: Some(5),
            ..Outcome::default()
        }),
        ..RequestLine::default()
    }
}

pub(super) fn text(lines: &[Line]) -> String {
    lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect()
}

fn read(text: &[u8]) -> Result<Recording, ReadError> {
    Recording::parse(FILE, text)
}

pub(super) fn of(line: RequestLine) -> Line {
    Line::Request(Box::new(line))
}

#[test]
fn shared_blocks_are_shared_text() {
    let recorded = text(&[
        Line::Header(header("r")),
        endpoint(1),
        of(request(5_000_000, 1, 150, &[(0, 5)])),
        of(request(4_000_000, 1, 160, &[(0, 3), (5, 2)])),
        of(request(6_000_000, 1, 96, &[(0, 3)])),
        Line::Header(header("another")),
        endpoint(1),
        of(request(7_000_000, 1, 96, &[(0, 3)])),
    ]);
    let recording = read(recorded.as_bytes()).unwrap();
    let arrivals = recording.arrivals(7);
    assert_eq!(arrivals.iter().map(|arrival| arrival.at.as_secs()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let tokens = |arrival: &Arrival| arrival.prompt.iter().map(|piece| piece.tokens).collect::<Vec<_>>();
    assert_eq!(
        arrivals.iter().map(tokens).collect::<Vec<_>>(),
        [vec![96, 64], vec![96, 54], vec![96], vec![96]]
    );
    let first: Vec<Piece> = arrivals.iter().map(|arrival| arrival.prompt[0]).collect();
    assert!(first[0] == first[1] && first[1] == first[2] && first[2] != first[3]);
    assert_ne!(arrivals[0].prompt[1].seed, arrivals[1].prompt[1].seed);
    let servers = recording.servers(&EngineConfig::default());
    assert_eq!((servers.len(), servers[0].engine.num_blocks), (1, 27_000));
    assert_eq!(servers[0].labels["tier"], "gold");
}

#[test]
fn servers_not_listed_after_a_restart_have_left() {
    let mut restarted = header("later");
    restarted.started_unix_ms += 60_000;
    let recorded = text(&[
        Line::Header(header("r")),
        endpoint(1),
        endpoint(2),
        of(request(5_000_000, 1, 96, &[])),
        of(request(9_000_000, 2, 96, &[])),
        Line::Header(restarted),
        endpoint(2),
        of(request(1_000_000, 2, 96, &[])),
    ]);
    let recording = read(recorded.as_bytes()).unwrap();
    let left: Vec<_> = recording.members.iter().map(|member| (&*member.name, member.left)).collect();
    assert_eq!(left, [("default/pod-1", Some(Duration::from_secs(4))), ("default/pod-2", None)]);
}

#[test]
fn control_characters_of_names_are_not_kept() {
    let Line::Endpoint(mut hostile) = endpoint(1) else { unreachable!() };
    hostile.name = "default/\u{1b}[2Jpod".into();
    let lines = [Line::Header(header("r")), Line::Endpoint(hostile), of(request(0, 1, 96, &[]))];
    let recording = read(text(&lines).as_bytes()).unwrap();
    assert_eq!(recording.members[0].name, "default/\u{fffd}[2Jpod");
}

#[test]
fn unknown_output_lengths_are_the_median() {
    let outcome = |ending, output_tokens, seen_tokens| {
        Some(Outcome { ending, output_tokens, seen_tokens, ..Outcome::default() })
    };
    let with = |outcome| of(RequestLine { outcome, ..request(1, 1, 32, &[(0, 1)]) });
    let recorded = text(&[
        Line::Header(header("r")),
        endpoint(1),
        with(outcome(Ending::Complete, Some(10), 3)),
        with(outcome(Ending::Complete, None, 20)),
        with(outcome(Ending::CutOff, None, 30)),
        with(outcome(Ending::Unseen, None, 0)),
        with(outcome(Ending::UnderWay, None, 0)),
        with(None),
    ]);
    let arrivals = read(recorded.as_bytes()).unwrap().arrivals(0);
    let outputs: Vec<u32> = arrivals.iter().map(|arrival| arrival.output_tokens).collect();
    assert_eq!(outputs, [10, 20, 30, 20, 20, 20]);
}

#[test]
fn broken_lines_are_left_out_with_a_note() {
    let good = text(&[Line::Header(header("r")), endpoint(1), of(request(1, 1, 32, &[(0, 1)]))]);
    let huge = of(RequestLine { blocks: vec![(0, u32::MAX)], ..request(1, 1, 32, &[]) });
    let broken = format!(
        "{good}{{\"request\":{{\"at_us\":5}}}}\n\u{0}x\n{}{{\"later\":{{\"a\":1}}}}\n{{\"request\":{{\"at",
        text(&[huge])
    );
    let recording = read(broken.as_bytes()).unwrap();
    assert_eq!(recording.requests.len(), 1);
    assert_eq!(
        recording.notes,
        [
            "a.jsonl:4: this and 2 more lines are broken, and were left out",
            "a.jsonl: the last line is cut short, and was left out"
        ]
    );
    let long =
        format!("{good}{{\"later\":\"{}\"}}\n{}", "x".repeat(3 << 20), text(&[of(request(2, 1, 5, &[]))]));
    let recording = read(long.as_bytes()).unwrap();
    assert_eq!((recording.requests.len(), recording.notes.len()), (2, 1));
}

#[test]
fn file_of_another_format_is_refused_in_a_sentence() {
    let newer = "{\"header\":{\"format\":\"usher-recording\",\"version\":3,\"run\":7}}\n";
    let good = text(&[Line::Header(header("r"))]);
    let cases = [
        ("", "there is no request in a.jsonl"),
        (good.as_str(), "there is no request in a.jsonl"),
        ("hello\n", "a.jsonl is no recording: its first line is no header"),
        ("{\"request\":{\"at_us\":1,\"model\":\"m\"}}\n", "a.jsonl is no recording"),
        (newer, "a.jsonl:1: version 3 of the format, and this usher reads versions up to 1"),
        (&(good.clone() + newer), "a.jsonl:2: version 3 of the format"),
    ];
    for (text, expected) in cases {
        let error = read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expected) && error.lines().count() == 1, "{error}");
    }
    let missing = Recording::read(&[PathBuf::from("/no/such/file")]).unwrap_err().to_string();
    assert!(missing.starts_with("cannot read /no/such/file: No such file"), "{missing}");
}

#[test]
fn rotated_file_is_read_first_and_each_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    let before = folder.path().join("r.jsonl.1");
    let of = |at_us| text(&[Line::Header(header("r")), endpoint(1), of(request(at_us, 1, 32, &[(3, 1)]))]);
    std::fs::write(&path, of(2_000_000)).unwrap();
    std::fs::write(&before, of(1_000_000)).unwrap();
    let recording = Recording::read(&[before.clone(), path.clone(), path.clone()]).unwrap();
    assert_eq!((recording.requests.len(), recording.members.len()), (2, 1));
    assert_eq!(recording, Recording::read(std::slice::from_ref(&path)).unwrap());
    let prompts: Vec<_> = recording.arrivals(1).into_iter().map(|arrival| arrival.prompt).collect();
    assert_eq!(prompts[0], prompts[1], "of one run");
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), with_header: bool) {
        let mut all = if with_header { text(&[Line::Header(header("r"))]).into_bytes() } else { Vec::new() };
        all.extend(bytes);
        let _ = read(&all);
    }

    #[test]
    fn any_request_is_replayed_or_left_out(
        blocks in proptest::collection::vec((any::<u64>(), any::<u32>()), 0..4),
        small in proptest::collection::vec((0u64..9, 0u32..9), 0..6),
        tokens in proptest::option::of(0u64..2000),
        at_us: u64,
    ) {
        let line = |blocks: &[(u64, u32)]| RequestLine { prompt_tokens: tokens, ..request(at_us, 1, 0, blocks) };
        let text = text(&[Line::Header(header("r")), endpoint(1), of(line(&blocks)), of(line(&small))]);
        let recording = read(text.as_bytes()).unwrap();
        for (recorded, arrival) in recording.requests.iter().zip(recording.arrivals(1)) {
            prop_assert_eq!(u64::from(arrival.prompt_tokens()), recorded.prompt_tokens);
        }
    }

    #[test]
    fn cut_at_any_byte_all_whole_lines_are_read(share in 0.0..1.0f64) {
        let requests = (0..20).map(|n| of(request(n, 1, 40, &[(n, 2)])));
        let all = text(&[Line::Header(header("r")), endpoint(1)]) + &text(&requests.collect::<Vec<_>>());
        let cut = &all.as_bytes()[..(all.len() as f64 * share) as usize];
        let whole = cut.split_inclusive(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{\"request") && line.ends_with(b"\n"));
        let whole = whole.count();
        match read(cut) {
            // The end of a line may lack.
            Ok(recording) => prop_assert!((whole..=whole + 1).contains(&recording.requests.len())),
            Err(_) => prop_assert_eq!(whole, 0),
        }
    }
}
