//! State of the model for the admin page and monitoring: what is configured, what was learned, and
//! how well it predicts.

use serde::{Deserialize, Serialize};

use super::accuracy::Prediction;
use super::cost::Speed;
use super::group::Group;
use super::groups::GroupKey;
use super::model::Model;

/// Learned times to a first token from which on a learned throughput, or the learned speed of a link, says something.
pub const FEWEST: u64 = 50;

/// Times that a configured throughput or speed of links may be above or below the learned one.
pub const FAR: f64 = 2.0;

/// State of a pool's latency model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Prompt tokens per second that an endpoint is configured to compute.
    pub peak_prefill_throughput: f64,
    /// Endpoints that should be equally fast.
    pub groups: Vec<GroupReport>,
    /// Links over which KV caches came, by endpoint.
    pub links: Vec<LinkReport>,
    /// Accuracy of the latest predictions, by load.
    pub prediction: Prediction,
}

/// Learned times of a group of endpoints, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Label of the accelerator; empty: there is none.
    pub accelerator: String,
    /// Label of the role; empty: there is none.
    pub role: String,
    /// Times to a first token that it learned from.
    pub samples: u64,
    /// Learned prompt tokens per second.
    pub prefill_throughput: f64,
    /// Learned over configured throughput. `None`: too little was learned.
    pub throughput_ratio: Option<f64>,
    /// Time to a first token with nothing to compute.
    pub first_token_s: f64,
    /// More of it per request at the endpoint.
    pub first_token_per_request_s: f64,
    /// Time per output token where nothing else is.
    pub output_token_s: f64,
    /// More of it per request at the endpoint.
    pub output_token_per_request_s: f64,
    /// More of it per token in the KV cache.
    pub output_token_per_cached_token_s: f64,
}

/// Learned speed of the link over which KV caches come to an endpoint that decodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Endpoint that decodes.
    pub endpoint: String,
    /// Measurements that it learned from, each of two transfers or more.
    pub samples: u64,
    /// Times that a transfer takes as long as configured.
    pub factor: f64,
}

impl LinkReport {
    /// Returns `true` if what is configured is far from what was learned.
    pub fn is_far(&self) -> bool {
        self.samples >= FEWEST && !(1.0 / FAR..=FAR).contains(&self.factor)
    }
}

impl GroupReport {
    fn of(key: &GroupKey, group: &Group, configured: f64) -> Self {
        let Speed { first, first_per_request, per_token, per_output, .. } = group.speed();
        let (samples, throughput) = (group.samples(), 1.0 / per_token);
        let label = |label: Option<&str>| label.unwrap_or_default().to_owned();
        Self {
            accelerator: label(key.accelerator()),
            role: label(key.role()),
            samples,
            prefill_throughput: throughput,
            throughput_ratio: (samples >= FEWEST).then_some(throughput / configured),
            first_token_s: first,
            first_token_per_request_s: first_per_request,
            output_token_s: per_output.base,
            output_token_per_request_s: per_output.per_request,
            output_token_per_cached_token_s: per_output.per_cached,
        }
    }

    /// Returns `true` if what is configured is far from what was learned.
    pub fn is_far(&self) -> bool {
        self.throughput_ratio.is_some_and(|ratio| !(1.0 / FAR..=FAR).contains(&ratio))
    }

    /// One sentence about a throughput of which too little was learned; `None`: enough was.
    pub fn shortage(&self) -> Option<String> {
        let (samples, of) = (self.samples, self.endpoints());
        self.throughput_ratio.is_none().then(|| {
            format!(
                "too little was learned of endpoints{of} to judge peakPrefillThroughput: {samples} first tokens so far, and it takes {FEWEST}"
            )
        })
    }

    /// Says by their labels whose times these are.
    fn endpoints(&self) -> String {
        match (self.accelerator.as_str(), self.role.as_str()) {
            ("", "") => String::new(),
            (accelerator, "") => format!(" of {accelerator}"),
            ("", role) => format!(" of role {role}"),
            (accelerator, role) => format!(" of {accelerator}, role {role},"),
        }
    }

    /// One sentence about a configured throughput that is far from the learned one.
    pub fn advice(&self, configured: f64) -> String {
        let (learned, of) = (self.prefill_throughput.round(), self.endpoints());
        format!(
            "peakPrefillThroughput is {configured}, and endpoints{of} compute {learned} tokens per second as learned from {} first tokens: set it near that, so that decisions are good from the start",
            self.samples
        )
    }
}

impl Model {
    /// Logs where a configured throughput is far from the learned one, once.
    pub(super) fn warn_of_constants(&self) {
        let configured = self.initial_rate();
        for (key, group) in self.groups.all() {
            let report = GroupReport::of(&key, &group, configured);
            if group.warns(report.is_far()) {
                tracing::warn!(
                    accelerator = report.accelerator,
                    role = report.role,
                    configured,
                    learned = report.prefill_throughput.round(),
                    "peakPrefillThroughput is far from the learned throughput; set it to the learned one"
                );
            }
        }
    }

    fn links(&self) -> Vec<LinkReport> {
        let entries = self.entries.load();
        let links = entries.iter().flatten().map(|entry| {
            let link = entry.backlog.link();
            let (samples, factor) = link.learned();
            LinkReport { endpoint: entry.endpoint.to_string(), samples, factor }
        });
        let mut links: Vec<LinkReport> = links.filter(|link| link.samples > 0).collect();
        links.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
        links
    }

    /// The state of the model.
    pub fn report(&self) -> Report {
        let configured = self.initial_rate();
        let mut groups: Vec<GroupReport> =
            self.groups.all().iter().map(|(key, group)| GroupReport::of(key, group, configured)).collect();
        groups.sort_by(|a, b| (&a.accelerator, &a.role).cmp(&(&b.accelerator, &b.role)));
        let links = self.links();
        Report { peak_prefill_throughput: configured, groups, links, prediction: self.prediction() }
    }
}
