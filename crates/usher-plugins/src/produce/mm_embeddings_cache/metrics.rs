//! `encoder_cache_*`: how often images, videos and clips are where they were encoded.

use std::collections::HashMap;
use std::sync::Arc;

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};
use usher_core::metrics::register;
use usher_core::request::estimate::Modality;

const PLUGIN_TYPE: &str = "mm-embeddings-cache-producer";
const RATIO: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// The families, shared by all producers.
#[derive(Debug)]
pub struct EncoderFamilies {
    queries: IntCounterVec,
    hits: IntCounterVec,
    ratio: HistogramVec,
}

impl EncoderFamilies {
    /// Registers the families.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntCounterVec> {
            register(registry, IntCounterVec::new(Opts::new(name, help), labels)?, None)
        };
        let ratio = HistogramOpts::new(
            "llm_d_epp_encoder_cache_hit_ratio",
            "[ALPHA] Share of a request's images, videos and clips that a candidate has encoded before.",
        );
        let ratio = HistogramVec::new(ratio.buckets(RATIO.to_vec()), &["plugin_type", "plugin_name"])?;
        Ok(Self {
            queries: counter(
                "llm_d_epp_encoder_cache_queries_total",
                "[ALPHA] Images, videos and clips of requests.",
                &["plugin_type", "plugin_name", "modality"],
            )?,
            hits: counter(
                "llm_d_epp_encoder_cache_hits_total",
                "[ALPHA] Images, videos and clips that a candidate had encoded before.",
                &["plugin_type", "plugin_name", "pod", "modality"],
            )?,
            ratio: register(registry, ratio, None)?,
        })
    }
}

/// Counters of one producer. Those of endpoints are made when they are needed, and kept.
#[derive(Debug)]
pub(super) struct Counters {
    families: Arc<EncoderFamilies>,
    plugin: String,
    queries: [IntCounter; Modality::ALL.len()],
    ratio: Histogram,
    /// By the name of the endpoint, as one that comes back has the same series.
    hits: HashMap<String, Hits>,
}

type Hits = [Option<IntCounter>; Modality::ALL.len()];

impl Counters {
    pub(super) fn new(families: Arc<EncoderFamilies>, plugin: &str) -> Self {
        let queries = Modality::ALL
            .map(|modality| families.queries.with_label_values(&[PLUGIN_TYPE, plugin, modality.label()]));
        let ratio = families.ratio.with_label_values(&[PLUGIN_TYPE, plugin]);
        Self { families, plugin: plugin.to_owned(), queries, ratio, hits: HashMap::new() }
    }

    /// An item of a request.
    pub(super) fn query(&self, modality: Modality) {
        self.queries[modality as usize].inc();
    }

    /// An endpoint has it.
    pub(super) fn hit(&mut self, pod: &str, modality: Modality) {
        let hits = match self.hits.get_mut(pod) {
            Some(hits) => hits,
            None => self.hits.entry(pod.to_owned()).or_default(),
        };
        let make =
            || self.families.hits.with_label_values(&[PLUGIN_TYPE, &self.plugin, pod, modality.label()]);
        hits[modality as usize].get_or_insert_with(make).inc();
    }

    /// A request of so many items, of which so many are somewhere.
    pub(super) fn request(&self, found: usize, items: usize) {
        self.ratio.observe(found as f64 / items.max(1) as f64);
    }

    /// Removes the series of endpoints.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&str) -> bool) {
        let Self { families, plugin, hits, .. } = self;
        hits.retain(|pod, made| {
            let stays = stays(pod);
            for (modality, _) in Modality::ALL.iter().zip(made).filter(|(_, made)| !stays && made.is_some()) {
                // Absent only if somebody else removed it, which is all the same.
                let _ = families.hits.remove_label_values(&[PLUGIN_TYPE, plugin, pod, modality.label()]);
            }
            stays
        });
    }
}
