//! `burst-prefix-cache-producer`: requests that come together and have their prompt in
//! common go to one endpoint, which no cache could show yet.

mod assign;
mod params;
mod window;

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tokio::time::{Instant, sleep_until};
use usher_core::config::ConfigError;
use usher_core::endpoints::{Candidates, Clock};
use usher_core::metrics::register;
use usher_core::prefix::Blocks;
use usher_core::request::estimate;
use usher_plugin::data::PrefixMatch;
use usher_plugin::{
    Build, BuildContext, Gathered, Gatherer, Key, Kind, PluginParts, PluginType, RequestContext, beta,
};

use assign::Rules;
use params::number;
pub use params::{BalanceBy, BurstPrefixParams};
use window::Window;

/// `burst-prefix-cache-producer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("burst-prefix-cache-producer", &[Kind::DataProducer],
    "Batches requests for a moment, and treats a prefix that several share as cached at one endpoint.",
    Build::Reading(build)).takes::<BurstPrefixParams>().alpha()
    .when("Bursts of requests with one prompt, such as samples for reinforcement learning: they come before any cache knows the prompt. A prefix-cache-scorer reads what it says.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = BurstPrefixParams::decode(cx.parameters)?;
    let families = cx.family(BurstFamilies::register)?;
    let clock = cx.state.clock().clone();
    let plugin = BurstPrefixProducer::new(params, cx.produces(), clock, &families, cx.name);
    Ok(PluginParts { gatherer: Some(Arc::new(plugin)), ..PluginParts::with(&params)? })
}

/// Metrics of these producers.
#[derive(Debug)]
pub struct BurstFamilies {
    overflow: IntCounterVec,
}

impl BurstFamilies {
    /// Registers the family.
    ///
    /// # Errors
    /// `prometheus::Error` if the metric's name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "usher_burst_not_held_total",
            "Requests not delayed for burst batching because too many were delayed.",
        );
        let overflow = IntCounterVec::new(opts, &["plugin_name"])?;
        Ok(Self { overflow: register(registry, overflow, None)? })
    }
}

/// Holds requests for a moment and says of each which endpoint it should go to, as if that
/// had all of its prompt in its cache and nobody else anything. A request that has nothing
/// in common with the others is held as long, as nobody can know before.
#[derive(Debug)]
pub struct BurstPrefixProducer {
    params: BurstPrefixParams,
    window: Arc<Window>,
    prefix: Key<PrefixMatch>,
    clock: Clock,
    overflow: IntCounter,
}

impl BurstPrefixProducer {
    /// A producer of this name that says what it found under `prefix`. Readings are as old
    /// as `clock` says.
    pub fn new(
        params: BurstPrefixParams,
        prefix: Key<PrefixMatch>,
        clock: Clock,
        families: &BurstFamilies,
        name: &str,
    ) -> Self {
        let per_replica = usize::try_from(params.max_per_replica).ok().filter(|most| *most > 0);
        let per_replica = per_replica.unwrap_or(usize::MAX);
        let rules = Rules { per_replica, colocate: number(params.min_colocate_blocks) };
        let window = Arc::new(Window::new(params.window(), number(params.max_batch_size), rules));
        let overflow = families.overflow.with_label_values(&[name]);
        Self { params, window, prefix, clock, overflow }
    }
}

impl Gatherer for BurstPrefixProducer {
    fn gather(
        &self,
        cx: &RequestContext<'_>,
        candidates: &Candidates,
    ) -> Option<BoxFuture<'static, Gathered>> {
        let block = self.params.block();
        let blocks = Blocks::of(cx.request, block, self.params.max_blocks());
        if blocks.is_empty() {
            return None;
        }
        let load = match self.params.balance_by {
            BalanceBy::Requests => 1,
            BalanceBy::Tokens => estimate::count(cx.request).unwrap_or_default(),
        };
        let Some(seat) = self.window.join(Instant::now(), candidates, &blocks, load) else {
            self.overflow.inc();
            return None;
        };
        let total = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        let (prefix, clock, max_age) = (self.prefix, self.clock.clone(), cx.max_age);
        let held = async move {
            sleep_until(seat.ends()).await;
            let endpoint = seat.end(clock.now_ms(), max_age);
            let gathered: Gathered = Box::new(move |candidates, facts| {
                let endpoints = candidates.snapshot().endpoints();
                let mut matched = vec![0; endpoints.len()];
                // By its slot: the pool may have changed since.
                let slot = endpoint.map(|endpoint| endpoint.slot().number());
                let slots = candidates.snapshot().slots();
                let place = slots.iter().position(|other| Some(*other) == slot);
                if let Some(matched) = place.and_then(|place| matched.get_mut(place)) {
                    *matched = total;
                }
                facts.set(prefix, PrefixMatch { total, block_size: block.get(), matched });
            });
            gathered
        };
        Some(held.boxed())
    }
}
