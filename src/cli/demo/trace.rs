//! The trace that is replayed, and the requests that it becomes.
//!
//! A row says how long a prompt was and which 512-token blocks it shares with others,
//! not what was written. The text is ours: the same block number gives the same text,
//! so equal prefixes of the trace are equal prefixes on the wire.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::sim::mix;

/// Tokens that one number of `hash_ids` stands for.
const BLOCK_TOKENS: usize = 512;

/// Characters per token, about what English text has, and what the simulated servers
/// count.
const TOKEN_CHARS: usize = 4;

/// Answers are this many times shorter than in the trace. A demo of seconds has no use
/// for answers of minutes, and what is shown depends on prompts.
pub(super) const OUTPUT_DIVISOR: u32 = 8;

/// The name that requests ask for. The servers take any.
pub(super) const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// One request of a trace in the Mooncake format.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Row {
    /// Arrival, in milliseconds since the start of the trace.
    pub(super) timestamp: u64,
    /// Tokens of the prompt.
    pub(super) input_length: usize,
    /// Tokens of the answer.
    pub(super) output_length: u32,
    /// The blocks of the prompt, 512 tokens each but for the last.
    pub(super) hash_ids: Vec<u64>,
}

/// Why a trace can't be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum TraceError {
    /// A line that is not a request.
    #[error(
        "line {line}: {reason}; a line is a JSON object with timestamp, input_length, output_length and hash_ids"
    )]
    Line { line: usize, reason: serde_json::Error },
    /// No line at all.
    #[error("there is no request in it")]
    Empty,
}

/// The first `limit` requests of a trace, by arrival.
pub(super) fn parse(text: &str, limit: usize) -> Result<Vec<Row>, TraceError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).take(limit);
    let rows = lines.map(|(at, line)| {
        serde_json::from_str(line).map_err(|reason| TraceError::Line { line: at + 1, reason })
    });
    let mut rows: Vec<Row> = rows.collect::<Result<_, _>>()?;
    if rows.is_empty() {
        return Err(TraceError::Empty);
    }
    rows.sort_by_key(|row| row.timestamp);
    Ok(rows)
}

#[derive(Serialize)]
struct Chat<'a> {
    model: &'a str,
    messages: [Message<'a>; 1],
    max_tokens: u32,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: &'a str,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl Row {
    /// The body of a streaming chat request. Rows of different `salt` share no text;
    /// with the same salt they share what the trace says.
    pub(super) fn body(&self, salt: u64) -> Bytes {
        let chat = Chat {
            model: MODEL,
            messages: [Message { role: "user", content: &self.prompt(salt) }],
            max_tokens: self.output_tokens(),
            stream: true,
            stream_options: StreamOptions { include_usage: true },
        };
        // Strings and numbers always serialise.
        serde_json::to_vec(&chat).unwrap_or_default().into()
    }

    /// Tokens of the answer that is asked for.
    pub(super) fn output_tokens(&self) -> u32 {
        (self.output_length / OUTPUT_DIVISOR).max(1)
    }

    fn prompt(&self, salt: u64) -> String {
        let mut left = self.input_length;
        let mut text = String::with_capacity(left.min(self.hash_ids.len() * BLOCK_TOKENS) * TOKEN_CHARS);
        for id in &self.hash_ids {
            let tokens = left.min(BLOCK_TOKENS);
            words(mix(salt) ^ id, tokens, &mut text);
            left -= tokens;
        }
        text
    }
}

/// Appends `count` words of four characters, the fourth a space, that follow from
/// `seed` alone.
fn words(seed: u64, count: usize, text: &mut String) {
    const CONSONANTS: &[u8; 16] = b"bcdfghjklmnprstv";
    const VOWELS: &[u8; 4] = b"aeio";
    for number in 0..count as u64 {
        let bits = mix(mix(seed).wrapping_add(number)) as usize;
        text.push(char::from(CONSONANTS[bits & 15]));
        text.push(char::from(VOWELS[(bits >> 4) & 3]));
        text.push(char::from(CONSONANTS[(bits >> 6) & 15]));
        text.push(' ');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn row(input_length: usize, hash_ids: &[u64]) -> Row {
        Row { timestamp: 0, input_length, output_length: 500, hash_ids: hash_ids.to_vec() }
    }

    fn content(row: &Row, salt: u64) -> String {
        let body: Value = serde_json::from_slice(&row.body(salt)).unwrap();
        body["messages"][0]["content"].as_str().unwrap().to_owned()
    }

    #[test]
    fn rows_are_read_up_to_the_limit_and_by_arrival() {
        let text = concat!(
            r#"{"timestamp": 3000, "input_length": 1, "output_length": 2, "hash_ids": [0]}"#,
            "\n\n",
            r#"{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 7]}"#,
            "\n",
            r#"{"timestamp": 9, "later": "columns are no error""#,
        );
        let rows = parse(text, 2).unwrap();
        assert_eq!(rows.iter().map(|row| row.timestamp).collect::<Vec<_>>(), [0, 3000]);
        assert_eq!(rows[0].hash_ids, [0, 7]);
        let error = parse(text, 3).unwrap_err().to_string();
        assert!(error.starts_with("line 4: "), "{error}");
    }

    #[test]
    fn an_empty_trace_is_an_error() {
        assert!(matches!(parse("\n", 5), Err(TraceError::Empty)));
        assert!(matches!(parse("{}", 0), Err(TraceError::Empty)));
    }

    #[test]
    fn equal_blocks_are_equal_text_and_the_last_block_is_cut() {
        let first = content(&row(512 + 100, &[0, 1]), 0);
        let second = content(&row(2 * 512, &[0, 2]), 0);
        assert_eq!(first.len(), 612 * 4);
        assert_eq!(first[..2048], second[..2048]);
        assert_ne!(first[2048..], second[2048..2448]);
        // A shorter last block is a prefix of the whole one.
        assert!(content(&row(1024, &[0, 1]), 0).starts_with(&first));
    }

    #[test]
    fn another_salt_is_another_text_of_the_same_length() {
        let row = row(700, &[0, 1]);
        let (plain, salted) = (content(&row, 0), content(&row, 1));
        assert_eq!(plain.len(), salted.len());
        assert_ne!(plain[..64], salted[..64]);
    }

    #[test]
    fn a_length_beyond_the_blocks_is_what_the_blocks_hold() {
        assert_eq!(content(&row(10_000, &[5]), 0).len(), 2048);
        assert_eq!(content(&row(10, &[5, 6]), 0).len(), 40);
    }

    #[test]
    fn bodies_stream_with_usage_and_shorter_answers() {
        let body: Value = serde_json::from_slice(&row(1, &[0]).body(0)).unwrap();
        assert_eq!(body["stream"], true);
        assert_eq!(body["stream_options"]["include_usage"], true);
        assert_eq!(body["max_tokens"], 500 / OUTPUT_DIVISOR);
        assert_eq!(Row { output_length: 1, ..row(1, &[0]) }.output_tokens(), 1);
    }

    #[test]
    fn the_trace_that_ships_is_whole() {
        let rows = parse(super::super::TRACE, usize::MAX).unwrap();
        assert_eq!(rows.len(), 400);
        for row in &rows {
            assert_eq!(row.hash_ids.len(), row.input_length.div_ceil(BLOCK_TOKENS), "{row:?}");
        }
    }
}
