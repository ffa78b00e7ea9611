//! Requests and when they come.

use std::time::Duration;

use bytes::Bytes;

use super::capacity;
use super::servers::Server;
use crate::load::body::Style;
use crate::load::settings::Api;
use crate::load::text::{TOKEN_CHARS, words};
use crate::load::trace::Row;
use crate::sim::{block_hashes, mix};

/// The name that requests ask for, and what keeps their prefixes apart from others'.
const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// The API of all requests.
pub(super) const API: Api = Api::Chat;

/// One request to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When, since the first one.
    pub at: Duration,
    /// What its prompt is made of, in order.
    pub prompt: Box<[Piece]>,
    /// Tokens of its answer, at least 1. Pickers don't see it.
    pub output_tokens: u32,
}

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Its text follows from this number alone: equal numbers are equal text.
    pub seed: u64,
    /// Its length.
    pub tokens: u32,
}

impl Arrival {
    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt.iter().fold(0, |sum, piece| sum.saturating_add(piece.tokens))
    }

    fn text(&self) -> String {
        let mut text = String::with_capacity(self.prompt_tokens() as usize * TOKEN_CHARS);
        for piece in &self.prompt {
            words(piece.seed, piece.tokens as usize, &mut text);
        }
        text
    }
}

/// The requests of a trace. With another `salt` all texts are others, and what they share
/// is the same.
pub fn of_trace(rows: &[Row], salt: u64) -> Vec<Arrival> {
    let start = rows.first().map_or(0, |row| row.timestamp);
    let arrival = |row: &Row| Arrival {
        at: Duration::from_millis(row.timestamp.saturating_sub(start)),
        prompt: row.pieces(salt).map(|(seed, tokens)| Piece { seed, tokens: tokens as u32 }).collect(),
        output_tokens: row.output_length.max(1),
    };
    rows.iter().map(arrival).collect()
}

/// The same requests again and again, each time with other texts, until there are `count`.
pub fn repeat(rows: &[Row], count: usize, salt: u64) -> Vec<Arrival> {
    let once = of_trace(rows, salt);
    let span = once.last().map_or(Duration::ZERO, |last| last.at);
    // As if the mean time passed between the last one and the first one.
    let gaps = u32::try_from(rows.len()).unwrap_or(u32::MAX).saturating_sub(1).max(1);
    let period = span.saturating_add(span / gaps);
    let mut arrivals = Vec::with_capacity(count);
    for round in 0..u32::try_from(count.div_ceil(rows.len().max(1))).unwrap_or(u32::MAX) {
        let again = of_trace(rows, if round == 0 { salt } else { mix(salt).wrapping_add(round.into()) });
        let left = count - arrivals.len();
        let later = |arrival: Arrival| Arrival {
            at: arrival.at.saturating_add(period.saturating_mul(round)),
            ..arrival
        };
        arrivals.extend(again.into_iter().take(left).map(later));
    }
    arrivals
}

/// Lets all requests come `factor` times as fast; above 0.
pub fn speed_up(arrivals: &mut [Arrival], factor: f64) {
    for arrival in arrivals {
        // Beyond centuries it makes no difference when.
        let at = Duration::try_from_secs_f64(arrival.at.as_secs_f64() / factor);
        arrival.at = at.unwrap_or(Duration::from_secs(u32::MAX.into()));
    }
}

/// Lets the requests come so fast that they ask for this share of what the servers can
/// do; see [`capacity::utilization`]. Returns how much faster that is; `None`, and nothing
/// changed, when it can't be done: all come at once, or work costs the servers nothing.
pub fn utilize(arrivals: &mut [Arrival], servers: &[Server], share: f64) -> Option<f64> {
    let now = capacity::utilization(arrivals, servers)?;
    let factor = share / now;
    if !factor.is_finite() || factor <= 0.0 {
        return None;
    }
    speed_up(arrivals, factor);
    Some(factor)
}

/// A request as pickers and servers take it.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) body: Bytes,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    /// Hashes of the prompt's blocks, by tokens of a block.
    blocks: Vec<(u32, Vec<u64>)>,
}

impl Prepared {
    /// The hashes of the prompt's full blocks of so many tokens.
    pub(super) fn blocks(&self, block_size: u32) -> &[u64] {
        let of_size = self.blocks.iter().find(|(size, _)| *size == block_size);
        of_size.map_or(&[], |(_, hashes)| hashes)
    }
}

