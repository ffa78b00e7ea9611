//! State of the knowledge about engines' caches.

use std::sync::Mutex;
use std::sync::PoisonError;

use arc_swap::ArcSwap;
use std::sync::Arc;

/// State of the knowledge about an engine's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineStatus {
    /// Unknown: the engine publishes no events, or was not heard since some were missed.
    #[default]
    Unknown,
    /// Restarted and not heard since: the engine holds nothing of what it had before.
    Restarted,
    /// Some events were missed: the engine holds its published blocks, and perhaps more.
    Partial,
    /// No event was missed: the engine holds its published blocks and no others.
    Complete,
}

impl EngineStatus {
    /// Returns `true` if the engine holds what it published.
    pub fn is_heard(self) -> bool {
        matches!(self, Self::Partial | Self::Complete)
    }

    /// In words: `not heard`, `partial` or `in sync`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown | Self::Restarted => "not heard",
            Self::Partial => "partial",
            Self::Complete => "in sync",
        }
    }
}

/// Status by slot. Read by requests, written when one changes.
#[derive(Debug, Default)]
pub(super) struct Statuses {
    by_slot: ArcSwap<Vec<EngineStatus>>,
    /// Held while `by_slot` is replaced, so that no change is lost.
    writing: Mutex<()>,
}

impl Statuses {
    pub(super) fn get(&self, slot: u32) -> EngineStatus {
        self.by_slot.load().get(slot as usize).copied().unwrap_or_default()
    }

    pub(super) fn set(&self, slot: u16, status: EngineStatus) {
        if self.get(u32::from(slot)) == status {
            return;
        }
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut by_slot = Vec::clone(&self.by_slot.load());
        let at = usize::from(slot);
        if by_slot.len() <= at {
            by_slot.resize(at + 1, EngineStatus::Unknown);
        }
        by_slot[at] = status;
        self.by_slot.store(Arc::new(by_slot));
    }

    pub(super) fn bytes(&self) -> usize {
        self.by_slot.load().capacity() * size_of::<EngineStatus>()
    }
}
