//! The families of requests and responses by model, flow and priority.

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

use crate::metrics::{Legacy, register};

/// Labels M, FP of llm-d-router's families.
const LABELS: [&str; 4] = ["model_name", "target_model_name", "fairness_id", "priority"];
const MODELS: &[(&str, &str)] = &[("model_name", "model_name"), ("target_model_name", "target_model_name")];
const MODELS_PRIORITY: &[(&str, &str)] =
    &[("model_name", "model_name"), ("target_model_name", "target_model_name"), ("priority", "priority")];
const MODELS_CODE: &[(&str, &str)] =
    &[("model_name", "model_name"), ("target_model_name", "target_model_name"), ("error_code", "error_code")];
const LATENCY: [f64; 34] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
];
/// llm-d-router's bounds for responses; 32778 is theirs.
const RESPONSE: [f64; 15] = [
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32778.0,
    65536.0,
];
const TPOT: [f64; 18] = [
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0,
];
const NTPOT: [f64; 13] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];
const ITL: [f64; 15] = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0];

/// Families whose labels are the models, the flow and the priority of a request. [`Series`] has one of each.
///
/// [`Series`]: super::series::Series
#[derive(Debug)]
pub(super) struct RequestFamilies {
    pub(super) total: IntCounterVec,
    pub(super) errors: IntCounterVec,
    pub(super) duration: HistogramVec,
    pub(super) request_size: HistogramVec,
    pub(super) response_size: HistogramVec,
    pub(super) input_tokens: HistogramVec,
    pub(super) output_tokens: HistogramVec,
    pub(super) cached_tokens: HistogramVec,
    pub(super) running: IntGaugeVec,
    pub(super) ntpot: HistogramVec,
    pub(super) ttft: HistogramVec,
    pub(super) tpot: HistogramVec,
    pub(super) itl: HistogramVec,
}

impl RequestFamilies {
    /// Registers them.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let legacy = |name, labels| Some(Legacy { name, labels });
        let histogram = |name: &str, help: &str, buckets: &[f64], old: Option<Legacy>| {
            let opts = HistogramOpts::new(format!("llm_d_epp_{name}"), format!("[ALPHA] {help}"));
            let family = HistogramVec::new(opts.buckets(buckets.to_vec()), &LABELS)?;
            register(registry, family, old)
        };
        let counter = |name: &str, help: &str, labels: &[&str], old: Option<Legacy>| {
            register(registry, IntCounterVec::new(Opts::new(name, help), labels)?, old)
        };
        let latency: Vec<f64> = LATENCY.iter().copied().chain([3600.0]).collect();
        let powers: Vec<f64> = (6..=30).map(|power| f64::from(1u32 << power)).collect();
        let tokens: Vec<f64> =
            RESPONSE.iter().copied().chain([131_072.0, 262_144.0, 524_288.0, 1_048_576.0]).collect();
        let first_token: Vec<f64> = latency.iter().copied().filter(|bound| *bound <= 120.0).collect();
        let streaming_tpot: Vec<f64> = TPOT.iter().copied().chain([2.0]).collect();
        let ttft_labels = [LABELS.as_slice(), &["streaming"]].concat();
        let ttft_opts = HistogramOpts::new(
            "llm_d_epp_request_ttft_seconds",
            "[ALPHA] Seconds from the request's headers to the first byte of the response body.",
        );
        let ttft = HistogramVec::new(ttft_opts.buckets(first_token), &ttft_labels)?;
        let running = IntGaugeVec::new(
            Opts::new(
                "llm_d_epp_request_running",
                "[ALPHA] Requests sent to an endpoint whose response has not ended.",
            ),
            &LABELS,
        )?;
        Ok(Self {
            total: counter(
                "llm_d_epp_request_total",
                "[ALPHA] Requests that were given a destination.",
                &LABELS,
                legacy("inference_objective_request_total", MODELS_PRIORITY),
            )?,
            errors: counter(
                "llm_d_epp_request_error_total",
                "[ALPHA] Rejected requests, by error code.",
                &[LABELS.as_slice(), &["error_code"]].concat(),
                legacy("inference_objective_request_error_total", MODELS_CODE),
            )?,
            duration: histogram(
                "request_duration_seconds",
                "Seconds from the request's headers to the end of the response.",
                &latency,
                legacy("inference_objective_request_duration_seconds", MODELS),
            )?,
            request_size: histogram(
                "request_size_bytes",
                "Bytes of the body that was sent upstream.",
                &powers,
                legacy("inference_objective_request_sizes", MODELS),
            )?,
            response_size: histogram(
                "response_size_bytes",
                "Bytes of the response body.",
                &RESPONSE,
                legacy("inference_objective_response_sizes", MODELS),
            )?,
            input_tokens: histogram(
                "request_input_tokens",
                "Tokens of the prompt, as the model server counted them.",
                &tokens,
                legacy("inference_objective_input_tokens", MODELS),
            )?,
            output_tokens: histogram(
                "request_output_tokens",
                "Generated tokens, as the model server counted them.",
                &RESPONSE[..12],
                legacy("inference_objective_output_tokens", MODELS),
            )?,
            cached_tokens: histogram(
                "request_cached_tokens",
                "Tokens of the prompt that the model server had in its prefix cache.",
                &tokens,
                legacy("inference_objective_prompt_cached_tokens", MODELS),
            )?,
            running: register(
                registry,
                running,
                legacy("inference_objective_running_requests", &[("model_name", "model_name")]),
            )?,
            ntpot: histogram(
                "request_ntpot_seconds",
                "Seconds of the whole request per generated token.",
                &NTPOT,
                legacy("inference_objective_normalized_time_per_output_token_seconds", MODELS),
            )?,
            ttft: register(registry, ttft, None)?,
            tpot: histogram(
                "request_streaming_tpot_seconds",
                "Seconds per generated token after the first, of streamed responses.",
                &streaming_tpot,
                None,
            )?,
            itl: histogram(
                "request_streaming_itl_seconds",
                "Seconds between two chunks of a streamed response.",
                &ITL,
                None,
            )?,
        })
    }

    /// The families of histograms by [`LABELS`].
    pub(super) fn histograms(&self) -> [&HistogramVec; 9] {
        [
            &self.duration,
            &self.request_size,
            &self.response_size,
            &self.input_tokens,
            &self.output_tokens,
            &self.cached_tokens,
            &self.ntpot,
            &self.tpot,
            &self.itl,
        ]
    }
}
