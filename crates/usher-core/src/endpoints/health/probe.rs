//! The one request at a time that an endpoint gets which is demoted.

use std::sync::Arc;

use super::endpoint::Health;
use super::ejection::Vitals;

impl Health {
    /// Takes the place of the probe, if one is due.
    pub fn claim(self: &Arc<Self>, now_ms: u64) -> Option<Probe> {
        self.due_ms().filter(|due_ms| *due_ms <= now_ms)?;
        let mut vitals = self.vitals();
        let number = vitals.claim(now_ms)?;
        self.show(&vitals);
        drop(vitals);
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
        if let Some(ward) = &self.health.ward {
            ward.probed();
        }
        self
    }

    /// The answer said how the endpoint is, and was reported to it.
    pub fn answered(self) {
        self.end(|vitals, number| vitals.answered(number));
    }

    fn end(&self, event: impl FnOnce(&mut Vitals, u32)) {
        let mut vitals = self.health.vitals();
        event(&mut vitals, self.number);
        self.health.show(&vitals);
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let now_ms = self.health.now_ms();
        // After `answered` this probe is no longer the one that is out.
        self.end(|vitals, number| match self.used {
            true => vitals.unanswered(number, now_ms),
            false => vitals.unused(number, now_ms),
        });
    }
}
