//! Requests and endpoints of a recording.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use usher_core::recording::{BlockRun, EndpointLine, Header, Line, MAX_BLOCKS, MAX_LABELS, RequestLine};

use super::bounds::{MOST_BYTES, MOST_OUTPUT, MOST_PROMPT, MOST_REQUESTS, believable, split};
use super::error::ReadError;
use super::recorded::{Member, Recorded, Recording};
use crate::replay::error::LONGEST;
use crate::replay::servers::MOST_SERVERS;

/// Start of a run from which on a clock is wrong: the year 10000, in milliseconds since 1970.
const LATEST_START: u64 = 253_402_300_800_000;

/// Bytes of a name, of an endpoint or a run.
const NAME: usize = 1 << 10;

/// Sizes of KV blocks: prompts are hashed once for each.
const MOST_BLOCK_SIZES: usize = 16;

/// Tokens of a block at most.
const MOST_BLOCK_TOKENS: u32 = 1 << 16;

/// Bytes that an entry of a map takes beside its text, about.
const ENTRY: usize = 128;

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

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Counted.
    Yes,
    /// Impossible numbers, or an unknown run.
    Broken,
    /// Over the limit, so that the lines after it don't count either.
    Full,
}

/// A request before the start of the recording is known.
#[derive(Debug)]
struct Pending {
    at_us: u64,
    /// File and number of its line.
    line: (usize, usize),
    recorded: Recorded,
}

/// State of reading a recording's lines. Times are in microseconds since 1970.
#[derive(Debug, Default)]
pub(super) struct Collector {
    pub(super) notes: Vec<String>,
    /// Files that were begun, as messages name them.
    files: Vec<String>,
    /// Number of the line.
    number: usize,
    /// Bytes that all this takes, about.
    bytes: usize,
    runs: Vec<Run>,
    by_name: HashMap<Box<str>, usize>,
    /// Run of the next lines; `None`: not known.
    current: Option<usize>,
    /// Time of the last line.
    latest: u64,
    requests: Vec<Pending>,
    members: Vec<(u64, Option<u64>, Member)>,
    /// Positions of those that haven't left.
    present: HashSet<usize>,
    by_address: HashMap<(String, String), usize>,
    /// Tokens of a block of their KV caches.
    block_sizes: BTreeSet<u32>,
    /// Hashes of their names.
    models: HashSet<u64>,
    subsets: u64,
}

impl Collector {
    /// Begins a file.
    pub(super) fn file(&mut self, name: String) {
        self.files.push(name);
        (self.number, self.current) = (0, None);
    }

    /// Name of the file that is read, and number of the line.
    pub(super) fn position(&self) -> (String, usize) {
        (self.files.last().cloned().unwrap_or_default(), self.number)
    }

    /// Begins a line.
    pub(super) fn next_line(&mut self) -> usize {
        self.number += 1;
        self.number
    }

    /// A header can't be read, so the numbers of the next lines have no meaning.
    pub(super) fn lose_run(&mut self) {
        self.current = None;
    }

    /// Begins a run, or goes on with one. A list of all its endpoints follows: any endpoint that isn't on it has
    /// left, however the file before ended.
    pub(super) fn header(&mut self, header: &Header) -> Taken {
        self.current = None;
        let is_sane = header.started_unix_ms < LATEST_START
            && header.run.len() <= NAME
            && (1..=MOST_BLOCK_TOKENS).contains(&header.block_tokens)
            && header.token_bytes > 0;
        if !is_sane {
            return Taken::Broken;
        }
        for position in self.present.drain() {
            let (joined, left, _) = &mut self.members[position];
            *left = Some(self.latest.max(*joined));
        }
        let number = match self.by_name.get(&header.run) {
            Some(number) => *number,
            None => {
                if !self.has_room(size_of::<Run>() + header.run.len() + ENTRY) {
                    return Taken::Full;
                }
                self.runs.push(Run {
                    start_us: header.started_unix_ms * 1000,
                    block_tokens: header.block_tokens,
                    token_bytes: header.token_bytes,
                    members: HashMap::new(),
                });
                self.by_name.insert(header.run.clone(), self.runs.len() - 1);
                self.runs.len() - 1
            }
        };
        self.current = Some(number);
        Taken::Yes
    }

