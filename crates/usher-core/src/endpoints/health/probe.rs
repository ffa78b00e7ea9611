//! The one request at a time that an endpoint gets which is ejected.

use std::sync::Arc;

use super::ejection::EjectionState;
use super::endpoint::Health;

impl Health {
    /// Takes the place of the probe, if one is due.
    pub fn claim(self: &Arc<Self>, now_ms: u64) -> Option<Probe> {
        self.due_ms().filter(|due_ms| *due_ms <= now_ms)?;
        let mut state = self.state();
        let number = state.claim(now_ms)?;
        self.show(&state);
        drop(state);
        Some(Probe { health: Arc::clone(self), number, used: false })
    }
}

/// The place of the one probe that an endpoint has out. Dropped without a word, the
/// next one goes after a pause.
#[derive(Debug)]
pub struct Probe {
    health: Arc<Health>,
    number: u32,
    used: bool,
}

impl Probe {
    /// A request goes to the endpoint as its probe.
    #[must_use]
    pub fn used(mut self) -> Self {
        self.used = true;
        if let Some(outliers) = &self.health.outliers {
            outliers.probed();
        }
        self
    }

    /// The response said how the endpoint is, and was reported to it.
    pub fn answered(self) {
        self.end(|state, number| state.answered(number));
    }

    fn end(&self, event: impl FnOnce(&mut EjectionState, u32)) {
        let mut state = self.health.state();
        event(&mut state, self.number);
        self.health.show(&state);
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let now_ms = self.health.now_ms();
        // After `answered` this probe is no longer the one that is out.
        self.end(|state, number| match self.used {
            true => state.unanswered(number, now_ms),
            false => state.unused(number, now_ms),
        });
    }
}
