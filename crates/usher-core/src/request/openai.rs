//! The APIs of OpenAI: their bodies.

use super::collect::{Format, Member};
use super::messages::{Asset, BlockFormat, Place, Take};
use super::prompt::PartKind;

/// Meaning of a member in all of OpenAI's bodies and in those that follow them.
pub(super) fn common(name: &[u8]) -> Member {
    match name {
        b"model" => Member::Model,
        b"stream" => Member::Stream,
        b"cache_salt" => Member::CacheSalt,
        _ => Member::Other,
    }
}

/// Blocks of a chat's content.
pub(super) static BLOCKS: BlockFormat = BlockFormat {
    member: |name| match name {
        b"type" => Place::Type,
        b"text" => Place::Text(0),
        b"image_url" => Place::Inside(1, Asset::Url),
        b"video_url" => Place::Inside(2, Asset::Url),
        b"input_audio" => Place::Inside(3, Asset::Data),
        _ => Place::None,
    },
    takes: |kind| match kind {
        b"text" => &[Take::Kept(0, PartKind::Text)],
        b"image_url" => &[Take::Kept(1, PartKind::Image)],
        b"video_url" => &[Take::Kept(2, PartKind::Video)],
        b"input_audio" => &[Take::Kept(3, PartKind::Audio)],
        _ => &[],
    },
    without: None,
};

/// Chat completions.
pub(super) static CHAT_COMPLETIONS: Format = Format {
    member: |name| match name {
        b"messages" => Member::Messages(&BLOCKS),
        b"max_completion_tokens" => Member::OutputCap(0),
        b"max_tokens" => Member::OutputCap(1),
        b"tools" => Member::Before(0, PartKind::Tools),
        _ => common(name),
    },
    problem: "messages must be a non-empty list of objects whose content is text or a list of blocks",
};

/// Completions.
pub(super) static COMPLETIONS: Format = Format {
    member: |name| match name {
        b"prompt" => Member::Texts,
        b"max_tokens" => Member::OutputCap(0),
        _ => common(name),
    },
    problem: "prompt must be text, a list of texts or a list of token ids, and not empty",
};

/// Embeddings.
pub(super) static EMBEDDINGS: Format = Format {
    member: |name| match name {
        b"input" => Member::Texts,
        _ => common(name),
    },
    problem: "input must be text, a list of texts or a list of token ids, and not empty",
};

/// Responses.
pub(super) static RESPONSES: Format = Format {
    member: |name| match name {
        b"input" => Member::Input,
        b"instructions" => Member::Instructions(0),
        b"tools" => Member::Before(1, PartKind::Tools),
        b"max_output_tokens" => Member::OutputCap(0),
        _ => common(name),
    },
    problem: "input must be there, and not null",
};

/// Conversations.
pub(super) static CONVERSATIONS: Format = Format {
    member: |name| match name {
        b"items" => Member::Items,
        _ => common(name),
    },
    problem: "items must be a non-empty list of objects",
};

/// Image generations.
pub(super) static IMAGE_GENERATIONS: Format = Format {
    member: |name| match name {
        b"prompt" => Member::Text,
        _ => common(name),
    },
    problem: "prompt must be text, and not empty",
};

#[cfg(test)]
#[path = "openai_tests.rs"]
mod tests;
