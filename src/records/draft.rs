//! Turns the numbers of a decision into a record.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};

use smallvec::SmallVec;
use usher_core::endpoints::{Candidates, Endpoint, EndpointName, Gauge, Snapshot};
use usher_core::request::Request;
use usher_plugin::Decision;

use super::record::{DecisionRecord, EngineKnown, ProfileRecord, Refusal};
use super::recorded;
use super::request_names::RequestNames;
use super::ring::Records;
use super::row::{HiddenBy, Row, Signals};
use super::subject::Subject;
use super::text::bounded;
use super::trace::{DETAILED, RunTrace, Trace};
use super::tracked::Tracked;
use crate::recorder::{Decided, Recorder};

/// Characters of a message that are kept.
const MESSAGE: usize = 256;

/// Destinations of decisions that are recorded; `None`: not recorded there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sinks<'a> {
    /// The ring of the last ones.
    pub records: Option<&'a Arc<Records>>,
    /// The recording in a file.
    pub recorder: Option<&'a Arc<Recorder>>,
}

impl Sinks<'_> {
    /// Returns `true` if nothing is recorded.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.records.is_none() && self.recorder.is_none()
    }
}

/// A record that has no id yet, and is in no ring and no file.
#[derive(Debug)]
pub struct Draft {
    /// Record that is not shared yet.
    kept: Option<(Arc<Records>, Arc<DecisionRecord>)>,
    recorded: Option<(Arc<Recorder>, Box<Decided>)>,
    is_refused: bool,
    decided: Instant,
}

impl Draft {
    /// A record of a decision, or of a request that was refused.
    pub fn new(
        sinks: Sinks<'_>,
        subject: &Subject<'_>,
        decision: Option<&Decision>,
        refusal: Option<Refusal>,
    ) -> Self {
        let recorded = sinks.recorder.map(|recorder| {
            (Arc::clone(recorder), Box::new(recorded::decided(recorder, subject, decision, refusal.as_ref())))
        });
        let is_refused = refusal.is_some();
        let kept =
            sinks.records.map(|records| (Arc::clone(records), Arc::new(record(subject, decision, refusal))));
        Self { kept, recorded, is_refused, decided: subject.at }
    }

    /// A record in the ring of a request that was refused before anything was scheduled, of whose body so many bytes
    /// had come.
    pub fn unscheduled(
        records: &Arc<Records>,
        request: &Request,
        body_bytes: usize,
        refusal: Refusal,
        at: Instant,
    ) -> Self {
        let candidates = Arc::new(Snapshot::new(0, Vec::new())).all();
        let trace = Trace::default();
        let subject = Subject::new(request, &candidates, &trace, 0, at);
        let record =
            DecisionRecord { body_bytes: body_bytes as u64, ..record(&subject, None, Some(refusal)) };
        let kept = Some((Arc::clone(records), Arc::new(record)));
        Self { kept, recorded: None, is_refused: true, decided: at }
    }

    /// Puts it into the ring under the request's id, and into the file, and follows the response of a request that was
    /// sent on. `None` where it isn't kept.
    pub fn keep(self, request_id: &str) -> Option<Tracked> {
        let recorded = self.recorded.and_then(|(recorder, decided)| recorder.decided(decided));
        let kept = self.kept.and_then(|(records, mut record)| {
            Arc::get_mut(&mut record)?.request_names.identify(request_id);
            let kept = records.push(record, self.decided)?;
            Some((records, kept))
        });
        let is_tracked = !self.is_refused && (kept.is_some() || recorded.is_some());
        is_tracked.then(|| Tracked::new(kept, recorded, self.decided))
    }
}

impl Refusal {
    /// A refusal with this status and message.
    pub fn new(status: u16, reason: Option<&'static str>, message: &str) -> Self {
        Self { status, reason, message: bounded(message, MESSAGE) }
    }
}

