//! One prompt in an endpoint's backlog.

use std::sync::Arc;
use std::time::Duration;

use usher_core::endpoints::Endpoint;
use usher_core::request::Api;
use usher_core::request::usage::Usage;
use usher_plugin::{Attribute, Header, ResponseHead, ResponseObserver};

use super::backlog::{Backlog, steps};
use super::cost::TokenCounts;
use super::histograms::Met;
use super::kv_transfer::KvTransfer;
use super::lengths::Kind;
use super::model::{Model, OwnCount};
use super::predicted::Predicted;
use super::table::Reported;
use super::tpot_target::{TpotTarget, is_feasible};
use super::work_totals::WorkTotals;

/// Seconds that a prompt takes at least: a transfer may seem to have taken longer than all.
const LEAST_TIME: f64 = 1e-3;

/// Work of a request: the endpoints that do it, and its size.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Computes the prompt.
    pub prefill: &'a Endpoint,
    /// Generates the response; the same endpoint unless the request is disaggregated.
    pub decode: &'a Endpoint,
    /// Tokens of the prompt that are yet to be computed.
    pub tokens: u64,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Estimated tokens of the prompt, before scaling to engine counts.
    pub estimated: u64,
    /// API of the request, by which its usage is read.
    pub api: Api,
    /// The response is a stream, so its first token will be seen.
    pub is_stream: bool,
    /// Numbers of the endpoint that computes the prompt, as the decision saw them. `None`:
    /// nothing is learned about its time to a first token.
    pub reported: Option<Reported>,
    /// Model and flow, by which the length of its response is known.
    pub kind: Kind,
    /// Target for the time per output token, in seconds.
    pub tpot: Option<f64>,
    /// Decode endpoint and KV transfer, if another endpoint prefills; `None`: not known.
    pub disaggregated: Option<DisaggregatedWork>,
}

/// Decode endpoint and KV transfer of a disaggregated request.
#[derive(Clone, Copy, Debug)]
pub struct DisaggregatedWork {
    /// Numbers of the endpoint that decodes.
    pub decode: Option<Reported>,
    /// Seconds that the KV cache takes alone on its link, as configured.
    pub transfer: Option<f64>,
}

impl<'a> Work<'a> {
    /// All of it at one endpoint.
    pub fn whole(endpoint: &'a Endpoint, tokens: u64, is_stream: bool) -> Self {
        Self {
            prefill: endpoint,
            decode: endpoint,
            tokens,
            prompt: tokens,
            estimated: tokens,
            api: Api::ChatCompletions,
            is_stream,
            reported: None,
            kind: Kind::default(),
            tpot: None,
            disaggregated: None,
        }
    }
}

impl Model {
    /// Books a request: its prompt with the endpoint that computes it until the first token
    /// is there, its response with the endpoint that decodes.
    pub fn book(self: &Arc<Self>, work: &Work<'_>) -> Booked {
        self.book_for(Arc::new(OwnCount(Arc::clone(self))), work)
    }

    /// Books a request; the booking holds a reference to this model.
    pub(super) fn book_for(&self, model: Arc<OwnCount>, work: &Work<'_>) -> Booked {
        let now = self.clock.elapsed();
        let tokens = self.hits().likely(work.tokens, work.prompt);
        self.traffic.mean_uncached.note(tokens as f64);
        self.traffic.mean_prompt.note(work.prompt as f64);
        self.watch(work.prefill);
        self.traffic.arrivals.add(tokens as f64 / self.backlog(work.prefill).rate(), now);
        if !std::ptr::eq(work.prefill, work.decode) {
            self.watch(work.decode);
        }
        let decode = self.backlog(work.decode);
        let target = work.tpot.filter(|target| is_feasible(*target, &decode));
        if let Some(target) = target {
            self.recent.note(target, now);
        }
        Booked::new(model, &Work { tpot: target, ..*work }, now)
    }
}

