//! `pd-profile-handler`, deprecated: picks decode and prefill endpoints. Sets no headers;
//! `prefill-header-handler` does.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node};
use usher_core::endpoints::Endpoint;
use usher_plugin::params::or_default;
use usher_plugin::{
    Build, BuildContext, Context, Decider, Decision, Effects, Kind, Part, PluginId, PluginParts, PluginType,
    PreRequest, ProfileHandler, ProfileSet, Runs, ScheduleError, beta,
};

use super::decisions::{Decisions, PdFamily};
use super::params::StageOrder;
use super::references::{PREFIX_PRODUCER, name, pd_plugins, prompt_and_cached};
use super::stages::Stages;
use super::written::StageProfiles;
use crate::handler::data_parallel::{PrimaryPort, check_port};

/// `pd-profile-handler` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("pd-profile-handler", &[Kind::ProfileHandler, Kind::PreRequest],
    "Picks the decode endpoint and, where its decider requires it, the prefill endpoint. Needs prefill-header-handler, which names that one in a header.",
    Build::Reading(build)).takes::<PdParams>().instead("disagg-profile-handler").refers_to(pd_plugins)
    .when("Not in new configurations.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = PdParams::decode(cx.parameters)?;
    let key = "deciderPluginName";
    // The default stands where the parameters do.
    let at = name(cx.parameters, key).map_or(cx.parameters.at, |name| name.at);
    let decider = cx.decider(key, &Name { at, value: params.decider_plugin_name.clone() })?;
    prompt_and_cached(cx, &params.prefix_match_info_producer_name);
    let id = PluginId::new("pd-profile-handler", cx.name);
    let decisions = cx.family(PdFamily::register)?.of(cx.state, id);
    let plugin = Arc::new(PdProfileHandler::new(&params, decider, decisions));
    let handler = Some(Arc::clone(&plugin) as _);
    Ok(PluginParts {
        handler,
        pre_request: Some(plugin),
        ..PluginParts::with(&params)?.with_summary(params.summary())
    })
}

/// Parameters of `pd-profile-handler`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PdParams {
    /// Profile that picks the decode endpoint.
    pub decode_profile: String,
    /// Profile that picks the prefill endpoint.
    pub prefill_profile: String,
    /// The plugin that says whether another endpoint computes the prompt. It has to be declared.
    pub decider_plugin_name: String,
    /// The port of every pod that knows its ranks, as of data-parallel-profile-handler; 0: ranks are
    /// reached at their own ports.
    #[schemars(extend("x-unit" = "port"))]
    pub primary_port: i64,
    /// A producer that knows what is cached, to be added. Deciders look at the default one.
    pub prefix_match_info_producer_name: String,
    /// Deprecated, without effect.
    #[serde(skip_serializing)]
    prefix_plugin_type: Option<String>,
    /// Deprecated, without effect.
    #[serde(skip_serializing)]
    prefix_plugin_name: Option<String>,
}

impl Default for PdParams {
    fn default() -> Self {
        Self {
            decode_profile: "decode".to_owned(),
            prefill_profile: "prefill".to_owned(),
            decider_plugin_name: "prefix-based-pd-decider".to_owned(),
            primary_port: 0,
            prefix_match_info_producer_name: PREFIX_PRODUCER.to_owned(),
            prefix_plugin_type: None,
            prefix_plugin_name: None,
        }
    }
}

impl PdParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let Self { decode_profile, prefill_profile, decider_plugin_name, .. } = self;
        format!(
            "Runs the profile '{decode_profile}', whose pick responds, and where {decider_plugin_name} says so '{prefill_profile}', whose pick computes the prompt."
        )
    }
}

impl PdParams {
    /// Reads the parameters. `prefixPluginType` and `prefixPluginName` are accepted and
    /// mean nothing, as in llm-d-router.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and what can't be a port.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (mut params, default): (Self, Self) = (node.decode()?, Self::default());
        or_default(&mut params.decode_profile, &default.decode_profile);
        or_default(&mut params.prefill_profile, &default.prefill_profile);
        or_default(&mut params.decider_plugin_name, &default.decider_plugin_name);
        or_default(&mut params.prefix_match_info_producer_name, &default.prefix_match_info_producer_name);
        if params.decode_profile == params.prefill_profile {
            let message = format!("the profile '{}' is given to two stages", params.decode_profile);
            return Err(ConfigError::at(node.position_of("prefillProfile"), message)
                .hint("every stage has a profile of its own"));
        }
        if params.primary_port != 0 {
            check_port(node, params.primary_port)?;
        }
        Ok(params)
    }
}

/// Runs the profile of decode, and that of prefill if its decider says so. With a primary
/// port it does what `data-parallel-profile-handler` does.
pub struct PdProfileHandler {
    stages: Stages,
    decisions: Arc<Decisions>,
    primary_port: Option<PrimaryPort>,
}

impl PdProfileHandler {
    /// A handler with this decider, which counts in `decisions`.
    pub fn new(params: &PdParams, decider: Arc<dyn Decider>, decisions: Arc<Decisions>) -> Self {
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
