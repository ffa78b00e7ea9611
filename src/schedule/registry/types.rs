//! The list of plugin types.

use serde::Serialize;

use super::plugins::{self, Build};

/// What a plugin can be used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Removes candidates.
    Filter,
    /// Scores candidates.
    Scorer,
    /// Chooses by the totals.
    Picker,
    /// Says which profiles run.
    ProfileHandler,
    /// Reads requests of an API.
    Parser,
    /// Finds endpoints.
    Discovery,
    /// Polls numbers about endpoints.
    DataSource,
    /// Reads what a data source got.
    Extractor,
    /// Learns about a request before it is scheduled.
    DataProducer,
    /// Decides whether a disaggregated stage runs.
    Decider,
    /// Looks at request headers first.
    RequestHeader,
    /// Narrows candidates before anything else.
    Screener,
    /// Refuses requests.
    Admitter,
    /// Adds headers for the chosen endpoints.
    PreRequest,
    /// Reads responses.
    Response,
    /// Says how busy the pool is.
    SaturationDetector,
    /// Chooses among flows.
    FairnessPolicy,
    /// Orders a flow.
    OrderingPolicy,
    /// Says how much of the pool a priority may fill.
    UsageLimitPolicy,
    /// Chooses running requests to give up.
    Eviction,
}

impl Kind {
    /// The kind in a sentence, with its article.
    pub fn a(self) -> &'static str {
        match self {
            Self::Filter => "a filter",
            Self::Scorer => "a scorer",
            Self::Picker => "a picker",
            Self::ProfileHandler => "a profile handler",
            Self::Parser => "a parser",
            Self::Discovery => "a discovery plugin",
            Self::DataSource => "a data source",
            Self::Extractor => "an extractor",
            Self::DataProducer => "a data producer",
            Self::Decider => "a decider",
            Self::RequestHeader => "a header processor",
            Self::Screener => "a screener",
            Self::Admitter => "an admitter",
            Self::PreRequest => "a header writer",
            Self::Response => "a response plugin",
            Self::SaturationDetector => "a saturation detector",
            Self::FairnessPolicy => "a fairness policy",
            Self::OrderingPolicy => "an ordering policy",
            Self::UsageLimitPolicy => "a usage limit policy",
            Self::Eviction => "an eviction policy",
        }
    }
}

/// How settled a plugin type is, as the peer has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stability {
    /// Refused unless `--allow-experimental-plugins` is given.
    Alpha,
    /// For everybody.
    Beta,
}

/// One parameter of a plugin type, for the documentation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Parameter {
    /// The key.
    pub name: &'static str,
    /// The default as it is written; empty: it has to be given.
    pub default: &'static str,
    /// The unit; empty for what has none.
    pub unit: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

/// A plugin type.
#[derive(Debug)]
pub struct PluginType {
    /// The type in a configuration.
    pub name: &'static str,
    /// What it can be used as.
    pub kinds: &'static [Kind],
    /// How settled it is.
    pub stability: Stability,
    /// What to use instead, if it is deprecated.
    pub deprecated: Option<&'static str>,
    /// One line about what it does; empty for types that this version doesn't have.
    pub summary: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    pub(super) build: Build,
}

impl PluginType {
    /// The type of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        PLUGIN_TYPES.iter().find(|plugin_type| plugin_type.name == name)
    }

    /// Whether this version has it.
    pub fn is_supported(&self) -> bool {
        !matches!(self.build, Build::Unsupported)
    }

    /// Whether it can be used as this.
    pub fn is(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    const fn alpha(mut self) -> Self {
        self.stability = Stability::Alpha;
        self
    }

    const fn instead(mut self, other: &'static str) -> Self {
        self.deprecated = Some(other);
        self
    }
}

const fn beta(
    name: &'static str,
    kinds: &'static [Kind],
    summary: &'static str,
    parameters: &'static [Parameter],
    build: Build,
) -> PluginType {
    PluginType { name, kinds, stability: Stability::Beta, deprecated: None, summary, parameters, build }
}

/// A type of the peer that this version doesn't have.
const fn later(name: &'static str, kinds: &'static [Kind]) -> PluginType {
    beta(name, kinds, "", &[], Build::Unsupported)
}

const fn parameter(
    name: &'static str,
    default: &'static str,
    unit: &'static str,
    meaning: &'static str,
) -> Parameter {
    Parameter { name, default, unit, meaning }
}

const MAX_ENDPOINTS: &[Parameter] = &[parameter(
    "maxNumOfEndpoints",
    "1",
    "endpoints",
    "How many are picked: the first serves, the others are fallbacks. Below 1 means 1.",
)];

use Kind::{
    Admitter, DataProducer, DataSource, Decider, Discovery, Eviction, Extractor, FairnessPolicy, Filter,
    OrderingPolicy, Parser, Picker, PreRequest, ProfileHandler, RequestHeader, Response, SaturationDetector,
    Scorer, Screener, UsageLimitPolicy,
};

