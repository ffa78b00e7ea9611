//! TPOT target of a request, at the endpoint that decodes.

use std::sync::Arc;

use super::backlog::Backlog;
use super::cost::{State, TokenCounts};
use super::time::nanos_of;

/// Fraction of the unloaded TPOT below which no endpoint can meet a target.
const MIN_FEASIBLE_TPOT: f64 = 0.5;

/// Returns `true` if an endpoint can meet this TPOT target, in seconds. Infeasible targets are ignored
/// in later decisions: they would be the tightest, and can't be harmed.
pub(super) fn is_feasible(target: f64, backlog: &Backlog) -> bool {
    target >= MIN_FEASIBLE_TPOT * backlog.speed().per_output_token(&State::default(), &TokenCounts::default())
}

/// TPOT target of a request, registered with its endpoint until dropped.
#[derive(Debug)]
pub(super) struct TpotTarget {
    backlog: Arc<Backlog>,
    nanos: u64,
}

impl TpotTarget {
    /// Registers a target, in seconds, with the decoding endpoint.
    pub(super) fn new(backlog: &Arc<Backlog>, target: f64) -> Self {
        let nanos = nanos_of(target);
        backlog.targets().add(nanos);
        Self { backlog: Arc::clone(backlog), nanos }
    }

    /// Moves the target to the endpoint that decodes instead.
    pub(super) fn move_to(&mut self, backlog: &Arc<Backlog>) {
        backlog.targets().add(self.nanos);
        self.backlog.targets().remove(self.nanos);
        self.backlog = Arc::clone(backlog);
    }
}

impl Drop for TpotTarget {
    fn drop(&mut self) {
        self.backlog.targets().remove(self.nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::group::Group;

    fn backlog() -> Arc<Backlog> {
        Arc::new(Backlog::new(Arc::new(Group::new(1000.0))))
    }

    #[test]
    fn tightest_target_in_use_counts() {
        let (one, other) = (backlog(), backlog());
        assert_eq!(one.targets().tightest(), None);
        let loose = TpotTarget::new(&one, 0.1);
        let mut tight = TpotTarget::new(&one, 0.02);
        let _second = TpotTarget::new(&one, 0.02);
        assert_eq!(one.targets().tightest(), Some((0.02, 2.0)));
        tight.move_to(&other);
        assert_eq!(one.targets().tightest(), Some((0.02, 1.0)));
        assert_eq!(other.targets().tightest(), Some((0.02, 1.0)));
        tight.move_to(&other);
        assert_eq!(other.targets().tightest(), Some((0.02, 1.0)));
        drop(tight);
        assert_eq!(other.targets().tightest(), None);
        drop(_second);
        assert_eq!(one.targets().tightest(), Some((0.1, 1.0)));
        drop(loose);
        assert_eq!(one.targets().tightest(), None);
    }
}
