//! The response's half of an exchange: what is read from it as it passes.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use prometheus::IntGauge;

use crate::endpoints::health::ResponseStatus;
use crate::request::first_token::{FirstTokenReader, Generated};
use crate::request::restore::ModelRestorer;
use crate::request::usage::{Usage, UsageReader};
use crate::request::{Api, ParserKind, Parsers, Pieces, Request};

use super::gen_ai::{Failure, GenAiSeries, Outcome};
use super::metrics::ExtProcMetrics;
use super::series::{Series, SeriesKey};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Body,
    /// Ended by a flag; trailers may follow all the same.
    Ended,
    Done,
}

/// Kind of a response, by its headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// `true` for a stream of server-sent events.
    pub(super) event_stream: bool,
    /// Compressed, or encoded in another way that can't be read.
    pub(super) encoded: bool,
}

/// Search for the first token.
#[derive(Debug)]
enum First {
    /// Unrecognised content: the first bytes stand for it.
    Bytes,
    /// Events, read until one has content.
    Token(FirstTokenReader),
    /// Counts generated tokens from here on, where events say how many there are.
    Passed(Option<Generated>),
}

/// The state of a response.
#[derive(Debug)]
pub(super) struct ResponseTracker {
    state: State,
    /// Series of the request; `None` if it was never seen.
    series: Option<Arc<Series>>,
    /// By OpenTelemetry's conventions, where those are counted.
    gen_ai: Option<Arc<GenAiSeries>>,
    failure: Option<Failure>,
    running: Option<Running>,
    started: Option<Instant>,
    first: First,
    first_byte: Option<Instant>,
    first_token: Option<Instant>,
    last_chunk: Option<Instant>,
    bytes: u64,
    /// A stream was asked for, or is here.
    streaming: bool,
    is_stream: bool,
    /// API that it is read as; of some APIs nothing is, and there is no usage to find.
    api: Api,
    usage: Option<UsageReader>,
    /// In a box: hardly any request is sent on under another name.
    restorer: Option<Box<ModelRestorer>>,
}

/// Bytes of a body for a token, where nothing else says how many there are.
const BYTES_PER_TOKEN: u64 = 4;

fn count(generated: &mut Option<Generated>, data: &Pieces) {
    if let Some(generated) = generated {
        data.iter().for_each(|piece| generated.feed(piece));
    }
}

