//! The memory budget: what grows with the load is counted, and what there is no room for is
//! refused.
//!
//! A budget is for the whole process. Part of it is left for what isn't counted: the program
//! itself, endpoints, metrics, and what the allocator loses between its blocks. How much that
//! is, is [measured](Budget::measure). The rest is shared by the [kinds](Kind) that are counted.
//! Memory of such a kind is held by a [`Reservation`], which gives it back when dropped.

mod aborted;
mod budget;
mod calls;
pub mod cgroup;
mod connection;
mod connection_slots;
pub mod files;
mod idle;
mod index_share;
mod meter;
mod refusals;
mod reservation;
mod series;
pub mod small;
mod small_calls;
mod stalled;
mod stream_state;
mod unread;
mod unsent;
mod uploads;
mod watch;

pub use budget::{Budget, BudgetFull, Kind, NoRoom, Sheddable, keep_measuring, watch_uploads};
pub use connection::{ConnectionRoom, TURN, Windows};
pub use connection_slots::{Close, ConnectionSlots};
pub use idle::MAX_CONNECTIONS;
pub use index_share::IndexShare;
pub use refusals::RefusedStream;
pub use reservation::Reservation;
pub use small_calls::{SmallCall, SmallPort};
pub use stream_state::{FREE_UNSENT, StreamState};
pub use unread::{OpenStream, Unread};
pub use unsent::Unsent;
pub use uploads::{AbortReason, Upload};

#[cfg(test)]
mod tests;
