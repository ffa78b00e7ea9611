//! Parameters of `precise-prefix-cache-producer`, with llm-d-router's names.

use std::num::NonZeroU16;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::units::parse_duration;
use usher_core::config::{ConfigError, Node, Value};
use usher_core::kv_events::{Dialect, Media, Tier};
use usher_core::prefix::TierWeights;
use usher_plugin::params::{in_range, refused};

/// Parameters of `precise-prefix-cache-producer` and `precise-prefix-cache-scorer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PrecisePrefixParams {
    /// Division of prompts into blocks.
    pub(super) token_processor_config: Option<TokenProcessor>,
    /// Tiers of the index. Its size is `--prefix-index-bytes`.
    pub(super) indexer_config: Indexer,
    /// Sockets of the engines that publish events.
    pub(super) kv_events_config: KvEvents,
    /// Count the blocks of a decision at its endpoint before the engine publishes them.
    pub(super) speculative_indexing: bool,
    /// Time for which they count at most.
    #[serde(rename = "speculativeTTL")]
    pub(super) speculative_ttl: String,
}

/// Division of prompts into blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TokenProcessor {
    /// Size of a block; engines may have another.
    #[schemars(extend("x-unit" = "tokens"))]
    block_size_tokens: i64,
    /// Deprecated, the older name of blockSizeTokens.
    #[serde(skip_serializing)]
    #[schemars(extend("x-unit" = "tokens"))]
    block_size: Option<i64>,
    /// No effect: hashes are Usher's own, and no engine's.
    #[serde(skip_serializing)]
    hash_seed: String,
    /// No effect beyond its check: `cbor-fnv` or `xxh64`.
    #[serde(skip_serializing)]
    hash_algorithm: String,
}

/// Tiers of the index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Indexer {
    /// No effect: the index is in memory, within `--prefix-index-bytes`. redisConfig is refused.
    #[serde(skip_serializing)]
    kv_block_index_config: Option<BlockIndex>,
    /// Weights of tiers; 1 where none is given.
    kv_cache_backend_configs: Vec<Backend>,
    #[serde(skip_serializing)]
    #[schemars(skip)]
    tokenizers_pool_config: Option<Node>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct BlockIndex {
    in_memory_config: Option<InMemory>,
    cost_aware_memory_config: Option<CostAware>,
    #[schemars(with = "Option<serde_json::Value>")]
    redis_config: Option<Node>,
    enable_metrics: bool,
    #[schemars(with = "Option<serde_json::Value>")]
    metrics_logging_interval: Option<Node>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct InMemory {
    size: Option<i64>,
    pod_cache_size: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct CostAware {
    size: Option<String>,
}

/// Weight of a tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Backend {
    name: String,
    weight: f64,
}

/// Sockets of the engines that publish events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct KvEvents {
    /// Address that engines may connect to, such as `tcp://*:5557`. Empty: none.
    zmq_endpoint: String,
    /// Beginning of the topics that count.
    topic_filter: String,
    /// No effect beyond its check: one thread applies all events.
    #[serde(skip_serializing)]
    concurrency: i64,
    /// Engine of the endpoints: `vllm` or `sglang`.
    engine_type: String,
    /// Connect to the endpoints of the pool, with `zmqEndpoint` to those that don't connect themselves.
    discover_pods: bool,
    /// Ports of the endpoints' sockets; null: no endpoint is connected to.
    pod_discovery_config: Option<Ports>,
}

/// Ports of the endpoints' sockets; that of a data parallel rank is so much higher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Ports {
    /// Port of events.
    socket_port: i64,
    /// Port that replays missed events; without it, an endpoint that missed some starts anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    replay_socket_port: Option<i64>,
    /// No effect: the endpoints are those of the pool.
    #[serde(skip_serializing)]
    pod_label_selector: String,
    /// No effect: the endpoints are those of the pool.
    #[serde(skip_serializing)]
    pod_namespace: String,
}

impl Default for PrecisePrefixParams {
    fn default() -> Self {
        Self {
            token_processor_config: Some(TokenProcessor::default()),
            indexer_config: Indexer::default(),
            kv_events_config: KvEvents::default(),
            speculative_indexing: false,
            speculative_ttl: "2s".to_owned(),
        }
    }
}

