//! From the record of a request to its spans, named as in llm-d-router.
//!
//! ```text
//! gateway.request
//!   gateway.request_orchestration
//!     run_scheduler_profile          (one per profile that ran)
//!       filter_endpoints
//!       llm_d.epp.scoring
//!         llm_d.epp.scorer.<type>    (one per scorer)
//! ```

use std::time::{Instant, SystemTime};

use super::context::new_span;
use super::proto::any_value::Value;
use super::proto::{AnyValue, KeyValue, Span, SpanKind, Status, StatusCode};
use super::record::{Read, Record};
use crate::request::ProfileRun;

/// Flags of a span: whether its parent is remote is known, and that it is.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// Spans of a request, the first of which is its own.
pub(super) fn spans(record: &Record) -> Vec<Span> {
    let mut spans = Vec::with_capacity(record.spans());
    spans.push(request(record));
    if let Some(read) = &record.read {
        let orchestration = orchestration(record, read);
        let parent = orchestration.span_id.clone();
        spans.push(orchestration);
        for run in &read.runs {
            profile(record, run, &parent, &mut spans);
        }
    }
    spans
}

fn request(record: &Record) -> Span {
    let mut attributes = Attributes::default();
    attributes.text("http.request.method", &record.method);
    attributes.text("url.path", &record.path);
    attributes.maybe("http.response.status_code", record.status);
    attributes.maybe("rpc.grpc.status_code", record.grpc_status);
    if let Some(read) = &record.read {
        let (operation, provider) = read.api.gen_ai().unwrap_or_default();
        attributes.text("gen_ai.operation.name", operation);
        attributes.text("gen_ai.provider.name", provider);
        attributes.text("gen_ai.request.model", &read.model);
        attributes.text("gen_ai.request.id", &read.request_id);
        attributes.maybe("gen_ai.request.max_tokens", read.max_tokens);
        attributes.number("http.request.body.size", read.body_bytes);
        if !read.target_model.is_empty() && record.refused.is_none() {
            attributes.maybe("gen_ai.usage.input_tokens", record.usage.prompt_tokens);
            attributes.maybe("gen_ai.usage.output_tokens", record.usage.completion_tokens);
            attributes.maybe("gen_ai.usage.cache_read.input_tokens", record.usage.cached_tokens);
        }
    }
    if let Some(first) = record.first_token {
        let taken = first.saturating_duration_since(record.started).as_secs_f64();
        attributes.add("gen_ai.latency.time_to_first_token", Value::DoubleValue(taken));
    }
    let error = error_type(record);
    attributes.text("error.type", error.as_deref().unwrap_or_default());
    let parent = record.parent.map(|parent| parent.to_be_bytes().to_vec());
    let remote = HAS_IS_REMOTE | if parent.is_some() { IS_REMOTE } else { 0 };
    Span {
        span_id: record.context.span.to_be_bytes().to_vec(),
        kind: SpanKind::Server.into(),
        attributes: attributes.0,
        // A server's span has an error where the fault isn't its client's.
        status: error
            .filter(|_| {
                let is_failed_call = record.grpc_status.is_some_and(|code| code != 0);
                is_failed_call || record.status.is_none_or(|status| status >= 500)
            })
            .map(failed),
        flags: remote | u32::from(record.context.flags),
        ..span(record, "gateway.request", parent.unwrap_or_default(), record.started, record.ended)
    }
}

/// Kind of the error that a request ended with.
fn error_type(record: &Record) -> Option<String> {
    match (record.refused, record.status, record.grpc_status) {
        (Some((kind, _)), ..) => Some(kind.to_owned()),
        (None, Some(status @ 400..), _) => Some(status.to_string()),
        (None, _, Some(code @ 1..)) => Some(format!("grpc {code}")),
        _ => (!record.is_complete).then(|| "cancelled".to_owned()),
    }
}

fn orchestration(record: &Record, read: &Read) -> Span {
    let mut attributes = Attributes::default();
    attributes.text("target_model", &read.target_model);
    attributes.add("request_prio", Value::IntValue(read.priority.into()));
    attributes.text("usher.destination", &record.destination);
    let refused = record.refused.filter(|_| record.destination.is_empty());
    attributes.text("usher.refusal.reason", refused.and_then(|(_, reason)| reason).unwrap_or_default());
    let parent = record.context.span.to_be_bytes().to_vec();
    let ended = read.decided.unwrap_or(record.ended);
    Span {
        attributes: attributes.0,
        status: refused.map(|(kind, _)| failed(kind.to_owned())),
        ..span(record, "gateway.request_orchestration", parent, read.started, ended)
    }
}

