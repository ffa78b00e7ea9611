//! Answers: usage and the model's name, in JSON and in event streams.

use bytes::Bytes;
use usher::request::restore::ModelRestorer;
use usher::request::usage::{Usage, UsageScanner};

use super::input::Input;
use super::tree::{Kind, Node, nesting};

/// The name that an answer has, and the one that it gets. Quoted and escaped they
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

/// The first line names chunk sizes, the rest is an answer of one JSON document.
///
/// - Every split finds the same usage and gives the same bytes.
/// - Of a JSON document the usage is the last object that a member named `usage`
///   holds, at any depth, if it has a number to read; only the values of members
///   named `model` change, and only where they are the target's name.
pub fn usage_json(bytes: &[u8]) {
    let input = Input::of(bytes);
    let got = read(&input);
    let Ok(text) = std::str::from_utf8(input.data) else { return };
    if nesting(text) <= MAX_DEPTH
        && let Some(document) = Node::of(text)
    {
        let mut want = Wanted::default();
        want.take(document);
        want.check(&got, text);
    }
}

/// The same for an event stream. It is comparable when every `data:` line is a
/// JSON document of its own or `[DONE]`, as model servers send them, and other
/// lines hold no quotes and braces.
pub fn usage_sse(bytes: &[u8]) {
    let input = Input::of(bytes);
    let got = read(&input);
    let Ok(text) = std::str::from_utf8(input.data) else { return };
    if nesting(text) > MAX_DEPTH {
        return;
    }
    let mut want = Wanted::default();
    for line in text.split(['\n', '\r']) {
        match line.strip_prefix("data:") {
            Some(data) if data.trim() == "[DONE]" => {}
            Some(data) => {
                let Some(event) = Node::of(data) else { return };
                let offset = data.as_ptr().addr() - text.as_ptr().addr();
                want.take(Node { start: offset + event.start, ..event });
            }
            None if line.contains(['"', '{']) => return,
            None => {}
        }
    }
    want.check(&got, text);
}

/// What came of an answer.
#[derive(Debug, PartialEq)]
struct Got {
    usage: Option<Usage>,
    sent: Bytes,
}

/// Reads an answer in every split.
fn read(input: &Input<'_>) -> Got {
    let [whole, others @ ..] = input.splits(0).map(|chunks| read_chunks(&chunks));
    for other in others {
        assert_eq!(whole, other, "another split gives another result");
    }
    whole
}

fn read_chunks(chunks: &[Bytes]) -> Got {
    let mut scanner = UsageScanner::default();
    let mut restorer = ModelRestorer::new(TARGET, INCOMING);
    let (mut sent, mut taken) = (Vec::new(), 0);
    for chunk in chunks {
        scanner.feed(chunk);
        sent.extend_from_slice(&restorer.feed(chunk.clone(), false));
        taken += chunk.len();
        assert!(taken - sent.len() <= MAX_HELD, "{} bytes are held back", taken - sent.len());
    }
    sent.extend_from_slice(&restorer.feed(Bytes::new(), true));
    assert_eq!(taken, sent.len());
    Got { usage: scanner.found(), sent: sent.into() }
}

/// What a second reader finds.
#[derive(Debug, Default)]
struct Wanted {
    usage: Option<Usage>,
    /// Where values begin that are replaced.
    names: Vec<usize>,
}

impl Wanted {
    /// Takes a value and all that is in it.
    fn take(&mut self, node: Node<'_>) {
        self.take_usage(node);
        self.take_names(node);
    }

    fn take_usage(&mut self, node: Node<'_>) {
        for element in node.elements() {
            self.take_usage(element);
        }
        for (name, value) in node.members() {
            if name.inside() == "usage" && value.kind() == Kind::Object {
                let usage = usage_of(value);
                if usage != Usage::default() {
                    self.usage = Some(usage);
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
        assert_eq!(got.usage, self.usage);
        let mut sent = text.to_owned();
        for &at in &self.names {
            sent.replace_range(at..at + QUOTED_TARGET.len(), QUOTED_INCOMING);
        }
        assert_eq!(String::from_utf8_lossy(&got.sent), sent);
    }
}

/// Reads a usage object. Of members with one meaning the last counts, whatever
/// its name; what is neither a number nor a string counts as not there.
fn usage_of(node: Node<'_>) -> Usage {
    let mut usage = Usage::default();
    for (name, value) in node.members() {
        match name.inside() {
            "prompt_tokens" | "input_tokens" => set(&mut usage.prompt_tokens, value),
            "completion_tokens" | "output_tokens" => set(&mut usage.completion_tokens, value),
            "prompt_tokens_details" | "input_tokens_details" => {
                for (name, value) in value.members() {
                    if name.inside() == "cached_tokens" {
                        set(&mut usage.cached_tokens, value);
                    }
                }
            }
            _ => {}
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
