//! Calls that return the tokens of prompts: those that a server has are learned from its responses.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time after which a server without render endpoints is asked for them again: it may have been replaced.
const PAUSE: Duration = Duration::from_secs(60);

/// A call that returns the tokens of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A render endpoint, which reads a request as the engine does.
    Render,
    /// `/tokenize`, which reads less of it.
    Tokenize,
}

/// Call that a server has for an API.
#[derive(Debug, Default)]
pub(super) struct Calls {
    // Held for single steps.
    found: Mutex<Found>,
}

/// Result of the last attempts at the calls, and their time.
#[derive(Clone, Copy, Debug, Default)]
enum Found {
    #[default]
    Render,
    Tokenize(Instant),
    /// There is only `/tokenize`, and it tells other tokens than those of the engine.
    Neither(Instant),
}

impl Calls {
    /// Calls to try, one after the other.
    pub(super) fn order(&self, now: Instant) -> &'static [Call] {
        let is_fresh = |since| now.duration_since(since) < PAUSE;
        match *self.lock() {
            Found::Tokenize(since) if is_fresh(since) => &[Call::Tokenize, Call::Render],
            Found::Neither(since) if is_fresh(since) => &[],
            _ => &[Call::Render, Call::Tokenize],
        }
    }

    /// Notes a call that the server has, found by trying the other one first if it is `/tokenize`. Returns `true` if
    /// something else was noted before.
    pub(super) fn note(&self, call: Call, now: Instant) -> bool {
        let found = if call == Call::Tokenize { Found::Tokenize(now) } else { Found::Render };
        let before = std::mem::replace(&mut *self.lock(), found);
        std::mem::discriminant(&before) != std::mem::discriminant(&found)
    }

    /// Notes that the server has no call that tells the engine's tokens.
    pub(super) fn note_neither(&self, now: Instant) {
        *self.lock() = Found::Neither(now);
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_render_endpoint_is_tried_again_after_a_minute() {
        let (calls, now) = (Calls::default(), Instant::now());
        let [render_first, tokenize_first] = [[Call::Render, Call::Tokenize], [Call::Tokenize, Call::Render]];
        assert_eq!(calls.order(now), render_first);
        assert!(calls.note(Call::Tokenize, now));
        assert_eq!(calls.order(now + PAUSE / 2), tokenize_first);
        assert_eq!(calls.order(now + PAUSE), render_first);
        // Still missing: nothing new.
        assert!(!calls.note(Call::Tokenize, now + PAUSE));
        assert_eq!(calls.order(now + PAUSE), tokenize_first);
        assert!(calls.note(Call::Render, now + PAUSE));
        assert!(!calls.note(Call::Render, now + PAUSE));
        assert_eq!(calls.order(now + PAUSE), render_first);
    }

    #[test]
    fn server_with_other_tokens_is_retried_after_a_minute() {
        let (calls, now) = (Calls::default(), Instant::now());
        calls.note_neither(now);
        assert_eq!(calls.order(now + PAUSE / 2), []);
        assert_eq!(calls.order(now + PAUSE), [Call::Render, Call::Tokenize]);
        assert!(calls.note(Call::Tokenize, now + PAUSE));
    }
}
