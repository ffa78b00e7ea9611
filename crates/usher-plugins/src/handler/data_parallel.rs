//! `data-parallel-profile-handler`: pods whose ranks stand behind one port.

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::refused;
use usher_plugin::{
    Build, BuildContext, Context, Decision, Effects, Kind, PluginParts, PluginType, PreRequest,
    ProfileHandler, ProfileSet, Runs, ScheduleError, beta,
};

use super::SingleProfileHandler;

/// `data-parallel-profile-handler` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("data-parallel-profile-handler", &[Kind::ProfileHandler, Kind::PreRequest],
    "Sends requests to one port of the chosen pods, and names the chosen rank in a header.",
    Build::Reading(build)).takes::<DataParallelParams>()
    .when("Data-parallel ranks behind one port of their pod, with a sidecar that passes requests on.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = DataParallelParams::decode(cx.parameters)?;
    let plugin = Arc::new(DataParallelProfileHandler::new(params));
    let handler = Some(Arc::clone(&plugin) as _);
    Ok(PluginParts { handler, pre_request: Some(plugin), ..PluginParts::with(&params)? })
}

/// Parameters of `data-parallel-profile-handler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DataParallelParams {
    /// The port of every pod that knows its ranks.
    #[schemars(extend("x-unit" = "port"))]
    pub primary_port: i64,
}

impl Default for DataParallelParams {
    fn default() -> Self {
        Self { primary_port: 8000 }
    }
}

impl DataParallelParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and what can't be a port.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        check_port(node, params.primary_port)?;
        Ok(params)
    }
}

/// Checks a primary port.
pub(super) fn check_port(parameters: &Node, port: i64) -> Result<(), ConfigError> {
    match (1..=65535).contains(&port) {
        true => Ok(()),
        false => Err(refused(parameters, "primaryPort", port).hint("ports are 1 to 65535")),
    }
}

/// The port of every pod behind which its ranks are.
#[derive(Clone, Debug)]
pub(super) struct PrimaryPort {
    port: u16,
    header: Arc<str>,
}

impl PrimaryPort {
    pub(super) fn new(port: i64) -> Self {
        let port = u16::try_from(port).unwrap_or_default();
        Self { port, header: "x-data-parallel-host-port".into() }
    }

    /// Sends the request to the port, and names the rank that was chosen.
    pub(super) fn apply(&self, decision: &Decision, effects: &mut Effects) {
        let rank = decision.primary_endpoint().authority();
        effects.set_header(&self.header, Bytes::copy_from_slice(rank.as_bytes()));
        effects.set_port(self.port);
    }
}

/// Runs the only profile. The request goes to the primary port of the chosen pods, and
/// the header `x-data-parallel-host-port` names the rank that was chosen.
#[derive(Clone, Debug)]
pub struct DataParallelProfileHandler {
    primary_port: PrimaryPort,
}

impl DataParallelProfileHandler {
    /// A handler with these parameters.
    pub fn new(params: DataParallelParams) -> Self {
        Self { primary_port: PrimaryPort::new(params.primary_port) }
    }
}

impl ProfileHandler for DataParallelProfileHandler {
    fn next(&self, cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        SingleProfileHandler.next(cx, runs)
    }

    fn finish(&self, cx: &Context<'_>, runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        SingleProfileHandler.finish(cx, runs)
    }
}

impl PreRequest for DataParallelProfileHandler {
    fn decided(&self, _cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        self.primary_port.apply(decision, effects);
    }
}
