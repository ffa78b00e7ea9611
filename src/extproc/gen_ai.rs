//! Metrics by OpenTelemetry's semantic conventions for generative AI: `--gen-ai-metrics`.
//!
//! Names and buckets are those of the conventions, in Prometheus' spelling: dots become underscores and the unit
//! ends the name. A label without a value stands for an attribute that is absent.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{HistogramOpts, HistogramVec, Registry};

use crate::metrics::{ClientSeries, Family, MAX_LABEL_VALUES, OTHER, SeriesRoom, register};
use crate::request::Request;

use super::series::{Labels, Lazy};

/// `gen_ai.operation.name`, `gen_ai.provider.name`, `gen_ai.request.model`, `gen_ai.response.model`.
const LABELS: [&str; 4] =
    ["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_response_model"];
const ERROR: &str = "error_type";
const TOKEN: &str = "gen_ai_token_type";

const DURATION: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
const FIRST_TOKEN: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
const PER_TOKEN: [f64; 13] = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
/// Powers of four.
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// `error.type` of an error without a class of its own.
const UNCLASSIFIED: &str = "_OTHER";
/// Error classes of a series; further ones are [`UNCLASSIFIED`].
const MOST_ERRORS: usize = 8;
/// Lines of a series on a page at most: histograms of durations by error class, of first tokens, of the time of a token
/// and of tokens of both types.
const LINES: usize = (1 + MOST_ERRORS) * (DURATION.len() + 3)
    + (FIRST_TOKEN.len() + 3)
    + (PER_TOKEN.len() + 3)
    + 2 * (TOKENS.len() + 3);
/// Name of these series in the log.
const OF: &str = "gen_ai requests";

/// Operation, provider, requested model and target model.
type Key = (&'static str, &'static str, String, String);

/// The families, and the series that were made.
#[derive(Debug)]
pub(super) struct GenAiMetrics {
    families: Families,
    series: ClientSeries<Key, GenAiSeries>,
}

#[derive(Debug)]
struct Families {
    duration: HistogramVec,
    first_token: HistogramVec,
    per_token: HistogramVec,
    tokens: HistogramVec,
}

/// Numbers of a complete response.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// From the request's headers to the end of the response, seconds.
    pub(super) duration: f64,
    /// Error class; `None` for a success.
    pub(super) error: Option<Failure>,
    /// From the request's headers to the first token of a streamed response, seconds.
    pub(super) first_token: Option<f64>,
    /// Per token after the first of a streamed response, seconds.
    pub(super) per_token: Option<f64>,
}

/// Failed response, by its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// HTTP status from 400 on.
    Status(u16),
    /// gRPC error of a call whose HTTP status is 200.
    Grpc,
}

/// The series of one [`Key`].
#[derive(Debug)]
pub(super) struct GenAiSeries {
    labels: Labels,
    duration: Lazy,
    first_token: Lazy,
    per_token: Lazy,
    input_tokens: Lazy,
    output_tokens: Lazy,
    errors: HistogramVec,
    // Guards the error classes that have a series; taken for a failed response.
    classes: Mutex<BTreeSet<String>>,
}

impl GenAiMetrics {
    /// Registers the families.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let family = |name: &str, help: &str, buckets: &[f64], extra: Option<&str>| {
            let labels: Vec<&str> = LABELS.into_iter().chain(extra).collect();
            let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            register(registry, HistogramVec::new(opts, &labels)?, None)
        };
        let families = Families {
            duration: family(
                "gen_ai_server_request_duration_seconds",
                "Seconds from the request's headers to the end of the response.",
                &DURATION,
                Some(ERROR),
            )?,
            first_token: family(
                "gen_ai_server_time_to_first_token_seconds",
                "Seconds from the request's headers to the first token, of successful streamed responses.",
                &FIRST_TOKEN,
                None,
            )?,
            per_token: family(
                "gen_ai_server_time_per_output_token_seconds",
                "Seconds per output token after the first, of successful streamed responses.",
                &PER_TOKEN,
                None,
            )?,
            tokens: family(
                "gen_ai_client_token_usage",
                "Tokens of prompts (input) and responses (output), as the model server counted them.",
                &TOKENS,
                Some(TOKEN),
            )?,
        };
        Ok(Self { families, series: ClientSeries::new(MAX_LABEL_VALUES) })
    }

    /// The same in a room for series that others share.
    pub(super) fn within(mut self, room: &SeriesRoom) -> Self {
        self.series = self.series.within(room, LINES);
        self
    }

    /// Removes series that were unused for a while, where there are many.
    pub(super) fn sweep(&self) {
        self.series.retain(|_, _| true, &|_, series| series.forget(&self.families));
    }

    /// The series of a request; `None` if its API has no generative operation.
    pub(super) fn of(&self, request: &Request) -> Option<Arc<GenAiSeries>> {
        let (operation, provider) = request.api.gen_ai()?;
        let label = |value| self.series.label(value, OF).to_owned();
        let key = (operation, provider, label(&request.model), label(&request.target_model));
        let other = || (operation, provider, OTHER.to_owned(), OTHER.to_owned());
        let make = |(operation, provider, model, target): &Key| {
            let labels = [(*operation).to_owned(), (*provider).to_owned(), model.clone(), target.clone()];
            GenAiSeries::new(Arc::new(labels), &self.families)
        };
        let forget = |_: &Key, series: &GenAiSeries| series.forget(&self.families);
        Some(self.series.get(key, &Family { of: OF, other: &other, make: &make, forget: &forget }))
    }
}

