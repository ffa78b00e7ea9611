//! Writing vLLM's responses: the whole JSON, the events of a stream, the errors.

use std::fmt::Write;

use bytes::Bytes;
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use super::model::Finish;
use super::openai::Api;
use usher_core::random::mix;

// 64 words of four bytes with their space, so that text is as long as its tokens say.
const WORDS: &str = concat!(
    " the and for are but not you all any can had her was one our out",
    " day get has him his how man new now old see two way who boy did",
    " its let put say she too use dad mom act add age ago aid aim air",
    " arm art ask bad bag bar bed big bit box bus buy car cat cup cut",
);

/// The seed of the text that a prompt is answered with.
pub(crate) fn text_seed(seed: u64, prompt: &[u8]) -> u64 {
    mix(seed ^ xxh3_64(prompt))
}

/// Appends the first tokens of the text of a seed.
pub(crate) fn append_text(text_seed: u64, tokens: u32, text: &mut Vec<u8>) {
    text.reserve(tokens as usize * 4);
    for number in 1..=tokens {
        text.extend_from_slice(token(text_seed, number).as_bytes());
    }
}

// The text of token `number`, from 1.
fn token(text_seed: u64, number: u32) -> &'static str {
    let at = (mix(text_seed ^ u64::from(number)) % 64) as usize * 4;
    &WORDS[at..at + 4]
}

/// One response. Its text is a function of the seed and nothing else.
#[derive(Debug)]
pub(crate) struct ModelResponse {
    pub(crate) api: Api,
    /// Number of the request at its server.
    pub(crate) number: u64,
    /// Unix time in seconds.
    pub(crate) created: u64,
    /// Name of the model as JSON, with its quotes.
    pub(crate) model: String,
    pub(crate) text_seed: u64,
    pub(crate) finish: Finish,
    pub(crate) prompt_tokens: u32,
}

impl ModelResponse {
    fn id(&self) -> String {
        let prefix = match self.api {
            Api::Chat => "chatcmpl",
            Api::Completions => "cmpl",
        };
        format!("{prefix}-{:016x}{:016x}", self.text_seed, self.number)
    }

