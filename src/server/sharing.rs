//! Store through which replicas share the pool's load.

use std::sync::Arc;

use prometheus::Registry;

use super::pool::Pool;
use super::{Background, RunError, origin};
use crate::registry::{Origin as Declared, Resolved, Sharing};
use crate::replicas::{Parts, ReplicasMetrics, share};
use crate::settings::{ExchangeSettings, ServeSettings, StateStoreSettings};

/// Store of the flags or of the configuration, and the pace of the exchange; `None`: nothing is shared. `file` is the
/// name of the configuration.
///
/// # Errors
/// Returns an error if the flags and the configuration both say how state is shared.
pub(super) fn chosen(
    settings: &ServeSettings,
    sharing: &Sharing,
    resolved: &Resolved,
    file: &str,
) -> Result<Option<(StateStoreSettings, ExchangeSettings)>, RunError> {
    if let (Some(flag), Some(syncer)) = (&settings.state_store, &resolved.syncer) {
        let plugin = resolved.plugins.iter().find(|plugin| plugin.name == syncer.plugin);
        let at = match plugin.map(|plugin| plugin.origin) {
            Some(Declared::Declared(at)) => format!("{file}:{}:{}", at.line, at.column),
            _ => file.to_owned(),
        };
        return Err(RunError::Config(format!(
            "state would be shared through --state-store {} and by the plugin '{}' ({at}, dataLayer.crossReplicaSyncerPluginRef); keep one of the two",
            flag.address, syncer.plugin
        )));
    }
    let store = settings.state_store.as_ref().or(sharing.store.as_ref());
    Ok(store.map(|store| (store.clone(), sharing.exchange)))
}

/// Shares the pool's load until the end.
///
/// # Errors
/// `RunError` if a metric name is registered already.
pub(super) fn start(
    (store, exchange): (StateStoreSettings, ExchangeSettings),
    (pool, settings): (&Pool, &ServeSettings),
    registry: &Registry,
    background: &mut Background,
) -> Result<(), RunError> {
    let parts = Parts {
        endpoints: Arc::clone(&pool.store),
        shared: pool.counters.subscribe(),
        pool: format!("{}/{}", settings.pool.namespace, settings.pool.label()),
        replica: origin::place(&settings.pool),
        metrics: ReplicasMetrics::register(registry)?,
    };
    background.run(share(store, exchange, parts));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::cli::{Command, parse};
    use crate::server::setup::Setup;

    fn chosen(flags: &[&str]) -> Result<Option<String>, String> {
        let arguments = ["usher", "serve"].iter().chain(flags).map(|text| (*text).into());
        let Command::Serve(args) = parse(arguments).unwrap() else { panic!("not serve") };
        let setup = Setup::new(args.settings(Default::default()).unwrap());
        let setup = setup.map_err(|error| error.to_string())?;
        Ok(setup.sharing.map(|(store, _)| store.address.to_string()))
    }

    #[test]
    fn store_comes_from_a_flag_or_from_a_plugin() {
        let plugin = |name: &str| {
            format!(
                "--config-text=plugins: [{{type: {name}}}]\ndataLayer: {{crossReplicaSyncerPluginRef: {name}}}\n"
            )
        };
        let flag = "--state-store=redis://:hunter2@a";
        assert_eq!(chosen(&[]), Ok(None));
        assert_eq!(chosen(&[flag]), Ok(Some("redis://a:6379".to_owned())));
        assert_eq!(chosen(&[&plugin("local-syncer")]), Ok(None));
        assert_eq!(chosen(&[&plugin("redis-syncer")]), Ok(Some("redis://localhost:6379".to_owned())));
        for name in ["local-syncer", "redis-syncer"] {
            let error = chosen(&[flag, &plugin(name)]).unwrap_err();
            let places = [
                "--state-store redis://a:6379".to_owned(),
                format!("the plugin '{name}' (--config-text:1:11, dataLayer.crossReplicaSyncerPluginRef)"),
            ];
            assert!(places.iter().all(|place| error.contains(place)), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
