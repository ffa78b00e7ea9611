//! Parameters of the session affinity plugins.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::{header_name, or_default};

/// Recognition of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The client sends the endpoint, which it got with an earlier response.
    #[default]
    EncodedEndpointHeader,
    /// The client names its session, and its endpoint is known here.
    SessionId,
}

/// Parameters of `session-affinity-scorer` and `session-affinity-filter`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinityParams {
    /// Recognition of a session: by an endpoint that the client sends (encoded_endpoint_header), or by
    /// its name (session_id).
    pub strategy: Strategy,
    /// The header of the first strategy.
    pub encoded_endpoint_header_config: HeaderConfig,
    /// The other strategy.
    pub session_id_config: SessionIdConfig,
    /// The profile whose pick a session keeps; without it the primary one.
    pub profile_name: String,
}

/// Header or cookie in which the client keeps its endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HeaderConfig {
    /// The header with the endpoint, of responses and of the requests that follow.
    ///
    /// Lower case once it is read.
    pub header: String,
}

/// Sessions that are bound here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionIdConfig {
    /// Sources of a session's name, the first of which counts that is there: {header}, {attribute: agent-identity}
    /// or {attribute: SessionID, producer}.
    #[serde(deserialize_with = "read_later")]
    #[schemars(with = "Vec<serde_json::Value>", extend("default" = "[{header: x-session-id}]"))]
    pub sources: Vec<SourceParams>,
    /// Time for which a session keeps its endpoint after its last request. At most 100,000 sessions do.
    #[schemars(extend("x-unit" = "seconds"))]
    pub eviction_ttl_seconds: u64,
    /// Without effect: expired sessions don't count.
    #[schemars(extend("x-unit" = "seconds"))]
    pub eviction_sweep_seconds: u64,
}

impl Default for HeaderConfig {
    fn default() -> Self {
        Self { header: "x-session-token".to_owned() }
    }
}

impl Default for SessionIdConfig {
    fn default() -> Self {
        let sources = vec![SourceParams::Header("x-session-id".to_owned())];
        Self { sources, eviction_ttl_seconds: 300, eviction_sweep_seconds: 10 }
    }
}

/// One place to look for the name of a session.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceParams {
    /// A header; lower case.
    Header(String),
    /// The name that `agent-identity` found.
    AgentIdentity,
    /// The name that the `session-id-producer` of this name found.
    SessionId {
        /// Name of the producer. Default `session-id-producer`.
        producer: String,
    },
}

/// Values of `attribute`: this one, and `SESSION_ID` or `session-id`.
const AGENT_IDENTITY: &str = "agent-identity";
const SESSION_ID: &str = "SessionID";

impl SessionAffinityParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and strategies, wrong types, names that can't be
    /// headers, sources that are not exactly one thing.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let (mut params, default): (Self, Self) = (node.decode()?, Self::default());
        let header = &mut params.encoded_endpoint_header_config.header;
        or_default(header, &default.encoded_endpoint_header_config.header);
        *header = header_name(node.position_of("encodedEndpointHeaderConfig.header"), header)?;
        let (session, default) = (&mut params.session_id_config, default.session_id_config);
        let items = node.find("sessionIdConfig.sources").map(Node::items).unwrap_or_default();
        session.sources = match items {
            [] => default.sources,
            items => items.iter().map(Source::read).collect::<Result<_, _>>()?,
        };
        if session.eviction_ttl_seconds == 0 {
            session.eviction_ttl_seconds = default.eviction_ttl_seconds;
        }
        if session.eviction_sweep_seconds == 0 {
            session.eviction_sweep_seconds = default.eviction_sweep_seconds;
        }
        Ok(params)
    }
}

/// Checks that sources have the right types; what they mean is read with their places.
fn read_later<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SourceParams>, D::Error> {
    Vec::<Source>::deserialize(deserializer).map(|_| Vec::new())
}

/// A source as it is written.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Source {
    header: String,
    attribute: String,
    producer: String,
}