impl GenAiSeries {
    fn new(labels: Labels, families: &Families) -> Self {
        let lazy = |family: &HistogramVec, extra| Lazy::new(family, &labels, extra);
        Self {
            duration: lazy(&families.duration, Some("")),
            first_token: lazy(&families.first_token, None),
            per_token: lazy(&families.per_token, None),
            input_tokens: lazy(&families.tokens, Some("input")),
            output_tokens: lazy(&families.tokens, Some("output")),
            errors: families.duration.clone(),
            classes: Mutex::default(),
            labels,
        }
    }

    /// Counts a complete response.
    pub(super) fn complete(&self, outcome: Outcome) {
        if let Some(failure) = outcome.error {
            let class = self.class(failure);
            self.errors.with_label_values(&self.with(&class)).observe(outcome.duration);
            return;
        }
        self.duration.observe(outcome.duration);
        if let Some(seconds) = outcome.first_token {
            self.first_token.observe(seconds);
        }
        if let Some(seconds) = outcome.per_token {
            self.per_token.observe(seconds);
        }
    }

    /// Counts the tokens that a response reported.
    pub(super) fn used(&self, input: Option<u64>, output: Option<u64>) {
        if let Some(tokens) = input {
            self.input_tokens.observe(tokens as f64);
        }
        if let Some(tokens) = output {
            self.output_tokens.observe(tokens as f64);
        }
    }

    /// The label of a failure, within the bound.
    fn class(&self, failure: Failure) -> String {
        let class = match failure {
            Failure::Status(status) => status.to_string(),
            Failure::Grpc => UNCLASSIFIED.to_owned(),
        };
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        let class = if classes.contains(&class) || classes.len() < MOST_ERRORS - 1 {
            class
        } else {
            UNCLASSIFIED.to_owned()
        };
        classes.insert(class.clone());
        class
    }

