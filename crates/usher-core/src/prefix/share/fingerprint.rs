//! Fingerprint of what makes block hashes of two processes comparable.

use std::fmt;
use std::num::NonZeroU32;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::prefix::hash::{Blocks, chain};
use crate::prefix::index::representative;
use crate::request::{Headers, ParserKind, Parsers, RequestParser};

/// Sum of all that two processes have to have in common for a hash of one to stand for the same block
/// in the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub(super) u64);

/// Blocks that a producer hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme<'a> {
    /// Type of the producer, and its name in the configuration.
    pub producer: (&'a str, &'a str),
    /// Size of a block, in tokens, where engines report none.
    pub block_tokens: NonZeroU32,
    /// Blocks have the size that engines report.
    pub follows_engines: bool,
}

/// Prompts of which every part has a say in the hashes. Both are longer than some blocks of the usual size.
const PROBES: [(&str, &str); 2] = [
    (
        "/v1/chat/completions",
        r#"{"model":"probe","cache_salt":"salt","tools":[{"type":"function","function":{"name":"look_up","parameters":{"type":"object"}}}],"messages":[{"role":"system","content":"You answer \u00fcber alles."},{"role":"user","content":[{"type":"text","text":"first"},{"type":"image_url","image_url":{"url":"https://example.com/image.png"}}]},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"look_up","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"found"}]}"#,
    ),
    (
        "/v1/completions",
        r#"{"model":"probe","prompt":["0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","another prompt"]}"#,
    ),
];

/// Size of the probes' blocks, so that a probe has several and each several pieces.
const PROBE_BLOCK: NonZeroU32 = NonZeroU32::MIN.saturating_add(39);

impl Fingerprint {
    /// Fingerprint of a producer's hashes. Instead of a version that somebody has to raise, it has the hashes of some
    /// prompts in it: a process that reads a prompt, counts its characters, cuts it or hashes it in another way has another.
    pub fn of(scheme: Scheme<'_>) -> Self {
        let Scheme { producer: (kind, name), block_tokens, follows_engines } = scheme;
        let said = [xxh3_64(kind.as_bytes()), xxh3_64(name.as_bytes())];
        let said = said.into_iter().chain([block_tokens.get().into(), follows_engines.into()]);
        let probed = PROBES.into_iter().flat_map(|(path, body)| probe(path, body));
        Self(said.chain(probed).fold(0, |before, part| chain(part, before)))
    }
}

/// The block hashes of a prompt, as the index knows them.
fn probe(path: &str, body: &'static str) -> Vec<u64> {
    let headers: Headers = [(":path", path)].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&ParserKind::ALL));
    parser.push(Bytes::from_static(body.as_bytes()));
    let blocks = parser.finish().map(|request| Blocks::of(&request, PROBE_BLOCK, usize::MAX));
    let hashes = blocks.map_or(Vec::new(), |blocks| blocks.hashes().to_vec());
    hashes.into_iter().flat_map(|hash| [hash, representative(hash)]).collect()
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEME: Scheme<'_> = Scheme {
        producer: ("approx-prefix-cache-producer", "prefixes"),
        block_tokens: NonZeroU32::new(64).unwrap(),
        follows_engines: true,
    };

    /// Replicas of two versions share prefixes during an update as long as this stays the same. A change of hashes
    /// changes it, and then this number.
    #[test]
    fn the_fingerprint_of_this_version_is_known() {
        assert_eq!(Fingerprint::of(SCHEME).to_string(), "7857589425eb5c32");
    }

    #[test]
    fn prompts_of_the_probes_have_several_blocks() {
        for (path, body) in PROBES {
            let hashes = probe(path, body);
            assert!(hashes.len() >= 4, "{path}: {}", hashes.len());
        }
    }

    #[test]
    fn other_blocks_have_another_fingerprint() {
        let others = [
            Scheme { producer: ("approx-prefix-cache-producer", "others"), ..SCHEME },
            Scheme { producer: ("other", "prefixes"), ..SCHEME },
            Scheme { block_tokens: NonZeroU32::new(128).unwrap(), ..SCHEME },
            Scheme { follows_engines: false, ..SCHEME },
        ];
        for other in others {
            assert_ne!(Fingerprint::of(other), Fingerprint::of(SCHEME), "{other:?}");
        }
    }
}
