//! What the exchange counts: the families of requests and answers.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use dashmap::DashMap;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::flow::Code;
use crate::metrics::{BoundedLabel, Legacy, MAX_LABEL_VALUES, OTHER, register};
use crate::request::DEFAULT_FAIRNESS_ID;

use super::event::Mode;

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

/// Keys whose series are kept.
const MAX_KEYS: usize = 4 * MAX_LABEL_VALUES;

/// Whose request it is: the values of the request families' labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SeriesKey {
    /// Model that the client asked for.
    pub model: String,
    /// Model that is asked for upstream.
    pub target_model: String,
    /// Flow of the request.
    pub fairness_id: String,
    /// Priority of the request.
    pub priority: i32,
}

impl SeriesKey {
    /// A request whose model we don't know.
    pub(super) fn unknown() -> Self {
        Self {
            model: String::new(),
            target_model: String::new(),
            fairness_id: DEFAULT_FAIRNESS_ID.to_owned(),
            priority: 0,
        }
    }
}

/// The series of one [`SeriesKey`], looked up once per request.
#[derive(Debug)]
pub struct Series {
    labels: [String; 4],
    pub(super) total: IntCounter,
    pub(super) duration: Histogram,
    pub(super) request_size: Histogram,
    pub(super) response_size: Histogram,
    pub(super) input_tokens: Histogram,
    pub(super) output_tokens: Histogram,
    pub(super) cached_tokens: Histogram,
    /// `None` without a model, as with the peer.
    pub(super) running: Option<IntGauge>,
    pub(super) ntpot: Histogram,
    pub(super) ttft: Histogram,
    pub(super) ttft_streaming: Histogram,
    pub(super) tpot: Histogram,
    pub(super) itl: Histogram,
}

impl Series {
    /// Whether the labels are the key's own values, none of them `other` for it.
    fn is_of(&self, key: &SeriesKey) -> bool {
        let [model, target, flow, _] = &self.labels;
        *model == key.model && *target == key.target_model && *flow == key.fairness_id
    }
}