    fn with<'a>(&'a self, extra: &'a str) -> [&'a str; 5] {
        let [operation, provider, model, target] = self.labels.each_ref().map(String::as_str);
        [operation, provider, model, target, extra]
    }

    /// Takes the series out of their families.
    fn forget(&self, families: &Families) {
        // Absent where nothing was observed.
        let values = self.labels.each_ref().map(String::as_str);
        let _ = families.first_token.remove_label_values(&values);
        let _ = families.per_token.remove_label_values(&values);
        for token in ["input", "output"] {
            let _ = families.tokens.remove_label_values(&self.with(token));
        }
        let _ = families.duration.remove_label_values(&self.with(""));
        let classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        for class in classes.iter() {
            let _ = families.duration.remove_label_values(&self.with(class));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{MAX_LABEL_BYTES, render};
    use crate::request::Api;

    fn request(api: Api, model: &str, target: &str) -> Request {
        let mut request = Request::default();
        (request.api, request.model, request.target_model) = (api, model.into(), target.into());
        request
    }

    fn metrics() -> (Registry, GenAiMetrics) {
        let registry = Registry::new();
        let metrics = GenAiMetrics::register(&registry).unwrap();
        (registry, metrics)
    }

    /// Number of duration series.
    fn durations(registry: &Registry) -> usize {
        let count = "gen_ai_server_request_duration_seconds_count{";
        render(registry).lines().filter(|line| line.starts_with(count)).count()
    }

    #[test]
    fn responses_count_by_operation_provider_models_and_error() {
        let (registry, metrics) = metrics();
        let chat = metrics.of(&request(Api::ChatCompletions, "m", "m-lora")).unwrap();
        let good = Outcome { duration: 0.5, first_token: Some(0.1), per_token: Some(0.03), error: None };
        chat.complete(good);
        chat.complete(Outcome { error: Some(Failure::Status(503)), ..good });
        chat.used(Some(300), Some(4));
        metrics.of(&request(Api::Messages, "m", "m")).unwrap().complete(good);
        let page = render(&registry);
        let of_chat = "gen_ai_operation_name=\"chat\",gen_ai_provider_name=\"openai\",gen_ai_request_model=\"m\",\
                       gen_ai_response_model=\"m-lora\"";
        for line in [
            format!("gen_ai_server_request_duration_seconds_count{{error_type=\"\",{of_chat}}} 1"),
            format!("gen_ai_server_request_duration_seconds_count{{error_type=\"503\",{of_chat}}} 1"),
            format!(
                "gen_ai_server_request_duration_seconds_bucket{{error_type=\"\",{of_chat},le=\"0.32\"}} 0"
            ),
            format!(
                "gen_ai_server_request_duration_seconds_bucket{{error_type=\"\",{of_chat},le=\"0.64\"}} 1"
            ),
            format!("gen_ai_server_time_to_first_token_seconds_sum{{{of_chat}}} 0.1"),
            format!("gen_ai_server_time_per_output_token_seconds_bucket{{{of_chat},le=\"0.025\"}} 0"),
            format!("gen_ai_client_token_usage_sum{{{of_chat},gen_ai_token_type=\"input\"}} 300"),
            format!("gen_ai_client_token_usage_bucket{{{of_chat},gen_ai_token_type=\"output\",le=\"4\"}} 1"),
        ] {
            assert!(page.lines().any(|shown| shown == line), "{line} not in\n{page}");
        }
        assert!(page.contains("gen_ai_provider_name=\"anthropic\""), "{page}");
        // A failure has no first token to speak of.
        assert!(page.contains(&format!("gen_ai_server_time_to_first_token_seconds_count{{{of_chat}}} 1\n")));
    }

    #[test]
    fn apis_without_a_generative_operation_are_not_counted() {
        let (_, metrics) = metrics();
        for api in [Api::PassThrough, Api::CountTokens, Api::ChatCompletionsRender, Api::Conversations] {
            assert!(metrics.of(&request(api, "m", "m")).is_none(), "{api:?}");
        }
    }

    #[test]
    fn models_and_error_classes_are_bounded() {
        let (registry, metrics) = metrics();
        for index in 0..MAX_LABEL_VALUES + 50 {
            let name = format!("model-{index}");
            let series = metrics.of(&request(Api::Completions, &name, &name)).unwrap();
            series.complete(Outcome::default());
        }
        assert_eq!(durations(&registry), MAX_LABEL_VALUES + 1);
        let long = "x".repeat(MAX_LABEL_BYTES + 1);
        let series = metrics.of(&request(Api::Completions, &long, &long)).unwrap();
        for status in 400..600 {
            series.complete(Outcome { error: Some(Failure::Status(status)), ..Outcome::default() });
        }
        assert_eq!(durations(&registry), MAX_LABEL_VALUES + 1 + MOST_ERRORS);
        let page = render(&registry);
        assert!(!page.contains("xxx") && page.contains("error_type=\"_OTHER\""), "{page}");
    }

    #[test]
    fn evicted_series_are_removed_from_all_families() {
        let (registry, metrics) = metrics();
        let series = metrics.of(&request(Api::Embeddings, "gone", "gone")).unwrap();
        let good = Outcome { first_token: Some(1.0), per_token: Some(1.0), ..Outcome::default() };
        series.complete(good);
        series.complete(Outcome { error: Some(Failure::Status(500)), ..good });
        series.complete(Outcome { error: Some(Failure::Grpc), ..good });
        series.used(Some(1), Some(1));
        assert!(render(&registry).contains("gone"));
        series.forget(&metrics.families);
        assert_eq!(render(&registry), "");
    }
}
