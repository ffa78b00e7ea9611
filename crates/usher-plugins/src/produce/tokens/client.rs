//! Requests the tokens of prompts from a server.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use usher_core::endpoints::Candidates;
use usher_core::memory::Budget;
use usher_plugin::{Gathered, Gatherer, RequestContext};

use super::keys::Keys;
use super::metrics::RenderCounts;
use super::params::RenderParams;
use super::render;
use super::room::Room;
use super::server::{Prompt, Server};

/// Requests whose tokens are asked for at once.
const REQUESTS: usize = 256;

/// Holds requests until a server has returned their tokens, or a time is over.
#[derive(Debug)]
pub(super) struct Renderer {
    server: Arc<Server>,
    timeout: Duration,
    mm_timeout: Duration,
    budget: Arc<Budget>,
    turns: Arc<Semaphore>,
    keys: Keys,
    counts: Arc<RenderCounts>,
}

impl Renderer {
    /// Asks with this model, and says what it found under `keys`.
    pub(super) fn new(
        params: &RenderParams,
        model: String,
        budget: &Arc<Budget>,
        keys: Keys,
        counts: RenderCounts,
    ) -> Self {
        let server = Arc::new(Server::new(&params.url, model));
        let (timeout, mm_timeout) = (params.timeout, params.mm_timeout);
        let (budget, turns) = (Arc::clone(budget), Arc::new(Semaphore::new(REQUESTS)));
        Self { server, timeout, mm_timeout, budget, turns, keys, counts: Arc::new(counts) }
    }
}

impl Gatherer for Renderer {
    fn gather(
        &self,
        cx: &RequestContext<'_>,
        _candidates: &Candidates,
    ) -> Option<BoxFuture<'static, Gathered>> {
        let api = render::api(cx.request)?;
        let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() else {
            self.counts.busy.inc();
            return None;
        };
        let (is_multimodal, body) = (cx.request.prompt.is_multimodal(), cx.request.outgoing().into_owned());
        let prompt = Prompt { api, is_multimodal, body };
        let request_id = cx.request.id().into_owned();
        let timeout = if is_multimodal { self.mm_timeout } else { self.timeout };
        let (server, counts, keys) = (Arc::clone(&self.server), Arc::clone(&self.counts), self.keys);
        let mut room = Room::new(&self.budget);
        let held = async move {
            let _turn = turn;
            let asked = server.tokens(prompt, &mut room);
            let found = match tokio::time::timeout(timeout, asked).await {
                Ok(Ok(found)) => {
                    counts.rendered.inc();
                    Some((found, room))
                }
                Ok(Err(failure)) => {
                    counts.count_failure(&failure, &request_id);
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
