//! `disagg-profile-handler`: who decodes, who computes the prompt, who encodes its images,
//! videos and clips.

use std::sync::Arc;

use rand::Rng;
use usher_core::config::{ConfigError, Name};
use usher_core::endpoints::Endpoint;
use usher_plugin::{
    Build, Built, Context, Decider, Decision, Effects, Kind, Parameter, Part, PluginId, PluginType,
    PreRequest, ProfileHandler, ProfileSet, Runs, ScheduleError, Settlement, Site, beta, parameter,
};

use super::decisions::{Decisions, DisaggFamily};
use super::joint::Joint;
use super::params::DisaggParams;
use super::site::{PREFIX_PRODUCER, named_deciders, prompt_and_cached};
use super::stages::Stages;
use crate::handler::{DisaggHeaders, DisaggHeadersParams};
use crate::latency::{reads_latency, transfers};

#[rustfmt::skip]
const PARAMETERS: &[Parameter] = &[
    parameter("stageOrder", "decode-first", "", "decode-first, or prefill-first: then prefill always runs. The second of them sees what the first one picked."),
    parameter("profiles.decode", "decode", "", "The profile that picks who decodes and answers."),
    parameter("profiles.prefill", "prefill", "", "The profile that picks who computes the prompt."),
    parameter("profiles.encode", "encode", "", "The profile that picks who encodes."),
    parameter("deciders.prefill", "none", "", "The plugin that says whether another endpoint computes the prompt. Without it none does, unless prefill comes first; with pairing joint, one does where that costs less."),
    parameter("deciders.encode", "none", "", "The plugin that says whether other endpoints encode. Without it none does."),
    parameter("pairing", "independent", "", "independent: each profile picks alone. joint: prefill and decode are chosen together, by the delay of the request and of others; a decoding endpoint that would do it all competes with every pair, unless the decider says yes to all. What follows goes with joint; all of it is Usher's own."),
    parameter("pairCandidates", "4", "endpoints", "So many of the best of either profile are looked at, 1 to 8; of equals those that cost the least."),
    parameter("kvBytesPerToken", "262144", "bytes", "KV cache per token of the prompt. Tokens that the decoding endpoint has are not moved."),
    parameter("peakPrefillThroughput", "15928", "tokens/s", "Prompt tokens that an endpoint computes per second, until its first tokens say so."),
    parameter("links.host, links.rack, links.zone, links.region, links.none", "50e9", "bytes/s", "How fast a KV cache travels between two endpoints, by the narrowest place that they share, until first tokens say so. A layer that is left out is as fast as the next wider one; none is slower than a wider one."),
    parameter("kvCacheLimit", "0.95", "", "Decoding endpoints with more of their KV cache in use, or on its way there, are out, unless all are."),
    parameter("constraintMode", "Preferred", "", "Preferred: places count as much as they cost. Required: pairs outside of constraintLayer are forbidden."),
    parameter("constraintLayer", "none", "", "host, rack, zone or region, with constraintMode Required."),
    parameter("revisionLabel", "disaggregatedset.x-k8s.io/revision", "", "Pods whose values of this label differ are never paired; pods without it fit all. Empty: all fit."),
    parameter("decodeProfile, prefillProfile, encodeProfile, prefillDeciderPluginName, deciderPluginName, encodeDeciderPluginName", "none", "", "The same in the flat form of older versions, deprecated; not together with profiles or deciders."),
];

/// `disagg-profile-handler` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("disagg-profile-handler", &[Kind::ProfileHandler, Kind::PreRequest],
    "Picks who decodes, and where its deciders say so who computes the prompt and who encodes its images, videos and clips. It names them in the headers x-prefiller-host-port and x-encoder-hosts-ports.",
    PARAMETERS, Build::Reading(build)).refers_to(named_deciders)
    .when("Disaggregated pools, whose decoding pods have a sidecar that reads these headers.");

