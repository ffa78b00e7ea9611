//! Endpoints that can be picked, the load and health of each, and the candidates for a
//! request.
//!
//! One [`Store`] writes; requests read. The store publishes an immutable
//! [`Snapshot`] whenever membership changes, a [`PodLocator`] turns a request's
//! [`SubsetHint`] into [`Candidates`] (a view of that snapshot), and the numbers
//! that change all the time live in each endpoint's [`Load`] as atomics.

mod attributes;
mod cache;
mod candidates;
mod clock;
mod endpoint;
mod engine_state;
mod engine_times;
pub mod health;
mod in_flight;
mod lease;
mod load;
mod locator;
mod scrapes;
mod share;
mod slot;
mod store;
mod subset;
mod topology;

pub use attributes::{AttributeId, Reading};
pub use cache::{CachedLocator, LocatorMetrics};
pub use candidates::{Candidates, Snapshot, View};
pub use clock::Clock;
pub use endpoint::{Endpoint, EndpointName, EndpointSpec, ROLE_LABEL, Role};
pub use engine_state::EngineState;
pub use engine_times::{EngineTimes, EngineTimesReading, Total};
pub use in_flight::{InFlight, InFlightId};
pub use lease::{Lease, Leases};
pub use load::{Adapters, Booking, FIRST_TOKEN_WINDOW, Gauge, Load, Model};
pub use locator::{Located, PodLocator, StoreLocator};
pub use scrapes::ScrapeHealth;
pub use share::Share;
pub use slot::Slot;
pub use store::{Change, StartingPod, Store};
pub use subset::parse_address;
pub use subset::{MAX_ADDRESSES, SubsetHint};
pub use topology::{Nearness, PLACE_LABELS, Topology};
