//! `predicted-latency-producer`: predicted latencies of a request at each candidate, from the
//! model that this process learns.

mod metrics;
mod params;

use std::sync::Arc;
use std::time::Duration;

use usher_core::config::ConfigError;
use usher_core::endpoints::{Candidates, Clock};
use usher_core::request::Slo;
use usher_core::request::usage::Usage;
use usher_plugin::data::{LatencyPrediction, LatencyPredictions};
use usher_plugin::{
    Attribute, Build, BuildContext, Context, DataProducer, Decision, Effects, Facts, Key, PluginParts,
    PluginType, PreRequest, RequestContext, ResponseObserver, beta,
};

use crate::latency::{
    PEAK_PREFILL_THROUGHPUT, Reader, SloMetrics, TokenCounts, fresh, reads_latency, reported, targets,
};

use metrics::{Kind, Labels};
pub use metrics::{PredictionFamilies, PredictionSeries};
pub use params::PredictedLatencyParams;

/// `predicted-latency-producer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("predicted-latency-producer", &[usher_plugin::Kind::DataProducer, usher_plugin::Kind::PreRequest, usher_plugin::Kind::Response],
    "Predicts each endpoint's TTFT and TPOT for a request, and the headroom to its latency targets.",
    Build::Reading(build)).takes::<PredictedLatencyParams>()
    .when("Added by itself where a plugin reads predicted latencies; declare it to set its parameters. It learns in this process: no sidecar is called.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = PredictedLatencyParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?;
    let reader = reads_latency(cx, PEAK_PREFILL_THROUGHPUT, &params.prefix_match_info_producer_name)?;
    let families = cx.family(PredictionFamilies::register)?;
    let series = cx.state.of(cx.name, || PredictionSeries::new(families, cx.name, cx.state.series_room()));
    let metrics = (series, cx.family(SloMetrics::register)?);
    let clock = cx.state.clock().clone();
    let plugin = Arc::new(PredictedLatencyProducer::new(params, reader, cx.produces(), metrics, clock));
    let note = format!(
        "plugin '{}': latencies are predicted by this process; the servers of TRAINING_SERVER_URL and PREDICTION_SERVER_URL are not called",
        cx.name
    );
    let notes = vec![note];
    Ok(PluginParts { producer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), notes, ..parts })
}

/// Role of endpoints whose time per output token doesn't count.
const PREFILL: &str = "prefill";

/// Predicts the latencies of a request at all candidates, counts how they compare with what
/// came, and books the request with the model.
#[derive(Clone, Debug)]
pub struct PredictedLatencyProducer {
    params: PredictedLatencyParams,
    reader: Reader,
    predictions: Key<LatencyPredictions>,
    series: Arc<PredictionSeries>,
    slo: Arc<SloMetrics>,
    clock: Clock,
}

impl PredictedLatencyProducer {
    /// A producer of predictions under this key by what `reader` reads. Latencies are measured
    /// with `clock`.
    pub fn new(
        params: PredictedLatencyParams,
        reader: Reader,
        predictions: Key<LatencyPredictions>,
        (series, slo): (Arc<PredictionSeries>, Arc<SloMetrics>),
        clock: Clock,
    ) -> Self {
        Self { params, reader, predictions, series, slo, clock }
    }

