//! Reasons why an event is not applied.

/// Reason why one event is not applied. The other events of its batch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Skip {
    /// A store with a field of a wrong type or out of its range, or a thing that is no event.
    Malformed,
    /// A removal or a clear with a field of a wrong type or out of its range.
    MalformedRemoval,
    /// An event of a type that is not known.
    UnknownEvent,
    /// Blocks of a KV cache group that is not full attention (vLLM#40984): they carry the whole span of tokens, and
    /// share hashes with the blocks that count.
    OtherGroup,
    /// Blocks elsewhere than at the publisher (vLLM#48281).
    Remote,
    /// Blocks of a secondary tier, published by its owner (vLLM#52067).
    Owned,
    /// A medium that is no tier of the [`Media`](super::Media).
    UnknownMedium,
    /// Tokens with a block size of 0.
    Placeholder,
    /// Tokens that don't fill the blocks exactly.
    Unaligned,
    /// A block that is its own ancestor.
    SelfParent,
    /// A store without tokens, of blocks that are not known.
    UnknownBlock,
    /// A store whose parent is not known, with no room to wait for it.
    UnknownParent,
    /// A source that was removed, or a batch from before its last reset.
    Outdated,
}

impl Skip {
    /// All reasons.
    pub const ALL: [Self; 13] = [
        Self::Malformed,
        Self::MalformedRemoval,
        Self::UnknownEvent,
        Self::OtherGroup,
        Self::Remote,
        Self::Owned,
        Self::UnknownMedium,
        Self::Placeholder,
        Self::Unaligned,
        Self::SelfParent,
        Self::UnknownBlock,
        Self::UnknownParent,
        Self::Outdated,
    ];

    /// Value of a metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::MalformedRemoval => "malformed_removal",
            Self::UnknownEvent => "unknown_event",
            Self::OtherGroup => "other_group",
            Self::Remote => "remote",
            Self::Owned => "owned",
            Self::UnknownMedium => "unknown_medium",
            Self::Placeholder => "placeholder",
            Self::Unaligned => "unaligned",
            Self::SelfParent => "self_parent",
            Self::UnknownBlock => "unknown_block",
            Self::UnknownParent => "unknown_parent",
            Self::Outdated => "outdated",
        }
    }

    /// Returns `true` if the engine may hold blocks of which nothing is known for this.
    pub(super) fn may_miss_blocks(self) -> bool {
        match self {
            Self::OtherGroup | Self::Remote | Self::Owned | Self::UnknownMedium | Self::Outdated => false,
            Self::Malformed
            | Self::MalformedRemoval
            | Self::UnknownEvent
            | Self::Placeholder
            | Self::Unaligned
            | Self::SelfParent
            | Self::UnknownBlock
            | Self::UnknownParent => true,
        }
    }

    /// Returns `true` if blocks may be gone that are taken for held from here on: the source's entries are not to be
    /// trusted.
    pub fn may_miss_removals(self) -> bool {
        self == Self::MalformedRemoval
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Skip;

    #[test]
    fn reason_names_are_unique() {
        let names: BTreeSet<&str> = Skip::ALL.iter().map(|skip| skip.name()).collect();
        assert_eq!(names.len(), Skip::ALL.len());
        assert_eq!(Skip::ALL.iter().collect::<BTreeSet<_>>().len(), Skip::ALL.len());
        assert!(names.iter().all(|name| name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase())));
    }
}
