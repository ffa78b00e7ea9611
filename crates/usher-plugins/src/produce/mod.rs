//! Data producers, one file per kind: what is learned about a request before it is
//! scheduled, and what is booked once it is.

pub(crate) mod approx_prefix;
pub(crate) mod burst_prefix;
pub(crate) mod inflight_load;
pub(crate) mod mm_embeddings_cache;
pub(crate) mod p2p_source;
pub(crate) mod precise_prefix;
pub(crate) mod predicted_latency;
pub(crate) mod session_id;
pub(crate) mod tokens;

pub use approx_prefix::{
    ApproxPrefixKeys, ApproxPrefixParams, ApproxPrefixProducer, PrefixCaches, PrefixFamilies,
};
pub use burst_prefix::{BalanceBy, BurstFamilies, BurstPrefixParams, BurstPrefixProducer};
pub use inflight_load::{
    InflightFamilies, InflightLoadParams, InflightLoadProducer, InflightSeries, SharedInFlight,
};
pub use mm_embeddings_cache::{
    EncoderCaches, EncoderFamilies, MmEmbeddingsCacheProducer, MmEmbeddingsCacheProducerParams,
};
pub use p2p_source::{P2pSource, P2pSourceParams};
pub use precise_prefix::{
    Agreement, EngineCaches, KvEventsSettings, KvEventsSource, PrecisePrefixParams, PrecisePrefixProducer,
};
pub use predicted_latency::{
    PredictedLatencyParams, PredictedLatencyProducer, PredictionFamilies, PredictionSeries,
};
pub use session_id::{SessionIdParams, SessionIdProducer};
pub use tokens::{DirectTokenizer, RenderParams, TokenParams, TokenProducer, TokenSource};
