//! The built-in plugins, a file each.
//!
//! Folders are kinds of plugins; [`latency`] is the model of a pool's latencies that several of
//! them share, and [`flow_control`] what a configuration says of flow control. [`types`] lists what a
//! configuration can name.

mod filter;
pub mod flow_control;
mod handler;
pub mod latency;
mod middleware;
mod pick;
mod produce;
mod record;
mod saturation;
mod score;
mod types;

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
pub use middleware::{
    AgentIdentity, AgentIdentityParams, Bindings, LatencySloAdmitter, LatencySloAdmitterParams,
    ProbabilisticAdmitter, ProbabilisticAdmitterParams, ReporterMetrics, ReporterParams,
    RequestAttributeReporter, RolloutMetrics, RolloutParams, RolloutScreener, ServedVerifier,
    SessionAffinity, SessionAffinityParams, SessionMetrics, SessionSource, SourceParams, Strategy,
};
pub use pick::{MaxScorePicker, RandomPicker, WeightedRandomPicker};
pub use produce::{
    Agreement, DirectTokenizer, EngineCaches, KvEventsSettings, KvEventsSource, PrecisePrefixParams,
    PrecisePrefixProducer, RenderParams, TokenSource,
};
pub use produce::{
    ApproxPrefixKeys, ApproxPrefixParams, ApproxPrefixProducer, P2pSource, P2pSourceParams, PrefixCaches,
    PrefixFamilies,
};
pub use produce::{BalanceBy, BurstFamilies, BurstPrefixParams, BurstPrefixProducer};
pub use produce::{
    EncoderCaches, EncoderFamilies, InflightFamilies, InflightLoadParams, InflightLoadProducer,
    InflightSeries, MmEmbeddingsCacheProducer, MmEmbeddingsCacheProducerParams, SessionIdParams,
    SessionIdProducer, SharedInFlight, TokenParams, TokenProducer,
};
pub use produce::{PredictedLatencyParams, PredictedLatencyProducer, PredictionFamilies, PredictionSeries};
pub use saturation::{
    ConcurrencyDetector, ConcurrencyDetectorParams, ConcurrencyMode, UtilizationDetector,
    UtilizationDetectorParams,
};
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
pub use types::types;
