//! Requests, ready to be sent.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::body::Style;
use super::script::{Script, Voice};
use super::settings::Api;
use super::text::words;
use super::trace::Row;
use usher_core::random::mix;
use usher_wire::client::message::{Chunk, Context, RequestHead};

/// Bytes of prompts of one length that are kept.
const POOL_BYTES: usize = 32 << 20;

/// Number of different prompts of one length at least, and at most.
const POOL: (usize, usize) = (8, 1024);

/// A request.
#[derive(Debug)]
pub(super) struct Prompt {
    /// Arrival according to the trace, since its start.
    pub(super) arrival: Duration,
    /// Request as it is sent.
    pub(super) wire: Wire,
}

/// A request as it is sent.
#[derive(Debug)]
pub(super) enum Wire {
    /// Messages for an ext_proc server, and the model server's response.
    Messages(Messages),
    /// A body for a gateway.
    Body(Bytes),
}

/// Messages of a gateway to an ext_proc server for one request.
#[derive(Debug)]
pub(super) struct Messages {
    pub(super) head: RequestHead,
    pub(super) body: Vec<Chunk>,
    /// Bytes of the body.
    pub(super) bytes: usize,
    pub(super) response: Script,
}

/// Makes requests of prompts.
#[derive(Debug)]
pub(super) struct Packer {
    pub(super) style: Style,
    /// Tokens of a response, whatever a trace says.
    pub(super) output_tokens: Option<usize>,
    /// For an ext_proc server.
    pub(super) messages: Option<Envelope>,
}

/// Parts that the messages of all requests share, as a gateway sends them.
#[derive(Debug)]
pub(super) struct Envelope {
    pub(super) context: Context,
    pub(super) authority: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) voice: Voice,
}

impl Envelope {
    /// The headers of a request whose body has this length, but for its id.
    pub(super) fn headers<'a>(&'a self, api: Api, length: &'a str) -> Vec<(&'a str, &'a str)> {
        let mut headers = vec![
            (":authority", self.authority.as_str()),
            (":path", api.path()),
            (":method", "POST"),
            (":scheme", "http"),
            ("content-type", "application/json"),
            ("content-length", length),
            ("user-agent", concat!("usher-load/", env!("CARGO_PKG_VERSION"))),
            ("accept", "*/*"),
            ("x-forwarded-proto", "http"),
        ];
        headers.extend(self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        headers
    }
}

/// Tokens of a response without a limit.
const OUTPUT_TOKENS: usize = 16;

impl Packer {
    /// `response` is that of another prompt with as many tokens, if there is one.
    fn pack(
        &self,
        text: &str,
        (tokens, output): (usize, usize),
        arrival: Duration,
        response: Option<&Script>,
    ) -> Prompt {
        let body = self.style.body(text, output);
        let wire = match &self.messages {
            None => Wire::Body(body),
            Some(envelope) => {
                let length = body.len().to_string();
                let headers = envelope.headers(self.style.api, &length);
                Wire::Messages(Messages {
                    head: envelope.context.request_headers(&headers),
                    bytes: body.len(),
                    body: envelope.context.request_body(&body),
                    response: response.cloned().unwrap_or_else(|| envelope.voice.script(tokens, output)),
                })
            }
        };
        Prompt { arrival, wire }
    }

    /// The request of a trace's row. Rows of different `salt` share no text.
    pub(super) fn row(&self, row: &Row, salt: u64) -> Prompt {
        let output = self.output_tokens.unwrap_or(row.output_length as usize).max(1);
        self.pack(&row.prompt(salt), (row.input_length, output), Duration::from_millis(row.timestamp), None)
    }

    /// Different requests of `tokens` tokens, of which the first `prefix` are those of
    /// one of `groups` groups; no more than `most`.
    pub(super) fn pool(
        &self,
        tokens: usize,
        (groups, prefix): (usize, usize),
        seed: u64,
        most: usize,
    ) -> Vec<Arc<Prompt>> {
        let output = self.output_tokens.unwrap_or(OUTPUT_TOKENS);
        let text = |number: usize| {
            let mut text = String::new();
            let own = mix(seed) ^ (number as u64 + 1);
            match number.checked_rem(groups) {
                None => words(own, tokens, &mut text),
                Some(group) => {
                    words(mix(seed.wrapping_add(1)) ^ (group as u64), prefix, &mut text);
                    words(own, tokens - prefix, &mut text);
                }
            }
            text
        };
        let first = self.pack(&text(0), (tokens, output), Duration::ZERO, None);
        let (size, response) = match &first.wire {
            Wire::Messages(messages) => (messages.bytes, Some(messages.response.clone())),
            Wire::Body(body) => (body.len(), None),
        };
        let rest = (1..pool_size(size, groups).min(most))
            .map(|number| self.pack(&text(number), (tokens, output), Duration::ZERO, response.as_ref()));
        std::iter::once(first).chain(rest).map(Arc::new).collect()
    }
}

/// Number of prompts of so many bytes that are kept: those that fit, and each group as
/// often as the others.
fn pool_size(bytes: usize, groups: usize) -> usize {
    (POOL_BYTES / bytes.max(1)).clamp(POOL.0, POOL.1).next_multiple_of(groups.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packer(output_tokens: Option<usize>) -> Packer {
        let style = Style { api: Api::Completions, model: "m".to_owned(), stream: false };
        Packer { style, output_tokens, messages: None }
    }

    fn body(prompt: &Prompt) -> serde_json::Value {
        let Wire::Body(body) = &prompt.wire else { panic!("for an ext_proc server") };
        serde_json::from_slice(body).unwrap()
    }

    #[test]
    fn prompt_pool_fills_the_limit_with_equal_groups() {
        let table = [
            (900, 0, 1024),
            (32 << 10, 0, 1024),
            (400_000, 0, 83),
            (1 << 30, 0, 8),
            (900, 7, 1029),
            (900, 2000, 2000),
        ];
        for (bytes, groups, count) in table {
            assert_eq!(pool_size(bytes, groups), count, "{bytes} bytes, {groups} groups");
        }
        assert_eq!(packer(None).pool(2, (1025, 1), 0, usize::MAX).len(), 1025);
        assert_eq!(packer(None).pool(2, (0, 0), 0, 3).len(), 3);
    }

    #[test]
    fn prompts_follow_from_the_seed() {
        let first = |seed, groups| body(&packer(None).pool(8, (groups, 4), seed, 1)[0])["prompt"].clone();
        for groups in [0, 2] {
            assert_eq!(first(1, groups), first(1, groups));
            assert_ne!(first(1, groups), first(2, groups));
        }
    }

    #[test]
    fn trace_row_sets_the_output_unless_a_flag_does() {
        let row = Row { timestamp: 5, input_length: 3, output_length: 70, hash_ids: vec![1] };
        let most = |output| body(&packer(output).row(&row, 0))["max_tokens"].clone();
        assert_eq!((most(None), most(Some(2))), (70.into(), 2.into()));
        assert_eq!(packer(None).row(&row, 0).arrival, Duration::from_millis(5));
    }
}
