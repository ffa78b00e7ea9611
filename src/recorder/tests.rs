//! A recorder over its file, from decisions to lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use usher_core::endpoints::{EndpointSpec, Store};
use usher_core::memory::Budget;
use usher_core::prefix::Blocks;
use usher_core::recording::{Ending, Line, Outcome, RequestLine};

use super::*;

struct Bench {
    folder: tempfile::TempDir,
    store: Arc<Store>,
    max_bytes: u64,
}

impl Bench {
    fn new(max_bytes: u64) -> Self {
        let store = Arc::new(Store::default());
        store.replace(vec![spec(1), spec(2)]);
        Self { folder: tempfile::tempdir().unwrap(), store, max_bytes }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("recording.jsonl")
    }

    fn start(&self) -> Result<Writer, OpenError> {
        self.start_within(u64::MAX)
    }

    fn start_within(&self, most_block_bytes: u64) -> Result<Writer, OpenError> {
        let path = self.path();
        let settings = Settings { path: &path, max_bytes: self.max_bytes, pool: "p", version: "0" };
        Writer::start_within(&settings, &self.store, &Arc::new(Budget::default()), most_block_bytes)
    }

    /// Reason why it doesn't start, and the name of the file that it is about.
    fn refusal(&self) -> (String, Unusable) {
        let Err(OpenError { file, reason }) = self.start() else { panic!("it starts") };
        (file.file_name().unwrap().to_str().unwrap().to_owned(), reason)
    }

    /// A decision for the first endpoint.
    fn decided(&self, prompt: &[u64]) -> Box<Decided> {
        let endpoint = Arc::clone(&self.store.snapshot().endpoints()[0]);
        let picks = vec![Picked { endpoint, in_flight: 0 }];
        Box::new(Decided {
            at: Instant::now(),
            received: Instant::now(),
            line: RequestLine { model: "m".into(), ..RequestLine::default() },
            blocks: Blocks::from_prompts([prompt]),
            flow: None,
            session: None,
            profiles: vec![ProfilePicked {
                profile: "default".into(),
                is_primary: true,
                is_prefill: false,
                picks,
            }],
            refused: None,
        })
    }
}

fn spec(number: u8) -> EndpointSpec {
    EndpointSpec::new(format!("pod-{number}"), ([10, 0, 0, number], 8000))
}

fn ended() -> Ended {
    Ended {
        ending: Ending::Complete,
        status: Some(200),
        grpc_status: None,
        served: None,
        first_token: Some(0.25),
        total: 1.0,
        prompt_tokens: None,
        cached_tokens: None,
        output_tokens: Some(9),
        seen_tokens: 9,
    }
}

fn lines(path: &Path) -> Vec<Line> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn requests(lines: &[Line]) -> Vec<&RequestLine> {
    let mut requests: Vec<&RequestLine> = Vec::new();
    for line in lines {
        if let Line::Request(request) = line {
            requests.push(request);
        }
    }
    requests
}

