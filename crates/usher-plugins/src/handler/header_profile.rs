//! `header-profile-handler`: the request says which profile it wants.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smallvec::smallvec;
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::or_default;
use usher_plugin::{
    Build, BuildContext, Context, Kind, Outcome, PluginParts, PluginType, ProfileHandler, ProfileSet, Runs,
    ScheduleError, beta,
};

/// `header-profile-handler` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("header-profile-handler", &[Kind::ProfileHandler],
    "Runs the profile that a header of the request names.",
    Build::Reading(build)).takes::<HeaderProfileParams>().alpha()
    .when("Clients or the gateway know which kind of request it is.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = HeaderProfileParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?.with_summary(params.summary());
    Ok(PluginParts { handler: Some(Arc::new(HeaderProfileHandler::new(params))), ..parts })
}

/// Parameters of `header-profile-handler`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HeaderProfileParams {
    /// The header.
    ///
    /// Lower case once it is read.
    pub header_name: String,
    /// The profile of requests without the header.
    pub default_profile: String,
}

impl Default for HeaderProfileParams {
    fn default() -> Self {
        Self { header_name: "EPP-Profile".to_owned(), default_profile: "decode".to_owned() }
    }
}

impl HeaderProfileParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let (header, profile) = (&self.header_name, &self.default_profile);
        format!("Runs the profile that the header {header} of the request names, and '{profile}' without it.")
    }
}

impl HeaderProfileParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and wrong types.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (mut params, default): (Self, Self) = (node.decode()?, Self::default());
        or_default(&mut params.header_name, &default.header_name);
        or_default(&mut params.default_profile, &default.default_profile);
        params.header_name.make_ascii_lowercase();
        Ok(params)
    }
}

/// Runs the profile that a header names; the only one, if there is one.
#[derive(Clone, Debug)]
pub struct HeaderProfileHandler {
    params: HeaderProfileParams,
}

impl HeaderProfileHandler {
    /// A handler with these parameters.
    pub fn new(params: HeaderProfileParams) -> Self {
        Self { params }
    }

    /// The profile for this request.
    fn wanted(&self, cx: &Context<'_>, runs: &Runs<'_>) -> Option<usize> {
        if runs.len() == 1 {
            return Some(0);
        }
        let header = cx.request.headers.get(&self.params.header_name).filter(|value| !value.is_empty());
        match header {
            Some(name) => runs.find(std::str::from_utf8(name).ok()?),
            None => runs.find(&self.params.default_profile),
        }
    }
}

impl ProfileHandler for HeaderProfileHandler {
    fn next(&self, cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        match self.wanted(cx, runs) {
            Some(profile) if matches!(runs.outcome(profile), Outcome::Waiting) => smallvec![profile],
            _ => ProfileSet::new(),
        }
    }

    fn finish(&self, cx: &Context<'_>, runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        let failed = |text: String| Err(ScheduleError::NoTarget(text));
        match self.wanted(cx, runs) {
            Some(profile) if matches!(runs.outcome(profile), Outcome::Picked(_)) => Ok(profile),
            Some(profile) => failed(format!("failed to run scheduler profile '{}'", runs.name(profile))),
            // What the client wrote is not repeated.
            None => failed(format!(
                "the header {} names no scheduling profile, and without it the profile is '{}'",
                self.params.header_name, self.params.default_profile
            )),
        }
    }
}