impl Default for TokenProcessor {
    fn default() -> Self {
        let (hash_seed, hash_algorithm) = Default::default();
        Self { block_size_tokens: 16, block_size: None, hash_seed, hash_algorithm }
    }
}

impl Default for Indexer {
    fn default() -> Self {
        let weight = |name: &str, weight| Backend { name: name.to_owned(), weight };
        Self {
            kv_block_index_config: None,
            kv_cache_backend_configs: vec![weight("gpu", 1.0), weight("cpu", 0.8)],
            tokenizers_pool_config: None,
        }
    }
}

impl Default for KvEvents {
    fn default() -> Self {
        Self {
            zmq_endpoint: String::new(),
            topic_filter: "kv@".to_owned(),
            concurrency: 4,
            engine_type: "vllm".to_owned(),
            discover_pods: true,
            pod_discovery_config: Some(Ports::default()),
        }
    }
}

impl Default for Ports {
    fn default() -> Self {
        let (pod_label_selector, pod_namespace) = Default::default();
        Self { socket_port: 5557, replay_socket_port: None, pod_label_selector, pod_namespace }
    }
}

/// Sockets of KV events and the format of their messages.
#[derive(Clone, Debug)]
pub struct KvEventsSettings {
    /// Address that engines may connect to, `host:port`.
    pub bind: Option<String>,
    /// Port of events of rank 0; `None`: no endpoint is connected to.
    pub port: Option<u16>,
    /// Port of replays of rank 0.
    pub replay_port: Option<u16>,
    /// Beginning of the topics that count.
    pub topic: String,
    /// Meaning of positional fields.
    pub dialect: Dialect,
    /// Names of tiers.
    pub media: Media,
    /// Tokens of a block.
    pub block_tokens: NonZeroU16,
}

/// Parameters as they count.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) events: KvEventsSettings,
    pub(super) weights: TierWeights,
    /// Time for which speculative blocks count; `None`: there are none.
    pub(super) speculative: Option<Duration>,
}

impl PrecisePrefixParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, numbers out of range, and what this
    /// version can't do.
    pub(super) fn decode(node: &Node) -> Result<(Self, Settings), ConfigError> {
        if let Some(indexer) = node.get("indexerConfig").filter(|indexer| indexer.value == Value::Null) {
            let message = "indexerConfig can't be null";
            return Err(ConfigError::at(indexer.at, message).hint("leave it out for the defaults"));
        }
        let mut params: Self = node.decode()?;
        let processor = params.token_processor_config.get_or_insert_default();
        let block_tokens = processor.block_tokens(node)?;
        let (weights, media) = params.indexer_config.tiers(node)?;
        let ttl = parse_duration(&params.speculative_ttl).map_err(|problem| {
            ConfigError::at(node.position_of("speculativeTTL"), format!("speculativeTTL: {problem}"))
        })?;
        if ttl.is_zero() && params.speculative_indexing {
            return Err(refused(node, "speculativeTTL", "0").hint("the default is 2s"));
        }
        let ports = node.get("kvEventsConfig").and_then(|events| events.get("podDiscoveryConfig"));
        if ports.is_some_and(|ports| ports.value == Value::Null) {
            params.kv_events_config.pod_discovery_config = None;
        }
        let events = params.kv_events_config.settings(node, media, block_tokens)?;
        let speculative = params.speculative_indexing.then_some(ttl);
        Ok((params, Settings { events, weights, speculative }))
    }

    /// Effect of the parameters, in a sentence or two.
    pub(super) fn summary(settings: &Settings) -> String {
        let events = &settings.events;
        let connect = events.bind.as_ref().map(|address| format!("which connect to {address}"));
        let missed = events.replay_port.map(|port| format!(", missed ones from port {port}"));
        let dialed = events.port.map(|port| {
            format!("from port {port} of each endpoint{}", missed.as_deref().unwrap_or_default())
        });
        let from = match (connect, dialed) {
            (Some(connect), Some(dialed)) => format!("{connect}, otherwise {dialed}"),
            (None, None) => {
                "none, as discoverPods is off or podDiscoveryConfig null, and there is no zmqEndpoint"
                    .to_owned()
            }
            (one, other) => one.or(other).unwrap_or_default(),
        };
        format!(
            "Says how much of a prompt each endpoint has in its KV cache, by the events of engines ({from}). Blocks have {} tokens.",
            events.block_tokens
        )
    }
}

