//! Policies that are objects of the API server: followed (`follow`), judged (`policy_store`), and told what became
//! of them (`tell`, and `told` for what is due); and whether nodes bear out the topologies that they name (`survey`).

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
pub use policy_store::{Changed, Known, News, PolicyStore, policy_of};
pub use status_writer::StatusWriter;
pub use survey::Surveyor;
