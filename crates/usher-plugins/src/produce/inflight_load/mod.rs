//! `inflight-load-producer`: what is under way at each endpoint, and what a request
//! would add to it.

mod series;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Candidates, Endpoint, InFlightId, Lease, Share};
use usher_plugin::data::{PrefixMatch, PromptTokens, UncachedTokens};
use usher_plugin::params::{PREFIX_PRODUCER, in_range, or_default};
use usher_plugin::{
    Build, BuildContext, Context, DataProducer, Decision, Effects, Facts, Key, Kind, PluginParts, PluginType,
    PreRequest, RequestContext, ResponseObserver, beta,
};

use series::Counted;
pub use series::{InflightFamilies, InflightSeries};

/// `inflight-load-producer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("inflight-load-producer", &[Kind::DataProducer, Kind::PreRequest, Kind::Response],
    "Counts requests and tokens under way at each endpoint, and says what a request would add.",
    Build::Reading(build)).takes::<InflightLoadParams>()
    .when("Added by itself where a plugin reads what is in flight; declare it to count generated tokens, too.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = InflightLoadParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?;
    let counters = cx.counts_in_flight();
    let tokens = cx.reads("token-producer");
    let prefix = cx.may_read(&params.prefix_match_info_producer_name);
    let uncached = cx.produces();
    let families = cx.family(InflightFamilies::register)?;
    let series = cx.state.of(cx.name, || InflightSeries::new(families, cx.name, cx.state.series_room()));
    let shared = params.sync_cross_replica_state.then(|| SharedInFlight(counters.clone()));
    let plugin = Arc::new(InflightLoadProducer::new(params, counters, tokens, prefix, uncached, series));
    let parts = PluginParts { producer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), ..parts };
    Ok(match shared {
        Some(shared) => parts.with_extra(shared),
        None => parts,
    })
}

/// Counters of a producer that replicas share.
#[derive(Clone, Debug)]
pub struct SharedInFlight(pub Lease<InFlightId>);

/// Parameters of `inflight-load-producer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InflightLoadParams {
    /// Count the tokens that will probably be generated, too.
    pub add_estimated_output_tokens: bool,
    /// Generated tokens per token of the prompt.
    pub output_ratio: f64,
    /// Most generated tokens counted for a request.
    #[schemars(extend("x-unit" = "tokens", "default" = "no limit"))]
    pub max_estimated_output_tokens: Option<u64>,
    /// The producer that knows what is cached.
    pub prefix_match_info_producer_name: String,
    /// Share what is in flight with other replicas, where there is a state store.
    pub sync_cross_replica_state: bool,
}

impl Default for InflightLoadParams {
    fn default() -> Self {
        Self {
            add_estimated_output_tokens: false,
            output_ratio: 1.5,
            max_estimated_output_tokens: None,
            prefix_match_info_producer_name: PREFIX_PRODUCER.to_owned(),
            sync_cross_replica_state: true,
        }
    }
}

impl InflightLoadParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and numbers out of range.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        in_range(node, "outputRatio", params.output_ratio, 1.5, |ratio| ratio >= 0.0)?;
        or_default(&mut params.prefix_match_info_producer_name, PREFIX_PRODUCER);
        Ok(params)
    }
}

/// Estimates what each endpoint would have to compute, and counts a request and its tokens
/// at the first endpoint of every profile until the response is there.
#[derive(Clone, Debug)]
pub struct InflightLoadProducer {
    params: InflightLoadParams,
    counting: Arc<Counting>,
    tokens: Key<PromptTokens>,
    prefix: Key<PrefixMatch>,
    uncached: Key<UncachedTokens>,
}

/// Counters of a producer and its requests: what scorers read, and the same for the
/// metrics.
#[derive(Debug)]
struct Counting {
    counters: Lease<InFlightId>,
    series: Arc<InflightSeries>,
}