impl TokenProcessor {
    fn block_tokens(&mut self, node: &Node) -> Result<NonZeroU16, ConfigError> {
        const KEY: &str = "tokenProcessorConfig";
        let mut key = "blockSizeTokens";
        let is_written = node.find(&format!("{KEY}.{key}")).is_some();
        if let Some(older) = self.block_size.take().filter(|_| !is_written) {
            (key, self.block_size_tokens) = ("blockSize", older);
        }
        if !matches!(self.hash_algorithm.as_str(), "" | "cbor-fnv" | "xxh64") {
            let message = format!("hashAlgorithm '{}' is not known", self.hash_algorithm);
            return Err(ConfigError::at(node.position_of(&format!("{KEY}.hashAlgorithm")), message)
                .hint("known here: cbor-fnv, xxh64; neither has an effect"));
        }
        // As in llm-d-router, 0 means the default.
        if self.block_size_tokens == 0 {
            self.block_size_tokens = Self::default().block_size_tokens;
        }
        let tokens = u16::try_from(self.block_size_tokens).ok().and_then(NonZeroU16::new);
        tokens.ok_or_else(|| {
            let key = format!("{KEY}.{key}");
            refused(node, &key, self.block_size_tokens).hint("the default is 16, and the most 65535")
        })
    }
}

/// Tiers without a name of their own.
const MORE_TIERS: std::ops::Range<u8> = 3..Tier::MAX;

impl Indexer {
    fn tiers(&self, node: &Node) -> Result<(TierWeights, Media), ConfigError> {
        const KEY: &str = "indexerConfig";
        if self.tokenizers_pool_config.is_some() {
            let at = node.position_of(&format!("{KEY}.tokenizersPoolConfig"));
            return Err(ConfigError::at(at, "tokenizersPoolConfig is not read here")
                .hint("declare a token-producer with vllm: {url: …}"));
        }
        let index = self.kv_block_index_config.as_ref();
        if index.is_some_and(|index| index.redis_config.is_some()) {
            let at = node.position_of(&format!("{KEY}.kvBlockIndexConfig.redisConfig"));
            return Err(ConfigError::at(at, "redisConfig is not supported: an index that replicas share is not needed, as each subscribes to all endpoints itself")
                .hint("leave it out; --prefix-index-bytes bounds the index in memory"));
        }
        let (mut weights, mut media, mut more) = (TierWeights::default(), Media::default(), MORE_TIERS);
        for backend in &self.kv_cache_backend_configs {
            let key = format!("{KEY}.kvCacheBackendConfigs");
            in_range(node, &key, backend.weight, 1.0, |weight| weight >= 0.0)?;
            let known = media.tier(Some(&backend.name)).filter(|_| !backend.name.is_empty());
            let tier = match known.or_else(|| more.next().and_then(Tier::new)) {
                Some(tier) if !backend.name.is_empty() => tier,
                _ => {
                    let message = "kvCacheBackendConfigs: a tier has no name, or there are too many";
                    return Err(ConfigError::at(node.position_of(&key), message)
                        .hint("write for example {name: gpu, weight: 1.0}"));
                }
            };
            media = media.with(&backend.name, tier);
            weights = weights.with(tier.number(), backend.weight);
        }
        // A block in several tiers counts as in the first: the one of the greatest weight.
        let mut tiers: Vec<Tier> = (0..more.start).filter_map(Tier::new).collect();
        let weight = |tier: &Tier| weights.of(tier.number());
        tiers.sort_by(|one, other| weight(other).total_cmp(&weight(one)));
        let ordered = (0..).zip(&tiers);
        let ordered =
            ordered.fold(TierWeights::default(), |of, (number, tier)| of.with(number, weight(tier)));
        Ok((ordered, media.in_order(&tiers)))
    }
}