fn profile(record: &Record, run: &ProfileRun, parent: &[u8], spans: &mut Vec<Span>) {
    let mut attributes = Attributes::default();
    attributes.text("llm_d.epp.scheduling.profile.name", &run.profile);
    let mut profile = span(record, "run_scheduler_profile", parent.to_vec(), run.started, run.ended);
    (profile.attributes, profile.status) = (attributes.0, run.error.clone().map(failed));
    let id = profile.span_id.clone();
    spans.push(profile);

    let mut attributes = Attributes::default();
    attributes.number("llm_d.epp.filter.candidate_endpoints", run.candidates);
    attributes.number("llm_d.epp.filter.filtered_endpoints", run.survivors);
    let mut filter = span(record, "filter_endpoints", id.clone(), run.started, run.filtered);
    filter.attributes = attributes.0;
    spans.push(filter);
    if run.survivors == 0 {
        return;
    }

    let mut attributes = Attributes::default();
    attributes.number("llm_d.epp.scoring.candidate_endpoints", run.survivors);
    attributes.number("llm_d.epp.scorer.count", run.scorers.len());
    let mut scoring = span(record, "llm_d.epp.scoring", id, run.filtered, run.scored);
    scoring.attributes = attributes.0;
    let id = scoring.span_id.clone();
    spans.push(scoring);

    let mut started = run.filtered;
    for scorer in &run.scorers {
        let mut attributes = Attributes::default();
        attributes.text("llm_d.epp.scorer.type", &scorer.plugin_type);
        attributes.text("llm_d.epp.scorer.name", &scorer.name);
        attributes.add("llm_d.epp.scorer.weight", Value::DoubleValue(scorer.weight));
        attributes.number("llm_d.epp.scorer.candidate_endpoints", run.survivors);
        attributes.add("llm_d.epp.scorer.score.max", Value::DoubleValue(scorer.highest.into()));
        attributes.add("llm_d.epp.scorer.score.avg", Value::DoubleValue(scorer.mean.into()));
        let name = format!("llm_d.epp.scorer.{}", scorer.plugin_type);
        let mut span = span(record, &name, id.clone(), started, scorer.ended);
        span.attributes = attributes.0;
        spans.push(span);
        started = scorer.ended;
    }
}

/// An internal span of a request, with a new id.
fn span(record: &Record, name: &str, parent: Vec<u8>, started: Instant, ended: Instant) -> Span {
    Span {
        trace_id: record.context.trace.0.to_be_bytes().to_vec(),
        span_id: new_span().to_be_bytes().to_vec(),
        trace_state: record.trace_state.clone(),
        parent_span_id: parent,
        name: name.to_owned(),
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: nanos(record, started),
        end_time_unix_nano: nanos(record, ended.max(started)),
        attributes: Vec::new(),
        status: None,
        flags: HAS_IS_REMOTE | u32::from(record.context.flags),
    }
}

/// Time of the day, in nanoseconds since 1970.
fn nanos(record: &Record, at: Instant) -> u64 {
    let wall = record.wall + at.saturating_duration_since(record.started);
    let since = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn failed(message: String) -> Status {
    Status { message, code: StatusCode::Error.into() }
}

/// Attributes of a span. Empty texts are left out.
#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn add(&mut self, key: &str, value: Value) {
        self.0.push(attribute(key, value));
    }

    fn text(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            self.add(key, Value::StringValue(value.to_owned()));
        }
    }

    fn number(&mut self, key: &str, value: usize) {
        self.add(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn maybe(&mut self, key: &str, value: Option<impl Into<u64>>) {
        if let Some(value) = value {
            self.add(key, Value::IntValue(i64::try_from(value.into()).unwrap_or(i64::MAX)));
        }
    }
}

/// One attribute.
pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn early_refused_request_has_one_span() {
        let started = Instant::now();
        let mut record = Record::for_test(started);
        (record.refused, record.status) = (Some(("BadRequest", None)), Some(400));
        record.ended = started + Duration::from_millis(3);
        let spans = spans(&record);
        assert_eq!((spans.len(), record.spans()), (1, 1));
        let span = &spans[0];
        assert_eq!((span.name.as_str(), span.kind), ("gateway.request", 2));
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (0, 3_000_000));
        assert_eq!((span.flags, span.status.is_none()), (0x101, true));
        let keys: Vec<&str> = span.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
        assert_eq!(keys, ["http.response.status_code", "error.type"]);
    }

    #[test]
    fn server_side_failure_marks_the_span_as_error() {
        let error = |status, is_complete| {
            let mut record = Record::for_test(Instant::now());
            (record.status, record.is_complete) = (status, is_complete);
            request(&record).status.map(|status| status.message)
        };
        assert_eq!(error(Some(200), true), None);
        assert_eq!(error(Some(404), true), None);
        assert_eq!(error(Some(503), true).as_deref(), Some("503"));
        assert_eq!(error(None, false).as_deref(), Some("cancelled"));
    }
}
