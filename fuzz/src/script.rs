//! Script of a gateway for one exchange, as a text: a line is a message or a decision.
//!
//! | line | |
//! |---|---|
//! | `h` | request headers; `c`, `t`, `p` choose the path, `m` another model, `i` an id, `.` ends the stream |
//! | `b…` `B…` | a chunk of the request's body; the capital ends it |
//! | `z` `Z` | a chunk of as many thousand bytes as the next byte says |
//! | `t` | request trailers |
//! | `r` | response headers; `e` for an event stream, a digit for the endpoint that served, `.` ends it |
//! | `a…` `A…` `y` `Y` | chunks of the response's body, like those of the request's |
//! | `x` | response trailers |
//! | `s…` | the next message has this subset hint |
//! | `?` `!` | the decision that is waited for: made, refused |
//! | `q` | the gateway goes away |
//!
//! The first line says how many endpoints there are (`0` to `3`), how bodies are
//! sent (see [`modes`]) and, with `l`, that decisions wait for their line.

use bytes::Bytes;
use usher::endpoints::SubsetHint;
use usher::endpoints::health::ResponseStatus;
use usher::request::Headers;
use usher::schedule::Served;
use usher_wire::event::{Event, Message, Mode, Modes};

use super::input::Input;

/// One line.
#[derive(Debug)]
pub enum Step {
    Message(Message),
    Decide,
    Refuse,
    Leave,
}

/// Lines that are read. More says nothing new and takes long.
const MAX_LINES: usize = 64;
/// Large chunks of one script.
const MAX_LARGE: usize = 6;

/// A whole exchange.
#[derive(Debug)]
pub struct Script {
    pub endpoints: u16,
    pub modes: Option<Modes>,
    /// Decisions wait for their line.
    pub late: bool,
    pub steps: Vec<Step>,
}

impl Script {
    pub fn of(bytes: &[u8]) -> Self {
        let input = Input::of(bytes);
        let modes = modes(input.setting(1));
        let mut reader = Reader { modes, subset: None, large: 0 };
        let lines = input.data.split(|byte| *byte == b'\n').take(MAX_LINES);
        Self {
            endpoints: u16::from(input.setting(0) % 4),
            modes,
            late: input.setting(2) == b'l',
            steps: lines.filter_map(|line| reader.step(line)).collect(),
        }
    }
}

/// Modes of the request's and the response's body; anything else says nothing, which
/// is full duplex.
fn modes(letter: u8) -> Option<Modes> {
    let (request, response) = match letter {
        b'f' => (Mode::FullDuplex, Mode::FullDuplex),
        b'n' => (Mode::None, Mode::None),
        b'o' => (Mode::OneToOne, Mode::OneToOne),
        b'q' => (Mode::OneToOne, Mode::FullDuplex),
        b'r' => (Mode::FullDuplex, Mode::OneToOne),
        _ => return None,
    };
    Some(Modes { request, response })
}

struct Reader {
    /// For the first message.
    modes: Option<Modes>,
    subset: Option<SubsetHint>,
    large: usize,
}

impl Reader {
    fn step(&mut self, line: &[u8]) -> Option<Step> {
        let (&letter, rest) = line.split_first()?;
        let has = |option: u8| rest.contains(&option);
        let end_of_stream = letter.is_ascii_uppercase();
        let mut served = Served::Unknown;
        let event = match letter {
            b'h' => Event::RequestHeaders { headers: headers(rest), end_of_stream: has(b'.') },
            b'b' | b'B' => Event::RequestBody { data: Bytes::copy_from_slice(rest).into(), end_of_stream },
            b'z' | b'Z' => Event::RequestBody { data: self.large(rest).into(), end_of_stream },
            b't' => Event::RequestTrailers,
            b'r' => {
                let digit = rest.iter().copied().find(u8::is_ascii_digit);
                let address = digit.map(|digit| format!("10.0.0.{}:8000", digit - b'0'));
                served = address.map_or(Served::Unknown, Served::By);
                let status = ResponseStatus::default();
                let (event_stream, encoded) = (has(b'e'), has(b'c'));
                Event::ResponseHeaders { status, event_stream, encoded, end_of_stream: has(b'.') }
            }
            b'a' | b'A' => Event::ResponseBody { data: Bytes::copy_from_slice(rest).into(), end_of_stream },
            b'y' | b'Y' => Event::ResponseBody { data: self.large(rest).into(), end_of_stream },
            b'x' => Event::ResponseTrailers,
            b's' => {
                let text = String::from_utf8_lossy(rest);
                self.subset = Some(SubsetHint::from_entries([text.as_ref()]));
                return None;
            }
            b'?' => return Some(Step::Decide),
            b'!' => return Some(Step::Refuse),
            b'q' => return Some(Step::Leave),
            _ => return None,
        };
        let (modes, subset) = (self.modes.take(), self.subset.take());
        Some(Step::Message(Message { event, modes, subset, served }))
    }

    fn large(&mut self, rest: &[u8]) -> Bytes {
        self.large += 1;
        let thousands = rest.first().map_or(0, |byte| usize::from(byte % 128));
        Bytes::from(vec![b'z'; if self.large > MAX_LARGE { 0 } else { thousands * 1000 }])
    }
}

fn headers(options: &[u8]) -> Headers {
    let mut pairs = Vec::new();
    for option in options {
        pairs.push(match option {
            b'c' => (":path", "/v1/chat/completions"),
            b't' => (":path", "/v1/completions"),
            b'p' => (":path", "/tokenize"),
            b'm' => ("x-llm-d-model-name-rewrite", "t\"\u{e9}"),
            b'i' => ("x-request-id", "r-1"),
            b'f' => ("x-llm-d-inference-fairness-id", "flow"),
            _ => continue,
        });
    }
    pairs.into_iter().collect()
}
