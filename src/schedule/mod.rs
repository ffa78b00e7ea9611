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
mod filter;
mod handler;
mod label_values;
pub mod latency;
mod lifecycle;
mod metrics;
mod params;
mod per_snapshot;
mod pick;
mod plugin;
mod produce;
mod profile;
mod recent;
pub mod registry;
mod saturation;
mod scheduler;
mod score;
mod scratch;
mod selector;
mod settle;
mod stages;
mod state;

pub mod waiting;

pub use around::{
    AgentIdentity, AgentIdentityParams, Bindings, LatencySloAdmitter, LatencySloAdmitterParams,
    ProbabilisticAdmitter, ProbabilisticAdmitterParams, ReporterMetrics, ReporterParams,
    RequestAttributeReporter, RolloutMetrics, RolloutParams, RolloutScreener, ServedVerifier,
    SessionAffinity, SessionAffinityParams, SessionMetrics, SessionSource, SourceParams, Strategy,
};
pub use context::{Context, Outcome, Part, Runs, ScheduleError};
pub use decision::{Column, Decision, Record, Run, Scores};
pub use effects::{AnswerHead, Attribute, Effects, Follower, Followers, Header, Served};
pub use facts::{DataType, Fact, Facts, Key};
pub use filter::{
    AffinityDecisions, AffinityFamilies, PrefixCacheAffinityFilter, PrefixCacheAffinityFilterParams,
    TtftSource,
};
pub use filter::{
    ByLabelFilter, ByLabelParams, Condition, HeaderTestingFilter, LabelSelectorFilter, Metric, RoleFilter,
    UtilizationFilter, UtilizationFilterParams,
};
pub use filter::{EndpointAttributeFilter, EndpointAttributeFilterParams};
pub use filter::{MinAffinity, TopologyAffinityFilter, TopologyAffinityFilterParams};
pub use filter::{SloHeadroomTierFilter, SloHeadroomTierParams};
pub use handler::{
    AlwaysDecider, Decisions, DisaggFamily, DisaggParams, DisaggProfileHandler, Joint, JointParams,
    MultimodalDecider, PdFamily, PdParams, PdProfileHandler, PrefixBasedPdDecider, PrefixBasedPdParams,
    StageOrder, StageProfiles,
};
pub use handler::{
    DataParallelParams, DataParallelProfileHandler, DisaggHeaders, DisaggHeadersParams, HeaderProfileHandler,
    HeaderProfileParams, SingleProfileHandler,
};
pub use lifecycle::{
    Admitter, Denied, Finding, Gatherer, HeaderProcessor, PreRequest, Producer, Screener, Situation,
};
pub use metrics::SchedulerMetrics;
pub use pick::{MaxScorePicker, Picks, RandomPicker, WeightedRandomPicker};
pub use plugin::{Decider, Filter, Picker, PluginId, ProfileHandler, ProfileSet, Scorer};
pub use produce::{
    ApproxPrefixKeys, ApproxPrefixParams, ApproxPrefixProducer, P2pSource, P2pSourceParams, PrefixCaches,
    PrefixFamilies,
};
pub use produce::{BalanceBy, BurstFamilies, BurstPrefixParams, BurstPrefixProducer};
pub use produce::{
    EncoderCaches, EncoderFamilies, InflightFamilies, InflightLoadParams, InflightLoadProducer,
    InflightSeries, MmEmbeddingsCacheProducer, MmEmbeddingsCacheProducerParams, SessionIdParams,
    SessionIdProducer, TokenParams, TokenProducer,
};
pub use produce::{PredictedLatencyParams, PredictedLatencyProducer, PredictionFamilies, PredictionSeries};
pub use profile::{Profile, ProfileBuilder};
pub use saturation::{
    ConcurrencyDetector, ConcurrencyDetectorParams, ConcurrencyMode, Level, SaturationDetector,
    UtilizationDetector, UtilizationDetectorParams,
};
pub use scheduler::Scheduler;
pub use score::{
    ActiveRequestParams, ActiveRequestScorer, ContextLengthAware, ContextLengthParams, ExpectedLatencyParams,
    ExpectedLatencyScorer, HeaderLabelAffinityScorer, HeaderLabelParams, KvCacheUtilizationScorer,
    LoadAwareParams, LoadAwareScorer, LoraAffinityScorer, MmEmbeddingsCacheParams, MmEmbeddingsCacheScorer,
    QueueScorer, RunningRequestsScorer, TokenLoadParams, TokenLoadScorer,
};
pub use score::{ColdOrder, NoHitLruParams, NoHitLruScorer, PrefixCacheScorer, PrefixCacheScorerParams};
pub use score::{EndpointAttributeScorer, EndpointAttributeScorerParams};
pub use score::{HeadroomStrategy, LatencyScorer, LatencyScorerParams};
pub use score::{TopologyAffinityScorer, TopologyAffinityScorerParams};
pub use score::{multicluster_kv_cache, multicluster_queue};
pub use scratch::Scratch;
pub use selector::{LabelExpression, LabelOperator, LabelSelector};
pub use settle::Settlement;
pub use stages::{Stages, StagesBuilder};
pub use state::{Kept, State};
