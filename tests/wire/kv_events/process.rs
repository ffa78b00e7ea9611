//! An engine in a process of its own: libzmq's sockets, and events by Python's msgpack.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::*;

struct Publisher {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Of its events, and of its replays.
    ports: [u16; 2],
}

impl Publisher {
    fn start(python: &str, ports: [u16; 2], form: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire/kv_events/publisher.py");
        let mut command = Command::new(python);
        command.arg(script).arg(A).args(ports.map(|port| port.to_string())).arg(form);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut publisher = Self { child, stdin, stdout: BufReader::new(stdout), ports };
        let taken = publisher.line();
        let taken: Vec<u16> = taken.split_whitespace().map(|port| port.parse().unwrap()).collect();
        publisher.ports = taken.try_into().unwrap();
        publisher
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Publishes a batch of one event.
    fn publish(&mut self, event: &Value) {
        writeln!(self.stdin, "{event}").unwrap();
        assert_eq!(self.line(), "sent\n", "{event}");
    }

    /// Stores so many blocks from this token on, each with a batch of its own.
    fn store(&mut self, first: u32, blocks: u32) {
        for at in (first..).step_by(BLOCK as usize).take(blocks as usize) {
            let parent = (at > first).then(|| at - 1);
            self.publish(&json!({"store": [at, at + BLOCK], "parent": parent}));
        }
    }
}

impl Drop for Publisher {
    /// With SIGKILL.
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A Python with libzmq and msgpack; CI has to make one.
#[expect(clippy::print_stdout, reason = "says why nothing is tested")]
fn python() -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/ci/zeromq.sh");
    let output = Command::new(script).output().unwrap();
    if output.status.success() {
        return Some(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(std::env::var_os("CI").is_none(), "{why}");
    println!("NOT TESTED: {why}");
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_killed_and_restarted_processes_are_known() {
    let Some(python) = python() else { return };
    for form in ["array", "map", "maps"] {
        let mut engine = Publisher::start(&python, [0, 0], form);
        // Before anybody listens.
        engine.store(0, 2);
        let [port, replay] = engine.ports;
        let picker = picker(&format!("socketPort: {port}, replaySocketPort: {replay}"), "").await;
        let well = [format!("{A}:8000")];
        wait(&picker, "blocks", "a", 2.0);
        wait(&picker, "known", "a", 2.0);
        // Older replays name no model, so the first message shows what they were of.
        engine.publish(&json!({"store": [8, 12], "parent": 7}));
        wait(&picker, "blocks", "a", 3.0);
        wait(&picker, "known", "a", 2.0);
        assert_eq!(destinations(&picker, 0..12).await, well, "{form}");
        engine.publish(&json!({"store": [12, 16], "parent": 11, "lose": true}));
        engine.publish(&json!({"store": [16, 24], "parent": 15}));
        wait(&picker, "blocks", "a", 6.0);
        assert_eq!(number(&picker, "gaps_total", "a"), Some(1.0), "{form}");
        // Without its head the rest is of no use.
        engine.publish(&json!({"remove": [0, 4]}));
        let end = Instant::now() + Duration::from_secs(30);
        while destinations(&picker, 0..12).await == well {
            assert!(Instant::now() < end, "{form}: the head is still there");
        }
        wait(&picker, "known", "a", 2.0);
        assert_eq!(number(&picker, "restarts_total", "a"), Some(0.0), "{form}");
        // Numbers that stay behind those of the process before, and such that overtake them.
        for (restarts, (first, blocks)) in (1..).zip([(100, 3), (200, 8)]) {
            drop(engine);
            engine = Publisher::start(&python, [port, replay], form);
            engine.store(first, blocks);
            wait(&picker, "blocks", "a", blocks.into());
            wait(&picker, "known", "a", 2.0);
            assert_eq!(number(&picker, "restarts_total", "a"), Some(f64::from(restarts)), "{form}");
            assert_eq!(destinations(&picker, first..first + 12).await, well, "{form}");
            assert_eq!(destinations(&picker, 0..12).await.len(), 2, "{form}: those of the first process");
        }
        engine.publish(&json!({"clear": true}));
        wait(&picker, "blocks", "a", 0.0);
        wait(&picker, "known", "a", 2.0);
    }
}
