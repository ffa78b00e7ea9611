//! The Kubernetes API server: the connection to it, and collections of objects that are
//! followed as they change. Knows nothing of what the objects mean.

mod backoff;
mod connect;
mod follow;
mod object;
mod problem;
mod request;
mod watch_machine;
mod watch_status;

pub use backoff::{Backoff, LONGEST_RETRY_AFTER};
pub use connect::{ConnectError, connect};
pub use follow::{Change, Ended, Missing, UNDEFINED, Watched, about, follow, follow_once_defined};
pub use object::{Metadata, OwnerReference};
pub use problem::Problem;
pub(crate) use request::encode;
pub use request::{Cluster, Collection, Eviction, PatchType};
pub use watch_machine::{FIRST_PAUSE, LONGEST_PAUSE};
pub use watch_status::WatchStatus;