/// Counts a request as running until it is dropped.
#[derive(Debug)]
struct Running(IntGauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl ResponseTracker {
    /// A response to a request that was not seen (yet): read as the API of the
    /// default path.
    pub(super) fn new(parsers: &Parsers) -> Self {
        let mut response = Self {
            state: State::Waiting,
            series: None,
            gen_ai: None,
            failure: None,
            running: None,
            started: None,
            first: First::Bytes,
            first_byte: None,
            first_token: None,
            last_chunk: None,
            bytes: 0,
            streaming: false,
            is_stream: false,
            api: Api::PassThrough,
            usage: None,
            restorer: None,
        };
        response.read_as(parsers.default_api().unwrap_or(Api::PassThrough));
        response
    }

    /// The request was sent on: its response is this one.
    pub(super) fn expect(
        &mut self,
        request: &Request,
        series: Arc<Series>,
        gen_ai: Option<Arc<GenAiSeries>>,
        started: Option<Instant>,
    ) {
        self.gen_ai = gen_ai;
        self.read_as(request.api);
        self.streaming = request.stream;
        if !request.model.is_empty() && request.model != request.target_model {
            self.restorer = Some(Box::new(ModelRestorer::new(&request.target_model, &request.model)));
        }
        self.running = series.running.clone().map(|gauge| {
            gauge.inc();
            Running(gauge)
        });
        self.series = Some(series);
        self.started = started;
    }

    /// Chooses how the response is read.
    pub(super) fn read_as(&mut self, api: Api) {
        self.api = api;
        self.usage = UsageReader::of(api);
    }

    /// Returns `true` if something is read out of the response, or replaced in it: it has to come as it is.
    pub(super) fn is_read(&self) -> bool {
        self.usage.is_some() || self.restorer.is_some()
    }

    /// The parser that reads the response, while it does.
    pub(super) fn parser(&self) -> Option<ParserKind> {
        self.usage.as_ref().map(|_| self.api.parser())
    }

    /// The series that the response is counted in, until it is.
    pub(super) fn series(&self) -> Option<&Series> {
        self.series.as_deref()
    }

    /// Returns `true` if nothing of it has come.
    pub(super) fn is_awaited(&self) -> bool {
        self.state == State::Waiting
    }

    /// Takes the status. An error is no generated response.
    pub(super) fn status(&mut self, status: ResponseStatus) {
        self.failure = match (status.http, status.grpc) {
            (Some(http @ 400..), _) => Some(Failure::Status(http)),
            (_, Some(1..)) => Some(Failure::Grpc),
            _ => None,
        };
    }

    /// Takes the headers. Returns true where the body is encoded that would be read: it passes
    /// as it is.
    pub(super) fn headers(&mut self, kind: Kind, end: bool) -> Result<bool, &'static str> {
        if self.state != State::Waiting {
            return Err("response headers came twice");
        }
        let Kind { event_stream, encoded } = kind;
        let unread = encoded && !end && self.is_read();
        if encoded {
            (self.usage, self.restorer) = (None, None);
        }
        self.streaming |= event_stream;
        if let Some(usage) = self.usage.as_mut().filter(|_| event_stream) {
            usage.event_stream();
        }
        // A gRPC response doesn't say whether it is a stream; one without a body is an error.
        let is_stream = event_stream || self.api == Api::VllmGrpcGenerate && self.streaming && !end;
        if is_stream && !encoded {
            self.first = FirstTokenReader::of(self.api).map_or(First::Bytes, First::Token);
        }
        self.is_stream = is_stream;
        self.state = if end { State::Ended } else { State::Body };
        Ok(unread)
    }

    /// Returns `true` if it comes token by token, as its headers have it.
    pub(super) fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Reads a chunk. Returns true once: with the first token, or with the first bytes where
    /// tokens aren't recognised.
    pub(super) fn chunk(&mut self, data: &Pieces, now: Instant) -> Result<bool, &'static str> {
        match self.state {
            State::Body => {}
            State::Waiting => return Err("a response body came before its headers"),
            State::Ended | State::Done => return Err("a response body went on after its end"),
        }
        if let Some(usage) = &mut self.usage {
            data.iter().for_each(|piece| usage.feed(piece));
        }
        self.bytes += data.len() as u64;
        if data.is_empty() {
            return Ok(false);
        }
        let is_first_token = self.has_first_token(data);
        if is_first_token {
            self.first_token = Some(now);
        }
        let Some(series) = &self.series else { return Ok(is_first_token) };
        match self.last_chunk.replace(now) {
            None => {
                self.first_byte = Some(now);
                // As the metric is defined: by bytes, whatever they hold.
                if let Some(started) = self.started {
                    let ttft = if self.streaming { &series.ttft_streaming } else { &series.ttft };
                    ttft.observe(now.saturating_duration_since(started).as_secs_f64());
                }
            }
            Some(before) if self.streaming => {
                series.itl.observe(now.saturating_duration_since(before).as_secs_f64());
            }
            Some(_) => {}
        }
        Ok(is_first_token)
    }

    /// Returns `true` if the first token passes with this chunk, which is not empty.
    fn has_first_token(&mut self, data: &Pieces) -> bool {
        let mut generated = match &mut self.first {
            First::Passed(generated) => {
                count(generated, data);
                return false;
            }
            First::Bytes => None,
            First::Token(reader) => {
                if !data.iter().any(|piece| reader.feed(piece)) {
                    return false;
                }
                reader.generated()
            }
        };
        count(&mut generated, data);
        self.first = First::Passed(generated);
        true
    }

    /// The chunk as the client gets it.
    pub(super) fn restore(&mut self, data: Pieces, last: bool) -> Pieces {
        let Some(restorer) = &mut self.restorer else { return data };
        let mut restored: Pieces = data.into_iter().map(|piece| restorer.feed(piece, false)).collect();
        if last {
            restored.push(restorer.feed(Bytes::new(), true));
        }
        restored
    }

    /// Takes the trailers; returns what was held back of the body.
    pub(super) fn trailers(&mut self) -> Result<Pieces, &'static str> {
        match self.state {
            State::Waiting => Err("response trailers came before their headers"),
            State::Done => Err("response trailers came twice"),
            State::Body => {
                self.state = State::Done;
                Ok(self.restore(Pieces::default(), true))
            }
            State::Ended => {
                self.state = State::Done;
                Ok(Pieces::default())
            }
        }
    }

    /// Usage that the response has reported so far.
    pub(super) fn used(&self) -> Usage {
        self.usage.as_ref().and_then(UsageReader::found).unwrap_or_default()
    }

    /// Tokens that were generated so far, as it looks: by the events of a stream, else a token for
    /// four bytes of the body.
    pub(super) fn generated(&self) -> u64 {
        match &self.first {
            First::Passed(Some(generated)) => generated.tokens(),
            _ => self.bytes / BYTES_PER_TOKEN,
        }
    }

    /// The response is complete.
    pub(super) fn complete(&mut self, metrics: &ExtProcMetrics, now: Instant) {
        if self.state == State::Body {
            self.state = State::Ended;
        }
        let usage = self.usage.take();
        self.observe(metrics, usage, Some(now));
        self.running = None;
    }

    /// The stream ended before the response did.
    pub(super) fn cut_off(&mut self, metrics: &ExtProcMetrics) {
        let usage = self.usage.take();
        self.observe(metrics, usage, None);
    }

    /// Counts what the response was, once. `end` is set when it was complete.
    fn observe(&mut self, metrics: &ExtProcMetrics, usage: Option<UsageReader>, end: Option<Instant>) {
        let used = usage.and_then(|reader| reader.found());
        let Some(series) = self.series.take().or_else(|| {
            // A response without its request, with usage: counted without a model.
            used.map(|_| metrics.series(SeriesKey::unknown()))
        }) else {
            return;
        };
        let used = used.unwrap_or_default();
        let gen_ai = self.gen_ai.take();
        if let Some(gen_ai) = &gen_ai {
            let some = |tokens: Option<u64>| tokens.filter(|count| *count > 0);
            gen_ai.used(some(used.prompt_tokens), some(used.completion_tokens));
        }
        if let Some(tokens) = used.prompt_tokens.filter(|count| *count > 0) {
            series.input_tokens.observe(tokens as f64);
        }
        if let Some(tokens) = used.completion_tokens.filter(|count| *count > 0) {
            series.output_tokens.observe(tokens as f64);
        }
        if let Some(tokens) = used.cached_tokens {
            series.cached_tokens.observe(tokens as f64);
            if let Some(prompt) = used.prompt_tokens {
                metrics.prompts.count(prompt, tokens);
            }
        }
        let Some(end) = end else { return };
        series.response_size.observe(self.bytes as f64);
        let Some(started) = self.started else { return };
        let whole = end.saturating_duration_since(started).as_secs_f64();
        series.duration.observe(whole);
        let tokens = used.completion_tokens.filter(|count| *count > 0);
        // A response whose content was never recognised is measured from its first byte.
        let first = self.first_token.or(self.first_byte).filter(|_| self.streaming);
        let per_token = first
            .zip(tokens.filter(|count| *count > 1))
            .map(|(first, tokens)| end.saturating_duration_since(first).as_secs_f64() / (tokens - 1) as f64);
        if let Some(tokens) = tokens {
            series.ntpot.observe(whole / tokens as f64);
        }
        if let Some(per_token) = per_token {
            series.tpot.observe(per_token);
        }
        if let Some(gen_ai) = gen_ai {
            let first_token = first.map(|first| first.saturating_duration_since(started).as_secs_f64());
            gen_ai.complete(Outcome { duration: whole, error: self.failure, first_token, per_token });
        }
    }
}
