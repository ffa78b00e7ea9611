//! Failures to tokenize a prompt.

use std::fmt;

use http::StatusCode;
use usher_core::memory::BudgetFull;

/// Failure to tokenize a prompt. The text has nothing of the prompt.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request has a body that no prompt can be made of, or the response one that has no tokens.
    Unreadable(&'static str),
    Unreachable(hyper_util::client::legacy::Error),
    Refused(StatusCode),
    /// The response ended early, or is too long.
    Cut,
    /// The prompt depends on what `/tokenize` doesn't read.
    Beyond,
    /// The engine makes other prompts of the model's chats than `/tokenize` does.
    OtherPrompt,
    /// The chat template refuses the chat.
    Template(String),
    /// The tokenizer in this process refuses the text.
    Refusing,
    /// The prompt has a word that takes too long.
    LongWord,
    /// The request has ended meanwhile.
    Abandoned,
    /// The memory budget has no room for it.
    NoRoom,
}

/// Statuses of a path that a server doesn't have.
const MISSING: [StatusCode; 2] = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];

impl Failure {
    /// `true` if another call may return the tokens: the server doesn't have this one, or it is not for such prompts.
    pub(super) fn is_elsewhere(&self) -> bool {
        match self {
            Self::Refused(status) => MISSING.contains(status),
            Self::Beyond => true,
            _ => false,
        }
    }

    /// `true` if the server has the call, and refuses the prompt.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(status) if !MISSING.contains(status))
    }
}

impl From<BudgetFull> for Failure {
    fn from(BudgetFull: BudgetFull) -> Self {
        Self::NoRoom
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(what) => write!(f, "the {what} can't be read"),
            Self::Unreachable(error) => write!(f, "{error}"),
            Self::Refused(status) => write!(f, "status {status}"),
            Self::Cut => f.write_str("the response ended early or is too long"),
            Self::Beyond => f.write_str("the server renders no prompts, and /tokenize can't do this one"),
            Self::OtherPrompt => {
                f.write_str("the server renders no prompts, and /tokenize tells other tokens of gpt-oss's chats than vLLM runs")
            }
            Self::Template(failure) => f.write_str(failure),
            Self::Refusing => f.write_str("the tokenizer refuses the text"),
            Self::LongWord => f.write_str("a word is longer than 64 KiB"),
            Self::NoRoom => f.write_str("the memory budget has no room"),
            Self::Abandoned => f.write_str("the request was cancelled"),
        }
    }
}
