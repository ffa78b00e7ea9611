//! Parameters of the session affinity plugins.

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node, Positioned};
use usher_plugin::params::header_name;

/// How a session is recognized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The client sends the endpoint, which it got with an earlier answer.
    #[default]
    EncodedEndpointHeader,
    /// The client names its session, and its endpoint is known here.
    SessionId,
}

/// Parameters of `session-affinity-scorer` and `session-affinity-filter`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionAffinityParams {
    /// How a session is recognized. Default `encoded_endpoint_header`.
    pub strategy: Strategy,
    /// The header of that strategy. Default `x-session-token`.
    pub encoded_endpoint_header_config: HeaderConfig,
    /// The other strategy.
    pub session_id_config: SessionIdConfig,
    /// The profile whose pick the session is bound to; empty: the one that answers.
    pub profile_name: String,
}

/// Where the client keeps its endpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeaderConfig {
    /// Name of the header, of requests and of answers; lower case.
    pub header: String,
}

/// Sessions that are bound here.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionIdConfig {
    /// Where to look for the name of a session, in order. Default: the header `x-session-id`.
    pub sources: Vec<SourceParams>,
    /// Seconds after its last request in which a session stays bound. Default 300.
    pub eviction_ttl_seconds: u64,
    /// Seconds between sweeps. Default 10. Without effect: a binding doesn't count once
    /// its time is over, and goes with the next one that is made.
    pub eviction_sweep_seconds: u64,
}

/// One place to look for the name of a session.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceParams {
    /// A header; lower case.
    Header(String),
    /// What `agent-identity` found.
    AgentIdentity,
    /// What the `session-id-producer` of this name found.
    SessionId {
        /// Name of the producer. Default `session-id-producer`.
        producer: String,
    },
}

const DEFAULT_TTL_SECONDS: u64 = 300;
const DEFAULT_SWEEP_SECONDS: u64 = 10;

/// What `attribute` may name.
const AGENT_IDENTITY: &str = "agent-identity";
const SESSION_ID: &str = "SessionID";

impl SessionAffinityParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys and strategies, wrong types, names that can't be headers, sources
    /// that are not exactly one thing, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            strategy: Option<Strategy>,
            encoded_endpoint_header_config: WrittenHeader,
            session_id_config: WrittenSessionId,
            profile_name: String,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct WrittenHeader {
            header: Option<Name>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct WrittenSessionId {
            sources: Vec<Positioned<WrittenSource>>,
            eviction_ttl_seconds: u64,
            eviction_sweep_seconds: u64,
        }
        let written: Written = node.decode()?;
        let header = match written.encoded_endpoint_header_config.header {
            Some(name) if !name.value.is_empty() => header_name(&name)?,
            _ => "x-session-token".to_owned(),
        };
        let session = written.session_id_config;
        let mut sources =
            session.sources.into_iter().map(WrittenSource::checked).collect::<Result<Vec<_>, _>>()?;
        if sources.is_empty() {
            sources.push(SourceParams::Header("x-session-id".to_owned()));
        }
        let or = |seconds, default| if seconds == 0 { default } else { seconds };
        Ok(Self {
            strategy: written.strategy.unwrap_or_default(),
            encoded_endpoint_header_config: HeaderConfig { header },
            session_id_config: SessionIdConfig {
                sources,
                eviction_ttl_seconds: or(session.eviction_ttl_seconds, DEFAULT_TTL_SECONDS),
                eviction_sweep_seconds: or(session.eviction_sweep_seconds, DEFAULT_SWEEP_SECONDS),
            },
            profile_name: written.profile_name,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenSource {
    header: Option<Name>,
    attribute: Option<Name>,
    producer: Option<Name>,
}

impl WrittenSource {
    fn checked(Positioned { at, value }: Positioned<Self>) -> Result<SourceParams, ConfigError> {
        let there = |name: Option<Name>| name.filter(|name| !name.value.is_empty());
        let producer = there(value.producer);
        match (there(value.header), there(value.attribute)) {
            (Some(header), None) => match producer {
                None => header_name(&header).map(SourceParams::Header),
                Some(producer) => Err(ConfigError::at(producer.at, "producer: a header has none")
                    .hint("it belongs to an attribute")),
            },
            (None, Some(attribute)) => attribute_source(&attribute, producer),
            _ => Err(ConfigError::at(at, "sources: a source is exactly one of header and attribute")),
        }
    }
}

fn attribute_source(attribute: &Name, producer: Option<Name>) -> Result<SourceParams, ConfigError> {
    match attribute.value.as_str() {
        AGENT_IDENTITY => Ok(SourceParams::AgentIdentity),
        SESSION_ID | "session-id" => {
            let producer = producer.map_or_else(|| "session-id-producer".to_owned(), |name| name.value);
            Ok(SourceParams::SessionId { producer })
        }
        other => {
            let known = [AGENT_IDENTITY, SESSION_ID];
            Err(ConfigError::at(attribute.at, format!("attribute: unknown value '{other}'"))
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
    fn defaults_are_the_peers() {
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
    fn what_can_not_be_is_refused_at_its_place() {
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
