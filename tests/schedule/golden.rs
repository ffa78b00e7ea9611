//! Five hundred requests of a real trace over simulated servers in virtual time, and where
//! each of them went. Whatever changes a decision changes the log, which is checked in:
//! `USHER_ACCEPT=1 cargo test --test schedule golden::` writes it anew, and its difference is there
//! to be read.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Deserialize;
use usher::config::EndpointPickerConfig;
use usher::endpoints::{EndpointSpec, Snapshot, Store};
use usher::registry::Pipeline;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{Context, Effects, Facts, Record, RequestContext, SchedulerMetrics, Scratch, State};
use usher::sim::{Engine, EngineConfig, Finish, Kind, SimRequest};

const SERVERS: usize = 6;
const SCRAPE: Duration = Duration::from_millis(50);
const MAX_AGE: Duration = Duration::from_secs(2);

const CONFIG: &str = "
plugins:
- {type: inflight-load-producer, parameters: {addEstimatedOutputTokens: true}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: load-aware-scorer
- type: running-requests-size-scorer
- type: active-request-scorer
- type: token-load-scorer
- {type: utilization-filter, parameters: {conditions: [{metric: kv-cache-utilization, maxValue: 0.9}], fallbackOnEmpty: true}}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: utilization-filter
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: load-aware-scorer, weight: 1}
  - {pluginRef: running-requests-size-scorer, weight: 1}
  - {pluginRef: active-request-scorer, weight: 1}
  - {pluginRef: token-load-scorer, weight: 1}
  - pluginRef: max-score-picker
";

#[derive(Deserialize)]
struct Row {
    timestamp: u64,
    input_length: usize,
    output_length: u32,
}

/// Servers, what runs on them, and what was read of them last.
struct Pool {
    engines: Vec<Engine>,
    store: Store,
    /// Observers of each request that is under way; dropped with its last token.
    under_way: HashMap<u64, (usher::schedule::ResponseObservers, bool)>,
    scraped: Duration,
}

impl Pool {
    fn new() -> Self {
        let engine = |index: u64| {
            let slower = if index == 0 { 3.0 } else { 1.0 };
            let default = EngineConfig::default();
            Engine::new(EngineConfig {
                prefill_tokens_per_second: default.prefill_tokens_per_second / slower,
                decode_step: default.decode_step.mul_f64(slower),
                max_running: 8,
                num_blocks: 9_000,
                seed: index,
                ..default
            })
        };
        let store = Store::default();
        let spec = |index| EndpointSpec::new(format!("server-{index}"), ([10, 0, 0, index], 8000));
        store.replace((0..SERVERS as u8).map(spec).collect());
        let engines = (0..SERVERS as u64).map(|index| engine(index).unwrap()).collect();
        let mut pool = Self { engines, store, under_way: HashMap::new(), scraped: Duration::ZERO };
        pool.scrape();
        pool
    }

    /// Lets time pass, scrapes on the way.
    fn advance(&mut self, to: Duration) {
        while self.scraped + SCRAPE <= to {
            self.scraped += SCRAPE;
            self.run(self.scraped);
            self.scrape();
        }
        self.run(to);
    }

    fn run(&mut self, to: Duration) {
        let mut outputs = Vec::new();
        self.engines.iter_mut().for_each(|engine| engine.advance(to, &mut outputs));
        for output in outputs {
            if output.finished {
                self.under_way.remove(&output.id);
            } else if let Some((observers, begun)) = self.under_way.get_mut(&output.id)
                && !std::mem::replace(begun, true)
            {
                observers.first_token();
            }
        }
    }

    fn scrape(&mut self) {
        let snapshot = self.store.snapshot();
        let now_ms = self.scraped.as_millis() as u64 + 1;
        for (engine, endpoint) in self.engines.iter().zip(snapshot.endpoints()) {
            let (state, load) = (engine.state(), endpoint.load());
            load.waiting.set(state.waiting as f64, now_ms);
            load.running.set(state.running as f64, now_ms);
            load.kv_usage.set(state.kv_usage, now_ms);
            load.scraped(now_ms);
        }
    }
}

