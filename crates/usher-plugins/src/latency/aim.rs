//! The target of one request for its time per output token, at the endpoint that decodes.

use std::sync::Arc;

use super::backlog::Backlog;
use super::cost::{Ask, State};
use super::time::nanos_of;

/// Part of the time per output token of a request that is alone at its endpoint. No endpoint keeps
/// a target below that, whoever else is there.
const KEPT_BY_NOBODY: f64 = 0.5;

/// Returns `true` if this target, in seconds, may be kept at an endpoint. One that can't doesn't count
/// among the others' there: it would be the tightest, and nothing that a request does to it is any
/// harm.
pub(super) fn may_be_kept(target: f64, backlog: &Backlog) -> bool {
    target >= KEPT_BY_NOBODY * backlog.speed().per_output_token(&State::default(), &Ask::default())
}

/// The target of one request, among those of its endpoint until this is dropped.
#[derive(Debug)]
pub(super) struct Aim {
    backlog: Arc<Backlog>,
    nanos: u64,
}

impl Aim {
    /// A request that decodes there has this target, in seconds.
    pub(super) fn new(backlog: &Arc<Backlog>, target: f64) -> Self {
        let nanos = nanos_of(target);
        backlog.targets().add(nanos);
        Self { backlog: Arc::clone(backlog), nanos }
    }

    /// The request decodes elsewhere.
    pub(super) fn move_to(&mut self, backlog: &Arc<Backlog>) {
        backlog.targets().add(self.nanos);
        self.backlog.targets().remove(self.nanos);
        self.backlog = Arc::clone(backlog);
    }
}

impl Drop for Aim {
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
        let loose = Aim::new(&one, 0.1);
        let mut tight = Aim::new(&one, 0.02);
        let _second = Aim::new(&one, 0.02);
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
