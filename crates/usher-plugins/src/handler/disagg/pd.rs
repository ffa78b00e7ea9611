//! `pd-profile-handler`, the older one: who decodes, and who computes the prompt. It names
//! nobody in headers; `prefill-header-handler` does.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node, Positioned};
use usher_core::endpoints::Endpoint;
use usher_plugin::{
    Build, Built, Context, Decider, Decision, Effects, Kind, Parameter, Part, PluginId, PluginType,
    PreRequest, ProfileHandler, ProfileSet, Runs, ScheduleError, Site, beta, parameter,
};

use super::decisions::{Decisions, PdFamily};
use super::params::{StageOrder, StageProfiles};
use super::site::{pd_plugins, prompt_and_cached};
use super::stages::Stages;
use crate::handler::data_parallel::{PrimaryPort, port};

#[rustfmt::skip]
const PARAMETERS: &[Parameter] = &[
    parameter("decodeProfile", "decode", "", "The profile that picks who decodes and answers."),
    parameter("prefillProfile", "prefill", "", "The profile that picks who computes the prompt."),
    parameter("deciderPluginName", "prefix-based-pd-decider", "", "The plugin that says whether another endpoint computes the prompt. It has to be declared."),
    parameter("primaryPort", "0", "port", "The port of every pod that knows its ranks, as of data-parallel-profile-handler; 0: ranks are reached at their own ports."),
    parameter("prefixMatchInfoProducerName", "approx-prefix-cache-producer", "", "A producer that knows what is cached, to be added. Deciders look at the default one."),
    parameter("prefixPluginType, prefixPluginName", "none", "", "Deprecated, without effect."),
];

/// `pd-profile-handler` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("pd-profile-handler", &[Kind::ProfileHandler, Kind::PreRequest],
    "Picks who decodes, and where its decider says so who computes the prompt. It needs prefill-header-handler to name it in a header.",
    PARAMETERS, Build::Reading(build)).instead("disagg-profile-handler").refers_to(pd_plugins)
    .when("Not in new configurations.");

fn build(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = PdParams::decode(site.parameters)?;
    let decider = site.decider("deciderPluginName", &params.decider_plugin_name)?;
    prompt_and_cached(site, &params.prefix_match_info_producer_name);
    let id = PluginId::new("pd-profile-handler", site.name);
    let decisions = site.family(PdFamily::register)?.of(id);
    let plugin = Arc::new(PdProfileHandler::new(&params, decider, decisions));
    let handler = Some(Arc::clone(&plugin) as _);
    Ok(Built { handler, pre_request: Some(plugin), ..Built::with(&params)? })
}

/// Parameters of `pd-profile-handler`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PdParams {
    /// The profile that picks who decodes. Default `decode`.
    pub decode_profile: String,
    /// The profile that picks who computes the prompt. Default `prefill`.
    pub prefill_profile: String,
    /// The plugin that says whether another endpoint computes the prompt. Default
    /// `prefix-based-pd-decider`.
    #[serde(serialize_with = "text")]
    pub decider_plugin_name: Name,
    /// The port of every pod that knows its ranks. Default 0: ranks are reached at their
    /// own ports.
    pub primary_port: u16,
    /// The producer that knows what is cached. Default `approx-prefix-cache-producer`,
    /// which is the one that deciders look at.
    pub prefix_match_info_producer_name: String,
}

fn text<S: serde::Serializer>(name: &Name, serializer: S) -> Result<S::Ok, S::Error> {
    name.value.serialize(serializer)
}

impl PdParams {
    /// Reads the parameters. `prefixPluginType` and `prefixPluginName` are accepted and
    /// mean nothing, as with the peer.
    ///
    /// # Errors
    /// Unknown keys, wrong types, and what can't be a port, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            decode_profile: Option<String>,
            prefill_profile: Option<Name>,
            decider_plugin_name: Option<Name>,
            primary_port: Option<Positioned<i64>>,
            prefix_match_info_producer_name: Option<String>,
            #[serde(rename = "prefixPluginType")]
            _prefix_plugin_type: Option<String>,
            #[serde(rename = "prefixPluginName")]
            _prefix_plugin_name: Option<String>,
        }
        let written: Written = node.decode()?;
        let or = |written: Option<String>, default: &str| {
            written.filter(|name| !name.is_empty()).unwrap_or_else(|| default.to_owned())
        };
        let decode_profile = or(written.decode_profile, "decode");
        let at = written.prefill_profile.as_ref().map_or(node.at, |name| name.at);
        let prefill_profile = or(written.prefill_profile.map(|name| name.value), "prefill");
        if decode_profile == prefill_profile {
            let message = format!("the profile '{decode_profile}' is given to two stages");
            return Err(ConfigError::at(at, message).hint("every stage has a profile of its own"));
        }
        let default = || Name { at: node.at, value: "prefix-based-pd-decider".to_owned() };
        let decider = written.decider_plugin_name.filter(|name| !name.value.is_empty());
        Ok(Self {
            decode_profile,
            prefill_profile,
            decider_plugin_name: decider.unwrap_or_else(default),
            primary_port: written.primary_port.filter(|port| port.value != 0).map_or(Ok(0), port)?,
            prefix_match_info_producer_name: or(
                written.prefix_match_info_producer_name,
                "approx-prefix-cache-producer",
            ),
        })
    }
}

/// Runs the profile of decode, and that of prefill if its decider says so. With a primary
/// port it does what `data-parallel-profile-handler` does.
pub struct PdProfileHandler {
    stages: Stages,
    decisions: Decisions,
    primary_port: Option<PrimaryPort>,
}

impl PdProfileHandler {
    /// A handler with this decider, which counts in `decisions`.
    pub fn new(params: &PdParams, decider: Arc<dyn Decider>, decisions: Decisions) -> Self {
        let profiles = StageProfiles {
            decode: params.decode_profile.clone(),
            prefill: params.prefill_profile.clone(),
            encode: String::new(),
        };
        let (prefill, encode) = (Some(decider), None);
        let stages = Stages { order: StageOrder::DecodeFirst, profiles, prefill, is_joint: false, encode };
        let primary_port = Some(params.primary_port).filter(|port| *port > 0).map(PrimaryPort::new);
        Self { stages, decisions, primary_port }
    }
}

impl ProfileHandler for PdProfileHandler {
    fn next(&self, cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        self.stages.next(cx, runs)
    }

    fn finish(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        self.stages.finish(runs)
    }

    fn peer<'a>(&self, profile: usize, runs: &Runs<'a>) -> Option<&'a Arc<Endpoint>> {
        self.stages.peer(profile, runs)
    }

    fn part(&self, profile: usize, runs: &Runs<'_>) -> Part {
        self.stages.part(profile, runs)
    }

    fn prefill(&self) -> &str {
        &self.stages.profiles.prefill
    }

    fn check(&self, profiles: &[&str]) -> Result<Vec<String>, ConfigError> {
        self.stages.check("decodeProfile", profiles)
    }
}

impl PreRequest for PdProfileHandler {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        self.decisions.count(&cx.request.target_model, self.stages.split(decision));
        if let Some(port) = &self.primary_port {
            port.apply(decision, effects);
        }
    }
}
