//! The trace that is replayed, and the requests that it becomes.

use bytes::Bytes;

use crate::load::body::Style;
use crate::load::settings::Api;
use crate::load::trace::Row;

/// The first requests of a published trace; its licence is beside it.
pub(in crate::cli) const TRACE: &str = include_str!("../../../../../deploy/demo/trace.jsonl");

/// Responses are this many times shorter than in the trace. A demo of seconds has no use
/// for responses of minutes, and what is shown depends on prompts.
pub(super) const OUTPUT_DIVISOR: u32 = 8;

/// The name that requests ask for. The servers take any.
pub(super) const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// Longest time that one arrival of a trace stands for, in milliseconds: Mooncake's are rounded to it.
const ROUNDED: u64 = 3000;

/// Spreads requests that arrive at one moment over the time until the next ones. All at once they would favour a policy
/// that counts what it has just sent.
pub(super) fn spread(rows: &mut [Row]) {
    let mut start = 0;
    while let Some(at) = rows.get(start).map(|row| row.timestamp) {
        let same = rows.iter().skip(start).take_while(|row| row.timestamp == at).count();
        let next = rows.get(start + same).map_or(at + ROUNDED, |row| row.timestamp);
        let gap = next.saturating_sub(at).min(ROUNDED);
        for (number, row) in (0u64..).zip(rows.iter_mut().skip(start).take(same)) {
            row.timestamp = at + gap * number / same as u64;
        }
        start += same;
    }
}

/// The body of a streaming chat request. Rows of different `salt` share no text; with
/// the same salt they share what the trace says.
pub(super) fn body(row: &Row, salt: u64) -> Bytes {
    let style = Style { api: Api::Chat, model: MODEL.to_owned(), stream: true };
    style.body(&row.prompt(salt), output_tokens(row))
}

/// Tokens of the response that is asked for.
fn output_tokens(row: &Row) -> usize {
    (row.output_length / OUTPUT_DIVISOR).max(1) as usize
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::load::trace::parse;

    #[test]
    fn bodies_stream_with_usage_and_shorter_responses() {
        let row = Row { timestamp: 0, input_length: 1, output_length: 500, hash_ids: vec![0] };
        let body: Value = serde_json::from_slice(&body(&row, 0)).unwrap();
        assert_eq!(body["messages"][0]["content"].as_str().unwrap().len(), 4);
        assert_eq!(body["stream"], true);
        assert_eq!(body["stream_options"]["include_usage"], true);
        assert_eq!(body["max_tokens"], 500 / OUTPUT_DIVISOR);
        assert_eq!(output_tokens(&Row { output_length: 1, ..row }), 1);
    }

    #[test]
    fn requests_of_one_moment_are_spread_until_the_next() {
        let row = |timestamp| Row { timestamp, input_length: 1, output_length: 1, hash_ids: vec![0] };
        let mut rows: Vec<Row> = [0, 0, 0, 3000, 90_000, 90_000].map(row).to_vec();
        spread(&mut rows);
        let times: Vec<u64> = rows.iter().map(|row| row.timestamp).collect();
        assert_eq!(times, [0, 1000, 2000, 3000, 90_000, 91_500]);
        spread(&mut []);
    }

    #[test]
    fn shipped_trace_is_complete() {
        let rows = parse(TRACE, usize::MAX).unwrap();
        assert_eq!(rows.len(), 400);
        for row in &rows {
            assert_eq!(row.hash_ids.len(), row.input_length.div_ceil(512), "{row:?}");
        }
    }
}