    /// Takes a line.
    ///
    /// # Errors
    /// `ReadError` if the recording has more endpoints than a replay supports.
    pub(super) fn line(&mut self, line: Line) -> Result<Taken, ReadError> {
        let current = match (self.current, &line) {
            (_, Line::Header(header)) => return Ok(self.header(header)),
            (None, _) => return Ok(Taken::Broken),
            (Some(current), _) => current,
        };
        let at_us = match &line {
            Line::Header(_) => 0,
            Line::Endpoint(EndpointLine { at_us, .. }) => *at_us,
            Line::Gone(gone) => gone.at_us,
            Line::Request(request) => request.at_us,
        };
        let at = self.runs[current].start_us.saturating_add(at_us);
        let taken = match line {
            Line::Header(_) => Taken::Yes,
            Line::Endpoint(endpoint) => self.endpoint(current, endpoint, at)?,
            Line::Gone(gone) => {
                if let Some(member) = self.runs[current].members.get(&gone.id) {
                    self.members[*member].1 = Some(at);
                    self.present.remove(member);
                }
                Taken::Yes
            }
            Line::Request(request) => self.request(current, *request, at),
        };
        if taken == Taken::Yes {
            self.latest = self.latest.max(at);
        }
        Ok(taken)
    }

    /// Takes so many bytes more, if there is room.
    fn has_room(&mut self, bytes: usize) -> bool {
        let has_room = self.bytes + bytes <= MOST_BYTES;
        self.bytes += if has_room { bytes } else { 0 };
        has_room
    }

    fn endpoint(&mut self, current: usize, line: EndpointLine, at: u64) -> Result<Taken, ReadError> {
        let EndpointLine { at_us: _, id, name, address, labels, block_size, num_blocks } = line;
        let text: usize = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        if name.len() > NAME || address.len() > NAME || text > MAX_LABELS {
            return Ok(Taken::Broken);
        }
        let block_size = block_size.filter(|size| *size > 0);
        let is_new = block_size.filter(|size| !self.block_sizes.contains(size));
        if is_new.is_some() && self.block_sizes.len() == MOST_BLOCK_SIZES {
            return Ok(Taken::Broken);
        }
        let entries = (labels.len() + 4) * ENTRY;
        if !self.has_room(2 * (name.len() + address.len()) + text + entries) {
            return Ok(Taken::Full);
        }
        // A terminal may show them.
        let plain = |text: Box<str>| text.replace(char::is_control, "\u{fffd}");
        let key = (plain(name), plain(address));
        let position = match self.by_address.get(&key) {
            Some(position) => *position,
            None if self.members.len() == MOST_SERVERS => {
                let (file, line) = self.position();
                return Err(ReadError::Endpoints { file, line });
            }
            None => {
                let member = Member { name: key.0.clone(), address: key.1.clone(), ..Member::default() };
                self.members.push((at, None, member));
                self.by_address.insert(key, self.members.len() - 1);
                self.members.len() - 1
            }
        };
        let (_, left, member) = &mut self.members[position];
        *left = None;
        self.present.insert(position);
        self.block_sizes.extend(block_size);
        member.labels = labels;
        member.block_size = block_size.or(member.block_size);
        // A cache of a block may be one of a token, in which no request fits.
        member.num_blocks = num_blocks.filter(|blocks| *blocks > 1).or(member.num_blocks);
        self.runs[current].members.insert(id, position);
        Ok(Taken::Yes)
    }

