//! Metrics of the exchange: the families of requests and responses.

use std::sync::Arc;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use crate::flow::Code;
use crate::metrics::{ClientSeries, Family, Legacy, MAX_LABEL_VALUES, OTHER, SeriesRoom, register};
use crate::request::{Headers, MAX_NAME};

use super::families::RequestFamilies;
use super::gen_ai::GenAiMetrics;
use super::prompts::PromptCounter;
use super::series::{Series, SeriesKey, SeriesTable};
use usher_wire::event::Mode;

const REQUEST_PROCESSING: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const RESPONSE_PROCESSING: [f64; 15] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
const STREAM: [f64; 14] =
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// All families that the exchange moves.
#[derive(Debug)]
pub struct ExtProcMetrics {
    pub(super) families: RequestFamilies,
    /// Headers received to body handled, rejections included.
    pub(super) request_processing: Histogram,
    /// One message of a response.
    pub(super) response_processing: Histogram,
    rewrites: IntCounterVec,
    /// Exchanges with a gateway that is not set to full duplex.
    other_modes: IntCounterVec,
    /// Requests with a name that was too long.
    ignored: IntCounterVec,
    /// Responses that could not be read.
    pub(super) encoded: IntCounter,
    /// Streams that broke the protocol.
    pub(super) violations: IntCounter,
    /// Streams, where they are counted.
    pub(super) streams: Option<StreamMetrics>,
    /// Metrics by OpenTelemetry's conventions, where they are wanted.
    pub(super) gen_ai: Option<GenAiMetrics>,
    /// Prompts whose cached tokens were reported.
    pub(super) prompts: PromptCounter,
    pub(super) series: SeriesTable,
    rewritten: ClientSeries<Rewritten, IntCounter>,
}

/// Lines of a rewritten model on a page, under both names.
const REWRITTEN_LINES: usize = 2;

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
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry, count_streams: bool) -> prometheus::Result<Self> {
        let legacy = |name, labels| Some(Legacy { name, labels });
        let single = |name: &str, help: &str, buckets: &[f64]| {
            let opts = HistogramOpts::new(format!("llm_d_epp_{name}"), format!("[ALPHA] {help}"));
            register(registry, Histogram::with_opts(opts.buckets(buckets.to_vec()))?, None)
        };
        let counter = |name: &str, help: &str, labels: &[&str], old: Option<Legacy>| {
            register(registry, IntCounterVec::new(Opts::new(name, help), labels)?, old)
        };
        let streams = if count_streams { Some(StreamMetrics::register(registry)?) } else { None };
        Ok(Self {
            families: RequestFamilies::register(registry)?,
            prompts: PromptCounter::default(),
            request_processing: single(
                "request_processing_duration_seconds",
                "Seconds from the request's headers until it was sent on or refused.",
                &REQUEST_PROCESSING,
            )?,
            response_processing: single(
                "response_processing_duration_seconds",
                "Seconds to process one message of a response.",
                &RESPONSE_PROCESSING,
            )?,
            rewrites: counter(
                "llm_d_epp_model_rewrite_decisions_total",
                "[ALPHA] Requests whose model was rewritten, by the InferenceModelRewrite.",
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
                    "usher_encoded_responses_total",
                    "Responses with an encoding that the request did not accept; they pass unread.",
                )?,
                Some(Legacy { name: "usher_encoded_answers_total", labels: &[] }),
            )?,
            violations: register(
                registry,
                IntCounter::new(
                    "usher_extproc_protocol_violations_total",
                    "Streams ended because of a message that is not allowed in their state.",
                )?,
                None,
            )?,
            streams,
            gen_ai: None,
            series: SeriesTable::new(&SeriesRoom::default()),
            rewritten: ClientSeries::new(MAX_LABEL_VALUES),
        })
    }

    /// Adds the `gen_ai` families.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn with_gen_ai(mut self, registry: &Registry) -> prometheus::Result<Self> {
        self.gen_ai = Some(GenAiMetrics::register(registry)?);
        Ok(self)
    }

    /// These metrics, within a bound on series that others share.
    #[must_use]
    pub fn within(mut self, room: &SeriesRoom) -> Self {
        self.series = SeriesTable::new(room);
        self.rewritten = self.rewritten.within(room, REWRITTEN_LINES);
        self.gen_ai = self.gen_ai.map(|gen_ai| gen_ai.within(room));
        self
    }

    /// Removes series that were unused for a while, where there are many.
    pub fn sweep(&self) {
        self.series.sweep(&self.families);
        self.rewritten.retain(|_, _| true, &|key, _| self.forget_rewritten(key));
        if let Some(gen_ai) = &self.gen_ai {
            gen_ai.sweep();
        }
    }

    fn forget_rewritten(&self, (by, model, target): &Rewritten) {
        // Absent only if somebody else removed it, which is all the same.
        let _ = self.rewrites.remove_label_values(&[by, model, target]);
    }

    /// The series of a request.
    pub fn series(&self, key: SeriesKey<'_>) -> Arc<Series> {
        self.series.get(key, &self.families)
    }

    /// Counts a refusal.
    pub fn refused(&self, series: &Series, code: Code) {
        let [model, target, flow, priority] = series.labels.each_ref().map(String::as_str);
        self.families.errors.with_label_values(&[model, target, flow, priority, code.name()]).inc();
    }

    /// Counts headers that were ignored, as the name in them is too long. Each counts once.
    pub(super) fn ignored(&self, headers: &Headers) {
        // Read without a note that it is too long itself: that would count twice.
        let id = headers.get("x-request-id").filter(|id| id.len() <= MAX_NAME);
        for header in headers.take_ignored() {
            // As it is looked up: only those have a series.
            let header = String::from_utf8_lossy(header).to_ascii_lowercase();
            let request_id = id.map(String::from_utf8_lossy).unwrap_or_default();
            tracing::debug!(
                request_id = &*request_id,
                header,
                "header ignored: its value has more than 1,024 bytes"
            );
            self.ignored.with_label_values(&[&header]).inc();
        }
    }

    /// Counts a model that a rule of the object `by` chose.
    pub(super) fn rewritten(&self, by: &str, series: &Series) {
        let [model, target, ..] = &*series.labels;
        let key = || (by.to_owned(), model.clone(), target.clone());
        let other = || (by.to_owned(), OTHER.to_owned(), OTHER.to_owned());
        let make = |(by, model, target): &Rewritten| self.rewrites.with_label_values(&[by, model, target]);
        let forget = |key: &Rewritten, _: &IntCounter| self.forget_rewritten(key);
        let family = Family { of: "rewritten models", other: &other, make: &make, forget: &forget };
        self.rewritten.get(key(), &family).inc();
    }

    /// Counts a stream whose bodies are not in full duplex. Says whether it is the
    /// first of its kind.
    pub(super) fn other_mode(&self, direction: &str, mode: Mode) -> bool {
        let counter = self.other_modes.with_label_values(&[direction, mode.name()]);
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
