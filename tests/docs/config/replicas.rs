//! Configuration of state that replicas share: it has no effect but a warning, and has to be right.

use super::{assert_marked, assert_parameters_refused, build};

const PLUGINS: &str = "plugins: [{type: queue-scorer}, {name: mine, type: local-syncer}, {name: peers, type: k8s-peer-discovery, parameters: {selector: app=usher, port: '9002', namespace: default}}]\n";

#[test]
fn each_key_alone_is_accepted_with_one_warning_that_names_it() {
    let table = [
        ("peerDiscovery: {pluginRef: peers}", "dataLayer.peerDiscovery"),
        ("crossReplicaSyncerPluginRef: mine", "dataLayer.crossReplicaSyncerPluginRef"),
        ("crossReplicaSyncInterval: 1s", "dataLayer.crossReplicaSyncInterval"),
        ("crossReplicaPublishTimeout: 1s", "dataLayer.crossReplicaPublishTimeout"),
        ("crossReplica: {syncerPluginRef: mine}", "dataLayer.crossReplica"),
        ("crossReplica: {syncInterval: 1s}", "dataLayer.crossReplica"),
        ("crossReplica: {publishTimeout: 1s}", "dataLayer.crossReplica"),
    ];
    for (line, key) in table {
        let pipeline = build(&format!("{PLUGINS}dataLayer: {{{line}}}\n")).expect(line);
        let [warning] = &pipeline.warnings[..] else { panic!("{line}: {:?}", pipeline.warnings) };
        assert!(warning.ends_with(&format!(": {key}, plugin 'mine', plugin 'peers'")), "{line}: {warning}");
    }
}

#[test]
fn syncer_plugin_alone_is_warned_of() {
    for (plugin_type, parameters) in
        [("local-syncer", "{anything: 1}"), ("redis-syncer", "{db: 3}"), ("redis-syncer", "{}")]
    {
        let text = format!("plugins: [{{type: {plugin_type}, parameters: {parameters}}}]\n");
        let warnings = build(&text).expect(plugin_type).warnings;
        let [warning] = &warnings[..] else { panic!("{plugin_type}: {warnings:?}") };
        assert!(warning.ends_with(&format!("without effect: plugin '{plugin_type}'")), "{warning}");
    }
    let nothing = "plugins: [{type: inflight-load-producer, parameters: {syncCrossReplicaState: true}}]\n\
                   dataLayer: {peerDiscovery: , crossReplicaSyncerPluginRef: '', crossReplicaSyncInterval: , \
                   crossReplicaPublishTimeout: , crossReplica: }\n";
    assert_eq!(build(nothing).unwrap().warnings, [""; 0]);
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
        ("redis-syncer", "{password: 31337}", 12, "password is no text", "quotes"),
    ];
    for (plugin_type, parameters, column, message, hint) in table {
        assert_parameters_refused(plugin_type, parameters, column, message, hint);
    }
    let error = build("plugins: [{type: redis-syncer, parameters: {password: 31337}}]\n").unwrap_err();
    assert!(!error.to_string().contains("31337"), "{error}");
}
