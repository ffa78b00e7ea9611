//! A plugin's access to the model of its pool.

use std::sync::{Arc, OnceLock};

use usher_core::endpoints::{Endpoint, Gauge, Load};
use usher_core::metrics::{PARTS, part};
use usher_core::request::Slo;
use usher_plugin::data::{PrefixMatch, PromptTokens};
use usher_plugin::{Context, Decision, Effects, Key};

use super::booking::{DisaggregatedWork, Work};
use super::lengths::Kind;
use super::link::Transfers;
use super::model::{Model, OwnCount};
use super::rate::InitialRate;
use super::running::running;
use super::table::{Reported, Table};

/// Reads the model for the request of a decision, and books the request.
#[derive(Clone, Debug)]
pub struct Reader {
    model: Arc<Model>,
    /// References to the model, one for each part of the threads, that bookings hold: so that counting
    /// bookings takes no turns with other threads.
    apart: Arc<[OnceLock<Arc<OwnCount>>; PARTS]>,
    rate: InitialRate,
    tokens: Key<PromptTokens>,
    prefix: Key<PrefixMatch>,
    /// Known once the handler that chooses pairs is built, if there is one.
    transfers: Arc<OnceLock<Transfers>>,
}

impl Reader {
    /// A reader of a model that may have been another configuration's. `tokens` is the length
    /// of prompts, and `prefix` what of them is cached.
    pub fn new(
        model: Arc<Model>,
        rate: InitialRate,
        tokens: Key<PromptTokens>,
        prefix: Key<PrefixMatch>,
    ) -> Self {
        Self { model, apart: Arc::default(), rate, tokens, prefix, transfers: Arc::default() }
    }

    /// This reader, with these speeds of KV transfers.
    #[must_use]
    pub fn with_transfers(self, transfers: Arc<OnceLock<Transfers>>) -> Self {
        Self { transfers, ..self }
    }

    /// The model as it is now.
    pub fn read(&self) -> Table<'_> {
        // An earlier configuration decides its last requests beside the present one.
        self.model.starts_at(self.rate.get());
        if let Some(transfers) = self.transfers.get() {
            self.model.moves_at(transfers);
        }
        self.model.read()
    }

    /// This thread's reference to the model.
    fn own_reference(&self) -> Arc<OwnCount> {
        let make = || Arc::new(OwnCount(Arc::clone(&self.model)));
        self.apart.get(part()).map_or_else(make, |own| Arc::clone(own.get_or_init(make)))
    }

    /// Tokens of the prompt, as estimated.
    fn estimated(&self, cx: &Context<'_>) -> u64 {
        cx.facts.get(self.tokens).map_or(0, |tokens| tokens.count)
    }

    /// Tokens of the prompt, as engines were seen to count them.
    pub fn prompt(&self, cx: &Context<'_>) -> u64 {
        self.model.scale().tokens(self.estimated(cx))
    }

    /// Uncached prompt tokens, as engines count them, by position of the endpoint in the snapshot.
    pub fn uncached(&self, cx: &Context<'_>) -> impl Fn(u32) -> f64 {
        let (estimated, prefix) = (self.estimated(cx), cx.facts.get(self.prefix));
        let per_estimated = self.model.scale().ratio();
        move |position| {
            let uncached = prefix.map_or(estimated, |prefix| prefix.computed_at(position, estimated));
            uncached as f64 * per_estimated
        }
    }

    /// The request's model and flow.
    pub fn kind(&self, cx: &Context<'_>) -> Kind {
        self.model.kind(cx.request)
    }

    /// Uncached prompt tokens, as engines count them, at the endpoint at a position of the snapshot.
    pub fn missing(&self, cx: &Context<'_>, position: u32) -> u64 {
        let estimated = self.estimated(cx);
        let missing = |prefix: &PrefixMatch| prefix.uncached_at(position, estimated).min(estimated);
        self.model.scale().tokens(cx.facts.get(self.prefix).map_or(estimated, missing))
    }

    /// Books the request where it goes, unless another plugin has booked it already.
    pub fn book(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        let first = |run| Some((decision.endpoints_of(run).next()?, *run.picks.first()?));
        let Some(decode) = first(decision.primary()) else { return };
        let (prefill, position) = decision.prefill().and_then(first).unwrap_or(decode);
        let numbers = |endpoint: &Endpoint| {
            let load = endpoint.load();
            fresh(cx, &load.waiting).map(|waiting| reported(cx, load, waiting))
        };
        let transfer = self.transfers.get().map(|transfers| {
            let nearness = prefill.topology().nearness(decode.0.topology());
            transfers.per_token(nearness) * self.missing(cx, decode.1) as f64
        });
        let disaggregated =
            (position != decode.1).then(|| DisaggregatedWork { decode: numbers(decode.0), transfer });
        effects.observe_once(|| {
            self.model.book_for(
                self.own_reference(),
                &Work {
                    prefill,
                    decode: decode.0,
                    tokens: self.uncached(cx)(position).round() as u64,
                    prompt: self.prompt(cx),
                    estimated: self.estimated(cx),
                    api: cx.request.api,
                    is_stream: cx.request.stream,
                    reported: numbers(prefill),
                    kind: self.kind(cx),
                    tpot: cx.request.slo().tpot,
                    disaggregated,
                },
            )
        });
    }
}

/// A request's latency targets, less the time for which it has waited already.
pub(crate) fn targets(cx: &Context<'_>) -> Slo {
    let slo = cx.request.slo();
    let waited = cx.request.received.filter(|_| slo.ttft.is_some()).map(|received| received.elapsed());
    Slo { ttft: slo.ttft.map(|ttft| ttft - waited.unwrap_or_default().as_secs_f64()), ..slo }
}

/// An endpoint's numbers, with so many waiting.
pub(crate) fn reported(cx: &Context<'_>, load: &Load, waiting: f64) -> Reported {
    Reported { waiting, running: running(cx, load, waiting), kv_usage: fresh(cx, &load.kv_usage) }
}

/// A reading that is no older than it may be; not negative.
pub(crate) fn fresh(cx: &Context<'_>, gauge: &Gauge) -> Option<f64> {
    gauge.fresh(cx.now_ms, cx.max_age).filter(|value| value.is_finite()).map(|value| value.max(0.0))
}
