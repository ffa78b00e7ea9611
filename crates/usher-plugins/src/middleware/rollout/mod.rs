//! `disaggregatedset-rollout-screener`: while a disaggregated set is rolled out, the parts
//! of a request have to be served by one revision. It is chosen before anything else, so
//! that every profile picks among its endpoints alone.

mod params;
mod revisions;

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, Opts, Registry};
use rand::Rng;
use usher_core::config::ConfigError;
use usher_core::endpoints::{Candidates, Snapshot};
use usher_core::metrics::register;
use usher_plugin::{
    Build, BuildContext, Effects, Header, Kind, PluginId, PluginParts, PluginType, RequestContext,
    ResponseHead, ResponseObserver, Screener, beta,
};

pub use params::RolloutParams;
use params::{GatingMode, HeaderMode};
use revisions::{Revisions, choose};

/// `disaggregatedset-rollout-screener` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("disaggregatedset-rollout-screener", &[Kind::Screener, Kind::Response],
    "Sends all parts of a request to one revision of a disaggregated set.",
    Build::Reading(build)).takes::<RolloutParams>().alpha()
    .when("A rollout of prefill and decode pods whose versions must not mix.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = RolloutParams::decode(cx.parameters)?;
    let (parts, metrics) = (PluginParts::with(&params)?, cx.family(RolloutMetrics::register)?);
    let id = PluginId::new("disaggregatedset-rollout-screener", cx.name);
    Ok(PluginParts { screener: Some(Arc::new(RolloutScreener::new(params, &id, &metrics))), ..parts })
}

/// Keeps the endpoints that a request's headers choose, and of those one revision that
/// has all required roles. Endpoints out of scope are not its business.
#[derive(Debug)]
pub struct RolloutScreener {
    shared: Arc<Shared>,
    current: ArcSwapOption<Revisions>,
    /// Held while the revisions of a new snapshot are made, so that one request does it;
    /// with the shares that the page shows.
    shares: Mutex<Shares>,
}

/// State that the screener shares with the requests whose responses it stamps.
#[derive(Debug)]
struct Shared {
    params: RolloutParams,
    selectors: Vec<Selector>,
}

#[derive(Debug)]
struct Selector {
    header: Arc<str>,
    /// Requests for which no endpoint matched; of strict selectors.
    unmatched: IntCounter,
}

#[derive(Debug)]
struct Shares {
    family: GaugeVec,
    id: PluginId,
    mode: &'static str,
    shown: Vec<String>,
}

impl RolloutScreener {
    /// A screener, counted under the plugin's names.
    pub fn new(params: RolloutParams, id: &PluginId, metrics: &RolloutMetrics) -> Self {
        let selectors = params.header_selectors.iter().map(|selector| Selector {
            header: selector.header_name.as_str().into(),
            unmatched: metrics.unmatched.with_label_values(&[
                &*id.plugin_type,
                &*id.name,
                selector.name.as_str(),
            ]),
        });
        let (family, mode) = (metrics.shares.clone(), params.revision_gating.mode.as_str());
        let shares = Shares { family, id: id.clone(), mode, shown: Vec::new() };
        let shared = Arc::new(Shared { selectors: selectors.collect(), params });
        Self { shared, current: ArcSwapOption::empty(), shares: Mutex::new(shares) }
    }

    fn revisions(&self, snapshot: &Arc<Snapshot>) -> Arc<Revisions> {
        let current = || self.current.load_full().filter(|revisions| revisions.are_of(snapshot));
        if let Some(current) = current() {
            return current;
        }
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = current() {
            return current;
        }
        let revisions = Arc::new(Revisions::of(snapshot, &self.shared.params));
        shares.show(&revisions, snapshot);
        self.current.store(Some(Arc::clone(&revisions)));
        revisions
    }

    fn is_gated(&self) -> bool {
        self.shared.params.revision_gating.mode != GatingMode::Disabled
    }

