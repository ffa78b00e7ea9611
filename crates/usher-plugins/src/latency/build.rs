//! A plugin's share of the model while its configuration is built.

use std::sync::{Arc, OnceLock};

use usher_core::config::ConfigError;
use usher_plugin::Site;

use super::link::Transfers;
use super::metrics::LatencyMetrics;
use super::model::Model;
use super::rate::InitialRate;
use super::reader::Reader;

/// The plugin reads the pool's model of latencies, and the facts of the producer of this
/// name. `rate` is its `peakPrefillThroughput`.
///
/// # Errors
/// When its parameters and another plugin's give two rates.
pub(crate) fn reads_latency(site: &mut Site<'_>, rate: f64, prefix: &str) -> Result<Reader, ConfigError> {
    let initial: InitialRate = site.shared();
    initial.read(site.parameters, rate)?;
    let (tokens, prefix) = (site.reads("token-producer"), site.reads(prefix));
    let model = Model::of(site.state);
    site.family(LatencyMetrics::register)?.show(&model);
    Ok(Reader::new(model, initial, tokens, prefix).moving(transfers(site)))
}

/// How fast KV caches move, for whoever reads the model; set where pairs are chosen.
pub(crate) fn transfers(site: &mut Site<'_>) -> Arc<OnceLock<Transfers>> {
    site.shared()
}
