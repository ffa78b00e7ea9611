//! Decides a request of a file among the endpoints of a file, without sockets.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;
use usher_terminal::{CliError, split_header};

use super::args::ExplainArgs;
use crate::config::{EndpointPickerConfig, source};
use crate::discovery::file as endpoints_file;
use crate::endpoints::{CachedLocator, Clock, EndpointSpec, Store, StoreLocator, SubsetHint};
use crate::flow::{Attempts, Dispatcher, Policy};
use crate::memory::Budget;
use crate::observe::decisions;
use crate::records::Records;
use crate::registry::{Pipeline, PluginTypes};
use crate::request::{Headers, Parsers, Request, RequestParser, RuleBook};
use crate::schedule::{Record, SchedulerMetrics, State};

/// Largest body that is read, in bytes: as much as usher serve reads by default.
const MOST: u64 = 32 << 20;

/// Id of a request that names none.
const ID: &str = "offline";

/// Decides the request of this file. Returns the decision as the admin port would show it.
///
/// # Errors
/// [`CliError::Usage`] for files that can't be read or are not valid.
pub(super) fn decide(args: &ExplainArgs, request: &Path, types: &PluginTypes) -> Result<Value, CliError> {
    let metrics = SchedulerMetrics::register(&Registry::new()).map_err(failed)?;
    let clock = Clock::stopped();
    clock.set(Duration::from_secs(1));
    let state = State::new(clock.clone());
    let pipeline = pipeline(args, types, &metrics, &state)?;
    if pipeline.stages.gathers() {
        let text = "a configuration that holds requests back can't be explained without a picker";
        return Err(CliError::Usage(format!("{text}; leave out burst-prefix-cache-producer")));
    }
    let store = store(args, &clock)?;
    let mut request = parsed(args, request, &Parsers::new(&pipeline.parsers))?;
    pipeline.stages.process_headers(&mut request);

    let records = Arc::new(Records::new("offline", 16, &Arc::new(Budget::default())));
    let policy = Policy {
        scheduler: pipeline.scheduler,
        stages: pipeline.stages,
        max_age: Duration::MAX,
        record: Record::No,
    };
    let locator = Arc::new(StoreLocator::new(store, false));
    let locator = CachedLocator::new(locator, clock.clone(), Duration::MAX, 1);
    // Fetched now, so that the decision finds them.
    let _ = locator.locate(&SubsetHint::Missing).now_or_never();
    let attempts = Arc::new(Attempts::register(&Registry::new()).map_err(failed)?);
    let dispatcher = Dispatcher::new(locator, policy, clock, attempts).recorded(Arc::clone(&records));
    let mut rng = StdRng::seed_from_u64(0);
    let decided = dispatcher.decide_now(&request, &SubsetHint::Missing, &mut rng);
    if let Some(Ok(mut routed)) = decided
        && let Some(draft) = routed.take_draft()
    {
        let id = request.headers.name("x-request-id").map(String::from_utf8_lossy);
        draft.keep(&id.unwrap_or(ID.into()));
    }
    let (kept, _) = records.read();
    let record = kept.first().ok_or_else(|| failed("no decision was made"))?;
    Ok(decisions::decision(record))
}

fn pipeline(
    args: &ExplainArgs,
    types: &PluginTypes,
    metrics: &SchedulerMetrics,
    state: &State,
) -> Result<Pipeline, CliError> {
    let (name, text) = match &args.config_file {
        Some(path) => (path.display().to_string(), read_text("--config", path)?),
        None => (String::new(), String::new()),
    };
    let config = EndpointPickerConfig::parse_unless_empty(&text);
    // Production may refuse plugins that are experimental; here they are looked at.
    config
        .and_then(|config| Pipeline::build_with(types, config.as_ref(), true, metrics, state))
        .map_err(|error| CliError::Usage(error.in_file(&name)))
}

/// The endpoints of the file, idle.
fn store(args: &ExplainArgs, clock: &Clock) -> Result<Arc<Store>, CliError> {
    let specs: Vec<EndpointSpec> = match &args.endpoints_file {
        None => Vec::new(),
        Some(path) => {
            let name = path.display().to_string();
            let text = read_text("--endpoints-file", path)?;
            let (specs, problems) =
                endpoints_file::parse(&text).map_err(|error| CliError::Usage(error.in_file(&name)))?;
            if let Some(problem) = problems.first() {
                return Err(CliError::Usage(problem.in_file(&name)));
            }
            specs
        }
    };
    let store = Arc::new(Store::default());
    store.replace(specs);
    let now_ms = clock.now_ms();
    for endpoint in store.snapshot().endpoints() {
        let load = endpoint.load();
        for gauge in [&load.waiting, &load.running, &load.kv_usage] {
            gauge.set(0.0, now_ms);
        }
        load.scraped(now_ms);
    }
    Ok(store)
}

fn parsed(args: &ExplainArgs, path: &Path, parsers: &Parsers) -> Result<Request, CliError> {
    let usage = |error: String| CliError::Usage(format!("--request {}: {error}", path.display()));
    let file = File::open(path).map_err(|error| usage(error.to_string()))?;
    let mut body = Vec::new();
    file.take(MOST + 1).read_to_end(&mut body).map_err(|error| usage(error.to_string()))?;
    if body.len() as u64 > MOST {
        return Err(usage(format!("it has more than {MOST} bytes")));
    }
    let headers = headers(args, &body)?;
    let mut parser = RequestParser::new(headers, parsers);
    parser.push(Bytes::from(body));
    let rules = RuleBook::default();
    parser
        .finish_by(&rules.current(), &mut StdRng::seed_from_u64(0))
        .map_err(|error| usage(error.to_string()))
}

fn headers(args: &ExplainArgs, body: &[u8]) -> Result<Headers, CliError> {
    let has_prompt = || {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        body.get("prompt").is_some() && body.get("messages").is_none()
    };
    let usual = || if has_prompt() { "/v1/completions" } else { "/v1/chat/completions" };
    let path = args.path.as_deref().unwrap_or_else(usual);
    let mut pairs = vec![(":method".to_owned(), "POST"), (":path".to_owned(), path)];
    for header in &args.header {
        let wrong = || CliError::Usage(format!("--header {header:?} is no header; write NAME: VALUE"));
        let (name, value) = split_header(header).ok_or_else(wrong)?;
        pairs.push((name.to_ascii_lowercase(), value));
    }
    let (mut block, mut places) = (Vec::new(), Vec::new());
    for (name, value) in &pairs {
        let start = block.len();
        block.extend_from_slice(name.as_bytes());
        let middle = block.len();
        block.extend_from_slice(value.as_bytes());
        places.push((start..middle, middle..block.len()));
    }
    let mut headers = Headers::of(Bytes::from(block));
    places.into_iter().for_each(|(name, value)| headers.push(name, value));
    Ok(headers)
}

fn read_text(flag: &str, path: &Path) -> Result<String, CliError> {
    let name = path.display().to_string();
    source::read_file(path).map_err(|error| CliError::Usage(format!("{flag}: {}", error.in_file(&name))))
}

fn failed(error: impl Display) -> CliError {
    CliError::Failed(format!("cannot decide the request: {error}"))
}
