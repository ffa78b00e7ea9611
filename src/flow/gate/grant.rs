//! Terms on which a request may go, and its revocation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

/// Terms on which a request may go.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) spread: bool,
    pub(super) revocation: Option<Arc<Revocation>>,
}

/// Signal to a running request that it is given up.
#[derive(Debug, Default)]
pub(super) struct Revocation {
    is_revoked: AtomicBool,
    waker: AtomicWaker,
}

impl Revocation {
    pub(super) fn revoke(&self) {
        self.is_revoked.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Ready when it was.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        // Registered before it is looked at, so that none in between is missed.
        self.waker.register(context.waker());
        if self.is_revoked.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}
