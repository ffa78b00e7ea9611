//! Requests and their bytes.

use std::ops::{AddAssign, SubAssign};

/// A number of requests, and the bytes of their bodies together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

impl Count {
    /// One request.
    pub(super) fn one(bytes: u64) -> Self {
        Self { requests: 1, bytes }
    }

    /// Returns `true` if one more request of so many bytes stays within both limits.
    pub(super) fn has_room(self, bytes: u64, max_requests: u64, max_bytes: u64) -> bool {
        self.requests < max_requests && self.bytes.saturating_add(bytes) <= max_bytes
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

impl SubAssign for Count {
    fn sub_assign(&mut self, other: Self) {
        self.requests = self.requests.saturating_sub(other.requests);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}
