//! Why a text has no tokens.

use super::super::failure::Failure;

/// Bytes of a word at most. Texts have none that long, and each of its bytes takes much memory.
pub(super) const MAX_WORD: usize = 64 << 10;

/// Why a text has no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EncodeFailure {
    /// Nobody waits for them any more.
    Abandoned,
    /// The tokenizer can't do it.
    Refused,
    /// It has a word beyond [`MAX_WORD`].
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
