//! Flags that were given and do nothing.

use crate::settings::UnusedFlag;

/// Collects the flags that were given and do nothing.
#[derive(Debug, Default)]
pub(super) struct Unused {
    pub(super) flags: Vec<UnusedFlag>,
}

impl Unused {
    /// Notes `flag` if it was given.
    pub(super) fn note(&mut self, given: bool, flag: &'static str, reason: &'static str) {
        if given {
            self.flags.push(UnusedFlag { flag, reason, with_a_file: false });
        }
    }

    /// Notes a flag that does nothing when endpoints come from a file.
    pub(super) fn note_with_a_file(&mut self, given: bool, flag: &'static str, reason: &'static str) {
        if given {
            self.flags.push(UnusedFlag { flag, reason, with_a_file: true });
        }
    }
}
