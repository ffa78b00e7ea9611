//! Store through which replicas share the pool's load, prefixes and learned state.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::pool::Pool;
use super::{Background, RunError, origin};
use crate::endpoints::Store;
use crate::extproc::health::HealthState;
use crate::registry::{Origin as Declared, Resolved, Sharing};
use crate::replicas::{
    LearnedParts, NamedCauses, Parts, PrefixParts, ReplicasMetrics, SharedQueue, share, share_learned,
    share_prefixes,
};
use crate::schedule::PrefixCaches;
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

/// Shares the pool's load, prefixes and learned state until the end. A start that isn't warm waits for the latter two.
/// Returns the numbers of it.
///
/// # Errors
/// `RunError` if a metric name is registered already.
pub(super) fn start(
    (store, exchange): (StateStoreSettings, ExchangeSettings),
    (pool, health, settings): (&Pool, &Arc<HealthState>, &ServeSettings),
    registry: &Registry,
    background: &mut Background,
) -> Result<ReplicasMetrics, RunError> {
    let name = format!("{}/{}", settings.pool.namespace, settings.pool.label());
    let replica = origin::place(&settings.pool);
    let (metrics, named) = (ReplicasMetrics::register(registry)?, NamedCauses::default());
    let (warm, warmed) = oneshot::channel();
    let (warm_learned, learned) = oneshot::channel();
    if !health.view().warm {
        let (health, endpoints) = (Arc::clone(health), Arc::clone(&pool.store));
        let both = async move { tokio::join!(warmed, learned) };
        background.run(wait_until_warm((health, endpoints), settings.warm_up_timeout, both));
    }
    let learned = LearnedParts {
        endpoints: Arc::clone(&pool.store),
        state: Arc::clone(pool.state()),
        pool: name.clone(),
        replica: replica.clone(),
        metrics: metrics.clone(),
        named: named.clone(),
        warm: warm_learned,
    };
    let state = Arc::clone(pool.state());
    let prefixes = PrefixParts {
        endpoints: Arc::clone(&pool.store),
        clock: pool.clock.clone(),
        budget: Arc::clone(pool.budget()),
        pool: name.clone(),
        replica: replica.clone(),
        metrics: metrics.clone(),
        named: named.clone(),
        indexes: Box::new(move || {
            state.all::<PrefixCaches>().iter().filter_map(|(_, caches)| caches.shared()).collect()
        }),
        warm,
    };
    let load = Parts {
        endpoints: Arc::clone(&pool.store),
        clock: pool.clock.clone(),
        shared: pool.counters.subscribe(),
        queue: pool.dispatcher.gate().map(|gate| Arc::clone(gate) as Arc<dyn SharedQueue>),
        pool: name,
        replica,
        metrics: metrics.clone(),
        named,
    };
    background.run(share_prefixes(store.clone(), prefixes));
    // Has something to do at the end.
    background.tasks.spawn(share_learned(store.clone(), learned, background.shutdown.clone()));
    background.run(share(store, exchange, load));
    Ok(metrics)
}

/// Has the health wait for what other replicas know, but not longer than this after endpoints were loaded: before, nothing can
/// be read, and the replica isn't ready anyway. A pool that is empty has nothing to wait for.
async fn wait_until_warm(
    (health, endpoints): (Arc<HealthState>, Arc<Store>),
    longest: Duration,
    warmed: impl Future,
) {
    health.synced().await;
    if endpoints.snapshot().endpoints().is_empty() {
        return health.set_warm(true);
    }
    // Late or not, the start goes on.
    let _ = timeout(longest, warmed).await;
    health.set_warm(true);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::{Instant, sleep};

    use super::{HealthState, Store, wait_until_warm};
    use crate::cli::{Command, parse};
    use crate::endpoints::EndpointSpec;
    use crate::server::setup::Setup;

    /// Time after which the health is warm, where these endpoints are there after 2 s, and prefixes then.
    async fn warm_after(endpoints: &[&str], prefixes: Option<Duration>) -> Duration {
        let (health, (warm, warmed)) = (Arc::new(HealthState::new(false)), oneshot::channel());
        health.set_warm(false);
        let store = Arc::new(Store::default());
        let parts = (Arc::clone(&health), Arc::clone(&store));
        let waiting = tokio::spawn(wait_until_warm(parts, Duration::from_secs(1), warmed));
        let begin = Instant::now();
        sleep(Duration::from_secs(2)).await;
        assert!(!health.view().warm);
        store.replace(endpoints.iter().map(|name| EndpointSpec::new(*name, ([10, 0, 0, 1], 8000))).collect());
        health.set_synced(true);
        if let Some(prefixes) = prefixes {
            sleep(prefixes).await;
            assert!(!health.view().warm);
            warm.send(()).unwrap();
            waiting.await.unwrap();
        } else {
            waiting.await.unwrap();
            drop(warm);
        }
        assert!(health.view().warm);
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn start_waits_for_prefixes_up_to_the_timeout() {
        let ms = Duration::from_millis;
        assert_eq!(warm_after(&["a"], Some(ms(300))).await, ms(2300));
        let late = warm_after(&["a"], None).await;
        assert!(late >= ms(3000) && late < ms(3010), "{late:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn start_with_an_empty_pool_waits_for_no_prefixes() {
        let empty = warm_after(&[], None).await;
        assert!(empty < Duration::from_millis(2010), "{empty:?}");
    }

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
