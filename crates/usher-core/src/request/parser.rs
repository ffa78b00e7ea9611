//! Reads a request while its body arrives.

use bytes::Bytes;
use rand::Rng;

use super::api::{Api, Parsers};
use super::body::{Body, Span};
use super::collect::Parsed;
use super::error::ParseError;
use super::headers::{Headers, MAX_NAME};
use super::reading::Reading;
use super::rules::Rules;
use super::text;
use super::{Part, Request, Rewrite};

/// Header that names the model to send upstream, and its older name.
const REWRITE_HEADERS: [&str; 2] = ["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"];

/// Least number of bytes read out of a body that count; fewer are covered by what its stream counts.
const COUNTED: usize = 4096;

/// Takes the chunks of a body as they arrive and keeps them. What has to be read
/// is read at once, while the chunk is in the processor's cache.
#[derive(Debug)]
pub struct RequestParser {
    headers: Headers,
    api: Option<Api>,
    body: Body,
    reading: Option<Box<Reading>>,
}

impl RequestParser {
    /// A parser for the request with these headers.
    pub fn new(headers: Headers, parsers: &Parsers) -> Self {
        let api = parsers.resolve(Parsers::path_of(&headers));
        let reading = api.and_then(Reading::of);
        Self { headers, api, body: Body::default(), reading }
    }

    /// The request's API, if its path is claimed.
    pub fn api(&self) -> Option<Api> {
        self.api
    }

    /// The request's headers.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Returns `true` if something is read out of the body. Without that the request is known by its headers.
    pub fn reads_body(&self) -> bool {
        self.reading.is_some()
    }

    /// Error that [`finish`](Self::finish) is going to return whatever the rest of the body is; `None` if
    /// there is none yet.
    #[inline]
    pub fn problem(&self) -> Option<ParseError> {
        self.reading.as_ref()?.problem()
    }

    /// Bytes of the body so far.
    pub fn body_len(&self) -> usize {
        self.body.len()
    }

    /// Bytes of memory that count: those of the body so far, of what was read out of it, from
    /// 4 KiB on, and of [large headers](Headers::counted).
    pub fn counted(&self) -> usize {
        let read = self.reading.as_ref().map_or(0, |reading| reading.counted());
        self.headers.counted() + self.body.len() + if read < COUNTED { 0 } else { read }
    }

    /// The next chunk of the body.
    pub fn push(&mut self, chunk: Bytes) {
        if let Some(reading) = &mut self.reading {
            reading.feed(&chunk);
        }
        self.body.push(chunk);
    }

    /// The request without its body: what is known when there is none.
    pub fn without_body(self) -> Request {
        Request::new(self.headers, self.api.unwrap_or(Api::PassThrough), Body::default())
    }

    /// The end of the body, where no rules hold.
    ///
    /// # Errors
    /// `ParseError`, with a message for the client, if the request can't be routed.
    pub fn finish(mut self) -> Result<Request, ParseError> {
        self.finish_by(&Rules::default(), &mut rand::rng())
    }

    /// The end of the body. The rules may say which model is served, or draw one. To be called once.
    ///
    /// # Errors
    /// `ParseError`, with a message for the client, if the request can't be routed. The headers are then
    /// kept.
    pub fn finish_by(&mut self, rules: &Rules, rng: &mut dyn Rng) -> Result<Request, ParseError> {
        self.body.seal();
        let Some(api) = self.api else {
            return Err(ParseError::NoParser(printable(Parsers::path_of(&self.headers))));
        };
        let Some(mut reading) = self.reading.take() else {
            return Ok(self.request(api));
        };
        let parsed = reading.finish()?;
        if parsed.cache_salt.is_some_and(|salt| salt.is_longer(MAX_NAME, &self.body)) {
            let field = if api == Api::SglangGenerate { "extra_key" } else { "cache_salt" };
            return Err(ParseError::LongName(field));
        }
        let mut request = self.request(api);
        if let Err(error) = name_model(&mut request, &parsed, rules, rng) {
            self.headers = request.headers;
            return Err(error);
        }
        request.stream = parsed.stream;
        request.max_output_tokens = parsed.max_output_tokens;
        request.cache_salt = parsed.cache_salt;
        request.prompt = parsed.prompt;
        Ok(request)
    }

    fn request(&mut self, api: Api) -> Request {
        Request::new(std::mem::take(&mut self.headers), api, std::mem::take(&mut self.body))
    }
}

/// Sets the model's names and, where they differ, what has to change in the body.
///
/// A rule for the model in the body goes before the header.
fn name_model(
    request: &mut Request,
    parsed: &Parsed,
    rules: &Rules,
    rng: &mut dyn Rng,
) -> Result<(), ParseError> {
    request.model = parsed.model.map(|part| model(&part, &request.body)).transpose()?.unwrap_or_default();
    if !request.api.rewrites_model() {
        request.target_model = request.model.clone();
        return Ok(());
    }
    let target = match rules.rewrites.draw(&request.model, rng) {
        Some(rewritten) => {
            request.rewritten_by = Some(rewritten.by);
            rewritten.model.as_ref().to_owned()
        }
        None => request.headers.first_text(&REWRITE_HEADERS).unwrap_or(&request.model).to_owned(),
    };
    if target.is_empty() {
        return Err(ParseError::NoModel);
    }
    if target != request.model {
        let value = format!("\"{}\"", text::escape(&target));
        request.rewrite = Some(match parsed.model_value {
            Some(span) => Rewrite { span, with: value },
            None => {
                let (at, more) = parsed.first_member;
                let comma = if more { "," } else { "" };
                let with = format!("\"model\":{value}{comma}");
                Rewrite { span: Span { start: at, end: at }, with }
            }
        });
    }
    request.target_model = target;
    Ok(())
}

/// The name of a model.
fn model(part: &Part, body: &Body) -> Result<String, ParseError> {
    let long = || ParseError::LongName("model");
    if part.is_longer(MAX_NAME, body) {
        return Err(long());
    }
    let name = String::from_utf8_lossy(&part.bytes(body)).into_owned();
    // What is no UTF-8 becomes longer.
    if name.len() > MAX_NAME { Err(long()) } else { Ok(name) }
}

/// A client's text in an error message: bounded, and without control characters.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(256).collect()
}

#[cfg(test)]
#[path = "parser_tests.rs"]
mod tests;