fn record(subject: &Subject<'_>, decision: Option<&Decision>, refusal: Option<Refusal>) -> DecisionRecord {
    let Subject { request, candidates, .. } = subject;
    let among = decision.map(Decision::candidates);
    let positions = Positions::of(subject, decision);
    let mut rows = Vec::with_capacity(positions.0.len());
    rows.extend(positions.0.iter().filter_map(|position| row(subject, *position)));
    let names = names(candidates.snapshot(), &mut rows);
    if let Some(first) = decision.and_then(|decision| decision.primary().picks.first())
        && let Some(row) = positions.find(*first).and_then(|row| rows.get_mut(usize::from(row)))
    {
        // It was booked a moment ago.
        row.subtract_own();
    }
    let count = |candidates: &Candidates| u32::try_from(candidates.len()).unwrap_or(u32::MAX);
    let endpoints = count(candidates);
    let left = among.map_or(endpoints, count);
    if let Some(among) = among.filter(|among| among.len() < candidates.len()) {
        for (row, position) in rows.iter_mut().zip(&positions.0) {
            if !among.indices().contains(position) {
                row.hidden = Some(hidden_by(subject, *position));
            }
        }
    }
    let runs = subject.trace.runs().iter();
    DecisionRecord {
        number: 0,
        sequence: AtomicU64::new(0),
        request_names: RequestNames::new(&request.model, &request.target_model),
        unix_ms: unix_ms(),
        waited: request.received.map(|received| subject.at.saturating_duration_since(received).as_secs_f64()),
        priority: request.priority,
        is_stream: request.stream,
        body_bytes: request.body.len() as u64,
        input_tokens: subject.input_tokens,
        max_output_tokens: request.max_output_tokens,
        endpoints,
        candidates: left,
        names,
        kv_events: kv_events(subject, &rows),
        rows: rows.into(),
        profiles: runs.map(|run| profile(run, &positions, decision)).collect(),
        refusal,
        outcome: Default::default(),
        is_slow: Default::default(),
        kept_for: Default::default(),
        held: Default::default(),
    }
}

/// Positions in the snapshot of a record's rows.
struct Positions(SmallVec<[u32; DETAILED]>);

impl Positions {
    /// All candidates of a small pool; picks and the best of a large one.
    fn of(subject: &Subject<'_>, decision: Option<&Decision>) -> Self {
        let all = subject.candidates.indices();
        if all.len() <= DETAILED {
            return Self(all.into());
        }
        let mut kept = Self(SmallVec::new());
        for run in decision.into_iter().flat_map(Decision::runs) {
            run.picks.iter().for_each(|pick| kept.add(*pick));
        }
        for run in subject.trace.runs() {
            let best = run.best.iter().filter_map(|place| run.survivors.get(*place as usize));
            best.for_each(|position| kept.add(*position));
        }
        kept
    }

    fn add(&mut self, position: u32) {
        if self.0.len() < DETAILED && !self.0.contains(&position) {
            self.0.push(position);
        }
    }

    fn find(&self, position: u32) -> Option<u16> {
        let row = self.0.iter().position(|known| *known == position)?;
        u16::try_from(row).ok()
    }
}

fn profile(run: &RunTrace, positions: &Positions, decision: Option<&Decision>) -> ProfileRecord {
    let chosen =
        decision.and_then(|decision| decision.runs().iter().find(|each| each.profile == run.profile));
    let is_primary = decision.is_some_and(|decision| decision.primary().profile == run.profile);
    let picks: SmallVec<[u16; 4]> = chosen
        .iter()
        .flat_map(|chosen| &chosen.picks)
        .take(DETAILED)
        .filter_map(|pick| positions.find(*pick))
        .collect();
    // Of a small pool rows and survivors are in the same order, so that finding one looks at the next row first.
    let mut next = 0;
    let mut row_of = |position: u32| {
        let row = match positions.0.get(next) {
            Some(known) if *known == position => u16::try_from(next).ok(),
            _ => positions.find(position),
        };
        next = row.map_or(next, |row| usize::from(row) + 1);
        row
    };
    let places: SmallVec<[(usize, u16); DETAILED]> = if run.survivors.len() <= DETAILED {
        let places = run.survivors.iter().enumerate();
        places.filter_map(|(place, position)| Some((place, row_of(*position)?))).collect()
    } else {
        // The few rows are looked for among the many survivors, which are in order unless a filter sorts.
        let place = |position: &u32| {
            // Where nobody is missing before it, it is at its own place.
            let own = *position as usize;
            let found = if run.survivors.get(own) == Some(position) {
                Some(own)
            } else {
                run.survivors.binary_search(position).ok()
            };
            found.or_else(|| run.survivors.iter().position(|each| each == position))
        };
        let rows = positions.0.iter().zip(0u16..);
        rows.filter_map(|(position, row)| Some((place(position)?, row))).collect()
    };
    let columns = run.columns();
    let mut scores = Vec::with_capacity(columns.len() * places.len());
    for column in columns {
        scores.extend(places.iter().map(|(place, _)| column.get(*place).copied().unwrap_or_default()));
    }
    let mut profile = ProfileRecord {
        shape: Arc::clone(&run.shape),
        is_primary,
        steps: run.steps.as_slice().into(),
        dropped: run
            .dropped
            .iter()
            .filter_map(|(filter, position)| Some((*filter, positions.find(*position)?)))
            .collect(),
        survivors: u32::try_from(run.survivors.len()).unwrap_or(u32::MAX),
        scored: places.iter().map(|(_, row)| *row).collect(),
        scores: scores.into(),
        runner_up: None,
        estimates: run
            .estimates
            .iter()
            .filter_map(|(position, estimate)| Some((positions.find(*position)?, *estimate)))
            .collect(),
        picks,
    };
    profile.runner_up = runner_up(&profile);
    profile
}