    /// Keeps what the request's headers choose.
    fn select(&self, cx: &RequestContext<'_>, revisions: &Revisions, kept: &mut Vec<u32>) {
        let Shared { params, selectors } = &*self.shared;
        let each = selectors.iter().zip(&params.header_selectors).zip(revisions.selected());
        for ((selector, params), values) in each {
            let headers = &cx.request.headers;
            let Some(wanted) = headers.text(&selector.header).filter(|value| !value.is_empty()) else {
                continue;
            };
            let wanted = values.find(wanted.as_bytes());
            let has_it = |position: u32| wanted.is_some_and(|wanted| values.has(position, wanted));
            let is_it = |position: &u32| revisions.member(*position).is_some() && has_it(*position);
            let matches = if self.is_gated() {
                // What it leaves has to be able to serve.
                let left = kept.iter().copied().filter(|position| is_it(position));
                revisions.weights(left).iter().any(|weight| *weight > 0)
            } else {
                kept.iter().any(is_it)
            };
            match (matches, params.mode) {
                (false, HeaderMode::Prefer) => continue,
                (false, HeaderMode::Strict) => selector.unmatched.inc(),
                (true, _) => {}
            }
            kept.retain(|position| revisions.member(*position).is_none() || has_it(*position));
        }
    }
}

impl Screener for RolloutScreener {
    fn screen(
        &self,
        cx: &RequestContext<'_>,
        candidates: &Candidates,
        rng: &mut dyn Rng,
        kept: &mut Vec<u32>,
        effects: &mut Effects,
    ) {
        let revisions = self.revisions(candidates.snapshot());
        self.select(cx, &revisions, kept);
        if self.is_gated() {
            let chosen = choose(&revisions.weights(kept.iter().copied()), rng);
            kept.retain(|position| match revisions.member(*position) {
                None => true,
                Some(member) => member.revision.is_some() && member.revision == chosen,
            });
        }
        if !self.shared.selectors.is_empty() {
            effects.observe(Stamp(Arc::clone(&self.shared)));
        }
    }
}

/// Reports with which values of the selectors' labels a request was served, so that the
/// client can ask for the same again.
struct Stamp(Arc<Shared>);

impl ResponseObserver for Stamp {
    fn response_headers(&mut self, head: &ResponseHead<'_>, out: &mut Vec<Header>) {
        let Shared { params, selectors } = &*self.0;
        if !params.scope.label_selector.matches(|key| head.endpoint.label(key)) {
            return;
        }
        for (selector, params) in selectors.iter().zip(&params.header_selectors) {
            if let Some(value) = head.endpoint.label(&params.label_key).filter(|value| !value.is_empty()) {
                let value = Bytes::copy_from_slice(value.as_bytes());
                out.push(Header { name: Arc::clone(&selector.header), value });
            }
        }
    }
}

impl Shares {
    /// Shows what share of the requests that choose nothing each revision gets.
    fn show(&mut self, revisions: &Revisions, snapshot: &Snapshot) {
        let weights = revisions.weights((0..).take(snapshot.endpoints().len()));
        let total: u64 = weights.iter().sum();
        for (name, weight) in revisions.names().iter().zip(weights) {
            let share = if total == 0 { 0.0 } else { weight as f64 / total as f64 };
            self.gauge(name).set(share);
        }
        for gone in self.shown.iter().filter(|name| revisions.names().binary_search(name).is_err()) {
            // Absent only if another screener of this name removed it already.
            let _ = self.family.remove_label_values(&self.labels(gone));
        }
        self.shown = revisions.names().to_vec();
    }

    fn gauge(&self, revision: &str) -> Gauge {
        self.family.with_label_values(&self.labels(revision))
    }

    fn labels<'a>(&'a self, revision: &'a str) -> [&'a str; 4] {
        [&self.id.plugin_type, &self.id.name, self.mode, revision]
    }
}

/// Metrics of the rollout screeners.
#[derive(Debug)]
pub struct RolloutMetrics {
    unmatched: IntCounterVec,
    shares: GaugeVec,
}

impl RolloutMetrics {
    /// Registers the families.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let unmatched = Opts::new(
            "llm_d_epp_disaggregatedset_strict_header_no_match_total",
            "[ALPHA] Requests whose strict header no endpoint matched, by selector.",
        );
        let shares = Opts::new(
            "llm_d_epp_disaggregatedset_revision_gating_share",
            "[ALPHA] Share of the requests that each revision gets, 0 to 1, by how it is weighed.",
        );
        let unmatched = IntCounterVec::new(unmatched, &["plugin_type", "plugin_name", "selector"])?;
        let shares = GaugeVec::new(shares, &["plugin_type", "plugin_name", "mode", "revision"])?;
        Ok(Self {
            unmatched: register(registry, unmatched, None)?,
            shares: register(registry, shares, None)?,
        })
    }
}