/// Every plugin type that the peer registers.
#[rustfmt::skip]
pub static PLUGIN_TYPES: &[PluginType] = &[
    // Scorers
    beta("queue-scorer", &[Scorer],
        "The shorter an endpoint's waiting queue, the better: the shortest scores 1, the longest 0.",
        &[], Build::Ignoring(plugins::queue_scorer)),
    beta("kv-cache-utilization-scorer", &[Scorer],
        "The emptier an endpoint's KV cache, the better: 1 minus the share in use.",
        &[], Build::Ignoring(plugins::kv_cache_scorer)),
    later("running-requests-size-scorer", &[Scorer]),
    later("lora-affinity-scorer", &[Scorer]),
    later("prefix-cache-scorer", &[Scorer]),
    later("precise-prefix-cache-scorer", &[Scorer, DataProducer]),
    later("load-aware-scorer", &[Scorer]),
    later("active-request-scorer", &[Scorer]),
    later("token-load-scorer", &[Scorer]),
    later("no-hit-lru-scorer", &[Scorer, PreRequest]),
    later("session-affinity-scorer", &[Scorer, PreRequest, Response]).alpha(),
    later("header-label-affinity-scorer", &[Scorer]).alpha(),
    later("context-length-aware", &[Filter, Scorer]),
    later("mm-embeddings-cache-scorer", &[Scorer]),
    later("latency-scorer", &[Scorer]),
    later("endpoint-attribute-scorer", &[Scorer]).alpha(),
    later("topology-affinity-scorer", &[Scorer]).alpha(),
    later("multicluster-queue-scorer", &[Scorer]).alpha(),
    later("multicluster-kv-cache-utilization-scorer", &[Scorer]).alpha(),
    later("multicluster-prefix-cache-scorer", &[Scorer]).alpha(),
    // Filters
    later("decode-filter", &[Filter]),
    later("prefill-filter", &[Filter]),
    later("encode-filter", &[Filter]),
    later("label-selector-filter", &[Filter]),
    later("by-label-selector", &[Filter]).instead("label-selector-filter"),
    later("by-label", &[Filter]).instead("label-selector-filter"),
    later("endpoint-attribute-filter", &[Filter]).alpha(),
    later("utilization-filter", &[Filter]).alpha(),
    later("prefix-cache-affinity-filter", &[Filter]),
    later("slo-headroom-tier-filter", &[Filter]),
    later("session-affinity-filter", &[Filter, PreRequest, Response]).alpha(),
    later("multicluster-session-affinity-filter", &[Filter, PreRequest, Response]).alpha(),
    later("topology-affinity-filter", &[Filter]).alpha(),
    later("header-based-testing-filter", &[Filter]),
    // Pickers
    beta("max-score-picker", &[Picker],
        "Picks the endpoints with the highest totals; equals in random order.",
        MAX_ENDPOINTS, Build::Reading(plugins::max_score_picker)),
    beta("random-picker", &[Picker],
        "Picks any endpoints that the filters left, whatever their totals.",
        MAX_ENDPOINTS, Build::Reading(plugins::random_picker)),
    later("weighted-random-picker", &[Picker]),
    // Profile handlers and what belongs to them
    beta("single-profile-handler", &[ProfileHandler],
        "Runs the one profile that is configured.",
        &[], Build::Ignoring(plugins::single_profile_handler)),
    later("disagg-profile-handler", &[ProfileHandler, PreRequest]),
    later("pd-profile-handler", &[ProfileHandler]).instead("disagg-profile-handler"),
    later("data-parallel-profile-handler", &[ProfileHandler, PreRequest]),
    later("header-profile-handler", &[ProfileHandler]).alpha(),
    later("disagg-headers-handler", &[PreRequest]).instead("disagg-profile-handler"),
    later("prefill-header-handler", &[PreRequest]).instead("disagg-profile-handler"),
    later("prefix-based-pd-decider", &[Decider]),
    later("always-disagg-pd-decider", &[Decider]),
    later("always-disagg-multimodal-decider", &[Decider]),
    // Producers
    later("token-producer", &[DataProducer]),
    later("tokenizer", &[DataProducer]).instead("token-producer"),
    later("approx-prefix-cache-producer", &[DataProducer, PreRequest]),
    later("multicluster-approx-prefix-cache-producer", &[DataProducer, PreRequest]).alpha(),
    later("precise-prefix-cache-producer", &[DataProducer, PreRequest, Extractor]),
    later("burst-prefix-cache-producer", &[DataProducer]).alpha(),
    later("inflight-load-producer", &[DataProducer, PreRequest, Response]),
    later("mm-embeddings-cache-producer", &[DataProducer, PreRequest]),
    later("predicted-latency-producer", &[DataProducer, PreRequest, Response]),
    later("session-id-producer", &[DataProducer]),
    later("p2p-source-producer", &[DataProducer, PreRequest]).alpha(),
    // Around the request
    later("latency-slo-admitter", &[Admitter]),
    later("probabilistic-admitter", &[Admitter]),
    later("disaggregatedset-rollout-screener", &[Screener, Response]).alpha(),
    later("request-attribute-reporter", &[Response]),
    later("agent-identity", &[RequestHeader]).alpha(),
    later("destination-endpoint-served-verifier", &[Response]),
    // Parsers
    beta("openai-parser", &[Parser],
        "Reads OpenAI chat completions and completions.",
        &[], Build::Reading(plugins::openai_parser)),
    beta("passthrough-parser", &[Parser],
        "Takes every path that no other parser claims, and doesn't read the body.",
        &[], Build::Reading(plugins::passthrough_parser)),
    later("anthropic-parser", &[Parser]),
    later("vllmhttp-parser", &[Parser]),
    later("sglanghttp-parser", &[Parser]),
    later("vertexai-parser", &[Parser]),
    later("vllmgrpc-parser", &[Parser]),
    // Data layer
    beta("file-discovery", &[Discovery],
        "Reads the endpoints from a file.",
        &[
            parameter("path", "", "", "The endpoints file; a relative path counts from the working directory."),
            parameter("watchFile", "false", "", "Read the file again whenever it changes."),
        ],
        Build::Reading(plugins::file_discovery)),
    later("multicluster-file-discovery", &[Discovery]).alpha(),
    beta("metrics-data-source", &[DataSource],
        "Polls the metrics page of every endpoint.",
        &[
            parameter("scheme", "http", "", "Only http in this version."),
            parameter("path", "/metrics", "", "Path of the metrics page."),
            parameter("port", "the endpoint's", "", "Port to ask, for all endpoints."),
            parameter("interval", "--refresh-metrics-interval", "duration", "How often."),
            parameter("insecureSkipVerify", "true", "", "Accepted; means something with https only."),
        ],
        Build::Reading(plugins::metrics_data_source)),
    later("models-data-source", &[DataSource]),
    later("dcgm-data-source", &[DataSource]).alpha(),
    later("k8s-notification-source", &[DataSource]),
    later("endpoint-notification-source", &[DataSource]),
    later("multicluster-metrics-data-source", &[DataSource]).alpha(),
    beta("core-metrics-extractor", &[Extractor],
        "Takes load and cache geometry from the metrics page of an engine.",
        &[
            parameter("engineLabelKey", "llm-d.ai/engine-type", "", "Label that names an endpoint's engine; only the default in this version."),
            parameter("defaultEngine", "vllm", "", "Engine of endpoints without the label; only vllm in this version."),
            parameter("engineConfigs", "[]", "", "Metric names by engine; only vLLM's own in this version."),
        ],
        Build::Reading(plugins::core_metrics_extractor)),
    later("models-data-extractor", &[Extractor]),
    later("dcgm-extractor", &[Extractor]).alpha(),
    later("topology-extractor", &[Extractor]).alpha(),
    later("multicluster-metrics-extractor", &[Extractor]).alpha(),
    // Flow control
    beta("utilization-detector", &[SaturationDetector, Filter],
        "Says how busy the pool is, by waiting queues and KV caches. No effect yet.",
        &[
            parameter("queueDepthThreshold", "5", "requests", "Waiting requests at which an endpoint is full."),
            parameter("kvCacheUtilThreshold", "0.8", "share", "Share of the KV cache at which it is."),
            parameter("metricsStalenessThreshold", "200ms", "duration", "Age at which its numbers count as full."),
            parameter("headroom", "0", "share", "How far beyond the thresholds the filter lets it go."),
        ],
        Build::NoEffect(plugins::utilization_detector)),
    later("concurrency-detector", &[SaturationDetector, Filter]),
    beta("global-strict-fairness-policy", &[FairnessPolicy],
        "Serves all flows of a priority as one queue. No effect yet.",
        &[], Build::NoEffect(plugins::ignored_parameters)),
    later("round-robin-fairness-policy", &[FairnessPolicy]),
    later("program-aware-fairness", &[FairnessPolicy]),
    beta("fcfs-ordering-policy", &[OrderingPolicy],
        "Who came first goes first. No effect yet.",
        &[], Build::NoEffect(plugins::ignored_parameters)),
    later("edf-ordering-policy", &[OrderingPolicy]),
    later("slo-deadline-ordering-policy", &[OrderingPolicy]),
    beta("static-usage-limit-policy", &[UsageLimitPolicy],
        "Lets every priority fill the same share of the pool. No effect yet.",
        &[parameter("threshold", "1", "saturation", "Saturation up to which requests are let through.")],
        Build::NoEffect(plugins::static_usage_limit_policy)),
    later("priority-holdback-policy", &[UsageLimitPolicy]).alpha(),
    later("soft-reflective-ceiling-policy", &[UsageLimitPolicy]).alpha(),
    later("sheddable-eviction-filter", &[Eviction]).alpha(),
    later("priority-then-time-eviction-order-policy", &[Eviction]).alpha(),
];
