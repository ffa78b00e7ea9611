//! What the exchange counts: the families of requests and answers.

use std::sync::Arc;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::flow::Code;
use crate::metrics::{ClientSeries, Family, Legacy, OTHER, register};
use crate::request::Headers;

use super::event::Mode;
use super::series::{Series, SeriesKey, SeriesTable};

/// Labels M, FP of the peer's families.
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
/// The peer's bounds for answers; 32778 is theirs.
const RESPONSE: [f64; 15] = [
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32778.0,
    65536.0,
];
const TPOT: [f64; 18] = [
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0,
];
const NTPOT: [f64; 13] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];
const ITL: [f64; 15] = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0];
const REQUEST_PROCESSING: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const RESPONSE_PROCESSING: [f64; 15] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
const STREAM: [f64; 14] =
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// All families that the exchange moves.
#[derive(Debug)]
pub struct ExtProcMetrics {
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
    /// Headers received to body handled, rejections included.
    pub(super) request_processing: Histogram,
    /// One message of an answer.
    pub(super) response_processing: Histogram,
    rewrites: IntCounterVec,
    /// Exchanges with a gateway that is not set to full duplex.
    other_modes: IntCounterVec,
    /// Requests with a name that was too long.
    ignored: IntCounterVec,
    /// Answers that could not be read.
    pub(super) encoded: IntCounter,
    /// Streams that broke the protocol.
    pub(super) violations: IntCounter,
    /// Streams, where they are counted.
    pub(super) streams: Option<StreamMetrics>,
    pub(super) series: SeriesTable,
    rewritten: ClientSeries<Rewritten, IntCounter>,
}

/// Source of a rewrite, requested model and target model.
type Rewritten = (String, String, String);

/// `--enable-grpc-stream-metrics`
#[derive(Debug)]
pub struct StreamMetrics {
    pub(super) inflight: IntGauge,
    pub(super) duration: Histogram,
    pub(super) total: IntCounterVec,
}