/// Makes requests of arrivals.
#[derive(Debug)]
pub(super) struct Preparation {
    style: Style,
    max_tokens: usize,
    block_sizes: Vec<u32>,
}

impl Preparation {
    pub(super) fn new(arrivals: &[Arrival], servers: &[Server]) -> Self {
        let style = Style { api: API, model: MODEL.to_owned(), stream: true };
        // The same limit for all: a real client doesn't know how long its answer will be,
        // so neither may a picker.
        let longest = arrivals.iter().map(|arrival| arrival.output_tokens).max().unwrap_or(1);
        let mut block_sizes: Vec<u32> = servers.iter().map(|server| server.engine.block_size).collect();
        block_sizes.sort_unstable();
        block_sizes.dedup();
        Self { style, max_tokens: longest as usize, block_sizes }
    }

    pub(super) fn prepare(&self, arrival: &Arrival) -> Prepared {
        let text = arrival.text();
        let hashes = |size: &u32| (*size, block_hashes(MODEL, text.as_bytes(), *size));
        Prepared {
            body: self.style.body(&text, self.max_tokens),
            prompt_tokens: arrival.prompt_tokens().max(1),
            output_tokens: arrival.output_tokens.max(1),
            blocks: self.block_sizes.iter().map(hashes).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::EngineConfig;

    fn row(timestamp: u64, input_length: usize, hash_ids: &[u64]) -> Row {
        Row { timestamp, input_length, output_length: 0, hash_ids: hash_ids.to_vec() }
    }

    fn servers(sizes: &[u32]) -> Vec<Server> {
        let engine = |size: &u32| EngineConfig { block_size: *size, ..EngineConfig::default() };
        sizes.iter().map(|size| Server::new(format!("s{size}"), engine(size))).collect()
    }

    #[test]
    fn a_trace_begins_at_its_first_request_and_has_its_texts() {
        let rows = [row(5_000, 700, &[1, 2]), row(6_500, 1024, &[1, 3])];
        let arrivals = of_trace(&rows, 9);
        assert_eq!([arrivals[0].at, arrivals[1].at], [0, 1500].map(Duration::from_millis));
        assert_eq!((arrivals[0].prompt_tokens(), arrivals[0].output_tokens), (700, 1));
        assert_eq!(arrivals[0].text(), rows[0].prompt(9));
        assert_ne!(arrivals[0].text(), of_trace(&rows, 8)[0].text());
    }

    #[test]
    fn blocks_are_hashed_for_every_size_that_a_server_has() {
        let arrivals = of_trace(&[row(0, 700, &[1, 2]), row(0, 1024, &[1, 3])], 0);
        let preparation = Preparation::new(&arrivals, &servers(&[16, 64, 16]));
        let [one, other] = [0, 1].map(|index: usize| preparation.prepare(&arrivals[index]));
        assert_eq!([16, 64, 32].map(|size| one.blocks(size).len()), [43, 10, 0]);
        // The first 512 tokens are the same text.
        assert_eq!(one.blocks(64)[..8], other.blocks(64)[..8]);
        assert_ne!(one.blocks(64)[8], other.blocks(64)[8]);
    }

    #[test]
    fn pickers_see_a_limit_and_not_the_length_of_the_answer() {
        let mut arrivals = of_trace(&[row(0, 4, &[1]), row(0, 4, &[1])], 0);
        arrivals[1].output_tokens = 900;
        let preparation = Preparation::new(&arrivals, &servers(&[16]));
        for arrival in &arrivals {
            let body = preparation.prepare(arrival).body;
            assert!(String::from_utf8_lossy(&body).contains(r#""max_tokens":900"#));
        }
    }

    #[test]
    fn arrivals_are_scaled_to_a_share_of_the_capacity() {
        let rows: Vec<Row> = (0..101).map(|n| row(n * 1000, 1000, &[n, n + 1000])).collect();
        let mut arrivals = of_trace(&rows, 0);
        let servers = servers(&[16, 16]);
        let factor = utilize(&mut arrivals, &servers, 0.7).unwrap();
        assert!((capacity::utilization(&arrivals, &servers).unwrap() - 0.7).abs() < 1e-6);
        assert!((arrivals[100].at.as_secs_f64() - 100.0 / factor).abs() < 1e-6);
        let mut together = arrivals[..1].to_vec();
        assert_eq!(utilize(&mut together, &servers, 0.7), None);
        let free = vec![Server::new("free".to_owned(), EngineConfig::instant())];
        assert_eq!(utilize(&mut arrivals, &free, 0.7), None);
    }
}