    fn request(&mut self, current: usize, line: RequestLine, at_us: u64) -> Taken {
        let run = &self.runs[current];
        let blocks = line.blocks.iter().fold(0u64, |sum, (_, count)| sum.saturating_add((*count).into()));
        let numbered = blocks.saturating_mul(run.block_tokens.into());
        let outcome = line.outcome.as_ref();
        let counted = outcome.and_then(|outcome| outcome.prompt_tokens);
        let by_bytes = line.body_bytes / u64::from(run.token_bytes);
        let estimated = line.prompt_tokens.or(counted).unwrap_or(by_bytes);
        let prompt_tokens = match line.prompt_tokens {
            // All of it is numbered, but for the end of the last block.
            Some(tokens) => tokens,
            None => estimated.max(numbered),
        };
        let output = outcome.map_or(0, |o| o.output_tokens.unwrap_or(0).max(o.seen_tokens));
        let took = outcome.map_or(0, |o| o.total_us.max(o.first_token_us.unwrap_or(0)));
        let has_overflow =
            line.blocks.iter().any(|(first, count)| first.checked_add((*count).into()).is_none());
        let (Some(waited), Some(_)) = (believable(line.waited_us), believable(took)) else {
            return Taken::Broken;
        };
        if prompt_tokens.max(numbered) > MOST_PROMPT
            || output > MOST_OUTPUT
            || blocks > MAX_BLOCKS as u64
            || has_overflow
        {
            return Taken::Broken;
        }
        let member = |id: u32| run.members.get(&id).copied();
        let pick = |of: Option<&usher_core::recording::ProfilePicks>| {
            of.and_then(|run| run.picks.first()).and_then(|pick| member(pick.load.id))
        };
        let picked = pick(line.picks.iter().find(|run| run.is_primary));
        let server = match outcome.map(|outcome| (outcome.served, outcome.is_served_elsewhere)) {
            Some((_, true)) => None,
            Some((Some(served), false)) => member(served),
            _ => picked,
        };
        let prefiller = pick(line.picks.iter().find(|run| run.is_prefill && !run.is_primary));
        let target = |ms: Option<f64>| {
            Duration::try_from_secs_f64(ms? / 1e3).ok().filter(|time| !time.is_zero() && *time <= LONGEST)
        };
        let recorded = Recorded {
            waited,
            run: current,
            block_tokens: run.block_tokens,
            blocks: line.blocks,
            prompt_tokens,
            targets: target(line.ttft_target_ms).zip(target(line.tpot_target_ms)),
            server: server.filter(|_| line.refusal.is_none()),
            prefiller: prefiller.filter(|prefiller| Some(*prefiller) != server),
            refused: line.refusal.as_ref().map(|refusal| refusal.status),
            outcome: line.outcome,
            at: Duration::ZERO,
        };
        let bytes = size_of::<Pending>() + recorded.blocks.capacity() * size_of::<BlockRun>() + ENTRY;
        if self.requests.len() == MOST_REQUESTS || !self.has_room(bytes) {
            return Taken::Full;
        }
        let mut hasher = DefaultHasher::new();
        line.target_model.unwrap_or(line.model).hash(&mut hasher);
        self.models.insert(hasher.finish());
        self.subsets += u64::from(line.offered < line.endpoints && line.refusal.is_none());
        let line = (self.files.len().saturating_sub(1), self.number);
        self.requests.push(Pending { at_us, line, recorded });
        Taken::Yes
    }

    /// The recording; `None` if there is no request.
    ///
    /// # Errors
    /// `ReadError` if the last request is later than the longest replay.
    pub(super) fn finish(mut self) -> Result<Option<Recording>, ReadError> {
        self.requests.sort_by_key(|pending| pending.at_us);
        let (Some(first), Some(last)) = (self.requests.first(), self.requests.last()) else {
            return Ok(None);
        };
        let start = first.at_us;
        let since = |at: u64| Duration::from_micros(at.saturating_sub(start));
        if since(last.at_us) > LONGEST {
            let place =
                |(file, line): (usize, usize)| (self.files.get(file).cloned().unwrap_or_default(), line);
            return Err(ReadError::Span {
                first: place(first.line),
                last: place(last.line),
                span: since(last.at_us),
            });
        }
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
        let request = |pending: Pending| Recorded { at: since(pending.at_us), ..pending.recorded };
        let mut requests: Vec<Recorded> = self.requests.into_iter().map(request).collect();
        let (count, all) = (split(&mut requests), requests.len());
        if count < all {
            requests.truncate(count);
            notes.push(format!(
                "the first {count} of {all} requests are replayed: all have more tokens, or parts of prompts, than a replay takes"
            ));
        }
        let member = |(joined, left, member): (u64, Option<u64>, Member)| Member {
            joined: since(joined),
            left: left.map(since),
            ..member
        };
        let members = self.members.into_iter().map(member).collect();
        Ok(Some(Recording { requests, members, notes }))
    }
}