impl Source {
    fn read(node: &Node) -> Result<SourceParams, ConfigError> {
        let Self { header, attribute, producer } = node.decode()?;
        match (header.is_empty(), attribute.is_empty()) {
            (false, true) if producer.is_empty() => {
                header_name(node.position_of("header"), &header).map(SourceParams::Header)
            }
            (false, true) => {
                Err(ConfigError::at(node.position_of("producer"), "producer: a header has none")
                    .hint("it belongs to an attribute"))
            }
            (true, false) => attribute_source(node, &attribute, producer),
            _ => Err(ConfigError::at(node.at, "sources: a source is exactly one of header and attribute")),
        }
    }
}

fn attribute_source(node: &Node, attribute: &str, mut producer: String) -> Result<SourceParams, ConfigError> {
    match attribute {
        AGENT_IDENTITY => Ok(SourceParams::AgentIdentity),
        SESSION_ID | "session-id" => {
            or_default(&mut producer, "session-id-producer");
            Ok(SourceParams::SessionId { producer })
        }
        other => {
            let known = [AGENT_IDENTITY, SESSION_ID];
            let message = format!("attribute: unknown value '{other}'");
            Err(ConfigError::at(node.position_of("attribute"), message)
                .hint(format!("known here: {}", known.join(", ")))
                .did_you_mean(other, known))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Result<SessionAffinityParams, ConfigError> {
        SessionAffinityParams::decode(&Node::parse(text).unwrap())
    }

    #[test]
    fn defaults_match_llm_d_router() {
        for text in ["{}", "{sessionIdConfig: {sources: [], evictionTtlSeconds: 0}, profileName: ''}"] {
            let params = decode(text).unwrap();
            let expected = serde_json::json!({
                "strategy": "encoded_endpoint_header",
                "encodedEndpointHeaderConfig": {"header": "x-session-token"},
                "sessionIdConfig": {
                    "sources": [{"header": "x-session-id"}],
                    "evictionTtlSeconds": 300,
                    "evictionSweepSeconds": 10,
                },
                "profileName": "",
            });
            assert_eq!(serde_json::to_value(params).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn sources_are_read_in_their_order() {
        let params = decode(
            "{strategy: session_id, sessionIdConfig: {sources: [{header: X-A}, {attribute: agent-identity}, {attribute: SessionID}, {attribute: session-id, producer: mine}]}}",
        )
        .unwrap();
        let session = |producer: &str| SourceParams::SessionId { producer: producer.to_owned() };
        let expected = [
            SourceParams::Header("x-a".to_owned()),
            SourceParams::AgentIdentity,
            session("session-id-producer"),
            session("mine"),
        ];
        assert_eq!(params.session_id_config.sources, expected);
        assert_eq!(params.strategy, Strategy::SessionId);
    }

    #[test]
    fn invalid_parameters_are_refused_with_position() {
        let table = [
            ("{stategy: session_id}", "unknown field 'stategy'", 2),
            ("{strategy: telepathy}", "strategy: unknown value 'telepathy'", 12),
            ("{encodedEndpointHeaderConfig: {header: 'a b'}}", "'a b' can't be the name of a header", 40),
            (
                "{sessionIdConfig: {evictionTtlSeconds: -1}}",
                "evictionTtlSeconds: expected a whole number",
                40,
            ),
            ("{sessionIdConfig: {sources: [{}]}}", "exactly one of header and attribute", 30),
            (
                "{sessionIdConfig: {sources: [{header: a, attribute: agent-identity}]}}",
                "exactly one of header and attribute",
                30,
            ),
            ("{sessionIdConfig: {sources: [{header: a, producer: b}]}}", "producer: a header has none", 52),
            ("{sessionIdConfig: {sources: [{attribute: agent}]}}", "attribute: unknown value 'agent'", 42),
        ];
        for (text, message, column) in table {
            let error = decode(text).expect_err(text);
            assert!(error.message().contains(message), "{text}: {error}");
            assert_eq!(error.position().map(|at| at.column), Some(column), "{text}: {error}");
        }
    }
}
