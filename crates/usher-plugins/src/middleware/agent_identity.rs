//! `agent-identity`: which agent a request comes from, by the session that agents name
//! in a header. Requests that name no flow are queued under it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::request::Request;
use usher_plugin::params::header_name;
use usher_plugin::{Build, BuildContext, Kind, PluginParts, PluginType, RequestHeaderProcessor, beta};

/// `agent-identity` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("agent-identity", &[Kind::RequestHeader],
    "Uses the session that an agent names in a header as the flow of its requests.",
    Build::Reading(build)).takes::<AgentIdentityParams>().alpha()
    .when("Fairness between agents that name their session and no flow.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = AgentIdentityParams::decode(cx.parameters)?;
    let plugin = Arc::new(AgentIdentity::new(&params));
    Ok(PluginParts { header_processor: Some(plugin), ..PluginParts::with(&params)? })
}

/// The headers in which known agents name their session.
const KNOWN: [&str; 4] = ["x-claude-code-session-id", "x-session-affinity", "session-id", "session_id"];

/// Parameters of `agent-identity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentIdentityParams {
    /// Headers to look at before those of known agents.
    ///
    /// Lower case once they are read.
    pub additional_session_headers: Vec<String>,
}

impl AgentIdentityParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and names that can't be headers.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        let items = node.get("additionalSessionHeaders").map(Node::items).unwrap_or_default();
        for (header, item) in params.additional_session_headers.iter_mut().zip(items) {
            *header = header_name(item.at, header)?;
        }
        Ok(params)
    }
}

/// Notes the first session that a request's headers name.
#[derive(Clone, Debug)]
pub struct AgentIdentity {
    headers: Vec<String>,
}

impl AgentIdentity {
    /// Reads the additional headers first.
    pub fn new(params: &AgentIdentityParams) -> Self {
        let additional = params.additional_session_headers.iter().map(String::as_str);
        Self { headers: additional.chain(KNOWN).map(str::to_owned).collect() }
    }
}

impl RequestHeaderProcessor for AgentIdentity {
    fn process(&self, request: &mut Request) {
        let names = self.headers.iter().filter_map(|name| request.headers.text(name));
        let found = names.into_iter().find(|name| !name.is_empty()).map(str::to_owned);
        // Another instance may have found one already.
        request.agent = request.agent.take().or(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::request::{Parsers, RequestParser};

    fn params(text: &str) -> Result<AgentIdentityParams, ConfigError> {
        AgentIdentityParams::decode(&Node::parse(text).unwrap())
    }

    fn request(headers: &[(&str, &str)]) -> Request {
        let headers = headers.iter().copied().collect();
        RequestParser::new(headers, &Parsers::new(&[])).without_body()
    }

    fn agent(params: &AgentIdentityParams, headers: &[(&str, &str)]) -> Option<String> {
        let mut request = request(headers);
        AgentIdentity::new(params).process(&mut request);
        request.agent
    }

    #[test]
    fn the_first_header_that_is_not_empty_counts() {
        let known = AgentIdentityParams::default();
        let more = params("{additionalSessionHeaders: [X-Mine, x-session-affinity]}").unwrap();
        let claude = ("x-claude-code-session-id", "c");
        let table: [(&AgentIdentityParams, &[(&str, &str)], Option<&str>); 8] = [
            (&known, &[], None),
            (&known, &[("session_id", "codex"), claude], Some("c")),
            (&known, &[("x-claude-code-session-id", ""), ("session-id", "s")], Some("s")),
            (&known, &[("X-Session-Affinity", "a"), ("session-id", "s")], Some("a")),
            (&known, &[("session_id", "codex")], Some("codex")),
            (&known, &[("x-mine", "m")], None),
            (&more, &[claude, ("x-mine", "m")], Some("m")),
            (&more, &[claude, ("x-session-affinity", "a")], Some("a")),
        ];
        for (params, headers, expected) in table {
            assert_eq!(agent(params, headers).as_deref(), expected, "{headers:?}");
        }
    }

    #[test]
    fn an_agent_is_the_flow_of_requests_that_name_none() {
        let both = [("session-id", "s"), ("x-llm-d-inference-fairness-id", "team")];
        for (headers, flow) in [(&both[..], "team"), (&both[..1], "s"), (&[], "default-flow")] {
            let mut request = request(headers);
            AgentIdentity::new(&AgentIdentityParams::default()).process(&mut request);
            assert_eq!(request.fairness_id(), flow);
        }
    }

    #[test]
    fn agent_header_names_must_be_valid() {
        let table = [
            ("{additionalSessionHeaders: ['x y']}", "'x y' can't be the name of a header", 29),
            ("{additionalSessionHeaders: x}", "expected a list", 28),
            ("{headers: [x]}", "unknown field 'headers'", 2),
        ];
        for (text, message, column) in table {
            let error = params(text).unwrap_err();
            assert!(error.message().contains(message), "{error}");
            assert_eq!(error.position().map(|at| at.column), Some(column), "{error}");
        }
    }
}
