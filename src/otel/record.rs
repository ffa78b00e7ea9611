//! Facts of one request, from which its spans are made.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::context::SpanContext;
use crate::request::usage::Usage;
use crate::request::{Api, Headers, ProfileRun, Request, Timeline};

/// Longest text of a client that is kept, in bytes.
const MAX_TEXT: usize = 256;

/// Longest `tracestate` that is kept, in bytes: what the specification asks for at least.
const MAX_STATE: usize = 512;

/// Facts of a request from which spans are made. No text of a prompt or of a response is among them.
#[derive(Debug)]
pub(super) struct Record {
    /// Context of the request's span.
    pub(super) context: SpanContext,
    /// The caller's span.
    pub(super) parent: Option<u64>,
    /// `tracestate` of the caller.
    pub(super) trace_state: String,
    /// Time of the day at `started`.
    pub(super) wall: SystemTime,
    pub(super) started: Instant,
    /// End of the request; `started` until it is known.
    pub(super) ended: Instant,
    pub(super) method: String,
    /// Path without its query.
    pub(super) path: String,
    /// Facts of the request itself, once it is read.
    pub(super) read: Option<Read>,
    /// `host:port` of the picks; empty where there is none.
    pub(super) destination: String,
    /// Refusal of the request: kind and reason.
    pub(super) refused: Option<(&'static str, Option<&'static str>)>,
    /// HTTP status that the client gets.
    pub(super) status: Option<u16>,
    /// Status of a gRPC call that failed before its first message.
    pub(super) grpc_status: Option<u32>,
    pub(super) first_token: Option<Instant>,
    pub(super) usage: Usage,
    /// The request has ended as it should, and its stream wasn't cut off.
    pub(super) is_complete: bool,
}

/// Facts of a request whose body was read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) request_id: String,
    pub(super) api: Api,
    pub(super) model: String,
    pub(super) target_model: String,
    pub(super) priority: i32,
    pub(super) max_tokens: Option<u64>,
    pub(super) body_bytes: usize,
    pub(super) started: Instant,
    /// Time of the decision; `None` if the request went away before.
    pub(super) decided: Option<Instant>,
    pub(super) timeline: Arc<Timeline>,
    /// Runs of profiles, once the request has ended.
    pub(super) runs: Vec<ProfileRun>,
}

impl Record {
    pub(super) fn begin(
        context: SpanContext,
        parent: Option<&SpanContext>,
        headers: &Headers,
        started: Instant,
        wall: SystemTime,
    ) -> Self {
        let path = headers.get(":path").unwrap_or_default();
        let path = path.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default();
        // What the caller says of a trace that isn't valid counts no more than that.
        let state = headers.get("tracestate").filter(|state| parent.is_some() && state.len() <= MAX_STATE);
        Self {
            context,
            parent: parent.map(|parent| parent.span),
            trace_state: state.map(text).unwrap_or_default(),
            wall,
            started,
            ended: started,
            method: cut(text(headers.get(":method").unwrap_or_default())),
            path: cut(text(path)),
            read: None,
            destination: String::new(),
            refused: None,
            status: None,
            grpc_status: None,
            first_token: None,
            usage: Usage::default(),
            is_complete: false,
        }
    }

    /// Number of spans that are made of it.
    pub(super) fn spans(&self) -> usize {
        let of_run = |run: &ProfileRun| 2 + if run.survivors > 0 { 1 + run.scorers.len() } else { 0 };
        1 + self.read.as_ref().map_or(0, |read| 1 + read.runs.iter().map(of_run).sum::<usize>())
    }

    #[cfg(test)]
    pub(super) fn for_test(started: Instant) -> Self {
        let trace = super::context::TraceId(1);
        let context = SpanContext { trace, span: 2, flags: 1 };
        Self::begin(context, None, &Headers::default(), started, SystemTime::UNIX_EPOCH)
    }
}

impl Read {
    /// Facts of a request whose decision starts at `now`.
    pub(super) fn of(request: &Request, timeline: Arc<Timeline>, now: Instant) -> Self {
        Self {
            request_id: cut(request.id().into_owned()),
            api: request.api,
            model: cut(request.model.clone()),
            target_model: cut(request.target_model.clone()),
            priority: request.priority,
            max_tokens: request.max_output_tokens,
            body_bytes: request.body.len(),
            started: now,
            decided: None,
            timeline,
            runs: Vec::new(),
        }
    }
}

/// Bytes as text.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A text of at most [`MAX_TEXT`] bytes.
pub(super) fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::context::TraceId;
    use super::*;

    #[test]
    fn client_texts_are_cut_at_a_character() {
        assert_eq!(cut("a".repeat(300)).len(), 256);
        assert_eq!(cut(format!("a{}", "é".repeat(200))).len(), 255);
        assert_eq!(cut("short".to_owned()), "short");
    }

    #[test]
    fn path_attribute_has_no_query() {
        let headers = [(":method", "POST"), (":path", "/v1/completions?key=s3cret#x"), ("tracestate", "a=b")];
        let begin = |parent: Option<&SpanContext>| {
            let context = SpanContext { trace: TraceId(1), span: 2, flags: 1 };
            let headers = headers.into_iter().collect();
            Record::begin(context, parent, &headers, Instant::now(), SystemTime::now())
        };
        let record = begin(None);
        assert_eq!((&*record.method, &*record.path), ("POST", "/v1/completions"));
        // A state without a valid parent is nobody's.
        assert_eq!((record.trace_state.as_str(), record.parent), ("", None));
        let parent = SpanContext { trace: TraceId(1), span: 9, flags: 1 };
        let record = begin(Some(&parent));
        assert_eq!((record.trace_state.as_str(), record.parent), ("a=b", Some(9)));
    }
}
