//! Configuration of state that replicas share: which store it names, and what has no effect.

use usher::settings::{Secret, StateStoreSettings, StoreAddress, StorePassword};

use super::{assert_marked, assert_parameters_refused, build};

const PLUGINS: &str = "plugins: [{type: queue-scorer}, {name: mine, type: local-syncer}, {name: peers, type: k8s-peer-discovery, parameters: {selector: app=usher, port: '9002', namespace: default}}]\n";

#[test]
fn keys_and_plugins_without_effect_are_named_in_one_warning() {
    let table = [
        ("peerDiscovery: {pluginRef: peers}", "dataLayer.peerDiscovery, plugin 'mine', plugin 'peers'"),
        ("crossReplicaSyncerPluginRef: mine", "plugin 'peers'"),
        ("crossReplica: {syncerPluginRef: mine}", "plugin 'peers'"),
        ("crossReplicaSyncInterval: 1s", "plugin 'mine', plugin 'peers'"),
        ("crossReplica: {syncerPluginRef: mine}, crossReplicaSyncerPluginRef: mine", "plugin 'peers'"),
    ];
    for (line, named) in table {
        let pipeline = build(&format!("{PLUGINS}dataLayer: {{{line}}}\n")).expect(line);
        let [warning] = &pipeline.warnings[..] else { panic!("{line}: {:?}", pipeline.warnings) };
        assert!(warning.ends_with(&format!("; without effect: {named}")), "{line}: {warning}");
    }
    let nothing = "plugins: [{type: inflight-load-producer}, {type: local-syncer, parameters: {anything: 1}}]\n\
                   dataLayer: {crossReplicaSyncerPluginRef: local-syncer, peerDiscovery: , crossReplica: }\n";
    let pipeline = build(nothing).unwrap();
    assert_eq!((pipeline.warnings, pipeline.sharing.store), (vec![], None));
    let empty = "plugins: [{type: queue-scorer}]\n\
                 dataLayer: {crossReplicaSyncerPluginRef: '', crossReplicaSyncInterval: , crossReplica: }\n";
    assert_eq!(build(empty).unwrap().warnings, [""; 0]);
}

#[test]
fn newer_key_names_the_syncer_and_its_intervals() {
    let text = |plugin_type: &str, parameters: &str, keys: &str| {
        let plugins = format!(
            "plugins: [{{name: redis, type: {plugin_type}, parameters: {parameters}}}, {{type: local-syncer}}]\n"
        );
        build(&format!("{plugins}dataLayer: {{{keys}}}\n")).unwrap()
    };
    let key = "crossReplicaSyncerPluginRef: redis";
    let store = text("redis-syncer", "{}", key).sharing.store.unwrap();
    assert_eq!(store, StateStoreSettings::at(StoreAddress::tcp(false, "localhost:6379").unwrap()));
    let parameters = "{address: 'a:1', db: 3, password: '31337', passwordFile: /f, ttl: 9s, stateTTL: 4s}";
    let pipeline = text("redis-state-store", parameters, key);
    let store = pipeline.sharing.store.unwrap();
    let password = Some(StorePassword::Text(Secret("31337".to_owned())));
    assert_eq!((store.db, store.password, store.state_ttl.as_secs()), (3, password, 4));
    assert!(!format!("{:?}", pipeline.resolved).contains("31337"));
    let of = |parameters| text("redis-syncer", parameters, key).sharing.store.unwrap().password;
    assert_eq!(of("{passwordEnv: E, passwordFile: /f}"), Some(StorePassword::Variable("E".to_owned())));
    assert_eq!(of("{password: '', passwordFile: /f}"), Some(StorePassword::File("/f".into())));
    let both = "crossReplica: {syncerPluginRef: redis, syncInterval: 2s}, crossReplicaSyncerPluginRef: local-syncer, crossReplicaSyncInterval: 1s, crossReplicaPublishTimeout: 3s";
    let pipeline = text("redis-syncer", "{}", both);
    assert!(pipeline.sharing.store.is_some());
    assert!(pipeline.warnings[0].ends_with(": dataLayer.crossReplicaSyncerPluginRef, plugin 'local-syncer'"));
    let seconds = |seconds| Some(std::time::Duration::from_secs(seconds));
    let exchange = pipeline.sharing.exchange;
    assert_eq!((exchange.interval, exchange.timeout), (seconds(2), seconds(3)));
}