fn build(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = DisaggParams::decode(site.parameters)?;
    let decider = |key, name: &Option<Name>| name.as_ref().map(|name| site.decider(key, name)).transpose();
    let prefill_key = params.flat.unwrap_or("deciders.prefill");
    let encode_key = if params.flat.is_some() { "encodeDeciderPluginName" } else { "deciders.encode" };
    let prefill = decider(prefill_key, &params.prefill_decider)?;
    let encode = decider(encode_key, &params.encode_decider)?;
    prompt_and_cached(site, PREFIX_PRODUCER);
    let joint = match params.joint.clone() {
        Some(params) => {
            let reader = reads_latency(site, params.peak_prefill_throughput, PREFIX_PRODUCER)?;
            // There is one handler.
            let _ = transfers(site).set(params.transfers());
            Some(Joint::new(params, reader))
        }
        None => None,
    };
    let books = joint.is_some();
    let id = PluginId::new("disagg-profile-handler", site.name);
    let decisions = site.family(DisaggFamily::register)?.of(id);
    let alone = DisaggProfileHandler::new(&params, prefill, encode, decisions);
    let plugin = Arc::new(match joint {
        Some(joint) => alone.paired(joint),
        None => alone,
    });
    let handler = Some(Arc::clone(&plugin) as _);
    Ok(Built { handler, pre_request: Some(plugin), parameters: params.shown(), books, ..Built::default() })
}

/// Runs the profiles of the stages and names who was picked in headers, for the sidecar of
/// who decodes.
pub struct DisaggProfileHandler {
    stages: Stages,
    headers: DisaggHeaders,
    decisions: Decisions,
    joint: Option<Joint>,
    is_flat: bool,
}

impl DisaggProfileHandler {
    /// A handler with these deciders of prefill and of encode, which counts in `decisions`.
    /// Each profile picks alone.
    pub fn new(
        params: &DisaggParams,
        prefill: Option<Arc<dyn Decider>>,
        encode: Option<Arc<dyn Decider>>,
        decisions: Decisions,
    ) -> Self {
        let profiles = params.profiles.clone();
        let headers = DisaggHeaders::new(DisaggHeadersParams {
            prefill_profile: Some(profiles.prefill.clone()),
            encode_profile: profiles.encode.clone(),
        });
        let stages = Stages { order: params.stage_order, profiles, prefill, is_joint: false, encode };
        Self { stages, headers, decisions, joint: None, is_flat: params.flat.is_some() }
    }

    /// Prefill and decode are chosen together.
    #[must_use]
    pub fn paired(mut self, joint: Joint) -> Self {
        self.stages.is_joint = true;
        Self { joint: Some(joint), ..self }
    }
}

impl ProfileHandler for DisaggProfileHandler {
    fn next(&self, cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        self.stages.next(cx, runs)
    }

    fn finish(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        self.stages.finish(runs)
    }

    fn peer<'a>(&self, profile: usize, runs: &Runs<'a>) -> Option<&'a Arc<Endpoint>> {
        self.stages.peer(profile, runs)
    }

    fn keeps_totals(&self, profile: &str) -> bool {
        let profiles = &self.stages.profiles;
        self.joint.is_some() && [&profiles.decode, &profiles.prefill].iter().any(|name| *name == profile)
    }

    fn settle(
        &self,
        cx: &Context<'_>,
        open: &mut Settlement<'_>,
        rng: &mut dyn Rng,
    ) -> Result<(), ScheduleError> {
        let profiles = &self.stages.profiles;
        let runs = open.runs();
        match (&self.joint, runs.find(&profiles.prefill), runs.find(&profiles.decode)) {
            (Some(joint), Some(prefill), Some(decode)) => {
                joint.settle(cx, open, (prefill, decode), self.stages.splitting(), rng)
            }
            _ => Ok(()),
        }
    }

    fn part(&self, profile: usize, runs: &Runs<'_>) -> Part {
        self.stages.part(profile, runs)
    }

    fn prefill(&self) -> &str {
        &self.stages.profiles.prefill
    }

    fn check(&self, profiles: &[&str]) -> Result<Vec<String>, ConfigError> {
        let key = if self.is_flat { "decodeProfile" } else { "profiles.decode" };
        let mut notes = self.stages.check(key, profiles)?;
        if self.is_flat {
            notes.push("its flat parameters are deprecated, write profiles and deciders".to_owned());
        }
        Ok(notes)
    }
}

impl PreRequest for DisaggProfileHandler {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        self.decisions.count(&cx.request.target_model, self.stages.split(decision));
        self.headers.decided(cx, decision, effects);
        if let Some(joint) = &self.joint {
            joint.book(cx, decision, effects);
        }
    }
}
