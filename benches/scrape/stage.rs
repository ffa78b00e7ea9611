//! The processes of a measurement.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use usher::load::process::usage;

/// From the start of a process until it is measured: connections, first pages.
const WARM_UP: Duration = Duration::from_millis(1500);

/// Scraper that is measured.
#[derive(Clone, Copy, Debug)]
pub enum Case {
    Bare,
    Usher,
    /// Usher, asking for the metrics in use only.
    Selecting,
}

/// Processor and memory that a case used, its rate of pages, and the ages of its readings.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub cores: f64,
    /// Pages per second.
    pub pages: f64,
    pub mebibytes: f64,
    /// Milliseconds.
    pub age_p50: f64,
    pub age_p99: f64,
}

/// Servers that run.
#[derive(Debug)]
pub struct Stage {
    servers: Process,
    live: String,
    ports: Vec<String>,
}

impl Stage {
    pub fn start(endpoints: u16, dead: u16, apart: bool) -> Self {
        let arguments = ["servers", &endpoints.to_string(), &dead.to_string()];
        let apart = apart.then_some("--apart");
        let mut servers = Process::start(arguments.into_iter().chain(apart));
        let ports = servers.line().split_whitespace().map(str::to_owned).collect();
        Self { servers, live: endpoints.to_string(), ports }
    }

    pub fn measure(&mut self, case: Case, time: Duration) -> Measured {
        assert!(self.servers.child.try_wait().unwrap().is_none(), "the servers run");
        let name = match case {
            Case::Bare => "bare",
            Case::Usher | Case::Selecting => "usher",
        };
        let ports = self.ports.iter().map(String::as_str);
        let select = matches!(case, Case::Selecting).then_some("--select");
        let mut process = Process::start([name, &self.live].into_iter().chain(ports).chain(select));
        sleep(WARM_UP);
        process.say("start");
        let pages = self.pages();
        let (id, start) = (process.child.id(), Instant::now());
        let before = usage(id).unwrap();
        sleep(time);
        let (after, elapsed) = (usage(id).unwrap(), start.elapsed());
        let pages = self.pages() - pages;
        process.say("end");
        let ages = process.line();
        let mut ages = ages.split_whitespace().map(|age| age.parse().unwrap());
        Measured {
            cores: (after.cpu - before.cpu).as_secs_f64() / elapsed.as_secs_f64(),
            pages: pages / elapsed.as_secs_f64(),
            mebibytes: after.memory as f64 / f64::from(1 << 20),
            age_p50: ages.next().unwrap(),
            age_p99: ages.next().unwrap(),
        }
    }
}

impl Stage {
    /// Number of pages that the servers sent so far.
    fn pages(&mut self) -> f64 {
        self.servers.say("how many");
        self.servers.line().trim().parse().unwrap()
    }
}

/// A process of this program, which ends with its standard input.
#[derive(Debug)]
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
