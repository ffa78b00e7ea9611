//! Plugins that find other replicas, and that tell them things: accepted, their parameters
//! checked, without effect in this version.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use usher_plugin::Kind::{PeerDiscovery, Syncer};
use usher_plugin::{Build, Built, PluginType, Site, beta, parameter};

use crate::config::units::parse_duration;
use crate::config::{ConfigError, Name, Node, Positioned};

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("k8s-peer-discovery", &[PeerDiscovery],
        "Would find the other replicas by their pods. Accepted without effect: replicas share no state in this version.",
        &[
            parameter("selector", "", "", "Labels of the replicas' pods, as of kubectl -l."),
            parameter("port", "", "", "Port on which replicas would listen for each other, in quotes."),
            parameter("namespace", "", "", "Namespace of the pods."),
        ],
        Build::Reading(k8s_peer_discovery))
        .when("Never; a configuration that has it works."),
    beta("local-syncer", &[Syncer],
        "Would keep for itself what others share. Accepted without effect: replicas share no state in this version.",
        &[], Build::Ignoring(local_syncer))
        .when("Never; a configuration that has it works."),
    beta("redis-syncer", &[Syncer],
        "Would share what is in flight through Redis. Accepted without effect: replicas share no state in this version.",
        &[
            parameter("address", "localhost:6379", "", "Host and port of Redis."),
            parameter("password", "none", "", "Its password, which is never shown."),
            parameter("passwordEnv", "none", "", "The environment variable with the password."),
            parameter("passwordFile", "none", "", "The file with the password."),
            parameter("db", "0", "", "Number of the database."),
            parameter("stateTTL", "2s", "duration", "For how long what a replica said counts."),
            parameter("ttl", "none", "duration", "The same under its older name."),
            parameter("coordinationTTL", "180s", "duration", "For how long what replicas agreed on counts."),
        ],
        Build::Reading(redis_syncer))
        .when("Never; a configuration that has it works."),
];

/// Parameters of `k8s-peer-discovery`.
#[derive(Serialize)]
struct PeerDiscoveryParams {
    selector: String,
    port: String,
    namespace: String,
}

impl PeerDiscoveryParams {
    fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Deserialize)]
        struct Written {
            selector: Name,
            port: Name,
            namespace: Name,
        }
        let Written { selector, port, namespace } = node.decode()?;
        for (field, written, example) in
            [("selector", &selector, "app=usher"), ("namespace", &namespace, "default")]
        {
            if written.value.is_empty() {
                let message = format!("'{field}' is empty");
                return Err(ConfigError::at(written.at, message).hint(format!("write for example {example}")));
            }
        }
        if port.value.parse().is_ok_and(|port: u16| port > 0) {
            return Ok(Self { selector: selector.value, port: port.value, namespace: namespace.value });
        }
        Err(ConfigError::at(port.at, format!("port '{}' is none", port.value)).hint("1 to 65535"))
    }
}

/// Parameters of `redis-syncer`, without the password.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RedisSyncerParams {
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    password_env: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    password_file: Option<String>,
    db: u32,
    #[serde(rename = "stateTTL")]
    state_ttl: String,
    #[serde(rename = "coordinationTTL")]
    coordination_ttl: String,
}

impl RedisSyncerParams {
    fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            address: Option<String>,
            // As it is: an error must not quote it.
            password: Option<Node>,
            password_env: Option<String>,
            password_file: Option<String>,
            db: u32,
            #[serde(rename = "stateTTL")]
            state_ttl: Option<Name>,
            ttl: Option<Name>,
            #[serde(rename = "coordinationTTL")]
            coordination_ttl: Option<Name>,
        }
        let written: Written = node.decode()?;
        if let Some(password) = written.password.filter(|password| password.text().is_none()) {
            return Err(ConfigError::at(password.at, "password is no text").hint("write it in quotes"));
        }
        let older = lasts("ttl", written.ttl, Duration::from_secs(2))?;
        Ok(Self {
            address: written.address.unwrap_or_else(|| "localhost:6379".to_owned()),
            password_env: written.password_env,
            password_file: written.password_file,
            db: written.db,
            state_ttl: shown(lasts("stateTTL", written.state_ttl, older)?),
            coordination_ttl: shown(lasts(
                "coordinationTTL",
                written.coordination_ttl,
                Duration::from_secs(180),
            )?),
        })
    }
}

/// How long something lasts that is written like this, or as long as by default.
fn lasts(field: &str, written: Option<Name>, default: Duration) -> Result<Duration, ConfigError> {
    let Some(Positioned { at, value }) = written.filter(|written| !written.value.is_empty()) else {
        return Ok(default);
    };
    parse_duration(&value).map_err(|text| ConfigError::at(at, format!("{field}: {text}")))
}

fn shown(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

fn k8s_peer_discovery(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Built::with(&PeerDiscoveryParams::decode(site.parameters)?)
}

fn local_syncer(_: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built::bare())
}

fn redis_syncer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Built::with(&RedisSyncerParams::decode(site.parameters)?)
}