impl InflightLoadProducer {
    /// A producer that counts in `counters`, and in `series` for the metrics.
    pub fn new(
        params: InflightLoadParams,
        counters: Lease<InFlightId>,
        tokens: Key<PromptTokens>,
        prefix: Key<PrefixMatch>,
        uncached: Key<UncachedTokens>,
        series: Arc<InflightSeries>,
    ) -> Self {
        Self { params, counting: Arc::new(Counting { counters, series }), tokens, prefix, uncached }
    }

    /// Tokens that a request will probably generate; 0 where they are not counted.
    fn output(&self, prompt: u64, limit: Option<u64>) -> u64 {
        if !self.params.add_estimated_output_tokens {
            return 0;
        }
        // Saturates, as casts from floats do.
        let estimate = (prompt as f64 * self.params.output_ratio).round() as u64;
        [limit, self.params.max_estimated_output_tokens].into_iter().flatten().fold(estimate, u64::min)
    }
}

impl DataProducer for InflightLoadProducer {
    fn produce(&self, _cx: &RequestContext<'_>, _candidates: &Candidates, facts: &mut Facts) {
        let prompt = facts.get(self.tokens).map_or(0, |tokens| tokens.count);
        let at = facts.get(self.prefix).map(|prefix| uncached(prompt, prefix)).unwrap_or_default();
        facts.set(self.uncached, UncachedTokens { elsewhere: prompt, at });
    }
}

/// Tokens by position in the snapshot.
fn uncached(prompt: u64, prefix: &PrefixMatch) -> Vec<u64> {
    (0u32..).take(prefix.matched.len()).map(|position| prefix.uncached_at(position, prompt)).collect()
}

impl PreRequest for InflightLoadProducer {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        let prompt = cx.facts.get(self.tokens).map_or(0, |tokens| tokens.count);
        let output = self.output(prompt, cx.request.max_output_tokens);
        let uncached = cx.facts.get(self.uncached);
        let (primary, prefill) = (decision.primary(), decision.prefill());
        let counting = &self.counting;
        let (flow, priority) = (cx.request.fairness_id(), cx.request.priority);
        let booked = decision.runs().iter().filter_map(|run| {
            let position = *run.picks.first()?;
            let endpoint = decision.endpoints_of(run).next()?;
            let tokens = uncached.map_or(0, |uncached| uncached.at(position)).saturating_add(output);
            Some(Booked {
                counted: Some((
                    Share::new(endpoint.load(), counting.counters.id(), tokens),
                    counting.series.count(endpoint, flow, priority, tokens),
                )),
                is_prefill: prefill.is_some_and(|prefill| std::ptr::eq(run, prefill)),
                is_primary: std::ptr::eq(run, primary),
            })
        });
        let frees_tokens = !self.params.add_estimated_output_tokens;
        let counting = Arc::clone(counting);
        effects.observe(InflightRequest { booked: booked.collect(), frees_tokens, counting });
    }
}

/// A request in the counters. Dropping it gives back what is left.
struct InflightRequest {
    booked: SmallVec<[Booked; 2]>,
    /// The prompt has been computed when the first token is there, and nothing else
    /// is counted.
    frees_tokens: bool,
    /// Held to the end, so that the counters aren't reused before.
    counting: Arc<Counting>,
}

struct Booked {
    /// The counts that scorers read, and the same for the metrics; `None` once they were given back.
    counted: Option<(Share, Counted)>,
    /// `true` if its work is done when the first token is there.
    is_prefill: bool,
    is_primary: bool,
}

impl ResponseObserver for InflightRequest {
    fn rerouted(&mut self, to: &Arc<Endpoint>) {
        for booked in self.booked.iter_mut().filter(|booked| booked.is_primary) {
            if let Some((share, counted)) = &mut booked.counted {
                share.move_to(to.load());
                counted.move_to(&self.counting.series, to);
            }
        }
    }

    fn first_token(&mut self) {
        for booked in &mut self.booked {
            if booked.is_prefill {
                booked.counted = None;
            } else if let Some((share, counted)) = booked.counted.as_mut().filter(|_| self.frees_tokens) {
                share.free_tokens();
                counted.free_tokens();
            }
        }
    }
}
