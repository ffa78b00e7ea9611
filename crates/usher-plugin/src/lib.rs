//! The kit that Usher's plugins are written with.
//!
//! A request passes through the plugins of a configuration in this order; each kind is a trait:
//!
//! ```text
//! RequestHeaderProcessor ─▶ Gatherer ─▶ Screener ─▶ DataProducer ─▶ Admitter
//!   ─▶ ProfileHandler ( Filter ─▶ Scorer ─▶ Picker ) ─▶ PreRequest ─▶ ResponseObserver
//! ```
//!
//! Before the decision they see a [`RequestContext`], during it a [`Context`]. Producers leave [`Facts`]
//! for later plugins, and the effects of a decision go into [`Effects`].
//!
//! A [`PluginType`] is what a configuration can name. [`PluginType::takes`] names the struct of its
//! parameters, which documents them, too. Its build function gets a [`BuildContext`], with the parameters
//! and what plugins share, and returns a [`PluginParts`].

pub mod data;
pub mod params;
pub mod testing;

mod build;
mod build_state;
mod by_type;
mod context;
mod data_graph;
mod decision;
mod effects;
mod estimate;
mod facts;
mod families;
mod label_values;
mod learned;
mod lifecycle;
mod parameters;
mod per_snapshot;
mod picks;
mod plugin;
mod recent;
mod references;
mod reserved;
mod saturation;
mod selector;
mod settle;
mod state;
mod types;

pub use build::{Build, BuildContext, PluginParts};
pub use by_type::ByType;
pub use context::{Context, Outcome, Part, Runs, ScheduleError};
pub use decision::{Column, Decision, Record, Run, Scores};
pub use effects::{Attribute, Effects, Header, ResponseHead, ResponseObserver, Served};
pub use estimate::LatencyEstimate;
pub use facts::{DataType, Fact, Facts, Key};
pub use label_values::{LabelValue, LabelValues};
pub use learned::{Import, Learned, MAX_RECORD, MalformedRecord};
pub use lifecycle::{
    Admitter, DataProducer, Denied, Gathered, Gatherer, PreRequest, RequestContext, RequestHeaderProcessor,
    Screener,
};
pub use per_snapshot::{Fitting, PerSnapshot};
pub use picks::{Picks, Ranked};
pub use plugin::{Decider, Filter, Picker, PluginId, ProfileHandler, ProfileSet, Scorer};
pub use recent::Recent;
pub use saturation::{Level, SaturationDetector};
pub use selector::{LabelExpression, LabelOperator, LabelSelector};
pub use settle::Settlement;
pub use state::{Persistent, State};
pub use types::{Kind, PluginType, Stability, beta, later};

// For the host, which builds plugins and calls them; no part of what plugins are written with.
#[doc(hidden)]
pub use build::BuiltPlugin;
#[doc(hidden)]
pub use build_state::BuildState;
#[doc(hidden)]
pub use data_graph::{DataGraph, Missing};
#[doc(hidden)]
pub use decision::DecisionContext;
#[doc(hidden)]
pub use effects::ResponseObservers;
#[doc(hidden)]
pub use families::Families;
#[doc(hidden)]
pub use parameters::Parameter;
#[doc(hidden)]
pub use references::{undeclared, wrong_kind};
