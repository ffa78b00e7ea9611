//! Synthetic workloads, each for one thing that a policy can get wrong.
//!
//! Times of independent requests are relative: [`utilize`](super::capacity::utilize) says
//! how fast they come. Sessions think, ask and wait for the response, so their number says
//! how much they ask for. Lengths are log-normal, as those of real traces nearly are, and
//! have bounds.

mod independent;
mod kinds;
mod sessions;
mod shared;

use super::workload::Arrival;
pub use kinds::Workload;

impl Workload {
    /// Generates requests: independent ones about one per second and in order of arrival,
    /// others of so many users.
    pub fn arrivals(self, count: usize, users: usize, seed: u64) -> Vec<Arrival> {
        match self {
            Self::Conversations => sessions::conversations(count, users, seed),
            Self::Agents => sessions::agents(count, users, seed),
            independent => independent::arrivals(independent, count, seed),
        }
    }
}

#[cfg(test)]
mod tests;
