//! Traces: how long prompts were and what they shared with others, not what was written.
//! The text is ours: the same block number gives the same text, so equal prefixes of a
//! trace are equal prefixes on the wire.

use std::time::Duration;

use serde::Deserialize;

use super::text::{TOKEN_CHARS, words};
use usher_core::random::mix;

/// Tokens that one number of `hash_ids` stands for.
const BLOCK_TOKENS: usize = 512;

/// Blocks of a format without `hash_ids` are numbered from here on, in steps of this
/// for each row, so that no two rows share one.
const OWN_BLOCKS: u64 = 1 << 32;

/// Longest prompt and response of a row. The longest contexts are a tenth of it.
const MOST_TOKENS: usize = 10_000_000;

/// The first line of Azure's format.
const AZURE_HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// One request of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Row {
    /// Arrival, in milliseconds since the start of the trace.
    pub timestamp: u64,
    /// Tokens of the prompt.
    pub input_length: usize,
    /// Tokens of the response.
    pub output_length: u32,
    /// The blocks of the prompt, 512 tokens each but for the last.
    pub hash_ids: Vec<u64>,
}

/// Error of a trace that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line that is not a request, in Mooncake's format.
    #[error(
        "line {line}: {}; a line is a JSON object with timestamp, input_length, output_length and hash_ids",
        in_line(reason)
    )]
    Json {
        /// Number, from 1.
        line: usize,
        /// Error of the parser.
        reason: serde_json::Error,
    },
    /// A request that no model takes.
    #[error("line {line}: a prompt or a response of more than {MOST_TOKENS} tokens")]
    TooLong {
        /// Number, from 1.
        line: usize,
    },
    /// A line that is not a request, in Azure's format.
    #[error("line {line}: {text:?} is no {AZURE_HEADER}, such as 2023-11-16 18:17:03.9799600,4808,10")]
    Csv {
        /// Number, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// No line at all.
    #[error("there is no request in it")]
    Empty,
}

/// An error in one line of JSON, without a number of that line.
fn in_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

/// The first `limit` requests of a trace, by arrival: lines of JSON as Mooncake
/// publishes them, or Azure's comma-separated values.
///
/// # Errors
/// `TraceError` that names the first line that is not a request.
pub fn parse(text: &str, limit: usize) -> Result<Vec<Row>, TraceError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
    let header = |(_, line): &(usize, &str)| line.trim_start_matches('\u{feff}').trim() == AZURE_HEADER;
    let rows: Result<Vec<Row>, TraceError> = match lines.next_if(header) {
        Some(_) => azure(lines.take(limit)),
        None => lines
            .take(limit)
            .map(|(at, line)| {
                let row: Row =
                    serde_json::from_str(line).map_err(|reason| TraceError::Json { line: at + 1, reason })?;
                let longest = row.input_length.max(row.output_length as usize);
                if longest > MOST_TOKENS { Err(TraceError::TooLong { line: at + 1 }) } else { Ok(row) }
            })
            .collect(),
    };
    let mut rows = rows?;
    if rows.is_empty() {
        return Err(TraceError::Empty);
    }
    rows.sort_by_key(|row| row.timestamp);
    Ok(rows)
}

fn azure<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Result<Vec<Row>, TraceError> {
    let mut first = None;
    let read = |(at, line): (usize, &str)| {
        let mut fields = line.trim().split(',');
        let mut row = || {
            let time = milliseconds(fields.next()?)?;
            let input_length: usize = fields.next()?.parse().ok().filter(|tokens| *tokens <= MOST_TOKENS)?;
            let output_length = fields.next()?.parse().ok()?;
            let start = *first.get_or_insert(time);
            let blocks = input_length.div_ceil(BLOCK_TOKENS) as u64;
            let own = at as u64 * OWN_BLOCKS;
            Some(Row {
                timestamp: time.saturating_sub(start),
                input_length,
                output_length,
                hash_ids: (own..own + blocks).collect(),
            })
        };
        row().ok_or_else(|| TraceError::Csv { line: at + 1, text: line.trim().to_owned() })
    };
    lines.map(read).collect()
}

/// Milliseconds of a moment as `2023-11-16 18:17:03.9799600`, counted from a day that
/// is the same for all of a trace. Anything after the seconds, such as `+00:00`, is the
/// same in all lines.
fn milliseconds(text: &str) -> Option<u64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut clock = time.splitn(3, ':');
    let (hour, minute): (u64, u64) = (clock.next()?.parse().ok()?, clock.next()?.parse().ok()?);
    let seconds = clock.next()?;
    let end = seconds.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(seconds.len());
    let seconds = Duration::try_from_secs_f64(seconds[..end].parse().ok()?).ok()?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    // Days of a year that begins in March, so that the leap day is its last.
    let (year, month) = if month < 3 { (year.checked_sub(1)?, month + 9) } else { (year, month - 3) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day;
    let minutes = (days * 24 + hour) * 60 + minute;
    Some(minutes * 60_000 + u64::try_from(seconds.as_millis()).ok()?)
}

