//! The notations of flags and files, and EndpointPickerConfig as it is written. What its plugins mean is
//! not known here.

mod decode;
mod error;
mod kind;
pub mod layers;
mod left_out;
mod node;
mod parse;
mod read;
mod scalar;
mod schema;
pub mod source;
mod survey;
mod syntax;
pub mod units;
mod words;

pub use decode::Positioned;
pub use error::{ConfigError, Position};
pub use kind::FileKind;
pub use node::{Entry, Node, Value};
pub use parse::MAX_BYTES;
pub use read::{EndpointPickerConfig, FeatureGates, Plugin, Profile, ProfilePlugin};
pub use schema::{
    CrossReplica, DataLayer, FlowControl, Name, PriorityBand, Quantity, Reference, Source, duration,
};
pub use survey::Survey;
