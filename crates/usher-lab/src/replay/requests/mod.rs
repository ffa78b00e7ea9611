//! Requests as pickers and servers take them, made of [`Arrival`]s when they are needed.

mod numbers;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use super::servers::Server;
use super::workload::{Arrival, LatencyClass, Piece};
use crate::load::body::{Message, Style};
use crate::load::settings::Api;
use crate::load::text::{TOKEN_CHARS, words};
use crate::sim::{RESPONSE_ROLE, block_hashes};
use numbers::Numbers;
use usher_core::request::{self, Headers, ParseError, Parsers, Request, RequestParser};

/// Model that requests ask for, and the scope of their block hashes.
pub(super) const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// Role of messages that repeat no response.
const USER_ROLE: &str = "user";

/// The API of all requests.
pub(super) const API: Api = Api::Chat;

/// Bytes of bodies that are kept for the next policy, and of the hashes of blocks; the others
/// are made again.
const MOST_KEPT: usize = 256 << 20;

/// A request as servers take it.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    /// Latency targets.
    pub(super) class: Option<LatencyClass>,
    /// Hashes of the full blocks of the prompt, and of the response where it is repeated
    /// later, by tokens of a block; see [`Numbers`].
    blocks: Vec<(u32, Vec<u64>)>,
}

impl Prepared {
    /// Hashes of the full blocks of so many tokens.
    pub(super) fn blocks(&self, block_size: u32) -> &[u64] {
        let of_size = self.blocks.iter().find(|(size, _)| *size == block_size);
        of_size.map_or(&[], |(_, hashes)| hashes)
    }

    fn bytes(&self) -> usize {
        self.blocks.iter().map(|(_, hashes)| hashes.len() * 8).sum()
    }
}

/// Values that are kept while they fit, by position.
#[derive(Debug)]
struct Kept<T> {
    values: Vec<OnceLock<Arc<T>>>,
    bytes: AtomicUsize,
}

impl<T> Kept<T> {
    fn new(count: usize) -> Self {
        Self { values: (0..count).map(|_| OnceLock::new()).collect(), bytes: AtomicUsize::new(0) }
    }

    fn get(&self, position: usize) -> Option<&Arc<T>> {
        self.values[position].get()
    }

    fn keep(&self, position: usize, value: &Arc<T>, bytes: usize) {
        if self.bytes.fetch_add(bytes, Relaxed) + bytes <= MOST_KEPT {
            // Another thread may have kept the same.
            let _ = self.values[position].set(Arc::clone(value));
        } else {
            self.bytes.fetch_sub(bytes, Relaxed);
        }
    }
}

/// The requests of a replay, shared by its policies.
#[derive(Debug)]
pub struct Requests {
    arrivals: Vec<Arrival>,
    /// Parts of prompts that repeat a response.
    responses: HashSet<Piece>,
    style: Style,
    max_tokens: usize,
    /// Tokens of a block, and the numbers of blocks of this size.
    block_sizes: Vec<(u32, Mutex<Numbers>)>,
    prepared: Kept<Prepared>,
    /// Requests as the parser of an API has read them.
    read: Kept<(request::Api, Request)>,
}

impl Requests {
    /// Requests of these arrivals to these servers.
    pub fn new(arrivals: &[Arrival], servers: &[Server], streams: bool) -> Self {
        let style = Style { api: API, model: MODEL.to_owned(), stream: streams };
        // The same limit for all: a real client doesn't know how long its response will be,
        // so neither may a picker.
        let longest = arrivals.iter().map(|arrival| arrival.output_tokens).max().unwrap_or(1);
        let mut block_sizes: Vec<u32> = servers.iter().map(|server| server.engine.block_size).collect();
        block_sizes.sort_unstable();
        block_sizes.dedup();
        Self {
            arrivals: arrivals.to_vec(),
            responses: arrivals.iter().filter_map(Arrival::response).collect(),
            style,
            max_tokens: longest as usize,
            block_sizes: block_sizes.into_iter().map(|size| (size, Mutex::default())).collect(),
            prepared: Kept::new(arrivals.len()),
            read: Kept::new(arrivals.len()),
        }
    }

    /// Returns `true` if responses are streams.
    pub(super) fn streams(&self) -> bool {
        self.style.stream
    }

