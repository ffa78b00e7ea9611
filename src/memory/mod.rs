//! The memory budget: what grows with the load is counted, and what there is no room for is
//! refused.
//!
//! A budget is for the whole process. Part of it is left for what isn't counted: the program
//! itself, connections, endpoints, metrics, and what the allocator loses between its blocks.
//! The rest is shared by the [kinds](Kind) that are counted. Who holds memory of such a kind
//! holds a [`Reservation`], which gives it back when dropped.

mod budget;
pub mod cgroup;
mod connection;
mod reservation;

pub use budget::{Budget, Full, Kind, Sheds};
pub use connection::{ConnectionRoom, Windows};
pub use reservation::Reservation;

#[cfg(test)]
mod tests;