    fn finish_reason(&self) -> &'static str {
        match self.finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
        }
    }

    fn usage(&self, generated: u32, cached: u32) -> String {
        format!(
            r#"{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{generated},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#,
            self.prompt_tokens,
            self.prompt_tokens + generated,
        )
    }

    /// The response to a request that does not stream.
    pub(crate) fn whole(&self, generated: u32, cached: u32) -> Bytes {
        let mut out = String::with_capacity(700 + generated as usize * 4);
        let Self { created, model, .. } = self;
        let id = self.id();
        let (object, open, close) = match self.api {
            Api::Chat => (
                "chat.completion",
                r#""message":{"role":"assistant","content":""#,
                r#"","refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning_content":null}"#,
            ),
            Api::Completions => ("text_completion", r#""text":""#, r#"""#),
        };
        // Writing to a String can't fail.
        let _ = write!(
            out,
            r#"{{"id":"{id}","object":"{object}","created":{created},"model":{model},"choices":[{{"index":0,{open}"#
        );
        for number in 1..=generated {
            out.push_str(token(self.text_seed, number));
        }
        let _ = write!(
            out,
            r#"{close},"logprobs":null,"finish_reason":"{}","stop_reason":null}}],"service_tier":null,"system_fingerprint":null,"usage":{},"prompt_logprobs":null,"kv_transfer_params":null}}"#,
            self.finish_reason(),
            self.usage(generated, cached),
        );
        out.into()
    }

    fn event_head(&self) -> String {
        let Self { created, model, .. } = self;
        let id = self.id();
        let object = match self.api {
            Api::Chat => "chat.completion.chunk",
            Api::Completions => "text_completion",
        };
        format!(r#"data: {{"id":"{id}","object":"{object}","created":{created},"model":{model},"choices":["#)
    }

    /// Appends the events of the tokens after `sent` up to `upto`, of which the last is
    /// the end if `finished`. The first token has an event of its own, after the event with
    /// the role; each of the others has `interval` tokens, but for the last, as in vLLM.
    pub(crate) fn events(&self, mut sent: u32, upto: u32, interval: u32, finished: bool, out: &mut String) {
        let head = self.event_head();
        let (open, close, end) = match self.api {
            Api::Chat => (r#"{"index":0,"delta":{"content":""#, r#""},"logprobs":null,"#, "]}\n\n"),
            Api::Completions => (r#"{"index":0,"text":""#, r#"","logprobs":null,"#, "],\"usage\":null}\n\n"),
        };
        let events = (upto - sent).div_ceil(interval) as usize + 1;
        out.reserve(events * (head.len() + 100) + (upto - sent) as usize * 4 + 400);
        if sent == 0 && upto > 0 && self.api == Api::Chat {
            out.push_str(&head);
            out.push_str(r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#);
            out.push_str("\n\n");
        }
        while sent < upto {
            let last = if sent == 0 { 1 } else { sent.saturating_add(interval).min(upto) };
            out.push_str(&head);
            out.push_str(open);
            (sent + 1..=last).for_each(|number| out.push_str(token(self.text_seed, number)));
            out.push_str(close);
            sent = last;
            if finished && sent == upto {
                let _ = write!(out, r#""finish_reason":"{}","stop_reason":null}}"#, self.finish_reason());
            } else {
                out.push_str(r#""finish_reason":null}"#);
            }
            out.push_str(end);
        }
    }

    /// Appends what follows the last token: the usage, if it was asked for, and the end.
    pub(crate) fn end(&self, generated: u32, cached: u32, usage: bool, out: &mut String) {
        if usage {
            out.push_str(&self.event_head());
            let _ = write!(out, "],\"usage\":{}}}\n\n", self.usage(generated, cached));
        }
        out.push_str("data: [DONE]\n\n");
    }
}

/// The body of an error, in vLLM's form.
pub(crate) fn error(status: u16, message: &str) -> Bytes {
    let kind = match status {
        400 => "BadRequestError",
        404 => "NotFoundError",
        429 => "TooManyRequestsError",
        503 => "ServiceUnavailableError",
        _ => "InternalServerError",
    };
    let body = json!({"error": {"message": message, "type": kind, "param": null, "code": status}});
    body.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn response(api: Api, finish: Finish) -> ModelResponse {
        let text_seed = text_seed(1, b"prompt");
        let model = r#""a \"model\"""#.to_owned();
        ModelResponse { api, number: 7, created: 1_700_000_000, model, text_seed, finish, prompt_tokens: 12 }
    }

    #[test]
    fn text_is_four_bytes_per_token() {
        assert_eq!(WORDS.len(), 256);
        assert!(WORDS.as_bytes().chunks(4).all(|word| word[0] == b' '));
    }

    #[test]
    fn a_whole_response_is_json_with_usage() {
        let body: Value = serde_json::from_slice(&response(Api::Chat, Finish::Length).whole(5, 4)).unwrap();
        assert_eq!(body["choices"][0]["message"]["content"].as_str().unwrap().len(), 20);
        assert_eq!(body["choices"][0]["finish_reason"], "length");
        assert_eq!(body["model"], "a \"model\"");
        assert_eq!(body["usage"]["total_tokens"], 17);
        assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
        let body: Value =
            serde_json::from_slice(&response(Api::Completions, Finish::Stop).whole(1, 0)).unwrap();
        assert_eq!(body["choices"][0]["text"].as_str().unwrap().len(), 4);
        assert_eq!(body["object"], "text_completion");
    }

    #[test]
    fn events_hold_one_token_first_then_the_interval() {
        let response = response(Api::Chat, Finish::Length);
        let mut stream = String::new();
        response.events(0, 9, 3, true, &mut stream);
        let events = stream.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
        let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
        let said: Vec<&str> =
            events.iter().map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
        assert_eq!(said.iter().map(|text| text.len() / 4).collect::<Vec<_>>(), [0, 1, 3, 3, 2]);
        assert_eq!(events[4]["choices"][0]["finish_reason"], "length");
        let mut whole = Vec::new();
        append_text(response.text_seed, 9, &mut whole);
        assert_eq!(said.concat().as_bytes(), whole);
    }

    #[test]
    fn stream_is_the_same_at_any_split() {
        for api in Api::ALL {
            let response = response(api, Finish::Stop);
            let mut once = String::new();
            response.events(0, 4, 1, true, &mut once);
            let mut cut = String::new();
            response.events(0, 1, 1, false, &mut cut);
            response.events(1, 3, 1, false, &mut cut);
            response.events(3, 4, 1, true, &mut cut);
            assert_eq!(once, cut);
            response.end(4, 0, true, &mut once);
            for event in once.split_terminator("\n\n").filter(|event| !event.ends_with("[DONE]")) {
                let _: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
            }
            assert!(once.ends_with("data: [DONE]\n\n"));
        }
    }
}