impl ExtProcMetrics {
    /// Registers the families.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry, count_streams: bool) -> prometheus::Result<Self> {
        let legacy = |name, labels| Some(Legacy { name, labels });
        let histogram = |name: &str, help: &str, buckets: &[f64], old: Option<Legacy>| {
            let opts = HistogramOpts::new(format!("llm_d_epp_{name}"), format!("[ALPHA] {help}"));
            let family = HistogramVec::new(opts.buckets(buckets.to_vec()), &LABELS)?;
            register(registry, family, old)
        };
        let single = |name: &str, help: &str, buckets: &[f64]| {
            let opts = HistogramOpts::new(format!("llm_d_epp_{name}"), format!("[ALPHA] {help}"));
            register(registry, Histogram::with_opts(opts.buckets(buckets.to_vec()))?, None)
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
            "[ALPHA] Seconds from the request's headers to the first byte of the answer's body.",
        );
        let ttft = HistogramVec::new(ttft_opts.buckets(first_token), &ttft_labels)?;
        let running = IntGaugeVec::new(
            Opts::new(
                "llm_d_epp_request_running",
                "[ALPHA] Requests that were sent on and are not answered yet.",
            ),
            &LABELS,
        )?;
        let streams = if count_streams { Some(StreamMetrics::register(registry)?) } else { None };
        Ok(Self {
            total: counter(
                "llm_d_epp_request_total",
                "[ALPHA] Requests that were given a destination.",
                &LABELS,
                legacy("inference_objective_request_total", MODELS_PRIORITY),
            )?,
            errors: counter(
                "llm_d_epp_request_error_total",
                "[ALPHA] Requests that were refused, by kind of refusal.",
                &[LABELS.as_slice(), &["error_code"]].concat(),
                legacy("inference_objective_request_error_total", MODELS_CODE),
            )?,
            duration: histogram(
                "request_duration_seconds",
                "Seconds from the request's headers to the end of the answer.",
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
                "Bytes of the answer's body.",
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
                "Seconds per generated token after the first, of streamed answers.",
                &streaming_tpot,
                None,
            )?,
            itl: histogram(
                "request_streaming_itl_seconds",
                "Seconds between two chunks of a streamed answer.",
                &ITL,
                None,
            )?,
            request_processing: single(
                "request_processing_duration_seconds",
                "Seconds from the request's headers until it was sent on or refused.",
                &REQUEST_PROCESSING,
            )?,
            response_processing: single(
                "response_processing_duration_seconds",
                "Seconds that one message of an answer took.",
                &RESPONSE_PROCESSING,
            )?,
            rewrites: counter(
                "llm_d_epp_model_rewrite_decisions_total",
                "[ALPHA] Requests whose model was chosen by a rule, by the object that has the rule.",
                &["model_rewrite_name", "model_name", "target_model"],
                legacy(
                    "inference_extension_model_rewrite_decisions_total",
                    &[
                        ("model_rewrite_name", "model_rewrite_name"),
                        ("model_name", "model_name"),
                        ("target_model", "target_model"),
                    ],
                ),
            )?,
            other_modes: counter(
                "usher_extproc_unsupported_body_mode_total",
                "Streams whose gateway doesn't use FULL_DUPLEX_STREAMED bodies, by direction.",
                &["direction", "mode"],
                None,
            )?,
            ignored: counter(
                "usher_long_headers_ignored_total",
                "Requests with a name of more than 1,024 bytes in a header that is read, by header.",
                &["header"],
                None,
            )?,
            encoded: register(
                registry,
                IntCounter::new(
                    "usher_encoded_answers_total",
                    "Answers that came encoded though the request didn't accept it, and passed unread.",
                )?,
                None,
            )?,
            violations: register(
                registry,
                IntCounter::new(
                    "usher_extproc_protocol_violations_total",
                    "Streams that ended because their messages made no sense where they stood.",
                )?,
                None,
            )?,
            streams,
            series: SeriesTable::default(),
            rewritten: ClientSeries::default(),
        })
    }

    /// The series of a request.
    pub fn series(&self, key: &SeriesKey) -> Arc<Series> {
        self.series.get(key, self)
    }

    /// Counts a refusal.
    pub fn refused(&self, series: &Series, code: Code) {
        let [model, target, flow, priority] = series.labels.each_ref().map(String::as_str);
        self.errors.with_label_values(&[model, target, flow, priority, code.name()]).inc();
    }

    /// Counts headers that were ignored, as the name in them is too long. Each counts once.
    pub(super) fn ignored(&self, headers: &Headers) {
        for header in headers.take_ignored() {
            // As it is looked up: only those have a series.
            let header = String::from_utf8_lossy(header).to_ascii_lowercase();
            tracing::debug!(header, "header ignored: its value has more than 1,024 bytes");
            self.ignored.with_label_values(&[&header]).inc();
        }
    }

    /// Counts a model that a rule of the object `by` chose.
    pub(super) fn rewritten(&self, by: &str, series: &Series) {
        let [model, target, ..] = &*series.labels;
        let key = || (by.to_owned(), model.clone(), target.clone());
        let other = || (by.to_owned(), OTHER.to_owned(), OTHER.to_owned());
        let make = |(by, model, target): &Rewritten| self.rewrites.with_label_values(&[by, model, target]);
        let forget = |(by, model, target): &Rewritten, _: &IntCounter| {
            // Absent only if somebody else removed it, which is all the same.
            let _ = self.rewrites.remove_label_values(&[by, model, target]);
        };
        let family = Family { of: "rewritten models", other: &other, make: &make, forget: &forget };
        self.rewritten.get(key(), &family).inc();
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

    /// Counts a stream whose bodies are not in full duplex. Says whether it is the
    /// first of its kind.
    pub(super) fn other_mode(&self, direction: &str, mode: Mode) -> bool {
        let mode = match mode {
            Mode::None => "none",
            _ => "one-to-one",
        };
        let counter = self.other_modes.with_label_values(&[direction, mode]);
        counter.inc();
        counter.get() == 1
    }
}

impl StreamMetrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let inflight = IntGauge::new("llm_d_epp_extproc_streams_inflight", "[ALPHA] Open ext_proc streams.")?;
        let duration = Histogram::with_opts(
            HistogramOpts::new(
                "llm_d_epp_extproc_stream_duration_seconds",
                "[ALPHA] Seconds a stream was open.",
            )
            .buckets(STREAM.to_vec()),
        )?;
        let total = IntCounterVec::new(
            Opts::new("llm_d_epp_extproc_streams_total", "[ALPHA] Streams that ended, by gRPC code."),
            &["code"],
        )?;
        Ok(Self {
            inflight: register(registry, inflight, None)?,
            duration: register(registry, duration, None)?,
            total: register(registry, total, None)?,
        })
    }
}
