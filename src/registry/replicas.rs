//! Plugins for state that replicas share. This version shares none: the references to them are
//! checked, and have no effect.

use usher_plugin::Kind;

use crate::config::{ConfigError, DataLayer, EndpointPickerConfig, Reference};

use super::instances::{Instance, Instances};

const PEERS: &str = "dataLayer.peerDiscovery";
const SYNCER: &str = "dataLayer.crossReplicaSyncerPluginRef";
const GROUPED_SYNCER: &str = "dataLayer.crossReplica.syncerPluginRef";

/// Note for the user that no state is shared, in one sentence; `None` where the configuration
/// asks for none.
///
/// # Errors
/// When a key refers to a plugin that isn't there, or of another kind.
pub(super) fn check(
    config: &EndpointPickerConfig,
    instances: &Instances<'_>,
) -> Result<Option<String>, ConfigError> {
    let layer = &config.data_layer;
    if let Some(Reference { plugin_ref }) = &layer.peer_discovery {
        instances.get_kind(PEERS, plugin_ref, Kind::PeerDiscovery)?;
    }
    let grouped = layer.cross_replica.as_ref().and_then(|group| group.syncer_plugin_ref.as_ref());
    for (key, syncer) in [(SYNCER, layer.cross_replica_syncer_plugin_ref.as_ref()), (GROUPED_SYNCER, grouped)]
    {
        if let Some(syncer) = syncer {
            instances.get_kind(key, syncer, Kind::Syncer)?;
        }
    }
    let shares = |instance: &&Instance| {
        [Kind::PeerDiscovery, Kind::Syncer].into_iter().any(|kind| instance.plugin_type.is(kind))
    };
    let plugins = instances.iter().filter(shares).map(|instance| format!("plugin '{}'", instance.name));
    let without_effect: Vec<_> = keys(layer).map(str::to_owned).chain(plugins).collect();
    if without_effect.is_empty() {
        return Ok(None);
    }
    let what = without_effect.join(", ");
    Ok(Some(format!(
        "replicas share no state in this version, each knows what it sent itself; without effect: {what}"
    )))
}

/// The keys about it that are set.
fn keys(layer: &DataLayer) -> impl Iterator<Item = &'static str> {
    let all = [
        (PEERS, layer.peer_discovery.is_some()),
        (SYNCER, layer.cross_replica_syncer_plugin_ref.is_some()),
        ("dataLayer.crossReplicaSyncInterval", layer.cross_replica_sync_interval.is_some()),
        ("dataLayer.crossReplicaPublishTimeout", layer.cross_replica_publish_timeout.is_some()),
        ("dataLayer.crossReplica", layer.cross_replica.is_some()),
    ];
    all.into_iter().filter(|(_, set)| *set).map(|(key, _)| key)
}
