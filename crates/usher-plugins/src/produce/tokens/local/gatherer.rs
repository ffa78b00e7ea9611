//! Holds requests until their prompt is tokenized.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use usher_core::endpoints::Candidates;
use usher_core::memory::Budget;
use usher_core::request::prompt::PartKind;
use usher_core::request::{Api, Body, Request};
use usher_plugin::{Gathered, Gatherer, RequestContext};

use super::super::failure::Failure;
use super::super::keys::Keys;
use super::super::metrics::{LocalCounts, RenderCounts};
use super::super::room::Room;
use super::encoder::Turn;
use super::model::LocalModel;
use super::workers::Busy;

/// Bytes of a body at most: what is longer would be late, and keep a thread.
const MAX_BODY: usize = 4 << 20;

/// Holds requests until a thread has tokenized their prompt, or a time is over.
#[derive(Debug)]
pub(in super::super) struct LocalTokenizer {
    model: Arc<LocalModel>,
    budget: Arc<Budget>,
    timeout: Duration,
    keys: Keys,
    counts: Arc<RenderCounts>,
    sources: Arc<LocalCounts>,
}

/// Job of a tokenizer thread. Its waiter owns it: a job that comes too late finds nothing.
struct Task {
    api: Api,
    body: Body,
}

impl LocalTokenizer {
    /// Tokenizes with this model, and says what it found under `keys`.
    pub(in super::super) fn new(
        model: Arc<LocalModel>,
        budget: &Arc<Budget>,
        timeout: Duration,
        keys: Keys,
        (counts, sources): (RenderCounts, LocalCounts),
    ) -> Self {
        let (budget, counts, sources) = (Arc::clone(budget), Arc::new(counts), Arc::new(sources));
        Self { model, budget, timeout, keys, counts, sources }
    }

    fn is_for(&self, request: &Request) -> bool {
        let is_tokens =
            |kind| matches!(kind, PartKind::Tokens | PartKind::PackedTokens | PartKind::TaggedTokens);
        let is_text =
            !request.prompt.is_multimodal() && !request.prompt.parts.iter().any(|part| is_tokens(part.kind));
        let is_known = match request.api {
            Api::Completions => true,
            Api::ChatCompletions => self.model.has_template(),
            _ => false,
        };
        is_text && is_known && request.outgoing().len() <= MAX_BODY
    }
}

impl Gatherer for LocalTokenizer {
    fn gather(
        &self,
        cx: &RequestContext<'_>,
        _candidates: &Candidates,
    ) -> Option<BoxFuture<'static, Gathered>> {
        if !self.is_for(cx.request) {
            return None;
        }
        let task = Arc::new(Task { api: cx.request.api, body: cx.request.outgoing().into_owned() });
        let (reply, result) = oneshot::channel();
        let (waiting, model) = (Arc::downgrade(&task), Arc::clone(&self.model));
        let mut room = Room::new(&self.budget);
        let queued = self.model.workers.run(move |words| {
            let Some(task) = waiting.upgrade() else { return };
            let body = task.body.clone();
            let api = task.api;
            drop(task);
            let is_over = &|| reply.is_closed();
            let found = model.tokens(api, body, &mut Turn { words, is_over, room: &mut room });
            // Nobody waits any more.
            let _ = reply.send(found.map(|(found, sources)| (found, room, sources)));
        });
        if queued == Err(Busy) {
            self.counts.busy.inc();
            return None;
        }
        let (counts, sources, keys, timeout) =
            (Arc::clone(&self.counts), Arc::clone(&self.sources), self.keys, self.timeout);
        let request_id = cx.request.id().into_owned();
        let held = async move {
            let _task = task;
            let found = match tokio::time::timeout(timeout, result).await {
                Ok(Ok(Ok((found, room, bytes)))) => {
                    counts.rendered.inc();
                    sources.cached.inc_by(bytes.cached);
                    sources.encoded.inc_by(bytes.encoded);
                    Some((found, room))
                }
                Ok(Ok(Err(failure))) => {
                    counts.count_failure(&failure, &request_id);
                    None
                }
                Ok(Err(_)) => {
                    counts.count_failure(&Failure::Refusing, &request_id);
                    None
                }
                Err(_) => {
                    counts.late.inc();
                    None
                }
            };
            keys.gathered(found)
        };
        Some(held.boxed())
    }
}
