//! A plugin's share of the model while its configuration is built.

use std::sync::{Arc, OnceLock};

use usher_core::config::ConfigError;
use usher_plugin::BuildContext;

use super::link::Transfers;
use super::metrics::LatencyMetrics;
use super::model::Model;
use super::rate::InitialRate;
use super::reader::Reader;

/// The plugin reads the pool's model of latencies, and the facts of the producer of this
/// name. `rate` is its `peakPrefillThroughput`.
///
/// # Errors
/// `ConfigError` if its parameters and another plugin's set different rates.
pub(crate) fn reads_latency(
    cx: &mut BuildContext<'_>,
    rate: f64,
    prefix: &str,
) -> Result<Reader, ConfigError> {
    let initial: InitialRate = cx.shared();
    initial.read(cx.parameters, rate)?;
    let (tokens, prefix) = (cx.reads("token-producer"), cx.reads(prefix));
    let model = Model::of(cx.state);
    cx.family(LatencyMetrics::register)?.show(&model);
    Ok(Reader::new(model, initial, tokens, prefix).with_transfers(transfers(cx)))
}

/// Speeds of KV caches, for whoever reads the model; set where pairs are chosen.
pub(crate) fn transfers(cx: &mut BuildContext<'_>) -> Arc<OnceLock<Transfers>> {
    cx.shared()
}
