//! Turns a decision into what a recording keeps of it.

use std::num::NonZeroU32;
use std::sync::Arc;

use usher_core::endpoints::Endpoint;
use usher_core::prefix::Blocks;
use usher_core::recording::{BLOCK_TOKENS, MAX_BLOCKS, RequestLine};
use usher_core::request::DEFAULT_FAIRNESS_ID;
use usher_plugin::Decision;

use super::record::Refusal;
use super::subject::{MODEL, Subject};
use super::text::bounded;
use crate::recorder::{Decided, Picked, ProfilePicked, Recorder, Refused};

/// Header with the name of a session, as session affinity reads it by default.
const SESSION: &str = "x-session-id";

/// Picks of a profile that are kept.
const PICKS: usize = 8;

/// Tokens of a block.
const BLOCK: NonZeroU32 = NonZeroU32::new(BLOCK_TOKENS).unwrap();

/// The part of a decision that is recorded.
pub(super) fn decided(
    recorder: &Recorder,
    subject: &Subject<'_>,
    decision: Option<&Decision>,
    refusal: Option<&Refusal>,
) -> Decided {
    let Subject { request, candidates, .. } = subject;
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let target = (request.target_model != request.model).then(|| bounded(&request.target_model, MODEL));
    let slo = request.slo();
    let line = RequestLine {
        model: bounded(&request.model, MODEL),
        target_model: target,
        priority: request.priority,
        stream: request.stream,
        body_bytes: request.body.len() as u64,
        prompt_tokens: subject.input_tokens,
        max_output_tokens: request.max_output_tokens,
        ttft_target_ms: slo.ttft.map(|seconds| seconds * 1e3),
        tpot_target_ms: slo.tpot.map(|seconds| seconds * 1e3),
        endpoints: count(candidates.snapshot().endpoints().len()),
        offered: count(candidates.len()),
        candidates: count(decision.map_or(candidates.len(), |decision| decision.candidates().len())),
        ..RequestLine::default()
    };
    let flow = Some(request.fairness_id()).filter(|name| *name != DEFAULT_FAIRNESS_ID);
    let session = request.headers.text(SESSION).or(request.agent.as_deref()).filter(|name| !name.is_empty());
    Decided {
        at: subject.at,
        received: request.received.unwrap_or(subject.at),
        line,
        blocks: Blocks::of(request, BLOCK, MAX_BLOCKS),
        flow: flow.map(|name| recorder.hash(name)),
        session: session.map(|name| recorder.hash(name)),
        profiles: decision.map(profiles).unwrap_or_default(),
        refused: refusal.map(|refusal| Refused { status: refusal.status, reason: refusal.reason }),
    }
}

fn profiles(decision: &Decision) -> Vec<ProfilePicked> {
    let first = decision.primary_endpoint();
    let is = |run: &usher_plugin::Run, other: Option<&usher_plugin::Run>| {
        other.is_some_and(|other| other.profile == run.profile)
    };
    let picked = |endpoint: &Arc<Endpoint>| {
        // It was booked a moment ago.
        let own = i64::from(Arc::ptr_eq(endpoint, first));
        let in_flight = u32::try_from(endpoint.load().in_flight() - own).unwrap_or_default();
        Picked { endpoint: Arc::clone(endpoint), in_flight }
    };
    let runs = decision.runs().iter();
    let profile = |run: &usher_plugin::Run| ProfilePicked {
        profile: bounded(decision.profile(run), MODEL),
        is_primary: is(run, Some(decision.primary())),
        is_prefill: is(run, decision.prefill()),
        picks: decision.endpoints_of(run).take(PICKS).map(picked).collect(),
    };
    runs.map(profile).collect()
}