    pub(super) fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// The request at this position.
    pub(super) fn get(&self, position: usize) -> Arc<Prepared> {
        if let Some(kept) = self.prepared.get(position) {
            return Arc::clone(kept);
        }
        let prepared = Arc::new(self.prepare(&self.arrivals[position]));
        self.prepared.keep(position, &prepared, prepared.bytes());
        prepared
    }

    /// The request at this position as these parsers read it.
    ///
    /// # Errors
    /// `ParseError` if it can't be read.
    pub(super) fn read(&self, position: usize, parsers: &Parsers) -> Result<Request, ParseError> {
        let api = parsers.resolve(API.path());
        if let Some((_, request)) =
            self.read.get(position).map(|kept| &**kept).filter(|kept| Some(kept.0) == api)
        {
            return Ok(request.clone());
        }
        let arrival = &self.arrivals[position];
        let targets: Vec<_> = arrival.class.into_iter().flat_map(LatencyClass::headers).collect();
        let headers: Headers = [
            (":method", "POST"),
            (":path", API.path()),
            (":authority", "replay"),
            ("content-type", "application/json"),
        ]
        .into_iter()
        .chain(targets.iter().map(|(name, value)| (*name, value.as_str())))
        .collect();
        let mut parser = RequestParser::new(headers, parsers);
        parser.push(self.body(arrival, |_| None));
        let bytes = parser.body_len() + size_of::<Request>();
        let request = parser.finish()?;
        if let Some(api) = api {
            self.read.keep(position, &Arc::new((api, request.clone())), bytes);
        }
        Ok(request)
    }

    fn prepare(&self, arrival: &Arrival) -> Prepared {
        let mut text = text(&arrival.prompt);
        if let Some(Piece { seed, tokens }) = arrival.response() {
            words(seed, tokens as usize, &mut text);
        }
        let blocks = |(size, numbers): &(u32, Mutex<Numbers>)| {
            let mut hashes = block_hashes(MODEL, text.as_bytes(), *size);
            numbers.lock().unwrap_or_else(PoisonError::into_inner).replace(&mut hashes);
            (*size, hashes)
        };
        Prepared {
            prompt_tokens: arrival.prompt_tokens().max(1),
            output_tokens: arrival.output_tokens.max(1),
            class: arrival.class,
            blocks: self.block_sizes.iter().map(blocks).collect(),
        }
    }

    /// The body of a request: responses before it are messages of their own. `said`: the text of
    /// such a response where it is another than the one that its seed gives.
    pub(super) fn body<'a>(&self, arrival: &Arrival, said: impl Fn(&Piece) -> Option<&'a str>) -> Bytes {
        let mut messages: Vec<(&str, String)> = Vec::new();
        for piece in &arrival.prompt {
            let is_response = self.responses.contains(piece);
            let role = if is_response { RESPONSE_ROLE } else { USER_ROLE };
            if is_response || messages.last().is_none_or(|(last, _)| *last != USER_ROLE) {
                messages.push((role, String::new()));
            }
            let Some((_, text)) = messages.last_mut() else { continue };
            match said(piece).filter(|_| is_response) {
                Some(said) => text.push_str(said),
                None => words(piece.seed, piece.tokens as usize, text),
            }
        }
        if messages.is_empty() {
            messages.push((USER_ROLE, String::new()));
        }
        for (_, text) in messages.iter_mut().filter(|(role, _)| *role == USER_ROLE) {
            // Chat templates add its role and that of the response after it. They are part of its
            // tokens, so that a prompt has as many as its arrival says.
            text.truncate(text.len().saturating_sub(USER_ROLE.len() + RESPONSE_ROLE.len()));
        }
        let messages: Vec<Message<'_>> =
            messages.iter().map(|(role, content)| Message { role, content }).collect();
        self.style.chat(&messages, self.max_tokens)
    }
}

