//! Numbers of a server's page of metrics and of the machine.

use std::fs;
use std::time::Duration;

/// Times to first token as engines counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FirstTokens {
    /// Seconds of simulated time, of all together.
    pub seconds: f64,
    /// Their number.
    pub count: f64,
}

impl FirstTokens {
    /// Counts others, too.
    pub fn add(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.count += other.count;
    }

    /// Mean seconds.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.seconds / self.count)
    }
}

/// Reads the first tokens of a server's page of metrics.
pub fn first_tokens(page: &str) -> FirstTokens {
    let value = |suffix: &str| {
        let name = format!("vllm:time_to_first_token_seconds_{suffix}{{");
        let line = page.lines().find(|line| line.starts_with(&name))?;
        line.rsplit_once(' ')?.1.parse().ok()
    };
    FirstTokens { seconds: value("sum").unwrap_or_default(), count: value("count").unwrap_or_default() }
}

/// Time of all cores since the start of the machine, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    busy: u64,
    all: u64,
}

impl Ticks {
    /// Now; `None` where there is no `/proc`.
    pub fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses the first line of `/proc/stat` (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq
    /// and steal.
    pub fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let all = ticks.iter().sum();
        Some(Self { busy: all - idle, all })
    }

    /// Share of the cores' time since then that was not idle.
    pub fn busy_since(&self, then: &Self) -> Option<f64> {
        let all = self.all.checked_sub(then.all).filter(|all| *all > 0)?;
        Some(self.busy.saturating_sub(then.busy) as f64 / all as f64)
    }
}

/// Time that a process had a core, and that it had to wait for one, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// With a core.
    pub ran: Duration,
    /// Ready to run, and without a core.
    pub waited: Duration,
}

impl Used {
    /// Sums up all threads of a process; zero where the kernel doesn't report it.
    pub fn of(pid: u32) -> Self {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let texts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
        texts.filter_map(|text| Self::parse(&text)).fold(Self::default(), |all, one| Self {
            ran: all.ran + one.ran,
            waited: all.waited + one.waited,
        })
    }

    /// Parses a thread's `schedstat`: nanoseconds with a core, nanoseconds without, turns.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_whitespace().map(|field| field.parse().map(Duration::from_nanos));
        Some(Self { ran: fields.next()?.ok()?, waited: fields.next()?.ok()? })
    }
}

/// Share of a core that a process used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Name of the process.
    pub name: &'static str,
    /// Cores that it used.
    pub cores: f64,
    /// Share of the time in which it waited for a core.
    pub waited: f64,
}

/// Shares of a core that processes used between two readings.
pub fn shares(before: &[(&'static str, Used)], after: &[(&'static str, Used)], time: Duration) -> Vec<Share> {
    let share = |after: Duration, before| after.saturating_sub(before).as_secs_f64() / time.as_secs_f64();
    let pairs = after.iter().zip(before);
    pairs
        .map(|((name, after), (_, before))| Share {
            name,
            cores: share(after.ran, before.ran),
            waited: share(after.waited, before.waited),
        })
        .collect()
}

/// Use of the machine by a run.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Share of all cores' time that was not idle, whoever used it.
    pub machine: Option<f64>,
    /// The processes of the run, the client among them.
    pub processes: Vec<Share>,
    /// Delay of requests from due to sent, median and 99th percentile.
    pub late: (Duration, Duration),
}

impl Load {
    /// Share of the time in which the process waited for a core that waited most.
    pub fn waited(&self) -> f64 {
        self.processes.iter().map(|process| process.waited).fold(0.0, f64::max)
    }
}
