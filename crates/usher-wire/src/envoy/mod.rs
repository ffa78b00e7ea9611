//! Envoy's messages and ours: the only place that knows how they are encoded. Incoming
//! messages become [`Message`](crate::event::Message)s, [`Reply`](crate::reply::Reply)s
//! become outgoing ones.
//!
//! Messages are read where they lie and written where they are sent from, without
//! structures in between: of what a gateway sends we need little, and its bodies pass
//! through. The numbers of fields are those of `envoy/service/ext_proc/v3/external_processor.proto`
//! and of the files that it imports.

mod names;
mod read;
mod write;

pub use names::ENCODINGS;
pub use read::read;
pub use write::write;