impl Row {
    /// The text of the prompt. Rows of different `salt` share no text; with the same
    /// salt they share what the trace says.
    pub fn prompt(&self, salt: u64) -> String {
        let tokens = self.input_length.min(self.hash_ids.len() * BLOCK_TOKENS);
        let mut text = String::with_capacity(tokens * TOKEN_CHARS);
        for (seed, tokens) in self.pieces(salt) {
            words(seed, tokens, &mut text);
        }
        text
    }

    /// Blocks of the text: the seed of each, and its tokens.
    pub(crate) fn pieces(&self, salt: u64) -> impl Iterator<Item = (u64, usize)> {
        let mut left = self.input_length;
        self.hash_ids.iter().map(move |id| {
            let tokens = left.min(BLOCK_TOKENS);
            left -= tokens;
            (mix(salt) ^ id, tokens)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(input_length: usize, hash_ids: &[u64]) -> Row {
        Row { timestamp: 0, input_length, output_length: 500, hash_ids: hash_ids.to_vec() }
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
    fn azure_trace_rows_share_no_prefix() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                    2023-11-30 23:59:59.9799600,1025,10\r\n\
                    2023-12-01 00:00:01.0319600,512,8\r\n";
        let rows = parse(text, 9).unwrap();
        let row = |timestamp, input_length, output_length| Row {
            timestamp,
            input_length,
            output_length,
            hash_ids: Vec::new(),
        };
        let bare: Vec<Row> = rows.iter().map(|row| Row { hash_ids: Vec::new(), ..row.clone() }).collect();
        assert_eq!(bare, [row(0, 1025, 10), row(1052, 512, 8)]);
        assert_eq!(rows.iter().map(|row| row.hash_ids.len()).collect::<Vec<_>>(), [3, 1]);
        assert!(!rows[0].hash_ids.contains(&rows[1].hash_ids[0]));
        assert_eq!(rows[0].prompt(0).len(), 4100);
    }

    #[test]
    fn moments_are_read_over_months_and_years() {
        let day = 24 * 60 * 60 * 1000;
        let table = [
            ("2023-02-28 00:00:00", "2023-03-01 00:00:00", day),
            ("2024-02-28 00:00:00", "2024-03-01 00:00:00", 2 * day),
            ("2023-12-31 23:00:00.5", "2024-01-01 00:00:00", day / 24 - 500),
            ("2024-05-10 00:00:00.009930+00:00", "2024-05-10T00:00:01.509930+00:00", 1500),
        ];
        for (from, to, between) in table {
            assert_eq!(milliseconds(to).unwrap() - milliseconds(from).unwrap(), between, "{from} {to}");
        }
        for wrong in ["", "2023-11-16", "2023-13-01 00:00:00", "2023-11-16 24:00:00", "2023-11-16 1:2:x"] {
            assert_eq!(milliseconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn invalid_trace_line_is_named() {
        for line in ["2023-11-16 18:17:03,12", "x,1,2", "2023-11-16 18:17:03,-1,2"] {
            let error = parse(&format!("{AZURE_HEADER}\n\n{line}\n"), 9).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line 3: {line:?} is no ")), "{error}");
        }
    }

    #[test]
    fn overlong_prompt_is_refused_before_it_takes_memory() {
        let mooncake = r#"{"timestamp":0,"input_length":1,"output_length":4000000000,"hash_ids":[]}"#;
        assert!(matches!(parse(mooncake, 9), Err(TraceError::TooLong { line: 1 })));
        let azure = format!("{AZURE_HEADER}\n2023-11-16 18:17:03,99999999999999,1\n");
        assert!(matches!(parse(&azure, 9), Err(TraceError::Csv { line: 2, .. })));
    }

    #[test]
    fn an_empty_trace_is_an_error() {
        for (text, limit) in [("\n", 5), ("{}", 0), (AZURE_HEADER, 5)] {
            assert!(matches!(parse(text, limit), Err(TraceError::Empty)), "{text}");
        }
    }

    #[test]
    fn equal_blocks_are_equal_text_and_the_last_block_is_cut() {
        let first = row(512 + 100, &[0, 1]).prompt(0);
        let second = row(2 * 512, &[0, 2]).prompt(0);
        assert_eq!(first.len(), 612 * 4);
        assert_eq!(first[..2048], second[..2048]);
        assert_ne!(first[2048..], second[2048..2448]);
        // A shorter last block is a prefix of the whole one.
        assert!(row(1024, &[0, 1]).prompt(0).starts_with(&first));
    }

    #[test]
    fn another_salt_is_another_text_of_the_same_length() {
        let row = row(700, &[0, 1]);
        let (plain, salted) = (row.prompt(0), row.prompt(1));
        assert_eq!(plain.len(), salted.len());
        assert_ne!(plain[..64], salted[..64]);
    }

    #[test]
    fn prompt_length_is_capped_by_its_blocks() {
        assert_eq!(row(10_000, &[5]).prompt(0).len(), 2048);
        assert_eq!(row(10, &[5, 6]).prompt(0).len(), 40);
    }
}