/// A prompt that an endpoint has to compute. It leaves the backlog with the first of these:
/// the first token of its response; the headers of a response that is no stream, or whose bytes the gateway
/// doesn't show; the end of the request, when this is dropped. If none of them is seen, it leaves after ten times
/// as long as it should take, and not before ten seconds; where no stream was asked for, as soon as it should be
/// computed.
#[derive(Debug)]
pub struct Booked {
    /// A reference that few threads count: see [`Reader`](super::Reader).
    model: Arc<OwnCount>,
    prefill: Arc<Backlog>,
    decode: Arc<Backlog>,
    tokens: u64,
    is_stream: bool,
    sent: Duration,
    /// Duration of the prompt, and when it should be computed, where that isn't seen.
    takes: Duration,
    due: Duration,
    /// The prompt's number in the backlog, where it is counted there.
    number: u64,
    /// The first token says when the prompt was computed. Otherwise it leaves the backlog
    /// as time passes.
    is_counted: bool,
    /// `true` if it is in the backlog.
    waits: bool,
    first_token: Option<Duration>,
    prompt: u64,
    estimated: u64,
    api: Api,
    /// Tokens of it that seemed not to be cached; `None`: it isn't known by whom.
    uncached: Option<u64>,
    /// Requests at the endpoint and tokens to compute there with its own, when it was sent.
    /// `None`: something else makes it wait.
    met: Option<(f64, f64)>,
    /// State of the endpoint that computes the prompt, of what was sent there as a stream and isn't known to be hidden.
    sent_as_stream: Option<Met>,
    /// Requests there that other senders sent.
    others: f64,
    /// Times that were predicted for the endpoints that compute the prompt and respond. `None`:
    /// the numbers of one of them weren't known.
    predicted: Option<Predicted>,
    /// The KV cache that is on its way to the endpoint that decodes.
    transfer: Option<KvTransfer>,
    /// Totals of the decoding endpoint when the stream began, and the stream's tokens in the cache.
    decodes: Option<(WorkTotals, f64)>,
    kind: Kind,
    /// Target, among those of the decoding endpoint.
    tpot_target: Option<TpotTarget>,
}

impl Booked {
    pub(super) fn new(model: Arc<OwnCount>, work: &Work<'_>, now: Duration) -> Self {
        let (prefill, decode) = (model.backlog(work.prefill), model.backlog(work.decode));
        let &Work { prompt, is_stream, reported, tokens: uncached, .. } = work;
        let tokens = model.hits().likely(uncached, prompt);
        let (mut met, mut others, mut predicted, mut sent_as_stream) = (None, 0.0, None, None);
        let output = model.read().expected(work.kind, None).mean;
        let counts = TokenCounts { uncached: tokens as f64, prompt: prompt as f64, output };
        if let Some(reported) = reported {
            let load = work.prefill.load();
            prefill.note_running(reported.running, reported.waiting, load.running.read_at_ms());
            let (state, speed) = model.read().look(work.prefill, prompt as f64, &reported);
            predicted = Some(Predicted::new(&prefill, &state, &speed, &counts));
            prefill.group().note_requests(state.requests);
            met = (state.slot_wait == 0.0)
                .then_some((state.requests, state.queued / speed.per_token + tokens as f64));
            others = (state.requests - load.in_flight() as f64).max(0.0);
            let (requests, cached) = (state.requests, state.cached);
            let own = tokens as f64;
            let sent = Met { requests, cached, tokens: met.map(|(_, tokens)| tokens), own };
            prefill.sent(sent, is_stream);
            sent_as_stream = Some(sent).filter(|_| is_stream);
        }
        let tpot_target = work.tpot.map(|target| TpotTarget::new(&decode, target));
        let mut transfer = None;
        let of_prefill = if Arc::ptr_eq(&prefill, &decode) { None } else { predicted.take() };
        if let Some(disaggregated) = work.disaggregated.filter(|_| !Arc::ptr_eq(&prefill, &decode)) {
            let table = model.read();
            let computed = reported.filter(|_| met.is_some());
            let computed = computed.map(|at| table.ttft(work.prefill, tokens, &at));
            others = 0.0;
            if let Some(reported) = disaggregated.decode {
                let load = work.decode.load();
                decode.note_running(reported.running, reported.waiting, load.running.read_at_ms());
                let (state, speed) = table.look(work.decode, prompt as f64, &reported);
                let of_decode = Predicted::new(&decode, &state, &speed, &counts);
                predicted = of_prefill.map(|of_prefill| of_decode.after(&of_prefill));
                decode.group().note_requests(state.requests);
                met = met.filter(|_| state.slot_wait == 0.0);
                others = (state.requests - load.in_flight() as f64).max(0.0);
            }
            let computed = computed.filter(|_| met.is_some());
            let clock = model.clock();
            let begin = |alone| KvTransfer::new(&decode, alone, computed, prompt, is_stream, clock);
            transfer = disaggregated.transfer.map(begin);
        }
        let mut booked = Self {
            model,
            prefill,
            decode,
            tokens,
            is_stream,
            sent: now,
            takes: Duration::ZERO,
            due: now,
            number: 0,
            is_counted: false,
            waits: false,
            first_token: None,
            prompt,
            estimated: work.estimated,
            api: work.api,
            uncached: Some(uncached),
            met,
            sent_as_stream,
            others,
            predicted,
            transfer,
            decodes: None,
            kind: work.kind,
            tpot_target,
        };
        booked.prefill.arrivals().add(tokens as f64, now);
        booked.enter(now);
        booked
    }

