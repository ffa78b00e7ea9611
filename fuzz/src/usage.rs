//! Responses: usage and the model's name, in JSON and in event streams, and first tokens in these.

use bytes::Bytes;
use usher::request::Api;
use usher::request::restore::ModelRestorer;
use usher::request::usage::{Usage, UsageReader};

use super::input::Input;
use super::protos::{HttpBody, framed};
use super::tree::{Kind, Node, nesting};
use super::{first_token, frames};

/// The name that a response has, and the one that it gets. Quoted and escaped they
/// are equally long, so that what is held back shows in the lengths.
const TARGET: &str = "ba\"ck";
const INCOMING: &str = "public";
const QUOTED_TARGET: &str = r#""ba\"ck""#;
const QUOTED_INCOMING: &str = r#""public""#;
/// White space that may stand before and after the colon.
const MAX_SPACE: usize = 16;
/// A key with its colon, that white space and a name.
const MAX_HELD: usize = r#""model":"#.len() + 2 * MAX_SPACE + QUOTED_TARGET.len();
/// Deeper documents are only checked for what needs no second reader.
const MAX_DEPTH: usize = 64;

/// The first letter chooses the API: `A`nthropic's messages, `S`GLang's generate,
/// `V`ertex AI's predictions, which hold the response in frames, and `G`enerate and `E`mbed
/// of vLLM's service, whose frames are the response. Everything else is chat completions.
/// The first line names chunk sizes, too; the rest is a response of one JSON document.
///
/// - Every split finds the same usage and gives the same bytes.
/// - Of a JSON document the usage is the last object that a member of its name
///   holds, at any depth, if it has a number to read; only the values of members
///   named `model` change, and only where they are the target's name.
/// - Of frames it is what prost decodes.
pub fn usage_json(bytes: &[u8]) {
    let input = Input::of(bytes);
    let api = api(&input);
    let got = read(api, &input, false);
    let Ok(text) = std::str::from_utf8(input.data) else { return };
    if nesting(text) <= MAX_DEPTH
        && let Some(document) = Node::of(text)
    {
        let mut want = Wanted::new(api, false);
        want.take(document);
        want.check(&got, text);
    }
}

/// The same for an event stream. It is comparable when every `data:` line is a
/// JSON document of its own or `[DONE]`, as model servers send them, and other
/// lines hold no quotes and braces.
///
/// The first token has passed with the first of these documents that has generated
/// content, in every split.
pub fn usage_sse(bytes: &[u8]) {
    let input = Input::of(bytes);
    let api = api(&input);
    let got = read(api, &input, true);
    let passed = first_token::passed(api, &input);
    let Ok(text) = std::str::from_utf8(input.data) else { return };
    if nesting(text) > MAX_DEPTH {
        return;
    }
    let mut want = Wanted::new(api, true);
    let mut first = None;
    for line in text.split(['\n', '\r']) {
        match line.strip_prefix("data:") {
            Some(data) if data.trim() == "[DONE]" => {}
            Some(data) => {
                let Some(event) = Node::of(data) else { return };
                let offset = data.as_ptr().addr() - text.as_ptr().addr();
                let event = Node { start: offset + event.start, ..event };
                if first.is_none() && first_token::is_generated(api, event) {
                    first = Some(event.end());
                }
                want.take(event);
            }
            None if line.contains(['"', '{']) => return,
            None => {}
        }
    }
    want.check(&got, text);
    // The bytes of the others are no events, but frames around them.
    if let Some(passed) = passed
        && !matches!(api, Api::VllmGrpcGenerate | Api::VertexPredict)
        && first_token::begins_as_stream(text)
    {
        assert_eq!(passed, first);
    }
}

fn api(input: &Input<'_>) -> Api {
    match input.setting(0) {
        b'A' => Api::Messages,
        b'S' => Api::SglangGenerate,
        b'V' => Api::VertexPredict,
        b'G' => Api::VllmGrpcGenerate,
        b'E' => Api::VllmGrpcEmbed,
        _ => Api::ChatCompletions,
    }
}

/// Results of reading a response: its usage, and the bytes that are sent on.
#[derive(Debug, PartialEq)]
struct Got {
    usage: Option<Usage>,
    sent: Bytes,
}

/// Reads a response in every split.
fn read(api: Api, input: &Input<'_>, event_stream: bool) -> Got {
    let [whole, others @ ..] = input.splits(0).map(|chunks| read_chunks(api, &chunks, event_stream));
    for other in others {
        assert_eq!(whole, other, "another split gives another result");
    }
    match api {
        Api::VllmGrpcGenerate | Api::VllmGrpcEmbed => frames::check_usage(api, input.data),
        Api::VertexPredict => {
            // In two frames the same is found as without any.
            let halves = input.data.split_at(input.data.len() / 2);
            let frame = |data: &[u8]| framed(&HttpBody { data: data.to_vec(), ..HttpBody::default() });
            let framed = [frame(halves.0), frame(halves.1)].concat();
            let found = input.with(&framed).splits(0).map(|chunks| frames::usage(api, &chunks));
            return Got { usage: all_the_same(found), ..whole };
        }
        _ => {}
    }
    whole
}

fn all_the_same([first, others @ ..]: [Option<Usage>; 3]) -> Option<Usage> {
    for other in others {
        assert_eq!(first, other, "another split gives another result");
    }
    first
}

