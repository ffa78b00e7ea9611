//! Requests and endpoints of a recording.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use usher_core::recording::{BlockRun, Ending, EndpointLine, Header, Line, Outcome, RequestLine};

/// Longest prompt and output that is believed, in tokens; the longest contexts are a tenth of it.
const MOST_TOKENS: u64 = 10_000_000;

/// An endpoint of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// `namespace/name`.
    pub name: String,
    /// `host:port`.
    pub address: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Tokens of a block of its KV cache, where it says so.
    pub block_size: Option<u32>,
    /// Blocks of its KV cache, where it says so.
    pub num_blocks: Option<u32>,
    /// Time since the first request when it was there first.
    pub joined: Duration,
    /// Time when it left, unless it stayed to the end.
    pub left: Option<Duration>,
}

/// A request of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// Time since the first request.
    pub at: Duration,
    /// Time in a queue before the decision.
    pub waited: Duration,
    /// Number of the run that numbers its blocks.
    pub run: usize,
    /// Blocks of the prompt.
    pub blocks: Vec<BlockRun>,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Tokens of the prompt as the picker estimates them: those of the simulation.
    pub prompt_tokens: u64,
    /// Targets for the first token and for each after it, if it named both.
    pub targets: Option<(Duration, Duration)>,
    /// Position of the endpoint that it was sent to, or that served it; `None` if it was refused, or another did.
    pub server: Option<usize>,
    /// Position of the endpoint that computed its prompt, if another one.
    pub prefiller: Option<usize>,
    /// Status of a refusal by the picker.
    pub refused: Option<u16>,
    /// Outcome, if it was sent on.
    pub outcome: Option<Outcome>,
}

impl Recorded {
    /// Generated tokens: as the server counted them, else as they passed; `None` where that isn't known.
    pub fn output_tokens(&self) -> Option<u64> {
        let outcome = self.outcome.as_ref()?;
        let seen = Some(outcome.seen_tokens).filter(|tokens| *tokens > 0);
        outcome.output_tokens.or(seen).filter(|tokens| *tokens > 0)
    }

    /// Returns `true` if it has a complete good response.
    pub fn is_answered(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| {
            outcome.ending == Ending::Complete
                && outcome.status.is_none_or(|status| status < 400)
                && outcome.grpc_status.is_none_or(|status| status == 0)
        })
    }

    /// Cached tokens of the prompt, in the tokens of the picker; `None` where the server doesn't tell.
    pub fn cached_tokens(&self) -> Option<u64> {
        let outcome = self.outcome.as_ref()?;
        let (cached, counted) = (outcome.cached_tokens?, outcome.prompt_tokens?.max(1));
        let share = cached.min(counted) as f64 / counted as f64;
        Some((share * self.prompt_tokens as f64).round() as u64)
    }
}

/// A recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// Requests, by arrival.
    pub requests: Vec<Recorded>,
    /// Endpoints that were there.
    pub members: Vec<Member>,
    /// Sentences that the user should know.
    pub notes: Vec<String>,
}

/// A run of a picker.
#[derive(Debug, Default)]
struct Run {
    /// Start in microseconds since 1970.
    start_us: u64,
    block_tokens: u32,
    token_bytes: u32,
    /// Positions of its endpoints.
    members: HashMap<u32, usize>,
}

/// State of reading a recording's lines. Times are in microseconds since 1970.
#[derive(Debug, Default)]
pub(super) struct Collector {
    pub(super) notes: Vec<String>,
    runs: Vec<Run>,
    by_name: HashMap<Box<str>, usize>,
    current: Option<usize>,
    /// Time of the last line.
    latest: u64,
    requests: Vec<(u64, Recorded)>,
    members: Vec<(u64, Option<u64>, Member)>,
    by_address: HashMap<(String, String), usize>,
    models: BTreeSet<Box<str>>,
    subsets: u64,
}

impl Collector {
    /// Returns `true` after the first header.
    pub(super) fn has_run(&self) -> bool {
        self.current.is_some()
    }

    /// Begins a run, or goes on with one. A list of all its endpoints follows: any endpoint that isn't on it has
    /// left, however the file before ended.
    pub(super) fn header(&mut self, header: &Header) {
        for (joined, left, _) in &mut self.members {
            left.get_or_insert(self.latest.max(*joined));
        }
        let runs = &mut self.runs;
        let number = *self.by_name.entry(header.run.clone()).or_insert_with(|| {
            runs.push(Run {
                start_us: header.started_unix_ms.saturating_mul(1000),
                block_tokens: header.block_tokens.clamp(1, 1 << 16),
                token_bytes: header.token_bytes.max(1),
                members: HashMap::new(),
            });
            runs.len() - 1
        });
        self.current = Some(number);
    }

