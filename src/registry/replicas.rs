//! State that replicas share: through which store, and how often.

use usher_plugin::Kind;
use usher_plugins::SharedInFlight;

use crate::config::{ConfigError, DataLayer, EndpointPickerConfig, Reference};
use crate::replicas::SharedCounter;
use crate::settings::{ExchangeSettings, StateStoreSettings};

use super::instances::{Instance, Instances};
use super::resolved::Use;
use super::table::Syncer;

const PEERS: &str = "dataLayer.peerDiscovery";
const SYNCER: &str = "dataLayer.crossReplicaSyncerPluginRef";
const GROUPED_SYNCER: &str = "dataLayer.crossReplica.syncerPluginRef";

/// Exchange of state between replicas as a configuration has it.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    /// Store of the plugin that shares state; `None`: the configuration names none.
    pub store: Option<StateStoreSettings>,
    /// Pace of the exchange, whichever store it goes through.
    pub exchange: ExchangeSettings,
    /// Counters that are shared.
    pub counters: Vec<SharedCounter>,
}

/// Reads the exchange of a configuration. Adds a warning about what has no effect, and says which plugin shares
/// state.
///
/// # Errors
/// `ConfigError` if a key refers to a plugin that isn't declared, or is of another kind.
pub(super) fn sharing(
    config: &EndpointPickerConfig,
    instances: &Instances<'_>,
    warnings: &mut Vec<String>,
) -> Result<(Sharing, Option<Use>), ConfigError> {
    let layer = &config.data_layer;
    let mut without_effect = Vec::new();
    if let Some(Reference { plugin_ref }) = &layer.peer_discovery {
        instances.get_kind(PEERS, plugin_ref, Kind::PeerDiscovery)?;
        without_effect.push(PEERS.to_owned());
    }
    let grouped = layer.cross_replica.as_ref().and_then(|group| group.syncer_plugin_ref.as_ref());
    let mut used: Option<&Instance> = None;
    // The newer key wins.
    for (key, syncer) in [(GROUPED_SYNCER, grouped), (SYNCER, layer.cross_replica_syncer_plugin_ref.as_ref())]
    {
        let Some(syncer) = syncer else { continue };
        let instance = instances.get_kind(key, syncer, Kind::Syncer)?;
        if used.is_some_and(|used| used.name != instance.name) {
            without_effect.push(key.to_owned());
        }
        used = used.or(Some(instance));
    }
    let is_unused = |instance: &&Instance| {
        instance.plugin_type.is(Kind::PeerDiscovery)
            || instance.plugin_type.is(Kind::Syncer) && used.is_none_or(|used| used.name != instance.name)
    };
    let plugins = instances.iter().filter(is_unused).map(|instance| format!("plugin '{}'", instance.name));
    without_effect.extend(plugins);
    if !without_effect.is_empty() {
        warnings.push(format!(
            "replicas find each other through the state store, which {GROUPED_SYNCER} or --state-store names; without effect: {}",
            without_effect.join(", ")
        ));
    }
    let store = used.and_then(|used| match used.parts.extra()? {
        Syncer::Local => None,
        Syncer::Store(store) => Some(store.clone()),
    });
    let resolved = used.map(|used| Use::of(&used.name, false));
    Ok((Sharing { store, exchange: exchange(layer), counters: Vec::new() }, resolved))
}

/// Counters that replicas share, by the names of their producers.
pub(super) fn counters(instances: &Instances<'_>) -> Vec<SharedCounter> {
    let shared = instances.iter().filter_map(|instance| {
        let SharedInFlight(counters) = instance.parts.extra()?;
        Some(SharedCounter { name: instance.name.clone(), counters: counters.clone() })
    });
    shared.collect()
}

fn exchange(layer: &DataLayer) -> ExchangeSettings {
    let grouped = layer.cross_replica.as_ref();
    let interval = grouped.and_then(|group| group.sync_interval).or(layer.cross_replica_sync_interval);
    let timeout = grouped.and_then(|group| group.publish_timeout).or(layer.cross_replica_publish_timeout);
    ExchangeSettings { interval, timeout: timeout.filter(|timeout| !timeout.is_zero()) }
}
