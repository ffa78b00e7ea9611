//! CapacityPolicy objects: watched (`follow`), validated (`policy_store`), with statuses computed (`written`)
//! and patched (`status_writer`); `survey` checks ClusterTopologies against node labels.

mod claims;
mod follow;
mod kinds;
mod policy_store;
mod status_writer;
mod survey;
mod times;
mod written;

pub use follow::PolicyObjects;
pub use kinds::{PolicyObject, TopologyObject};
pub use policy_store::{Changed, Known, ObjectUpdate, PolicyStore, policy_of};
pub use status_writer::StatusWriter;
pub use survey::Surveyor;