#[test]
fn counters_of_producers_are_shared_unless_they_say_otherwise() {
    let names = |parameters: &str| {
        let text = format!(
            "plugins: [{{name: mine, type: inflight-load-producer, parameters: {parameters}}}, {{type: active-request-scorer}}]\n"
        );
        let counters = build(&text).unwrap().sharing.counters;
        counters.iter().map(|counter| counter.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names("{}"), ["mine", "inflight-load-producer"]);
    assert_eq!(names("{syncCrossReplicaState: false}"), ["inflight-load-producer"]);
}

#[test]
fn ignored_keys_and_values_are_still_checked() {
    let duration = "is not a duration; write for example 50ms, 30s or 1h30m";
    let table = [
        ("^crossReplicaSyncIntervall: 1s", "unknown field", "`crossReplicaSyncInterval`"),
        ("^crossReplicaPublishTimeOut: 1s", "unknown field", "`crossReplicaPublishTimeout`"),
        ("^peerDiscover: {pluginRef: peers}", "unknown field", "`peerDiscovery`"),
        ("peerDiscovery: {^plugin: peers}", "unknown field 'plugin'", "`pluginRef`"),
        ("crossReplica: {^syncerPlugin: mine}", "unknown field", "`syncerPluginRef`"),
        ("crossReplica: ^mine", "crossReplica: expected a map, found 'mine'", ""),
        ("crossReplicaPublishTimeout: ^soon", duration, ""),
        ("crossReplica: {syncInterval: ^-1s}", duration, ""),
        ("crossReplica: {publishTimeout: ^'1'}", duration, ""),
        ("crossReplicaSyncerPluginRef: ^other", "the undeclared plugin 'other'", "declare it"),
        (
            "crossReplica: {syncerPluginRef: ^other}",
            "dataLayer.crossReplica.syncerPluginRef refers to the undeclared plugin 'other'",
            "declare it",
        ),
        ("crossReplicaSyncerPluginRef: ^min", "the undeclared plugin 'min'", "did you mean `mine`?"),
        ("crossReplicaSyncerPluginRef: ^peers", "'peers', which is not a cross-replica syncer", ""),
        ("crossReplica: {syncerPluginRef: ^queue-scorer}", "which is not a cross-replica syncer", ""),
        ("peerDiscovery: {pluginRef: ^mine}", "'mine', which is not a peer discovery plugin", ""),
        ("discovery: {pluginRef: ^peers}", "'peers', which is not a discovery plugin", ""),
    ];
    for (line, message, hint) in table {
        assert_marked(&format!("{PLUGINS}dataLayer: {{{line}}}\n"), message, hint);
    }
}

#[test]
fn parameters_are_checked_and_a_password_is_never_quoted() {
    let table = [
        ("k8s-peer-discovery", "{}", 1, "is missing", ""),
        ("k8s-peer-discovery", "{selector: '', port: '1', namespace: a}", 12, "'selector' is empty", "app="),
        (
            "k8s-peer-discovery",
            "{selector: a, port: '0', namespace: a}",
            21,
            "port '0' is none",
            "1 to 65535",
        ),
        ("k8s-peer-discovery", "{selector: a, port: 9002, namespace: a}", 21, "expected text", "quotes"),
        ("k8s-peer-discovery", "{selectors: a}", 2, "unknown field 'selectors'", "`selector`"),
        ("redis-syncer", "{adress: a}", 2, "unknown field 'adress'", "`address`"),
        ("redis-syncer", "{db: one}", 6, "expected a whole number", ""),
        ("redis-syncer", "{stateTTL: soon}", 12, "stateTTL: \"soon\" is not a duration", ""),
        (
            "redis-syncer",
            "{address: 'rediss://:31337@a'}",
            11,
            "address: no port after the colon",
            "--state-store=rediss",
        ),
        ("redis-state-store", "{address: ''}", 11, "address: no host", "valkey:6379"),
        ("redis-syncer", "{password: 31337}", 12, "password is no text", "quotes"),
    ];
    for (plugin_type, parameters, column, message, hint) in table {
        assert_parameters_refused(plugin_type, parameters, column, message, hint);
    }
    let error = build("plugins: [{type: redis-syncer, parameters: {password: 31337}}]\n").unwrap_err();
    assert!(!error.to_string().contains("31337"), "{error}");
}
