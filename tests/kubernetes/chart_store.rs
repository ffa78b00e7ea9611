//! Objects of the chart where replicas share their load through a store.

use serde_json::Value;

use crate::chart::{arguments, of_kind, usher};
use crate::tools::Helm;

/// A store by the values, by a flag, and by the configuration; and what elects where it is there.
#[test]
fn replicas_with_a_store_are_all_ready() {
    let Some(helm) = Helm::find() else { return };
    let labels = "router.modelServers.matchLabels.app=a,router.epp.replicas=3";
    let plugin =
        "router.epp.pluginsConfig.plugins[0].type=redis-syncer,router.epp.pluginsConfig.plugins[0].name=s";
    let older = "router.epp.pluginsConfig.dataLayer.crossReplicaSyncerPluginRef";
    let newer = "router.epp.pluginsConfig.dataLayer.crossReplica.syncerPluginRef";
    let store = "router.stateStore.valkey.enabled=true";
    let acts = "router.epp.capacityPolicies.enabled=true";
    let table = [
        ("router.stateStore.address=redis://valkey:6379".to_owned(), true, false),
        (store.to_owned(), true, false),
        ("router.epp.flags.state-store=redis://valkey:6379".to_owned(), true, false),
        (format!("{plugin},{older}=s"), true, false),
        (format!("{plugin},{older}=another"), false, true),
        (format!("{plugin},{newer}=s"), true, false),
        (format!("{plugin},{newer}=s,{older}=another"), true, false),
        (format!("{plugin},{newer}=another,{older}=s"), false, true),
        (format!("{store},{acts}"), true, true),
        (format!("{store},router.epp.flags.capacity-policies=true"), true, true),
        (format!("{store},router.epp.flags.capacity-policies=false"), true, false),
        (
            "router.stateStore.valkey.enabled=true,router.epp.flags.ha-enable-leader-election=true"
                .to_owned(),
            true,
            true,
        ),
        (acts.to_owned(), false, true),
    ];
    for (set, shares, elects) in table {
        let objects = helm.template("models", &["--set", &format!("{labels},{set}")]).unwrap();
        let (deployment, container) = usher(&objects);
        let spec = &deployment["spec"];
        assert_eq!(
            arguments(container).contains(&"--ha-enable-leader-election=true".to_owned()),
            elects,
            "{set}"
        );
        assert_eq!(spec["strategy"]["rollingUpdate"]["maxUnavailable"], if shares { 0 } else { 2 }, "{set}");
        // A rollout ends, and is said to be stuck if it doesn't.
        assert_eq!(spec["progressDeadlineSeconds"].is_null(), shares, "{set}");
        let spread = &spec["template"]["spec"]["topologySpreadConstraints"];
        let keys = spread.as_array().map_or(0, Vec::len);
        assert_eq!(keys, if shares { 2 } else { 0 }, "{set}");
        let budgets: Vec<&Value> = of_kind(&objects, "PodDisruptionBudget").collect();
        assert_eq!(budgets.len(), usize::from(shares), "{set}");
        assert!(budgets.iter().all(|budget| budget["spec"]["maxUnavailable"] == 1), "{set}");
        let leases = of_kind(&objects, "Role").any(|role| role["rules"].to_string().contains("leases"));
        assert_eq!(leases, elects, "{set}");
    }
}