/// The text of these pieces.
fn text(pieces: &[Piece]) -> String {
    let tokens: usize = pieces.iter().map(|piece| piece.tokens as usize).sum();
    let mut text = String::with_capacity(tokens * TOKEN_CHARS);
    pieces.iter().for_each(|piece| words(piece.seed, piece.tokens as usize, &mut text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::trace::Row;
    use crate::replay::workload::of_trace;
    use crate::sim::EngineConfig;

    fn row(input_length: usize, hash_ids: &[u64]) -> Row {
        Row { timestamp: 0, input_length, output_length: 0, hash_ids: hash_ids.to_vec() }
    }

    fn requests(arrivals: &[Arrival], sizes: &[u32]) -> Requests {
        let engine = |size: &u32| EngineConfig { block_size: *size, ..EngineConfig::default() };
        let servers: Vec<Server> =
            sizes.iter().map(|size| Server::new(format!("s{size}"), engine(size))).collect();
        Requests::new(arrivals, &servers, true)
    }

    fn body(requests: &Requests, position: usize) -> Bytes {
        requests.body(&requests.arrivals()[position], |_| None)
    }

    #[test]
    fn a_request_has_the_text_of_its_row() {
        let rows = [row(700, &[1, 2])];
        let arrivals = of_trace(&rows, 9);
        assert_eq!(text(&arrivals[0].prompt), rows[0].prompt(9));
        assert_ne!(text(&arrivals[0].prompt), text(&of_trace(&rows, 8)[0].prompt));
    }

    #[test]
    fn blocks_are_hashed_for_every_block_size() {
        let requests = requests(&of_trace(&[row(700, &[1, 2]), row(1024, &[1, 3])], 0), &[16, 64, 16]);
        let [one, other] = [0, 1].map(|position| requests.get(position));
        assert_eq!([16, 64, 32].map(|size| one.blocks(size).len()), [43, 10, 0]);
        // The first 512 tokens are the same text.
        assert_eq!(one.blocks(64)[..8], other.blocks(64)[..8]);
        assert_ne!(one.blocks(64)[8], other.blocks(64)[8]);
        assert!(Arc::ptr_eq(&one, &requests.get(0)), "kept");
    }

    #[test]
    fn repeated_response_has_the_blocks_of_the_next_prompt() {
        let first = Arrival {
            prompt: [Piece { seed: 1, tokens: 100 }].into(),
            output_tokens: 60,
            response: Some(7),
            ..Arrival::default()
        };
        let next = Arrival {
            prompt: first.prompt.iter().copied().chain(first.response()).collect(),
            output_tokens: 1,
            ..Arrival::default()
        };
        let requests = requests(&[first, next], &[16]);
        let [first, next] = [0, 1].map(|position| requests.get(position).blocks(16).to_vec());
        assert_eq!((first.len(), first), (10, next));
    }

    #[test]
    fn prompt_has_the_tokens_and_blocks_of_its_body() {
        let piece = |seed| Piece { seed, tokens: 100 + seed as u32 };
        let first = Arrival {
            prompt: [piece(1), piece(2)].into(),
            output_tokens: 60,
            response: Some(7),
            ..Arrival::default()
        };
        let next = |last| Arrival {
            prompt: first.prompt.iter().copied().chain(first.response()).chain([piece(last)]).collect(),
            ..first.clone()
        };
        let requests = requests(&[first.clone(), next(8), next(9)], &[16]);
        let read = |position: usize| {
            let call = crate::sim::read_chat(&body(&requests, position)).unwrap();
            assert_eq!(call.len(), requests.arrivals()[position].prompt_tokens() as usize * TOKEN_CHARS);
            block_hashes(MODEL, &call, 16)
        };
        let shared = |a: &[u64], b: &[u64]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let (read, made) = ([1, 2].map(read), [1, 2].map(|at| requests.get(at).blocks(16).to_vec()));
        // 203 tokens and a response of 60 of it.
        assert_eq!((shared(&read[0], &read[1]), shared(&made[0], &made[1])), (16, 16));
        let body = requests.body(&requests.arrivals()[1], |_| Some("So it was."));
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let roles: Vec<_> = body["messages"].as_array().unwrap().iter().map(|m| &m["role"]).collect();
        assert_eq!(roles, ["user", "assistant", "user"]);
        assert_eq!(body["messages"][1]["content"], "So it was.");
    }

    #[test]
    fn pickers_see_a_limit_and_not_the_length_of_the_response() {
        let mut arrivals = of_trace(&[row(4, &[1]), row(4, &[1])], 0);
        arrivals[1].output_tokens = 900;
        let requests = requests(&arrivals, &[16]);
        for position in 0..2 {
            let body = body(&requests, position);
            assert!(String::from_utf8_lossy(&body).contains(r#""max_tokens":900"#));
        }
    }
}
