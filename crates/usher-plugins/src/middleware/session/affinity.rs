//! The endpoint of a session: found, preferred, and remembered.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use rand::Rng;
use usher_core::endpoints::{Endpoint, Snapshot, View};
use usher_plugin::{
    Context, Decision, Effects, Filter, Header, PreRequest, ResponseHead, ResponseObserver, Scorer,
};

use super::{Bindings, SessionSource};

/// Sends the requests of a session to one endpoint.
///
/// As a scorer it gives 1 to the endpoint of the session and 0 to all others; as a
/// filter it keeps that endpoint alone, and all of them where it is not among them.
#[derive(Debug)]
pub struct SessionAffinity {
    how: How,
    profile: Option<String>,
}

#[derive(Debug)]
enum How {
    /// The endpoint's id in base64, in this header of requests and responses.
    Token { header: Arc<str> },
    /// The session's name, and its endpoint here.
    Session { sources: Vec<SessionSource>, bindings: Arc<Bindings>, ttl_ms: u64 },
}

/// The endpoint of a session.
enum Wanted {
    /// Id: what a client sends is of llm-d-router's form, which has no more.
    Sent(Vec<u8>),
    /// Identity of the endpoint.
    Bound(Arc<str>),
}

impl SessionAffinity {
    /// Sessions whose clients carry their endpoint in `header` (lower case). `profile`:
    /// whose pick that is; `None`: of the primary profile.
    pub fn by_token(header: &str, profile: Option<String>) -> Self {
        Self { how: How::Token { header: header.into() }, profile }
    }

    /// Sessions that are bound here for `ttl_ms` milliseconds after their last request.
    pub fn by_session(
        sources: Vec<SessionSource>,
        bindings: Arc<Bindings>,
        ttl_ms: u64,
        profile: Option<String>,
    ) -> Self {
        Self { how: How::Session { sources, bindings, ttl_ms }, profile }
    }

    /// The endpoint of the request's session; `None` for a request without one.
    fn wanted(&self, cx: &Context<'_>) -> Option<Wanted> {
        match &self.how {
            How::Token { header } => {
                // An endpoint's id has at most some 350 bytes, and is a name as others are.
                let token = cx.request.headers.name(header)?;
                // Whatever else a client sends there is no token of ours.
                STANDARD.decode(token).ok().filter(|id| !id.is_empty()).map(Wanted::Sent)
            }
            How::Session { sources, bindings, .. } => {
                let session = SessionSource::first(sources, cx.request, cx.facts)?;
                bindings.get(session, cx.now_ms).map(Wanted::Bound)
            }
        }
    }
}

impl Wanted {
    fn is(&self, endpoint: &Endpoint) -> bool {
        match self {
            Self::Sent(id) => endpoint.id().as_bytes() == id,
            Self::Bound(identity) => endpoint.identity() == identity,
        }
    }
}

impl Scorer for SessionAffinity {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let Some(wanted) = self.wanted(cx) else { return };
        for (score, endpoint) in out.iter_mut().zip(candidates.iter()) {
            if wanted.is(endpoint) {
                *score = 1.0;
                return;
            }
        }
    }
}

impl Filter for SessionAffinity {
    fn filter(&self, cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        let Some(wanted) = self.wanted(cx) else { return };
        let endpoint = |index: u32| snapshot.endpoints().get(index as usize);
        let found = kept.iter().copied().find(|index| endpoint(*index).is_some_and(|e| wanted.is(e)));
        if let Some(found) = found {
            kept.clear();
            kept.push(found);
        }
    }
}

impl PreRequest for SessionAffinity {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        let primary = decision.primary();
        let run = match &self.profile {
            None => primary,
            Some(name) => match decision.run(name) {
                Some(run) => run,
                // The profile did not run: the session stays as it is.
                None => return,
            },
        };
        let Some(pick) = decision.endpoints_of(run).next() else { return };
        match &self.how {
            How::Token { header } => {
                let pick = (!std::ptr::eq(run, primary)).then(|| Arc::clone(pick));
                effects.observe(TokenWriter { header: Arc::clone(header), pick });
            }
            How::Session { sources, bindings, ttl_ms } => {
                let Some(session) = SessionSource::first(sources, cx.request, cx.facts) else { return };
                let bound = bindings.get(session, cx.now_ms);
                let stays = bound.as_ref().filter(|bound| is_candidate(decision, bound));
                bindings.bind(session, bound.as_ref(), stays.unwrap_or(pick.identity()), cx.now_ms, *ttl_ms);
            }
        }
    }
}

/// Returns `true` if the request could have gone there: a session only moves when it couldn't.
fn is_candidate(decision: &Decision, identity: &Arc<str>) -> bool {
    let is_it = |endpoint: &Endpoint| endpoint.identity() == identity;
    is_it(decision.primary_endpoint()) || decision.candidates().view().iter().any(|e| is_it(e))
}

/// Sends the endpoint of its session to the client.
struct TokenWriter {
    header: Arc<str>,
    /// The pick of a profile that isn't the primary one; `None`: whoever serves.
    pick: Option<Arc<Endpoint>>,
}

impl ResponseObserver for TokenWriter {
    fn response_headers(&mut self, head: &ResponseHead<'_>, out: &mut Vec<Header>) {
        let endpoint = self.pick.as_ref().unwrap_or(head.endpoint);
        let value = Bytes::from(STANDARD.encode(endpoint.id().as_bytes()));
        out.push(Header { name: Arc::clone(&self.header), value });
    }
}