impl KvEvents {
    fn settings(
        &self,
        node: &Node,
        media: Media,
        block_tokens: NonZeroU16,
    ) -> Result<KvEventsSettings, ConfigError> {
        const KEY: &str = "kvEventsConfig";
        let key = |name: &str| format!("{KEY}.{name}");
        if self.concurrency < 0 {
            return Err(refused(node, &key("concurrency"), self.concurrency).hint("the default is 4"));
        }
        let dialect = match self.engine_type.to_ascii_lowercase().as_str() {
            "" | "vllm" => Dialect::Vllm,
            "sglang" => Dialect::Sglang,
            _ => {
                let message = format!("engineType '{}' is not known", self.engine_type);
                return Err(ConfigError::at(node.position_of(&key("engineType")), message)
                    .hint("known here: vllm, sglang; TensorRT-LLM's events are vllm's"));
            }
        };
        let default = Ports::default();
        let ports = self.pod_discovery_config.as_ref().unwrap_or(&default);
        let port = |name: &str, port: i64| {
            u16::try_from(port).ok().filter(|port| *port > 0).ok_or_else(|| {
                let key = key(&format!("podDiscoveryConfig.{name}"));
                refused(node, &key, port).hint("a port is a number from 1 to 65535")
            })
        };
        let socket_port = port("socketPort", ports.socket_port)?;
        let replay = ports.replay_socket_port.filter(|port| *port != 0);
        let replay_port = replay.map(|number| port("replaySocketPort", number)).transpose()?;
        let bind = (!self.zmq_endpoint.is_empty()).then(|| bind(node, &self.zmq_endpoint)).transpose()?;
        let subscribes = self.discover_pods && self.pod_discovery_config.is_some();
        Ok(KvEventsSettings {
            bind,
            port: subscribes.then_some(socket_port),
            replay_port: replay_port.filter(|_| subscribes),
            topic: self.topic_filter.clone(),
            dialect,
            media,
            block_tokens,
        })
    }
}