fn read_chunks(api: Api, chunks: &[Bytes], event_stream: bool) -> Got {
    let mut reader = UsageReader::of(api).expect("the response is read");
    if event_stream {
        reader.event_stream();
    }
    let mut restorer = ModelRestorer::new(TARGET, INCOMING);
    let (mut sent, mut taken) = (Vec::new(), 0);
    for chunk in chunks {
        reader.feed(chunk);
        sent.extend_from_slice(&restorer.feed(chunk.clone(), false));
        taken += chunk.len();
        assert!(taken - sent.len() <= MAX_HELD, "{} bytes are held back", taken - sent.len());
    }
    sent.extend_from_slice(&restorer.feed(Bytes::new(), true));
    assert_eq!(taken, sent.len());
    Got { usage: reader.found(), sent: sent.into() }
}

/// Results of a second reader, which are expected.
#[derive(Debug)]
struct Wanted {
    api: Api,
    /// `true` if a usage that is found is added to what was found before.
    merges: bool,
    usage: Option<Usage>,
    /// Offsets of values that are replaced.
    names: Vec<usize>,
}

impl Wanted {
    fn new(api: Api, event_stream: bool) -> Self {
        let merges = event_stream && api == Api::Messages;
        Self { api, merges, usage: None, names: Vec::new() }
    }

    /// Takes a value and all that is in it.
    fn take(&mut self, node: Node<'_>) {
        self.take_usage(node);
        self.take_names(node);
    }

    fn take_usage(&mut self, node: Node<'_>) {
        for element in node.elements() {
            self.take_usage(element);
        }
        let usage_name = if self.api == Api::SglangGenerate { "meta_info" } else { "usage" };
        for (name, value) in node.members() {
            if name.inside() == usage_name && value.kind() == Kind::Object {
                let usage = usage_of(self.api, value);
                if usage != Usage::default() {
                    let before = self.usage.filter(|_| self.merges).unwrap_or_default();
                    self.usage = Some(added(before, usage));
                }
            } else {
                self.take_usage(value);
            }
        }
    }

    fn take_names(&mut self, node: Node<'_>) {
        for element in node.elements() {
            self.take_names(element);
        }
        for (name, value) in node.members() {
            let offset = |at: usize| at - node.start;
            let between = &node.raw[offset(name.end())..offset(value.start)];
            let near = between.split(':').all(|space| space.len() <= MAX_SPACE);
            if name.inside() == "model" && value.raw == QUOTED_TARGET && near {
                self.names.push(value.start);
            }
            self.take_names(value);
        }
    }

    fn check(&self, got: &Got, text: &str) {
        // The frames of vLLM's service have no JSON in them.
        if !matches!(self.api, Api::VllmGrpcGenerate | Api::VllmGrpcEmbed) {
            assert_eq!(got.usage, self.usage);
        }
        let mut sent = text.to_owned();
        for &at in &self.names {
            sent.replace_range(at..at + QUOTED_TARGET.len(), QUOTED_INCOMING);
        }
        assert_eq!(String::from_utf8_lossy(&got.sent), sent);
    }
}

/// Numbers that are not 0 replace those from before.
fn added(before: Usage, later: Usage) -> Usage {
    let add = |before: Option<u64>, later: Option<u64>| match (before, later) {
        (Some(before), None | Some(0)) => Some(before),
        (_, later) => later,
    };
    Usage {
        prompt_tokens: add(before.prompt_tokens, later.prompt_tokens),
        completion_tokens: add(before.completion_tokens, later.completion_tokens),
        cached_tokens: add(before.cached_tokens, later.cached_tokens),
    }
}

/// Reads a usage object. Of members with one meaning the last counts, whatever
/// its name; what is neither a number nor a string counts as not there.
fn usage_of(api: Api, node: Node<'_>) -> Usage {
    let mut usage = Usage::default();
    for (name, value) in node.members() {
        let (prompt, completion, cached, details): (&[&str], &[&str], _, &[&str]) = match api {
            Api::Messages => (&["input_tokens"], &["output_tokens"], "cache_read_input_tokens", &[]),
            Api::SglangGenerate => (&["prompt_tokens"], &["completion_tokens"], "cached_tokens", &[]),
            _ => (
                &["prompt_tokens", "input_tokens"],
                &["completion_tokens", "output_tokens"],
                "",
                &["prompt_tokens_details", "input_tokens_details"],
            ),
        };
        let name = name.inside();
        if prompt.contains(&name) {
            set(&mut usage.prompt_tokens, value);
        } else if completion.contains(&name) {
            set(&mut usage.completion_tokens, value);
        } else if !cached.is_empty() && name == cached {
            set(&mut usage.cached_tokens, value);
        } else if details.contains(&name) {
            for (name, value) in value.members() {
                if name.inside() == "cached_tokens" {
                    set(&mut usage.cached_tokens, value);
                }
            }
        }
    }
    usage
}

/// Tokens as a number, or as a string that holds one.
fn set(tokens: &mut Option<u64>, value: Node<'_>) {
    let text = match value.kind() {
        Kind::Number => value.raw,
        Kind::String => value.inside(),
        _ => return,
    };
    *tokens = text.parse().ok().filter(|_| text.len() <= 64);
}
