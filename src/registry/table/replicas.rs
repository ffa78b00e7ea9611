//! Plugins that find other replicas, and that publish to them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_plugin::Kind::{PeerDiscovery, Syncer as SyncerKind};
use usher_plugin::{Build, BuildContext, PluginParts, PluginType, beta};

use crate::config::units::parse_duration;
use crate::config::{ConfigError, Node};
use crate::settings::{Secret, StateStoreSettings, StoreAddress, StorePassword};

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("k8s-peer-discovery", &[PeerDiscovery],
        "Would find the other replicas by their pods. Accepted without effect: replicas find each other through the state store.",
        Build::Reading(k8s_peer_discovery)).takes::<PeerDiscoveryParams>()
        .when("Never; a configuration that has it works."),
    beta("local-syncer", &[SyncerKind],
        "Keeps for this replica what others share.",
        Build::Ignoring(local_syncer))
        .when("Replicas that are not to know of each other's load."),
    beta("redis-syncer", &[SyncerKind],
        "Shares what is in flight, and prefixes, through Redis or Valkey.",
        Build::Reading(redis_syncer)).takes::<RedisSyncerParams>()
        .when("Several replicas that serve at the same time, in place of `--state-store`."),
    beta("redis-state-store", &[SyncerKind],
        "The same as `redis-syncer`.",
        Build::Reading(redis_syncer)).takes::<RedisSyncerParams>()
        .when("As `redis-syncer`."),
];

/// Sharing of state that a plugin stands for.
#[derive(Clone, Debug)]
pub(in crate::registry) enum Syncer {
    /// Nothing is shared.
    Local,
    /// Through this store.
    Store(StateStoreSettings),
}

/// Parameters of `k8s-peer-discovery`.
#[derive(Serialize, Deserialize, JsonSchema)]
struct PeerDiscoveryParams {
    /// Labels of the replicas' pods, as of kubectl -l.
    selector: String,
    /// Port on which replicas would listen for each other, in quotes.
    port: String,
    /// Namespace of the pods.
    namespace: String,
}

impl PeerDiscoveryParams {
    fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        for (key, value, example) in
            [("selector", &params.selector, "app=usher"), ("namespace", &params.namespace, "default")]
        {
            if value.is_empty() {
                return Err(ConfigError::at(node.position_of(key), format!("'{key}' is empty"))
                    .hint(format!("write for example {example}")));
            }
        }
        if params.port.parse().is_ok_and(|port: u16| port > 0) {
            return Ok(params);
        }
        let message = format!("port '{}' is none", params.port);
        Err(ConfigError::at(node.position_of("port"), message).hint("1 to 65535"))
    }
}

/// Parameters of `redis-syncer`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct RedisSyncerParams {
    /// Host and port of Redis or Valkey.
    address: String,
    /// Password, which is never shown.
    ///
    /// As it is: an error must not quote it.
    #[serde(skip_serializing)]
    #[schemars(with = "Option<String>")]
    password: Option<Node>,
    /// The environment variable with the password, unless that is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    password_env: Option<String>,
    /// The file with the password, unless one of the others is given; read again for every connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    password_file: Option<String>,
    /// Number of the database.
    db: u32,
    /// For how long what a replica said counts.
    #[serde(rename = "stateTTL")]
    #[schemars(extend("x-unit" = "duration", "default" = "2s"))]
    state_ttl: String,
    /// Older name of `stateTTL`.
    #[serde(skip_serializing)]
    #[schemars(extend("x-unit" = "duration"))]
    ttl: String,
    /// For how long what replicas agreed on counts. No effect: prefixes of a silent replica stay.
    #[serde(rename = "coordinationTTL")]
    #[schemars(extend("x-unit" = "duration", "default" = "180s"))]
    coordination_ttl: String,
}

impl Default for RedisSyncerParams {
    fn default() -> Self {
        Self {
            address: "localhost:6379".to_owned(),
            password: None,
            password_env: None,
            password_file: None,
            db: 0,
            state_ttl: String::new(),
            ttl: String::new(),
            coordination_ttl: String::new(),
        }
    }
}

impl RedisSyncerParams {
    fn decode(node: &Node) -> Result<(Self, StateStoreSettings), ConfigError> {
        let mut params: Self = node.decode()?;
        let mut password = None;
        if let Some(written) = &params.password {
            let text = written.text().ok_or_else(|| {
                ConfigError::at(written.at, "password is no text").hint("write it in quotes")
            })?;
            password = Some(text.to_owned()).filter(|text| !text.is_empty());
        }
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let password = password.map(|text| StorePassword::Text(Secret(text)));
        let password = password.or_else(|| given(&params.password_env).map(StorePassword::Variable));
        let password =
            password.or_else(|| given(&params.password_file).map(|file| StorePassword::File(file.into())));
        let older = lasts(node, "ttl", &params.ttl, StateStoreSettings::STATE_TTL)?;
        let state_ttl = lasts(node, "stateTTL", &params.state_ttl, older)?;
        params.state_ttl = shown(state_ttl);
        let agreed = Duration::from_secs(180);
        params.coordination_ttl = shown(lasts(node, "coordinationTTL", &params.coordination_ttl, agreed)?);
        let address = StoreAddress::tcp(false, &params.address).map_err(|why| {
            // Not repeated: there may be a password in it.
            ConfigError::at(node.position_of("address"), format!("address: {why}"))
                .hint("write for example valkey:6379; for TLS give --state-store=rediss://…")
        })?;
        let store =
            StateStoreSettings { db: params.db, password, state_ttl, ..StateStoreSettings::at(address) };
        Ok((params, store))
    }
}

/// Duration that is written like this, or the default.
fn lasts(node: &Node, key: &str, written: &str, default: Duration) -> Result<Duration, ConfigError> {
    if written.is_empty() {
        return Ok(default);
    }
    parse_duration(written).map_err(|text| ConfigError::at(node.position_of(key), format!("{key}: {text}")))
}

fn shown(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

fn k8s_peer_discovery(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    PluginParts::with(&PeerDiscoveryParams::decode(cx.parameters)?)
}

fn local_syncer(_: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts::bare().with_extra(Syncer::Local))
}

fn redis_syncer(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let (params, store) = RedisSyncerParams::decode(cx.parameters)?;
    Ok(PluginParts::with(&params)?.with_extra(Syncer::Store(store)))
}