    fn predict(&self, cx: &Context<'_>, candidates: &Candidates) -> LatencyPredictions {
        let table = self.reader.read();
        let (prompt, uncached) = (self.reader.prompt(cx) as f64, self.reader.uncached(cx));
        let output = table.expected(self.reader.kind(cx), cx.request.max_output_tokens).mean;
        let slo = targets(cx);
        let view = candidates.view();
        let waiting = |position: usize| fresh(cx, &view.get(position).load().waiting);
        // An endpoint that nobody hears from has the longest queue of the others.
        let longest = (0..view.len()).filter_map(waiting).fold(0.0, f64::max);
        let mut at = vec![None; view.snapshot().endpoints().len()];
        for (place, &position) in candidates.indices().iter().enumerate() {
            let endpoint = view.get(place);
            let reported = reported(cx, endpoint.load(), waiting(place).unwrap_or(longest));
            let counts = TokenCounts { uncached: uncached(position), prompt, output };
            let (ttft, tpot) = table.latencies(endpoint, &counts, &reported);
            let role = &self.params.endpoint_role_label;
            let decodes = role.is_empty() || endpoint.label(role) != Some(PREFILL);
            let limit = (self.params.streaming_mode && decodes).then(|| {
                let own = slo.tpot.unwrap_or(0.0);
                table.tightest_tpot(endpoint).map_or(own, |others| own.min(others))
                    * self.params.slo_buffer_factor
            });
            let ttft_headroom = slo.ttft.unwrap_or(0.0) - ttft;
            at[position as usize] = Some(LatencyPrediction {
                ttft,
                tpot,
                ttft_headroom,
                tpot_headroom: limit.map_or(0.0, |limit| limit - tpot),
                is_ttft_valid: ttft_headroom > 0.0,
                is_tpot_valid: limit.is_none_or(|limit| tpot < limit),
                dispatched: u64::try_from(endpoint.load().in_flight()).unwrap_or(0),
            });
        }
        LatencyPredictions { at }
    }
}

impl DataProducer for PredictedLatencyProducer {
    fn produce(&self, cx: &RequestContext<'_>, candidates: &Candidates, facts: &mut Facts) {
        if !self.params.predict_in_produce {
            return;
        }
        let cx = Context { facts, ..Context::new(cx.request, cx.now_ms, cx.max_age) };
        let predictions = self.predict(&cx, candidates);
        facts.set(self.predictions, predictions);
    }
}

impl PreRequest for PredictedLatencyProducer {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        self.reader.book(cx, decision, effects);
        self.slo.count_ignored(cx, effects);
        let at = |position: Option<&u32>| cx.facts.get(self.predictions)?.at(*position?);
        let decode = at(decision.primary().picks.first());
        let prefill = decision.prefill().and_then(|run| at(run.picks.first())).or(decode);
        let labels = self.series.of(&cx.request.model, &cx.request.target_model);
        if let Some(predicted) = prefill {
            labels.predicted(Kind::Ttft, predicted.ttft);
        }
        if let Some(predicted) = decode.filter(|_| self.params.streaming_mode) {
            labels.predicted(Kind::Tpot, predicted.tpot);
        }
        // Targets count from the arrival of the request.
        let waited = cx.request.received.map_or(Duration::ZERO, |received| received.elapsed());
        effects.observe(Measured {
            labels,
            slo: cx.request.slo(),
            clock: self.clock.clone(),
            is_stream: cx.request.stream,
            waited,
            sent: self.clock.elapsed(),
            first_token: None,
        });
    }
}

/// Compares the latencies of a request with its targets.
#[derive(Debug)]
struct Measured {
    labels: Labels,
    slo: Slo,
    clock: Clock,
    /// First tokens are seen.
    is_stream: bool,
    waited: Duration,
    sent: Duration,
    first_token: Option<Duration>,
}

impl ResponseObserver for Measured {
    fn first_token(&mut self) {
        let now = self.clock.elapsed();
        self.first_token = Some(now);
        if self.is_stream {
            let took = now.saturating_sub(self.sent) + self.waited;
            self.labels.measured(Kind::Ttft, took.as_secs_f64(), self.slo.ttft);
        }
    }

    fn response_complete(&mut self, usage: &Usage, _out: &mut Vec<Attribute>) {
        let tokens = usage.completion_tokens.filter(|tokens| *tokens > 1 && self.is_stream);
        if let (Some(first), Some(tokens)) = (self.first_token, tokens) {
            let took = self.clock.elapsed().saturating_sub(first).as_secs_f64();
            self.labels.measured(Kind::Tpot, took / (tokens - 1) as f64, self.slo.tpot);
        }
    }
}
