//! Chooses the endpoints for a request.
//!
//! A [`Scheduler`] runs profiles. A profile narrows the candidates with its
//! filters, adds up the weighted scores of its scorers and lets its picker take
//! the best. A profile handler says which profiles run and whose picks are the
//! response. A decision is a function of the request, the candidates and the
//! random source; it reads live numbers and changes nothing.
//! [`registry`](crate::registry) builds all of it from a configuration. The interfaces of plugins are those of
//! [`usher_plugin`], the built-in ones are in [`usher_plugins`].

mod metrics;
mod profile;
mod scheduler;
mod scratch;
mod stages;

pub use metrics::SchedulerMetrics;
pub use profile::{Profile, ProfileBuilder};
pub use scheduler::Scheduler;
pub use scratch::Scratch;
pub use stages::{Stages, StagesBuilder};
pub use usher_plugin::{
    Admitter, Attribute, Column, Context, DataProducer, DataType, Decider, Decision, Denied, Effects, Fact,
    Facts, Filter, Gathered, Gatherer, Header, Key, LabelExpression, LabelOperator, LabelSelector, Level,
    Outcome, Part, Persistent, Picker, Picks, PluginId, PreRequest, ProfileHandler, ProfileSet, Record,
    RequestContext, RequestHeaderProcessor, ResponseHead, ResponseObserver, ResponseObservers, Run, Runs,
    SaturationDetector, ScheduleError, Scorer, Scores, Screener, Served, Settlement, State, data,
};
pub use usher_plugins::{
    ActiveRequestParams, ActiveRequestScorer, AffinityDecisions, AffinityFamilies, AgentIdentity,
    AgentIdentityParams, AlwaysDecider, ApproxPrefixKeys, ApproxPrefixParams, ApproxPrefixProducer,
    BalanceBy, Bindings, BurstFamilies, BurstPrefixParams, BurstPrefixProducer, ByLabelFilter, ByLabelParams,
    ColdOrder, ConcurrencyDetector, ConcurrencyDetectorParams, ConcurrencyMode, Condition,
    ContextLengthAware, ContextLengthParams, DataParallelParams, DataParallelProfileHandler, Decisions,
    DisaggFamily, DisaggHeaders, DisaggHeadersParams, DisaggParams, DisaggProfileHandler, EncoderCaches,
    EncoderFamilies, EndpointAttributeFilter, EndpointAttributeFilterParams, EndpointAttributeScorer,
    EndpointAttributeScorerParams, ExpectedLatencyParams, ExpectedLatencyScorer, HeaderLabelAffinityScorer,
    HeaderLabelParams, HeaderProfileHandler, HeaderProfileParams, HeaderTestingFilter, HeadroomStrategy,
    InflightFamilies, InflightLoadParams, InflightLoadProducer, InflightSeries, Joint, JointParams,
    KvCacheUtilizationScorer, LabelSelectorFilter, LatencyScorer, LatencyScorerParams, LatencySloAdmitter,
    LatencySloAdmitterParams, LoadAwareParams, LoadAwareScorer, LoraAffinityScorer, MaxScorePicker, Metric,
    MinAffinity, MmEmbeddingsCacheParams, MmEmbeddingsCacheProducer, MmEmbeddingsCacheProducerParams,
    MmEmbeddingsCacheScorer, MultimodalDecider, NoHitLruParams, NoHitLruScorer, P2pSource, P2pSourceParams,
    PdFamily, PdParams, PdProfileHandler, PredictedLatencyParams, PredictedLatencyProducer,
    PredictionFamilies, PredictionSeries, PrefixBasedPdDecider, PrefixBasedPdParams,
    PrefixCacheAffinityFilter, PrefixCacheAffinityFilterParams, PrefixCacheScorer, PrefixCacheScorerParams,
    PrefixCaches, PrefixFamilies, ProbabilisticAdmitter, ProbabilisticAdmitterParams, QueueScorer,
    RandomPicker, ReporterMetrics, ReporterParams, RequestAttributeReporter, RoleFilter, RolloutMetrics,
    RolloutParams, RolloutScreener, RunningRequestsScorer, ServedVerifier, SessionAffinity,
    SessionAffinityParams, SessionIdParams, SessionIdProducer, SessionMetrics, SessionSource,
    SingleProfileHandler, SloHeadroomTierFilter, SloHeadroomTierParams, SourceParams, StageOrder,
    StageProfiles, Strategy, TokenLoadParams, TokenLoadScorer, TokenParams, TokenProducer,
    TopologyAffinityFilter, TopologyAffinityFilterParams, TopologyAffinityScorer,
    TopologyAffinityScorerParams, TtftSource, UtilizationDetector, UtilizationDetectorParams,
    UtilizationFilter, UtilizationFilterParams, WeightedRandomPicker, flow_control, latency,
    multicluster_kv_cache, multicluster_queue,
};