/// The address in `tcp://host:port`, where `*` is every address of the host.
fn bind(node: &Node, endpoint: &str) -> Result<String, ConfigError> {
    let address = endpoint.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'));
    let address = address.filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    match address {
        Some(("*", port)) => Ok(format!("0.0.0.0:{port}")),
        Some((host, port)) => Ok(format!("{host}:{port}")),
        None => Err(refused(node, "kvEventsConfig.zmqEndpoint", format!("'{endpoint}'"))
            .hint("write for example tcp://*:5557; other transports are not supported")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Result<Settings, ConfigError> {
        PrecisePrefixParams::decode(&Node::parse(text).unwrap()).map(|(_, settings)| settings)
    }

    fn weight_of(settings: &Settings, medium: &str) -> f64 {
        settings.weights.of(settings.events.media.tier(Some(medium)).unwrap().number())
    }

    #[test]
    fn tiers_are_numbered_by_weight() {
        let order = |configs: &str| {
            let settings =
                decode(&format!("{{indexerConfig: {{kvCacheBackendConfigs: [{configs}]}}}}")).unwrap();
            let mut media = ["gpu", "cpu", "disk", "lmcache", "tape"]
                .map(|medium| (settings.events.media.tier(Some(medium)).map(Tier::number), medium));
            media.sort_unstable();
            let known = media.iter().filter(|(tier, _)| tier.is_some());
            known.map(|(_, medium)| *medium).collect::<Vec<_>>().join(" ")
        };
        for (configs, expected) in [
            ("", "gpu cpu disk"),
            ("{name: gpu, weight: 1}, {name: cpu, weight: 0.8}", "gpu disk cpu"),
            ("{name: disk, weight: 0.1}, {name: lmcache, weight: 0.9}", "gpu cpu lmcache disk"),
            (
                "{name: gpu, weight: 0.5}, {name: tape, weight: 0.7}, {name: cpu_pinned, weight: 0}",
                "disk tape gpu cpu",
            ),
        ] {
            assert_eq!(order(configs), expected, "{configs}");
        }
        let settings = decode("{}").unwrap();
        assert_eq!(settings.weights.of(settings.events.media.tier(None).unwrap().number()), 1.0);
    }

    #[test]
    fn defaults_match_llm_d_router() {
        let settings = decode("{}").unwrap();
        let events = &settings.events;
        assert_eq!((events.block_tokens.get(), events.port, events.replay_port), (16, Some(5557), None));
        assert_eq!((events.topic.as_str(), events.dialect, &events.bind), ("kv@", Dialect::Vllm, &None));
        for (medium, weight) in [("gpu", 1.0), ("cpu", 0.8), ("disk", 1.0)] {
            assert_eq!(weight_of(&settings, medium), weight, "{medium}");
        }
        assert_eq!(settings.speculative, None);
        let null =
            decode("{tokenProcessorConfig: null, kvEventsConfig: {podDiscoveryConfig: null}}").unwrap();
        assert_eq!((null.events.block_tokens.get(), null.events.port), (16, None));
    }

    #[test]
    fn configured_parameters_take_effect() {
        let block = |text: &str| {
            let text = format!("{{tokenProcessorConfig: {{{text}}}}}");
            decode(&text).unwrap().events.block_tokens.get()
        };
        assert_eq!(block("blockSizeTokens: 64, hashAlgorithm: xxh64, hashSeed: '0'"), 64);
        assert_eq!(block("blockSize: 32"), 32);
        assert_eq!(block("blockSize: 64, blockSizeTokens: 16"), 16);
        let settings = decode(
            "{kvEventsConfig: {zmqEndpoint: 'tcp://*:5557', engineType: sglang}, speculativeIndexing: true, speculativeTTL: 500ms,
              indexerConfig: {kvBlockIndexConfig: {costAwareMemoryConfig: {size: 2GiB}, enableMetrics: true},
              kvCacheBackendConfigs: [{name: lmcache, weight: 0.3}, {name: disk, weight: 0.1}]}}",
        )
        .unwrap();
        assert_eq!(settings.events.bind.as_deref(), Some("0.0.0.0:5557"));
        assert_eq!((settings.events.port, settings.events.dialect), (Some(5557), Dialect::Sglang));
        assert_eq!(settings.speculative, Some(Duration::from_millis(500)));
        assert_eq!((weight_of(&settings, "disk"), weight_of(&settings, "LMCache")), (0.1, 0.3));
        let ports =
            decode("{kvEventsConfig: {podDiscoveryConfig: {socketPort: 5601, replaySocketPort: 5602}}}");
        let ports = ports.unwrap().events;
        assert_eq!((ports.port, ports.replay_port), (Some(5601), Some(5602)));
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let table = [
            ("{tokenProcessorConfig: {blockSizeTokens: -1}}", "blockSizeTokens can't be -1"),
            ("{tokenProcessorConfig: {blockSizeTokens: 65536}}", "blockSizeTokens can't be 65536"),
            ("{tokenProcessorConfig: {hashAlgorithm: md5}}", "hashAlgorithm 'md5'"),
            ("{indexerConfig: null}", "indexerConfig can't be null"),
            ("{indexerConfig: {tokenizersPoolConfig: {}}}", "tokenizersPoolConfig"),
            ("{indexerConfig: {kvBlockIndexConfig: {redisConfig: {}}}}", "redisConfig is not supported"),
            ("{indexerConfig: {kvCacheBackendConfigs: [{name: gpu, weight: -1}]}}", "can't be -1"),
            ("{indexerConfig: {kvCacheBackendConfigs: [{weight: 1}]}}", "has no name"),
            ("{kvEventsConfig: {concurrency: -1}}", "concurrency can't be -1"),
            ("{kvEventsConfig: {engineType: trtllm}}", "engineType 'trtllm'"),
            ("{kvEventsConfig: {zmqEndpoint: 'ipc:///x'}}", "zmqEndpoint can't be 'ipc:///x'"),
            ("{kvEventsConfig: {socketPort: 5557}}", "unknown field 'socketPort'"),
            ("{kvEventsConfig: {podDiscoveryConfig: {socketPort: 0}}}", "socketPort can't be 0"),
            ("{kvEventsConfig: {podDiscoveryConfig: {zmqEndpoint: x}}}", "unknown field 'zmqEndpoint'"),
            ("{speculativeTTL: soon}", "speculativeTTL"),
            ("{speculativeIndexing: true, speculativeTTL: 0s}", "speculativeTTL can't be 0"),
        ];
        for (text, message) in table {
            let error = decode(text).unwrap_err();
            assert!(error.message().contains(message), "{text}: {}", error.message());
            assert!(error.position().is_some(), "{text}");
        }
    }
}