    fn enter(&mut self, now: Duration) {
        (self.waits, self.is_counted) = (true, self.is_stream);
        if self.is_counted {
            self.number = self.prefill.add(self.tokens, now);
        } else {
            (self.takes, self.due) = self.prefill.add_unseen(self.tokens, now);
        }
    }

    fn leave(&mut self, now: Duration) {
        if !std::mem::take(&mut self.waits) {
            return;
        }
        if self.is_counted {
            self.prefill.take(self.number, now);
        } else {
            self.prefill.take_unseen(self.takes, self.due, now);
        }
    }

    /// Moves the booking to the endpoint that responds. It computes the prompt, too, unless a third one
    /// does. Its cached share of the prompt is unknown and taken to be the same.
    pub fn move_to(&mut self, endpoint: &Endpoint) {
        let backlog = self.model.backlog(endpoint);
        if let Some(target) = &mut self.tpot_target {
            target.move_to(&backlog);
        }
        if !self.waits || Arc::ptr_eq(&backlog, &self.decode) {
            return;
        }
        (self.met, self.transfer, self.predicted) = (None, None, None);
        if !Arc::ptr_eq(&self.prefill, &self.decode) {
            self.decode = backlog;
            return;
        }
        let now = self.model.clock().elapsed();
        self.leave(now);
        self.prefill = Arc::clone(&backlog);
        self.decode = backlog;
        (self.uncached, self.sent_as_stream) = (None, None);
        self.enter(now);
    }

    /// The response begins. What is no stream of events is an error, or complete at once, or
    /// its bytes will not be seen: it says nothing about the time of a first token, and no
    /// better time than now will come.
    pub fn begins(&mut self, is_stream: bool) {
        self.is_stream &= is_stream;
        if !is_stream {
            self.transfer = None;
            self.leave(self.model.clock().elapsed());
            if let Some(sent) = self.sent_as_stream.take() {
                self.prefill.hidden(sent);
            }
        }
    }

