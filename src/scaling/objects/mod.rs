//! Policies that are objects of the API server: followed (`follow`), judged (`shelf`), and told what became
//! of them (`tell`, and `told` for what is due); and whether nodes bear out the topologies that they name (`survey`).

mod claims;
mod follow;
mod kinds;
mod shelf;
mod survey;
mod tell;
mod times;
mod told;

pub use follow::PolicyObjects;
pub use kinds::{PolicyObject, TopologyObject};
pub use shelf::{Changed, Known, News, Shelf, policy_of};
pub use survey::Surveyor;
pub use tell::Teller;
