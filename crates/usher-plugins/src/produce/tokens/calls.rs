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
    // Time at which /tokenize was found in place of the render endpoint. Held for single steps.
    tokenizes: Mutex<Option<Instant>>,
}

impl Calls {
    /// Calls to try, one after the other.
    pub(super) fn order(&self, now: Instant) -> [Call; 2] {
        match *self.lock() {
            Some(since) if now.duration_since(since) < PAUSE => [Call::Tokenize, Call::Render],
            _ => [Call::Render, Call::Tokenize],
        }
    }

    /// Notes a call that the server has, found by trying the other one first if it is `/tokenize`. Returns `true` if the
    /// other one was noted before, or `/tokenize` is the first.
    pub(super) fn note(&self, call: Call, now: Instant) -> bool {
        let mut tokenizes = self.lock();
        let before = *tokenizes;
        *tokenizes = (call == Call::Tokenize).then_some(now);
        before.is_some() != tokenizes.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.tokenizes.lock().unwrap_or_else(PoisonError::into_inner)
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
}