    /// The first token of the response has passed.
    pub fn first_token(&mut self) {
        if self.first_token.is_some() {
            return;
        }
        let now = self.model.clock().elapsed();
        self.leave(now);
        let transfer = self.transfer.take();
        if !self.is_counted {
            return;
        }
        self.first_token = Some(now);
        if !self.is_stream {
            return;
        }
        let took = now.saturating_sub(self.sent).as_secs_f64();
        let moved = transfer.map(|transfer| transfer.arrived()).unwrap_or_default();
        if let Some(predicted) = &self.predicted {
            let took = (took - moved.expected).max(LEAST_TIME);
            predicted.first_token(&self.prefill, self.model.accuracies(), took);
        }
        let cached = self.prompt as f64 + self.model.mean_output() / 2.0;
        let first = self.met.map(|_| (took, moved.configured));
        self.prefill.computed(self.met.unwrap_or_default(), self.tokens, first, now);
        self.decodes = Some((self.decode.stream_begins(cached, now), cached));
    }

    /// The response says what it used: how long the prompt was, and how much of it was cached.
    pub fn used(&mut self, usage: &Usage) {
        let counted = usage.prompt_tokens.filter(|tokens| *tokens > 0);
        // Anthropic's input tokens are those that were not cached; servers that speak its API differ in that.
        let is_whole = self.api != Api::Messages || usage.cached_tokens.unwrap_or(0) == 0;
        let counted = counted.filter(|_| is_whole);
        if let Some(counted) = counted {
            self.model.scale().observe(counted, self.estimated);
        }
        // What another endpoint computed was moved, and engines may count that as cached.
        if !Arc::ptr_eq(&self.prefill, &self.decode) {
            return;
        }
        let whole = counted.unwrap_or(self.prompt);
        let cached = self.prefill.reports().cached(self.api, usage).filter(|_| whole > 0);
        if let (Some(uncached), Some(cached)) = (self.uncached, cached) {
            self.model.hits().observe(uncached, self.prompt, cached as f64 / whole as f64);
        }
    }

    /// The response is complete, with so many tokens, if it says so.
    pub fn finish(&mut self, tokens: Option<u64>) {
        let now = self.model.clock().elapsed();
        if let Some(tokens) = tokens.filter(|tokens| *tokens > 0) {
            self.model.note_output(self.kind, tokens, now);
        }
        match self.first_token {
            Some(first) if self.is_stream => {
                let response = now.saturating_sub(first);
                self.decode.finished(response, now);
                self.model.note_times(first.saturating_sub(self.sent), response);
            }
            // Nobody saw when it began to generate, but when it should have. What was there before is an
            // error, or was cached, and without tokens that can't be known.
            None if !self.is_counted && (now > self.due || tokens.is_some()) => {
                self.decode.finished(now.saturating_sub(self.due), now);
            }
            _ => {}
        }
        self.stops_decoding(tokens, now);
    }

    fn stops_decoding(&mut self, tokens: Option<u64>, now: Duration) {
        if let Some((since, cached)) = self.decodes.take() {
            let tokens = tokens.map(|tokens| tokens as f64);
            if let (Some(predicted), Some(steps)) = (&self.predicted, steps(tokens)) {
                let seconds = now.saturating_sub(since.at).as_secs_f64();
                predicted.steps(&self.decode, self.model.accuracies(), seconds / steps, now);
            }
            self.decode.stream_ended(&since, cached, tokens, self.others, now);
        }
    }
}

impl ResponseObserver for Booked {
    fn rerouted(&mut self, to: &Arc<Endpoint>) {
        self.move_to(to);
    }

    fn response_headers(&mut self, head: &ResponseHead<'_>, _out: &mut Vec<Header>) {
        Self::begins(self, head.is_stream);
    }

    fn first_token(&mut self) {
        self.first_token();
    }

    fn response_complete(&mut self, usage: &Usage, _out: &mut Vec<Attribute>) {
        self.used(usage);
        self.finish(usage.completion_tokens);
    }
}

impl Drop for Booked {
    fn drop(&mut self) {
        let now = self.model.clock().elapsed();
        self.leave(now);
        self.stops_decoding(None, now);
    }
}