/// All families that the exchange moves.
#[derive(Debug)]
pub struct ExtProcMetrics {
    total: IntCounterVec,
    errors: IntCounterVec,
    duration: HistogramVec,
    request_size: HistogramVec,
    response_size: HistogramVec,
    input_tokens: HistogramVec,
    output_tokens: HistogramVec,
    cached_tokens: HistogramVec,
    running: IntGaugeVec,
    ntpot: HistogramVec,
    ttft: HistogramVec,
    tpot: HistogramVec,
    itl: HistogramVec,
    /// Headers received to body handled, rejections included.
    pub(super) request_processing: Histogram,
    /// One message of an answer.
    pub(super) response_processing: Histogram,
    /// Exchanges with a gateway that is not set to full duplex.
    other_modes: IntCounterVec,
    /// Streams that broke the protocol.
    pub(super) violations: IntCounter,
    /// Streams, where they are counted.
    pub(super) streams: Option<StreamMetrics>,
    series: DashMap<u64, Vec<(SeriesKey, Arc<Series>)>>,
    models: BoundedLabel,
    flows: BoundedLabel,
}

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
            other_modes: counter(
                "usher_extproc_unsupported_body_mode_total",
                "Streams whose gateway doesn't use FULL_DUPLEX_STREAMED bodies, by direction.",
                &["direction", "mode"],
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
            series: DashMap::new(),
            models: BoundedLabel::default(),
            flows: BoundedLabel::default(),
        })
    }

    /// The series of a request. Takes a shared lock on a part of the table; makes
    /// them when the key is new.
    pub fn series(&self, key: &SeriesKey) -> Arc<Series> {
        let mut hasher = xxhash_rust::xxh3::Xxh3Default::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        let found = |held: &Vec<(SeriesKey, Arc<Series>)>| {
            held.iter().find(|(k, _)| k == key).map(|(_, series)| Arc::clone(series))
        };
        if let Some(series) = self.series.get(&hash).and_then(|held| found(&held)) {
            return series;
        }
        // Labels are bounded one by one, and here together: a thousand models in a
        // thousand flows would be a million series. Beyond the bound the labels are
        // `other`, and the handles are looked up per request.
        let full = self.series.len() >= MAX_KEYS;
        let series = Arc::new(self.make(key, full));
        if !full && series.is_of(key) {
            let mut held = self.series.entry(hash).or_default();
            if let Some(series) = found(&held) {
                return series;
            }
            held.push((key.clone(), Arc::clone(&series)));
        }
        series
    }

    fn make(&self, key: &SeriesKey, full: bool) -> Series {
        let label = |bound: &BoundedLabel, value| if full { OTHER } else { bound.bounded(value) }.to_owned();
        let labels = [
            label(&self.models, &key.model),
            label(&self.models, &key.target_model),
            label(&self.flows, &key.fairness_id),
            key.priority.to_string(),
        ];
        let values = labels.each_ref().map(String::as_str);
        let [model, target, flow, priority] = values;
        let ttft = |streaming| self.ttft.with_label_values(&[model, target, flow, priority, streaming]);
        Series {
            total: self.total.with_label_values(&values),
            duration: self.duration.with_label_values(&values),
            request_size: self.request_size.with_label_values(&values),
            response_size: self.response_size.with_label_values(&values),
            input_tokens: self.input_tokens.with_label_values(&values),
            output_tokens: self.output_tokens.with_label_values(&values),
            cached_tokens: self.cached_tokens.with_label_values(&values),
            running: (!model.is_empty()).then(|| self.running.with_label_values(&values)),
            ntpot: self.ntpot.with_label_values(&values),
            ttft: ttft("false"),
            ttft_streaming: ttft("true"),
            tpot: self.tpot.with_label_values(&values),
            itl: self.itl.with_label_values(&values),
            labels,
        }
    }

    /// Counts a refusal.
    pub fn refused(&self, series: &Series, code: Code) {
        let [model, target, flow, priority] = series.labels.each_ref().map(String::as_str);
        self.errors.with_label_values(&[model, target, flow, priority, code.name()]).inc();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MAX_LABEL_BYTES;

    fn key(model: &str) -> SeriesKey {
        SeriesKey {
            model: model.into(),
            target_model: model.into(),
            fairness_id: "default-flow".into(),
            priority: 0,
        }
    }

    #[test]
    fn label_values_are_bounded_and_what_comes_later_is_other() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, false).unwrap();
        for index in 0..3 * MAX_LABEL_VALUES {
            metrics.series(&key(&format!("model-{index}"))).total.inc();
        }
        let text = crate::metrics::render(&registry);
        let series = text.lines().filter(|line| line.starts_with("llm_d_epp_request_total{")).count();
        assert_eq!(series, MAX_LABEL_VALUES + 1);
        let other = text
            .lines()
            .find(|l| l.starts_with("llm_d_epp_request_total{") && l.contains("\"other\""))
            .unwrap();
        assert!(other.ends_with(&format!(" {}", 2 * MAX_LABEL_VALUES)), "{other}");
    }

    #[test]
    fn a_long_name_is_neither_a_label_nor_kept() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, false).unwrap();
        metrics.series(&key(&"x".repeat(MAX_LABEL_BYTES))).total.inc();
        metrics.series(&key(&"y".repeat(MAX_LABEL_BYTES + 1))).total.inc();
        let text = crate::metrics::render(&registry);
        assert!(text.contains("xxx") && !text.contains("yyy"), "{text}");
        assert!(text.lines().any(|l| l.starts_with("llm_d_epp_request_total{") && l.contains("\"other\"")));
        assert_eq!(metrics.series.len(), 1);
    }

    #[test]
    fn combinations_of_label_values_are_bounded() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, false).unwrap();
        for index in 0..MAX_KEYS + 500 {
            let fairness_id = format!("flow-{}", index / 100);
            metrics.series(&SeriesKey { fairness_id, ..key(&format!("m-{}", index % 100)) }).total.inc();
        }
        let text = crate::metrics::render(&registry);
        let series = text.lines().filter(|line| line.starts_with("llm_d_epp_request_total{")).count();
        assert_eq!(series, MAX_KEYS + 1);
    }

    #[test]
    fn one_key_has_one_series() {
        let registry = Registry::new();
        let metrics = ExtProcMetrics::register(&registry, true).unwrap();
        let series = metrics.series(&key("m"));
        assert!(Arc::ptr_eq(&series, &metrics.series(&key("m"))));
        assert!(!Arc::ptr_eq(&series, &metrics.series(&key("n"))));
        assert!(metrics.series(&key("")).running.is_none());
    }
}
