//! Failures to tokenize a text in this process.

use super::super::failure::Failure;

/// Bytes of a word at most. Texts have none that long, and each of its bytes takes much memory.
pub(super) const MAX_WORD: usize = 64 << 10;

/// Failure to tokenize a text in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EncodeFailure {
    /// The request has ended meanwhile.
    Abandoned,
    /// The tokenizer can't do it.
    Refused,
    /// The text has a word beyond [`MAX_WORD`].
    LongWord,
    /// The memory budget has no room for it.
    NoRoom,
}

impl From<EncodeFailure> for Failure {
    fn from(failure: EncodeFailure) -> Self {
        match failure {
            EncodeFailure::Abandoned => Self::Abandoned,
            EncodeFailure::Refused => Self::Refusing,
            EncodeFailure::LongWord => Self::LongWord,
            EncodeFailure::NoRoom => Self::NoRoom,
        }
    }
}