/// The scored endpoint with the highest total besides the first pick.
fn runner_up(profile: &ProfileRecord) -> Option<u16> {
    let first = profile.picks.first()?;
    let others = profile.scored.iter().zip(0..).filter(|(row, _)| *row != first);
    let totals = others.map(|(row, place)| (*row, profile.total(place)));
    // The first of equal ones, as estimates are made for that.
    totals.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|(row, _)| row)
}

fn row(subject: &Subject<'_>, position: u32) -> Option<Row> {
    let endpoint = subject.candidates.snapshot().endpoints().get(position as usize)?;
    let cached = subject.prefix.map(|prefix| prefix.blocks_at(position).saturating_mul(prefix.block_size));
    let signals = Signals { cached_tokens: cached, ..signals(endpoint, subject.now_ms) };
    let name = u16::try_from(position).unwrap_or_default();
    Some(Row::new(position, name, signals))
}

/// Names of the rows. Those of a small pool are shared, at the cost of one reference; a large one's would stay in memory
/// for a few rows, once for each change of membership.
fn names(pool: &Snapshot, rows: &mut [Row]) -> Arc<[EndpointName]> {
    if pool.endpoints().len() <= DETAILED {
        return Arc::clone(pool.names());
    }
    let named = |(row, at): (&mut Row, u16)| {
        row.name = at;
        pool.endpoints()[row.position as usize].names()
    };
    rows.iter_mut().zip(0..).map(named).collect()
}

/// By rows; empty where no plugin follows KV events.
fn kv_events(subject: &Subject<'_>, rows: &[Row]) -> Box<[Option<EngineKnown>]> {
    let Some(events) = subject.kv_events else { return Box::default() };
    let known = |row: &Row| {
        let status = events.status_at(row.position)?;
        Some(EngineKnown { status, cached_tokens: events.tokens_at(row.position) })
    };
    rows.iter().map(known).collect()
}

fn hidden_by(subject: &Subject<'_>, position: u32) -> HiddenBy {
    let endpoint = subject.candidates.snapshot().endpoints().get(position as usize);
    let is_ejected = endpoint.is_some_and(|endpoint| endpoint.health().condition().ejection.is_some());
    if is_ejected { HiddenBy::Ejection } else { HiddenBy::Narrowing }
}

fn signals(endpoint: &Endpoint, now_ms: u64) -> Signals {
    let load = endpoint.load();
    let mut oldest = None;
    let mut read = |gauge: &Gauge| {
        let at = gauge.read_at_ms()?;
        let age = u32::try_from(now_ms.saturating_sub(at)).unwrap_or(u32::MAX);
        oldest = oldest.max(Some(age));
        Some(gauge.last() as f32)
    };
    let (waiting, running, kv_usage) = (read(&load.waiting), read(&load.running), read(&load.kv_usage));
    let in_flight = u32::try_from(load.in_flight()).unwrap_or_default();
    Signals { waiting, running, kv_usage, age_ms: oldest, in_flight, cached_tokens: None }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
