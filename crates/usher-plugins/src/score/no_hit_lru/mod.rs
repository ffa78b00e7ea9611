//! `no-hit-lru-scorer`: prompts that no cache knows go round, so that new prefixes spread
//! over the endpoints.

mod order;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::View;
use usher_plugin::data::PrefixMatch;
use usher_plugin::params::{PREFIX_PRODUCER, or_default, refused};
use usher_plugin::{
    Build, BuildContext, Context, Decision, Effects, Key, Kind, PluginParts, PluginType, PreRequest, Scorer,
    beta,
};

pub use order::ColdOrder;

/// `no-hit-lru-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("no-hit-lru-scorer", &[Kind::Scorer, Kind::PreRequest],
    "Rotates uncached prompts: the endpoint that got one the longest ago scores 1, the last one 0. For other prompts all score 0.5.",
    Build::Reading(build)).takes::<NoHitLruParams>()
    .when("Beside prefix-cache-scorer: new prefixes spread evenly instead of piling up where the queue was short.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = NoHitLruParams::decode(cx.parameters)?;
    let prefix = cx.reads(&params.prefix_match_info_producer_name);
    let order = cx.state.of(cx.name, ColdOrder::default);
    let plugin = Arc::new(NoHitLruScorer::new(&params, prefix, order));
    let scorer = Some(Arc::clone(&plugin) as _);
    Ok(PluginParts { scorer, pre_request: Some(plugin), ..PluginParts::with(&params)? })
}

/// Score of every endpoint when a cache helps at one of them.
const WARM: f32 = 0.5;

/// Parameters of `no-hit-lru-scorer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NoHitLruParams {
    /// Endpoints whose turn is remembered.
    ///
    /// At least 1.
    #[schemars(extend("x-unit" = "endpoints"))]
    pub lru_size: i64,
    /// The producer that knows what is cached.
    pub prefix_match_info_producer_name: String,
    /// Deprecated, without effect.
    #[serde(skip_serializing)]
    prefix_plugin_type: Option<String>,
    /// Deprecated, without effect.
    #[serde(skip_serializing)]
    prefix_plugin_name: Option<String>,
}

impl Default for NoHitLruParams {
    fn default() -> Self {
        Self {
            lru_size: 1024,
            prefix_match_info_producer_name: PREFIX_PRODUCER.to_owned(),
            prefix_plugin_type: None,
            prefix_plugin_name: None,
        }
    }
}

impl NoHitLruParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and a size below 1.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        if params.lru_size < 1 {
            return Err(refused(node, "lruSize", params.lru_size).hint("the default is 1024"));
        }
        or_default(&mut params.prefix_match_info_producer_name, PREFIX_PRODUCER);
        Ok(params)
    }
}

/// For a prompt that no candidate holds anything of, scores 1 − rank / (n − 1) over n
/// candidates: first those that never got such a prompt, then those that got one the
/// longest ago. For any other prompt all score 0.5.
#[derive(Debug)]
pub struct NoHitLruScorer {
    capacity: usize,
    prefix: Key<PrefixMatch>,
    order: Arc<ColdOrder>,
}

impl NoHitLruScorer {
    /// A scorer by the match under `prefix`, that keeps its order in `order`.
    pub fn new(params: &NoHitLruParams, prefix: Key<PrefixMatch>, order: Arc<ColdOrder>) -> Self {
        let capacity = usize::try_from(params.lru_size).unwrap_or(usize::MAX);
        Self { capacity, prefix, order }
    }
}

impl Scorer for NoHitLruScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let known = cx.facts.get(self.prefix);
        if known.is_some_and(|known| candidates.indices().iter().any(|p| known.blocks_at(*p) > 0)) {
            return out.fill(WARM);
        }
        self.order.rank(candidates, out);
        let last = out.len().saturating_sub(1).max(1) as f32;
        out.iter_mut().for_each(|score| *score = 1.0 - *score / last);
    }
}

impl PreRequest for NoHitLruScorer {
    /// Marks endpoints that compute an uncached prompt as used: those of the primary and the prefill
    /// profile, unless they hold some of it.
    fn decided(&self, cx: &Context<'_>, decision: &Decision, _effects: &mut Effects) {
        let known = cx.facts.get(self.prefix);
        let primary = decision.primary();
        let prefill = decision.prefill().filter(|run| !std::ptr::eq(*run, primary));
        for run in [Some(primary), prefill].into_iter().flatten() {
            let Some(position) = run.picks.first() else { continue };
            let Some(endpoint) = decision.endpoints_of(run).next() else { continue };
            if known.is_none_or(|known| known.blocks_at(*position) == 0) {
                self.order.used(endpoint, self.capacity);
            }
        }
    }
}