    /// Takes a line; `false`: its numbers can't be.
    pub(super) fn line(&mut self, line: Line) -> bool {
        let Some(current) = self.current else { return false };
        let at_us = match &line {
            Line::Header(_) => 0,
            Line::Endpoint(EndpointLine { at_us, .. }) => *at_us,
            Line::Gone(gone) => gone.at_us,
            Line::Request(request) => request.at_us,
        };
        self.latest = self.latest.max(self.runs[current].start_us.saturating_add(at_us));
        match line {
            Line::Header(header) => self.header(&header),
            Line::Endpoint(endpoint) => self.endpoint(current, endpoint),
            Line::Gone(gone) => {
                let at = self.runs[current].start_us.saturating_add(gone.at_us);
                if let Some(member) = self.runs[current].members.get(&gone.id) {
                    self.members[*member].1 = Some(at);
                }
            }
            Line::Request(request) => return self.request(current, *request),
        }
        true
    }

    fn endpoint(&mut self, current: usize, line: EndpointLine) {
        let EndpointLine { at_us, id, name, address, labels, block_size, num_blocks } = line;
        let at = self.runs[current].start_us.saturating_add(at_us);
        // A terminal may show them.
        let plain = |text: Box<str>| text.replace(char::is_control, "\u{fffd}");
        let key = (plain(name), plain(address));
        let members = &mut self.members;
        let position = *self.by_address.entry(key.clone()).or_insert_with(|| {
            members.push((at, None, Member { name: key.0, address: key.1, ..Member::default() }));
            members.len() - 1
        });
        let (_, left, member) = &mut self.members[position];
        *left = None;
        member.labels = labels;
        member.block_size = block_size.or(member.block_size);
        member.num_blocks = num_blocks.or(member.num_blocks);
        self.runs[current].members.insert(id, position);
    }

    fn request(&mut self, current: usize, line: RequestLine) -> bool {
        let run = &self.runs[current];
        let blocks = line.blocks.iter().fold(0u64, |sum, (_, count)| sum.saturating_add((*count).into()));
        let numbered = blocks.saturating_mul(run.block_tokens.into());
        let counted = line.outcome.as_ref().and_then(|outcome| outcome.prompt_tokens);
        let by_bytes = line.body_bytes / u64::from(run.token_bytes);
        let estimated = line.prompt_tokens.or(counted).unwrap_or(by_bytes);
        let prompt_tokens = match line.prompt_tokens {
            // All of it is numbered, but for the end of the last block.
            Some(tokens) => tokens,
            None => estimated.max(numbered),
        };
        let output = line.outcome.as_ref().map_or(0, |o| o.output_tokens.unwrap_or(0).max(o.seen_tokens));
        let has_overflow =
            line.blocks.iter().any(|(first, count)| first.checked_add((*count).into()).is_none());
        if prompt_tokens.max(numbered).max(output) > MOST_TOKENS || has_overflow {
            return false;
        }
        let member = |id: u32| run.members.get(&id).copied();
        let pick = |of: Option<&usher_core::recording::ProfilePicks>| {
            of.and_then(|run| run.picks.first()).and_then(|pick| member(pick.load.id))
        };
        let picked = pick(line.picks.iter().find(|run| run.is_primary));
        let outcome = line.outcome.as_ref();
        let server = match outcome.map(|outcome| (outcome.served, outcome.is_served_elsewhere)) {
            Some((_, true)) => None,
            Some((Some(served), false)) => member(served),
            _ => picked,
        };
        let prefiller = pick(line.picks.iter().find(|run| run.is_prefill && !run.is_primary));
        let target = |ms: Option<f64>| Duration::try_from_secs_f64(ms? / 1e3).ok();
        self.models.insert(line.target_model.unwrap_or(line.model));
        self.subsets += u64::from(line.offered < line.endpoints && line.refusal.is_none());
        let recorded = Recorded {
            waited: Duration::from_micros(line.waited_us),
            run: current,
            block_tokens: run.block_tokens,
            blocks: line.blocks,
            prompt_tokens,
            targets: target(line.ttft_target_ms).zip(target(line.tpot_target_ms)),
            server: server.filter(|_| line.refusal.is_none()),
            prefiller: prefiller.filter(|prefiller| Some(*prefiller) != server),
            refused: line.refusal.map(|refusal| refusal.status),
            outcome: line.outcome,
            at: Duration::ZERO,
        };
        self.requests.push((run.start_us.saturating_add(line.at_us), recorded));
        true
    }

    /// The recording; `None` if there is no request.
    pub(super) fn finish(mut self) -> Option<Recording> {
        self.requests.sort_by_key(|(at, _)| *at);
        let start = self.requests.first()?.0;
        let since = |at: u64| Duration::from_micros(at.saturating_sub(start));
        let mut notes = self.notes;
        if self.models.len() > 1 {
            let count = self.models.len();
            notes.push(format!("requests ask for {count} models or adapters; all are replayed as one model"));
        }
        if self.subsets > 0 {
            let count = self.subsets;
            notes.push(format!(
                "the gateway allowed {count} requests some endpoints only; here they may go to all"
            ));
        }
        let member = |(joined, left, member): (u64, Option<u64>, Member)| Member {
            joined: since(joined),
            left: left.map(since),
            ..member
        };
        Some(Recording {
            requests: self
                .requests
                .into_iter()
                .map(|(at, request)| Recorded { at: since(at), ..request })
                .collect(),
            members: self.members.into_iter().map(member).collect(),
            notes,
        })
    }
}
