//! Size of a prompt in tokens.

use std::ops::ControlFlow;

use usher::request::Request;
use usher::request::estimate::{BYTES_PER_TOKEN, Chunk, chunks, count, media};

/// Prompts of more tokens are counted, but not walked through.
const MAX_WALK: u64 = 1 << 18;

/// The tokens that are counted are those that the walk gives, and they begin and end with
/// their prompts.
pub(crate) fn check(request: &Request) -> Option<u64> {
    let counted = count(request);
    assert_eq!(counted.is_none(), request.prompt.parts.is_empty());
    assert!(media(request).count() <= request.prompt.parts.len() + request.prompt.features.len());
    if counted.unwrap_or_default() > MAX_WALK {
        return counted;
    }
    let (mut tokens, mut prompt, mut ends) = (0, 0, 0);
    chunks(request, |chunk| {
        match chunk {
            Chunk::Bytes(bytes) => {
                assert!(!bytes.is_empty());
                prompt += bytes.len();
            }
            Chunk::End => {
                assert_eq!(prompt % BYTES_PER_TOKEN, 0);
                tokens += (prompt / BYTES_PER_TOKEN) as u64;
                (prompt, ends) = (0, ends + 1);
            }
        }
        ControlFlow::Continue(())
    });
    assert_eq!((tokens, prompt), (counted.unwrap_or_default(), 0), "the count and the walk differ");
    let prompts = match request.prompt.parts.len() {
        0 => 0,
        parts if request.prompt.separate => parts,
        _ => 1,
    };
    assert_eq!(ends, prompts);
    counted
}
