//! First line of a recording.

use serde::{Deserialize, Serialize};

use super::FORMAT;

/// Header of what one run of a picker wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: Box<str>,
    /// [`VERSION`](super::VERSION) of the format.
    pub version: u32,
    /// Version of the picker.
    pub usher: Box<str>,
    /// The run: numbers of blocks, flows, sessions and endpoints mean the same under equal ones.
    pub run: Box<str>,
    /// Start of the run, from which all times count, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Name of the pool.
    pub pool: Box<str>,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Bytes of a prompt that are estimated to be a token.
    pub token_bytes: u32,
}

/// Contents of a line that may be a header of any version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Header of a recording of this version.
    Recording(u32),
    /// Anything else.
    Other,
}

#[derive(Deserialize)]
struct Start {
    header: Format,
}

#[derive(Deserialize)]
struct Format {
    format: Box<str>,
    version: u32,
}

/// Distinguishes a header of any version from anything else.
pub fn probe(line: &[u8]) -> Probe {
    match serde_json::from_slice::<Start>(line) {
        Ok(Start { header }) if &*header.format == FORMAT => Probe::Recording(header.version),
        _ => Probe::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_later_versions_are_known() {
        let later = br#"{"header":{"format":"usher-recording","version":7,"new":[1]},"more":2}"#;
        assert_eq!(probe(later), Probe::Recording(7));
        for other in [&b"{}"[..], b"", b"{\"header\":{\"format\":\"x\",\"version\":1}}", b"\xff{", b"[1]"] {
            assert_eq!(probe(other), Probe::Other);
        }
    }
}