#[test]
fn store_beside_a_plugin_that_shares_state_is_refused() {
    let Some(helm) = Helm::find() else { return };
    let labels = "router.modelServers.matchLabels.app=a";
    let (address, valkey, flag) = (
        "router.stateStore.address=redis://valkey:6379",
        "router.stateStore.valkey.enabled=true",
        "router.epp.flags.state-store=redis://valkey:6379",
    );
    let plugin = |kind: &str, key: &str| {
        let config = "router.epp.pluginsConfig";
        format!("{config}.plugins[0].type={kind},{config}.plugins[0].name=s,{config}.dataLayer.{key}=s")
    };
    let (older, newer) = ("crossReplicaSyncerPluginRef", "crossReplica.syncerPluginRef");
    for (store, names, kind, key) in [
        (address, "router.stateStore", "redis-syncer", older),
        (address, "router.stateStore", "redis-state-store", newer),
        (valkey, "router.stateStore", "local-syncer", older),
        (flag, "router.epp.flags.state-store", "local-syncer", newer),
    ] {
        let set = format!("{labels},{store},{}", plugin(kind, key));
        let error = helm.template("models", &["--set", &set]).expect_err(&set);
        for part in [names, kind, "default-plugins.yaml", "keep one of the two"] {
            assert!(error.contains(part), "{set}: {error}");
        }
    }
    // One that nothing refers to shares nothing.
    let unused = format!(
        "{labels},{address},{},router.epp.pluginsConfig.dataLayer.crossReplica.syncerPluginRef=other",
        plugin("redis-syncer", older)
    );
    assert!(helm.template("models", &["--set", &unused]).is_ok());
}

#[test]
fn store_has_its_flags_files_and_a_network_of_its_own() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.rendered("store");
    let (deployment, container) = usher(&objects);
    let given = arguments(container);
    let flag = |name: &str| given.iter().find_map(|flag| flag.strip_prefix(&format!("--state-store{name}=")));
    assert_eq!(flag(""), Some("rediss://usher@valkey.stores.svc:6379/2"));
    // Each file of a flag is one of a volume.
    for (name, volume, object) in [
        ("-password-file", "state-store-password", ("secret", "secretName", "valkey")),
        ("-ca-file", "state-store-ca", ("configMap", "name", "stores-ca")),
        ("-client-cert-file", "state-store-client", ("secret", "secretName", "usher-client")),
        ("-client-key-file", "state-store-client", ("secret", "secretName", "usher-client")),
    ] {
        let named = |list: &Value| {
            let found = list.as_array().unwrap().iter().find(|entry| entry["name"] == volume);
            found.expect("of this name").clone()
        };
        let mount = named(&container["volumeMounts"]);
        let (folder, file) = flag(name).unwrap().rsplit_once('/').unwrap();
        assert_eq!(mount["mountPath"], folder);
        let volume = named(&deployment["spec"]["template"]["spec"]["volumes"]);
        let (kind, key, wanted) = object;
        let items = volume[kind]["items"].as_array().unwrap();
        assert!(items.iter().any(|item| item["path"] == file && item["key"] == file), "{items:?}");
        assert_eq!(volume[kind][key], wanted);
    }
    let objects = helm.rendered("valkey");
    let valkey = |kind: &str| {
        of_kind(&objects, kind).find(|object| object["metadata"]["name"] == "usher-valkey").unwrap()
    };
    let address = "--state-store=redis://usher-valkey.models.svc.cluster.local:6379".to_owned();
    assert!(arguments(usher(&objects).1).contains(&address));
    let labels = &valkey("Deployment")["spec"]["template"]["metadata"]["labels"];
    assert_eq!(valkey("Service")["spec"]["selector"], *labels);
    let policy = &valkey("NetworkPolicy")["spec"];
    assert_eq!(policy["podSelector"]["matchLabels"], *labels);
    let usher = &usher(&objects).0["spec"]["selector"]["matchLabels"];
    assert_eq!(policy["ingress"][0]["from"], serde_json::json!([{"podSelector": {"matchLabels": usher}}]));
    let server = &valkey("Deployment")["spec"]["template"]["spec"]["containers"][0];
    let tag = server["image"].as_str().unwrap().rsplit_once(':').unwrap().1;
    assert!(tag.starts_with(|c: char| c.is_ascii_digit()), "{tag}");
    assert_eq!(server["env"][0]["valueFrom"]["secretKeyRef"]["name"], "valkey");
    // Not made without being asked for.
    assert!(!serde_json::to_string(&helm.rendered("store")).unwrap().contains("usher-valkey"));
}