#[test]
fn a_request_is_one_line_once_it_has_ended() {
    let bench = Bench::new(1 << 20);
    let writer = bench.start().unwrap();
    let first = writer.recorder().decided(bench.decided(&[7, 8, 9])).unwrap();
    let second = writer.recorder().decided(bench.decided(&[7, 8, 4])).unwrap();
    let elsewhere = Ended { served: Some("10.0.0.2:8000".into()), ..ended() };
    second.ended(elsewhere);
    first.ended(ended());
    writer.stop();
    let lines = lines(&bench.path());
    let Line::Header(header) = &lines[0] else { panic!("no header") };
    assert_eq!((&*header.pool, header.version, header.run.len()), ("p", 1, 16));
    let endpoints = lines.iter().filter(|line| matches!(line, Line::Endpoint(_))).count();
    assert_eq!(endpoints, 2);
    let requests = requests(&lines);
    assert_eq!(
        requests.iter().map(|request| request.blocks.clone()).collect::<Vec<_>>(),
        [vec![(0, 2), (3, 1)], vec![(0, 3)]]
    );
    let outcomes: Vec<&Outcome> = requests.iter().map(|request| request.outcome.as_ref().unwrap()).collect();
    assert_eq!((outcomes[0].served, outcomes[1].served), (Some(1), None));
    assert_eq!((outcomes[1].first_token_us, outcomes[1].total_us), (Some(250_000), 1_000_000));
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(bench.path()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn refused_requests_and_those_under_way_at_the_end_are_written() {
    let bench = Bench::new(1 << 20);
    let writer = bench.start().unwrap();
    let refused = Some(Refused { status: 503, reason: Some("rejected-no-endpoints") });
    let decided = Box::new(Decided { refused, profiles: Vec::new(), ..*bench.decided(&[]) });
    assert!(writer.recorder().decided(decided).is_none());
    let _under_way = writer.recorder().decided(bench.decided(&[1])).unwrap();
    writer.stop();
    let lines = lines(&bench.path());
    let requests = requests(&lines);
    assert_eq!(requests[0].refusal.as_ref().map(|refusal| refusal.status), Some(503));
    assert_eq!(requests[1].outcome.as_ref().map(|outcome| outcome.ending), Some(Ending::UnderWay));
}

#[test]
fn both_files_stay_within_the_bound_and_begin_with_a_header() {
    let bench = Bench::new(64 << 10);
    let writer = bench.start().unwrap();
    for number in 0..2000 {
        // Faster than any disk: as long as the queue has room.
        let mut decided = bench.decided(&[number]);
        let under_way = loop {
            match writer.recorder().decided(decided) {
                Some(under_way) => break under_way,
                None => decided = bench.decided(&[number]),
            }
        };
        under_way.ended(ended());
    }
    let counts = Arc::clone(writer.recorder());
    writer.stop();
    let previous = bench.folder.path().join("recording.jsonl.1");
    let mut sizes = 0;
    for path in [&previous, &bench.path()] {
        let lines = lines(path);
        assert!(
            matches!(lines[..3], [Line::Header(_), Line::Endpoint(_), Line::Endpoint(_)]),
            "{:?}",
            &lines[..3]
        );
        sizes += fs::metadata(path).unwrap().len();
    }
    assert!(sizes <= 64 << 10 && sizes > 32 << 10, "{sizes}");
    assert!(counts.counts().bytes.load(Relaxed) > 4 * (64 << 10));
}

#[test]
fn restart_appends_after_a_truncated_line() {
    let bench = Bench::new(1 << 20);
    let record = || {
        let writer = bench.start().unwrap();
        writer.recorder().decided(bench.decided(&[5])).unwrap().ended(ended());
        writer.stop();
    };
    record();
    let mut text = fs::read_to_string(bench.path()).unwrap();
    text += r#"{"request":{"at_us":5,"mo"#;
    fs::write(bench.path(), &text).unwrap();
    record();
    let after = fs::read_to_string(bench.path()).unwrap();
    let added = after.strip_prefix(&text).unwrap().strip_prefix('\n').unwrap();
    assert!(matches!(serde_json::from_str(added.lines().next().unwrap()), Ok(Line::Header(_))));
    assert_eq!(added.lines().filter(|line| line.starts_with("{\"request\"")).count(), 1);
}

#[test]
fn older_recordings_are_moved_and_other_files_refused() {
    let bench = Bench::new(1 << 20);
    let previous = bench.folder.path().join("recording.jsonl.1");
    fs::write(bench.path(), "{\"header\":{\"format\":\"usher-recording\",\"version\":9}}\n").unwrap();
    bench.start().unwrap().stop();
    assert!(fs::read_to_string(&previous).unwrap().contains("\"version\":9"));
    assert!(matches!(lines(&bench.path())[0], Line::Header(_)));

    for path in [&bench.path(), &previous] {
        let kept = fs::read(path).unwrap();
        fs::write(path, "my notes\n").unwrap();
        let (named, reason) = bench.refusal();
        assert!(matches!(reason, Unusable::Other) && path.ends_with(&named), "{path:?}: {named}");
        assert_eq!(fs::read_to_string(path).unwrap(), "my notes\n");
        fs::write(path, kept).unwrap();
    }
    fs::remove_file(bench.path()).unwrap();
    fs::create_dir(bench.path()).unwrap();
    assert!(matches!(bench.refusal(), (named, Unusable::NoFile) if named == "recording.jsonl"));
    fs::remove_dir(bench.path()).unwrap();
    fs::remove_file(&previous).unwrap();
    fs::create_dir(&previous).unwrap();
    assert!(matches!(bench.refusal(), (named, Unusable::NoFile) if named == "recording.jsonl.1"));
}

#[test]
fn rotation_replaces_recordings_only() {
    let bench = Bench::new(64 << 10);
    let writer = bench.start().unwrap();
    let recorder = Arc::clone(writer.recorder());
    wait_until(&|| recorder.counts().lines.load(Relaxed) == 3);
    let previous = bench.folder.path().join("recording.jsonl.1");
    fs::write(&previous, "my notes\n").unwrap();
    wait_until(&|| {
        if let Some(under_way) = recorder.decided(bench.decided(&[1])) {
            under_way.ended(ended());
        }
        recorder.counts().errors.load(Relaxed) > 0
    });
    assert_eq!(fs::read_to_string(&previous).unwrap(), "my notes\n");
    writer.stop();
}

#[test]
fn recording_with_a_truncated_header_is_moved_away() {
    let bench = Bench::new(1 << 20);
    for cut in ["{\"hea", "{\"header\":{\"format\":\"usher-rec", "\0\0\0"] {
        fs::write(bench.path(), cut).unwrap();
        bench.start().unwrap().stop();
        assert!(matches!(lines(&bench.path())[0], Line::Header(_)), "{cut:?}");
        let previous = bench.folder.path().join("recording.jsonl.1");
        assert_eq!(fs::read_to_string(previous).unwrap(), cut);
    }
}

#[test]
fn two_pickers_do_not_share_a_file() {
    let bench = Bench::new(1 << 20);
    let writer = bench.start().unwrap();
    assert!(matches!(bench.refusal(), (_, Unusable::InUse)));
    writer.stop();
    bench.start().unwrap().stop();
}

#[test]
fn removed_file_is_counted_and_recreated() {
    let bench = Bench::new(1 << 20);
    let writer = bench.start().unwrap();
    let recorder = Arc::clone(writer.recorder());
    let aside = bench.folder.path().join("aside");
    let written = || !fs::read(bench.path()).unwrap_or_default().is_empty();
    wait_until(&written);
    fs::rename(bench.path(), &aside).unwrap();
    wait_until(&|| recorder.counts().errors.load(Relaxed) == 1 && written());
    recorder.decided(bench.decided(&[1])).unwrap().ended(ended());
    writer.stop();
    let lines = lines(&bench.path());
    assert!(matches!(lines[0], Line::Header(_)));
    assert_eq!(requests(&lines).len(), 1);
}

#[test]
fn a_request_whose_end_is_lost_is_counted() {
    let bench = Bench::new(1 << 20);
    let writer = bench.start().unwrap();
    let recorder = Arc::clone(writer.recorder());
    drop(recorder.decided(bench.decided(&[1])).unwrap());
    wait_until(&|| recorder.counts().dropped.load(Relaxed) == 1);
    writer.stop();
    assert!(requests(&lines(&bench.path())).is_empty());
}

#[test]
fn blocks_of_requests_under_way_are_bounded() {
    let bench = Bench::new(1 << 20);
    // Four runs of 16 bytes.
    let writer = bench.start_within(64).unwrap();
    let recorder = Arc::clone(writer.recorder());
    let [forth, back] = [[1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1]];
    let _one_run = recorder.decided(bench.decided(&forth)).unwrap();
    let eight_runs = recorder.decided(bench.decided(&back)).unwrap();
    let _no_room = recorder.decided(bench.decided(&forth)).unwrap();
    wait_until(&|| recorder.counts().dropped.load(Relaxed) == 1);
    eight_runs.ended(ended());
    // The header, two endpoints, and this one.
    wait_until(&|| recorder.counts().lines.load(Relaxed) == 4);
    wait_until(&|| {
        let (lines, dropped) = (&recorder.counts().lines, &recorder.counts().dropped);
        let before = dropped.load(Relaxed);
        recorder.decided(bench.decided(&forth)).unwrap().ended(ended());
        // One after the other: a full queue would lose ends, and with them the room.
        wait_until(&|| lines.load(Relaxed) > 4 || dropped.load(Relaxed) > before);
        lines.load(Relaxed) > 4
    });
    writer.stop();
}

#[test]
fn cache_sizes_are_recorded_once_known() {
    let bench = Bench::new(1 << 20);
    let writer = bench.start().unwrap();
    let recorder = Arc::clone(writer.recorder());
    wait_until(&|| recorder.counts().lines.load(Relaxed) == 3);
    let snapshot = bench.store.snapshot();
    let load = snapshot.endpoints()[0].load();
    load.block_size.set(16.0, 1);
    load.num_blocks.set(900.0, 1);
    load.waiting.set(3.0, 1);
    wait_until(&|| recorder.counts().lines.load(Relaxed) == 4);
    writer.stop();
    let lines = lines(&bench.path());
    let Line::Endpoint(last) = &lines[3] else { panic!("{lines:?}") };
    assert_eq!((lines.len(), last.block_size, last.num_blocks), (4, Some(16), Some(900)));
}

#[test]
fn added_and_removed_endpoints_are_recorded() {
    let bench = Bench::new(1 << 20);
    let writer = bench.start().unwrap();
    let decided = bench.decided(&[1]);
    bench.store.replace(vec![spec(2), spec(3)]);
    // It was picked just before it left.
    writer.recorder().decided(decided).unwrap().ended(ended());
    writer.stop();
    let lines = lines(&bench.path());
    let named = |number: u32| {
        lines.iter().any(|line| matches!(line, Line::Endpoint(endpoint) if endpoint.id == number))
    };
    let picked = requests(&lines)[0].picks[0].picks[0].load.id;
    assert!(named(picked));
    assert!(lines.iter().any(|line| matches!(line, Line::Gone(gone) if gone.id == picked)), "{lines:?}");
}

fn wait_until(holds: &dyn Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "never");
        std::thread::yield_now();
    }
}
