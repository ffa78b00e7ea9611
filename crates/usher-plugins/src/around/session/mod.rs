//! `session-affinity-scorer` and `session-affinity-filter`: requests of one session go
//! to one endpoint. Either the client carries the endpoint in a header, which it gets
//! with every answer, or sessions are bound to endpoints here.

mod affinity;
mod bindings;
mod params;
mod source;

pub use affinity::SessionAffinity;
pub use bindings::{Bindings, SessionMetrics};
pub use params::{SessionAffinityParams, SourceParams, Strategy};
pub use source::SessionSource;
