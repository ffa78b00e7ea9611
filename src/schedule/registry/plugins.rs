//! How each plugin type is built.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use crate::config::{ConfigError, Node};
use crate::discovery::params::FileDiscoveryParams;
use crate::request::ParserKind;
use crate::schedule::params::{PickerParams, StaticUsageLimitParams, UtilizationDetectorParams};
use crate::schedule::{
    Filter, KvCacheUtilizationScorer, MaxScorePicker, Picker, ProfileHandler, QueueScorer, RandomPicker,
    Scorer, SingleProfileHandler,
};
use crate::scrape::params::{CoreMetricsExtractorParams, MetricsSourceParams};

/// How a type is built.
#[derive(Clone, Copy, Debug)]
pub(super) enum Build {
    /// From its parameters, strictly.
    Reading(fn(&Node) -> Result<Built, ConfigError>),
    /// The peer ignores whatever its parameters say, so they can't be wrong.
    Ignoring(fn() -> Built),
    /// Accepted, as the peer's defaults hold it, but nothing uses it yet.
    NoEffect(fn(&Node) -> Result<Value, ConfigError>),
    /// Not in this version.
    Unsupported,
}

/// A plugin, for each place that it can take, and its parameters as they count.
#[derive(Clone, Default)]
pub(super) struct Built {
    pub(super) filter: Option<Arc<dyn Filter>>,
    pub(super) scorer: Option<Arc<dyn Scorer>>,
    pub(super) picker: Option<Arc<dyn Picker>>,
    pub(super) handler: Option<Arc<dyn ProfileHandler>>,
    pub(super) parser: Option<ParserKind>,
    pub(super) discovery: Option<FileDiscoveryParams>,
    pub(super) source: Option<MetricsSourceParams>,
    pub(super) extractor: Option<CoreMetricsExtractorParams>,
    pub(super) parameters: Value,
}

impl Built {
    fn with(parameters: &impl Serialize) -> Result<Self, ConfigError> {
        Ok(Self { parameters: shown(parameters)?, ..Self::bare() })
    }

    /// A plugin without any place.
    pub(super) fn without_effect(parameters: Value) -> Self {
        Self { parameters, ..Self::default() }
    }

    fn bare() -> Self {
        Self { parameters: json!({}), ..Self::default() }
    }
}

fn shown(parameters: &impl Serialize) -> Result<Value, ConfigError> {
    serde_json::to_value(parameters).map_err(|error| ConfigError::new(error.to_string()))
}

/// For types without parameters that don't ignore them.
fn nothing(node: &Node) -> Result<(), ConfigError> {
    #[derive(serde::Deserialize)]
    struct Nothing {}
    node.decode::<Nothing>().map(|_| ())
}

pub(super) fn queue_scorer() -> Built {
    Built { scorer: Some(Arc::new(QueueScorer)), ..Built::bare() }
}

pub(super) fn kv_cache_scorer() -> Built {
    Built { scorer: Some(Arc::new(KvCacheUtilizationScorer)), ..Built::bare() }
}

pub(super) fn single_profile_handler() -> Built {
    Built { handler: Some(Arc::new(SingleProfileHandler)), ..Built::bare() }
}

pub(super) fn max_score_picker(node: &Node) -> Result<Built, ConfigError> {
    let params = PickerParams::decode(node)?;
    let picker = Arc::new(MaxScorePicker::new(params.max_num_of_endpoints));
    Ok(Built { picker: Some(picker), ..Built::with(&params)? })
}

pub(super) fn random_picker(node: &Node) -> Result<Built, ConfigError> {
    let params = PickerParams::decode(node)?;
    let picker = Arc::new(RandomPicker::new(params.max_num_of_endpoints));
    Ok(Built { picker: Some(picker), ..Built::with(&params)? })
}

pub(super) fn openai_parser(node: &Node) -> Result<Built, ConfigError> {
    nothing(node)?;
    Ok(Built { parser: Some(ParserKind::OpenAi), ..Built::bare() })
}

pub(super) fn passthrough_parser(node: &Node) -> Result<Built, ConfigError> {
    nothing(node)?;
    Ok(Built { parser: Some(ParserKind::PassThrough), ..Built::bare() })
}

pub(super) fn file_discovery(node: &Node) -> Result<Built, ConfigError> {
    let params = FileDiscoveryParams::decode(node)?;
    let built = Built::with(&params)?;
    Ok(Built { discovery: Some(params), ..built })
}

pub(super) fn metrics_data_source(node: &Node) -> Result<Built, ConfigError> {
    let params = MetricsSourceParams::decode(node)?;
    let built = Built::with(&params)?;
    Ok(Built { source: Some(params), ..built })
}

pub(super) fn core_metrics_extractor(node: &Node) -> Result<Built, ConfigError> {
    let params = CoreMetricsExtractorParams::decode(node)?;
    let built = Built::with(&params)?;
    Ok(Built { extractor: Some(params), ..built })
}

pub(super) fn utilization_detector(node: &Node) -> Result<Value, ConfigError> {
    shown(&UtilizationDetectorParams::decode(node)?)
}

pub(super) fn static_usage_limit_policy(node: &Node) -> Result<Value, ConfigError> {
    shown(&StaticUsageLimitParams::decode(node)?)
}

pub(super) fn ignored_parameters(_node: &Node) -> Result<Value, ConfigError> {
    Ok(json!({}))
}
