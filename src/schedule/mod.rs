//! Which endpoints answer a request.
//!
//! A [`Scheduler`] runs profiles. A profile narrows the candidates with its
//! filters, adds up the weighted scores of its scorers and lets its picker take
//! the best. A profile handler says which profiles run and whose picks are the
//! answer. A decision is a function of the request, the candidates and the
//! random source; it reads live numbers and changes nothing.
//! [`registry`] builds all of it from a configuration.

mod around;
mod context;
pub mod data;
mod decision;
mod effects;
mod facts;
mod handler;
mod lifecycle;
mod metrics;
mod params;
mod pick;
mod plugin;
mod produce;
mod profile;
pub mod registry;
mod scheduler;
mod score;
mod stages;
mod state;

pub use around::{
    AgentIdentity, AgentIdentityParams, Bindings, LabelSelector, ProbabilisticAdmitter,
    ProbabilisticAdmitterParams, ReporterMetrics, ReporterParams, RequestAttributeReporter, RolloutMetrics,
    RolloutParams, RolloutScreener, SessionAffinity, SessionAffinityParams, SessionMetrics, SessionSource,
    SourceParams, Strategy,
};
pub use context::{Context, Outcome, Runs, ScheduleError};
pub use decision::{Column, Decision, Record, Run, Scores};
pub use effects::{AnswerHead, Attribute, Effects, Follower, Followers, Header, Served};
pub use facts::{DataType, Fact, Facts, Key};
pub use handler::SingleProfileHandler;
pub use lifecycle::{Admitter, Denied, HeaderProcessor, PreRequest, Producer, Screener, Situation};
pub use metrics::SchedulerMetrics;
pub use pick::{MaxScorePicker, Picks, RandomPicker};
pub use plugin::{Filter, Picker, PluginId, ProfileHandler, ProfileSet, Scorer};
pub use produce::{
    InflightLoadParams, InflightLoadProducer, SessionIdParams, SessionIdProducer, TokenParams, TokenProducer,
};
pub use profile::{Profile, ProfileBuilder};
pub use scheduler::{Scheduler, Scratch};
pub use score::{ActiveRequestParams, ActiveRequestScorer, KvCacheUtilizationScorer, QueueScorer};
pub use stages::{Stages, StagesBuilder};
pub use state::{Kept, State};