fn completion(tokens: usize, output: u32) -> Request {
    let parsers = Parsers::new(&[ParserKind::OpenAi]);
    let headers: Headers = [(":path", "/v1/completions")].into_iter().collect();
    let mut parser = RequestParser::new(headers, &parsers);
    let prompt = "word".repeat(tokens);
    parser.push(format!(r#"{{"model":"m","prompt":"{prompt}","max_tokens":{output}}}"#).into());
    parser.finish().unwrap()
}

fn name(snapshot: &Snapshot, position: u32) -> &str {
    snapshot.endpoints()[position as usize].name()
}

fn decisions(trace: &str) -> String {
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    let config = EndpointPickerConfig::parse(CONFIG).unwrap();
    let Pipeline { scheduler, stages, .. } =
        Pipeline::build(Some(&config), true, &metrics, &State::default()).unwrap();
    assert!(stages.books(), "the profile reads what is in flight");
    let (mut pool, mut rng) = (Pool::new(), StdRng::seed_from_u64(500));
    let (mut facts, mut scratch) = (Facts::default(), Scratch::default());
    let mut log = "# request, second, first choice with its total, second choice\n".to_owned();
    for (id, line) in (0u64..).zip(trace.lines()) {
        let row: Row = serde_json::from_str(line).unwrap();
        let now = Duration::from_millis(row.timestamp);
        pool.advance(now);
        let request = completion(row.input_length, row.output_length);
        let candidates = pool.store.snapshot().all();
        let request_context =
            RequestContext { request: &request, now_ms: now.as_millis() as u64 + 1, max_age: MAX_AGE };
        facts.clear();
        stages.produce(&request_context, &candidates, &mut facts);
        let cx = Context { facts: &facts, ..Context::new(&request, request_context.now_ms, MAX_AGE) };
        let decision = scheduler.decide(&cx, &candidates, &mut rng, &mut scratch, Record::Columns).unwrap();
        let mut effects = Effects::default();
        stages.act(&cx, &decision, &mut effects);
        let run = decision.primary();
        let record = run.record.as_ref().unwrap();
        let total = record.survivors.iter().position(|survivor| *survivor == run.picks[0]);
        let (first, second) = (run.picks[0], run.picks.get(1));
        let snapshot = candidates.snapshot();
        writeln!(
            log,
            "{id} {:.3} {} {:.4} {}",
            now.as_secs_f64(),
            name(snapshot, first),
            record.totals[total.unwrap()],
            second.map_or("-", |second| name(snapshot, *second)),
        )
        .unwrap();
        let sent = SimRequest {
            id,
            prompt_tokens: row.input_length as u32,
            blocks: Vec::new(),
            output_tokens: row.output_length,
            finish: Finish::Length,
            adapter: None,
            kind: Kind::Whole,
        };
        pool.engines[first as usize].arrive(sent, now).unwrap();
        pool.under_way.insert(id, (effects.take_observers(), false));
    }
    log
}

#[test]
fn decisions_for_five_hundred_requests_match_the_golden_file() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let trace = std::fs::read_to_string(data.join("mooncake.jsonl")).unwrap();
    assert_eq!(trace.lines().count(), 500);
    let log = decisions(&trace);
    assert_eq!(log, decisions(&trace), "the same seed decides the same");
    // The log is worth something only if every server had its turn, and the slow one fewer.
    let share = |server: usize| log.matches(&format!(" server-{server} ")).count();
    let shares: Vec<usize> = (0..SERVERS).map(share).collect();
    assert!(shares[1..].iter().all(|share| *share > shares[0]) && shares[0] > 0, "{shares:?}");
    let path = data.join("golden/decisions.txt");
    if std::env::var_os("USHER_ACCEPT").is_some() {
        return std::fs::write(&path, log).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    for (line, (now, then)) in log.lines().zip(golden.lines()).enumerate() {
        assert_eq!(now, then, "line {} of {}; accept with USHER_ACCEPT=1", line + 1, path.display());
    }
    assert_eq!(log.lines().count(), golden.lines().count());
}
