//! More bodies at once than the memory budget has room for.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use envoy_types::pb::envoy::service::ext_proc::v3::ImmediateResponse;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;

use crate::support::{Connection, PROMPT, Picker, Stream, body, headers};

const ONE: [(&str, &str, u16); 1] = [("a", "127.0.0.1", 1)];
const POST: [(&str, &str); 2] = [(":method", "POST"), (":path", "/other")];
const MI: usize = 1 << 20;
const STREAMS: usize = 72;

/// Of this 48 MiB are left for what isn't counted.
const BUDGET: &str = "--memory-budget=64Mi";
const COUNTED: usize = 16;

fn says_why(refusal: ImmediateResponse) -> bool {
    let set = refusal.headers.unwrap().set_headers;
    let has = |name: &str, value: &str| {
        set.iter().filter_map(|option| option.header.as_ref()).any(|header| {
            header.key == name && (header.raw_value == value.as_bytes() || header.value == value)
        })
    };
    refusal.status.unwrap().code == 429
        && has("x-llm-d-request-dropped-reason", "rejected-saturated")
        && has("retry-after", "1")
}

fn bodies(picker: &Picker) -> f64 {
    picker.metric("usher_memory_bodies_bytes").unwrap()
}

fn refused(picker: &Picker) -> f64 {
    picker.metric("usher_memory_refused_total").unwrap()
}

async fn settle(mut done: impl FnMut() -> bool) {
    while !done() {
        tokio::task::yield_now().await;
    }
}

async fn is_served(connection: &Connection) -> Stream {
    let mut stream = connection.stream().await;
    stream.send(headers(&[(":method", "POST"), (":path", "/v1/completions")], false));
    stream.send(body(PROMPT, true));
    assert_eq!(stream.request_headers().await.destination(), "127.0.0.1:1");
    stream
}

#[tokio::test]
async fn bodies_above_the_budget_are_refused_and_room_comes_back() {
    let picker = Picker::start(&ONE, &[BUDGET]).await;
    let limit = picker.metric("usher_memory_limit_bytes").unwrap();
    assert_eq!(limit, (COUNTED * MI) as f64);
    let connection = picker.connect().await;
    let chunk = vec![b'z'; MI];
    for round in 1..=2 {
        let mut open = Vec::new();
        let mut last = loop {
            let stream = connection.stream().await;
            stream.send(headers(&POST, false));
            stream.send(body(&chunk, false));
            let (with_it, rounds) = (((open.len() + 1) * MI) as f64, f64::from(round));
            settle(|| bodies(&picker) >= with_it || refused(&picker) == rounds).await;
            assert!(bodies(&picker) <= limit);
            if refused(&picker) == rounds {
                break stream;
            }
            open.push(stream);
        };
        // A message is a little more than the body in it, and the connection takes a mebibyte.
        assert!((COUNTED - 3..COUNTED).contains(&open.len()), "{}", open.len());
        assert!(says_why(last.immediate().await));
        // What is there already goes on, and what is small has room; a body goes with the
        // replies that carry it, not with its stream.
        let small = is_served(&connection).await;
        let mut whole = open.pop().unwrap();
        whole.send(body("z", true));
        whole.request_headers().await;
        let mut received = 0;
        while received < MI + 1 {
            received += whole.request_body().await.0.len();
        }
        let kept = open.len();
        settle(|| bodies(&picker) <= (kept * MI) as f64).await;
        open.into_iter().for_each(Stream::disconnect);
        settle(|| bodies(&picker) == 0.0).await;
        drop((small, whole));
    }
}

/// `usher serve` as a process, killed when dropped.
struct Process {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Process {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoints = folder.path().join("endpoints.yaml");
        std::fs::write(&endpoints, "endpoints: [{name: a, address: 127.0.0.1, port: '1'}]").unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_usher"))
            .args(["serve", "--bind-address=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0"])
            .args(["--metrics-port=0", "--admin-address=off", "--zap-encoder=json"])
            .args(["--secure-serving=false", BUDGET])
            .arg(format!("--endpoints-file={}", endpoints.display()))
            .env_remove("NAMESPACE")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended before it served");
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if line["message"] == "serving" {
                break line["extproc"].as_str().unwrap().parse().unwrap();
            }
        };
        // It goes on writing.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { child, address, _folder: folder }
    }

    /// The most memory that it has had, in bytes.
    fn peak(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// More than 200 MiB of bodies come at once to a process that may take 64.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_process_stays_below_its_budget() {
    let process = Process::start();
    let mut connections = Vec::new();
    for _ in 0..4 {
        connections.push(Connection::to(process.address).await);
    }
    let idle = process.peak();
    let chunk = vec![b'z'; MI];
    let mut streams = Vec::new();
    for turn in 0..STREAMS {
        let stream = connections[turn % 4].stream().await;
        stream.send(headers(&POST, false));
        streams.push(stream);
    }
    // All but the ends first, so that nothing can leave before the most of it is there.
    for _ in 0..3 {
        streams.iter().for_each(|stream| stream.send(body(&chunk, false)));
    }
    streams.iter().for_each(|stream| stream.send(body(&chunk, true)));
    let (mut served, mut refused) = (0, 0);
    for mut stream in streams {
        match stream.reply().await.response {
            Some(Reply::RequestHeaders(_)) => served += 1,
            Some(Reply::ImmediateResponse(refusal)) => {
                assert!(says_why(refusal));
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(served > 0 && refused > 0, "{served} served, {refused} refused");
    // Built for tests the program alone takes several times what it should: what the requests
    // add stays below the budget.
    let added = process.peak() - idle;
    assert!(added < 64 * MI, "{added} bytes, and {idle} when idle; {served} served, {refused} refused");
    is_served(&connections[0]).await;
}
