//! `disagg-profile-handler`: picks decode, prefill and encode endpoints for images,
//! videos and clips.

use std::sync::Arc;

use rand::Rng;
use usher_core::config::{ConfigError, Name};
use usher_core::endpoints::Endpoint;
use usher_plugin::{
    Build, BuildContext, Context, Decider, Decision, Effects, Kind, Part, PluginId, PluginParts, PluginType,
    PreRequest, ProfileHandler, ProfileSet, Runs, ScheduleError, Settlement, beta,
};

use super::decisions::{Decisions, DisaggFamily};
use super::joint::Joint;
use super::params::DisaggParams;
use super::references::{PREFIX_PRODUCER, named_deciders, prompt_and_cached};
use super::stages::Stages;
use super::written::Written;
use crate::handler::{DisaggHeaders, DisaggHeadersParams};
use crate::latency::{reads_latency, transfers};

/// `disagg-profile-handler` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("disagg-profile-handler", &[Kind::ProfileHandler, Kind::PreRequest],
    "Picks the decode endpoint and, where its deciders require it, the prefill endpoint and encode endpoints for images, videos and clips. It names these in the headers x-prefiller-host-port and x-encoder-hosts-ports.",
    Build::Reading(build)).takes::<Written>().refers_to(named_deciders)
    .when("Disaggregated pools, whose decoding pods have a sidecar that reads these headers.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = DisaggParams::decode(cx.parameters)?;
    let decider = |key, name: &Option<Name>| name.as_ref().map(|name| cx.decider(key, name)).transpose();
    let prefill_key = params.flat.unwrap_or("deciders.prefill");
    let encode_key = if params.flat.is_some() { "encodeDeciderPluginName" } else { "deciders.encode" };
    let prefill = decider(prefill_key, &params.prefill_decider)?;
    let encode = decider(encode_key, &params.encode_decider)?;
    prompt_and_cached(cx, PREFIX_PRODUCER);
    let joint = match params.joint.clone() {
        Some(params) => {
            let reader = reads_latency(cx, params.peak_prefill_throughput, PREFIX_PRODUCER)?;
            // There is one handler.
            let _ = transfers(cx).set(params.transfers());
            Some(Joint::new(params, reader))
        }
        None => None,
    };
    let books = joint.is_some();
    let id = PluginId::new("disagg-profile-handler", cx.name);
    let decisions = cx.family(DisaggFamily::register)?.of(cx.state, id);
    let alone = DisaggProfileHandler::new(&params, prefill, encode, decisions);
    let plugin = Arc::new(match joint {
        Some(joint) => alone.paired(joint),
        None => alone,
    });
    let handler = Some(Arc::clone(&plugin) as _);
    Ok(PluginParts {
        handler,
        pre_request: Some(plugin),
        parameters: params.shown(),
        summary: Some(params.summary()),
        books,
        ..PluginParts::default()
    })
}

/// Runs the profiles of the stages and names who was picked in headers, for the sidecar of
/// who decodes.
pub struct DisaggProfileHandler {
    stages: Stages,
    headers: DisaggHeaders,
    decisions: Arc<Decisions>,
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
        decisions: Arc<Decisions>,
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
