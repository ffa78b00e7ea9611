//! Requests for the benchmarks.

use bytes::Bytes;

/// A completions body of about this many bytes, in chunks as Envoy sends them.
/// One character in a hundred is escaped, as in prose with line breaks.
pub fn completions(bytes: usize) -> Vec<Bytes> {
    let mut prompt = String::with_capacity(bytes);
    while prompt.len() < bytes {
        prompt.push_str("the quick brown fox jumps over the lazy dog and then it does so again until the line is over.\\n");
    }
    prompt.truncate(bytes - bytes % 96);
    let body = Bytes::from(format!(r#"{{"model":"m","max_tokens":16,"prompt":"{prompt}"}}"#));
    (0..body.len()).step_by(32 << 10).map(|at| body.slice(at..body.len().min(at + (32 << 10)))).collect()
}

/// The headers that a gateway shows for a completions request.
pub const HEADERS: [(&str, &str); 9] = [
    (":method", "POST"),
    (":path", "/v1/completions"),
    (":authority", "example.com"),
    (":scheme", "http"),
    ("content-type", "application/json"),
    ("user-agent", "client/1.0"),
    ("accept", "*/*"),
    ("x-forwarded-proto", "http"),
    ("x-request-id", "7e1b8d0c-6f3f-4f0e-9d0a-0d6f3a7e1b8d"),
];
