//! Checks as functions: what follows from what was seen.

use serde_json::{Value, json};

use super::examine;
use crate::doctor::envoy::EnvoyConfig;
use crate::doctor::finding::Status;
use crate::doctor::seen::{
    Agreement, Broken, Choice, Cluster, Envoy, Gateway, Handshake, Host, Known, Need, NoPool, Observations,
    Picker, PickerPage, Pool, Reply, Right, Route, Service, StateStore,
};

const ORIGINAL_DST: &str = include_str!("../../../deploy/envoy/original-dst.yaml");
const OVERRIDE_HOST: &str = include_str!("../../../deploy/envoy/override-host.yaml");

/// A configuration of the repository as Envoy would dump it. It fails closed.
fn config(text: &str) -> EnvoyConfig {
    let text = text.replace("failure_mode_allow: true", "failure_mode_allow: false");
    let written: Value = serde_saphyr::from_str(&text).unwrap();
    let of = |kind: &str, item: &str| -> Vec<Value> {
        let items = written["static_resources"][kind].as_array().unwrap();
        items.iter().map(|each| json!({ item: each })).collect()
    };
    let dump = json!({"configs": [
        {"@type": "x/envoy.admin.v3.ClustersConfigDump", "static_clusters": of("clusters", "cluster")},
        {"@type": "x/envoy.admin.v3.ListenersConfigDump", "static_listeners": of("listeners", "listener")},
    ]});
    EnvoyConfig::read(&dump, Some(8081))
}

fn reply(status: u16, body: &str) -> Reply {
    Reply { status, body: body.to_owned(), ..Reply::default() }
}

/// A gateway whose picker sends two probes to `a` and one to `b`.
fn gateway() -> Gateway {
    let refused = |kind, words: &str| (kind, reply(400, &format!("inference error: BadRequest - {words}")));
    let served =
        |pod: &str| Reply { marked: true, pod: pod.to_owned(), port: "8000".to_owned(), ..reply(404, "{}") };
    Gateway {
        url: "http://gw:80".to_owned(),
        unreachable: None,
        refusals: vec![refused(Broken::Json, "no JSON"), refused(Broken::Messages, "no messages")],
        routed: vec![served("a"), served("b"), served("a")],
    }
}

fn pool() -> Pool {
    Pool {
        name: "p".to_owned(),
        ports: vec![8000],
        fails_open: false,
        picker: Some(("epp".to_owned(), Some(9002))),
        service: Ok(Some(Service { ports: vec![9002], ready: Ok(1) })),
        rejected: Vec::new(),
        routes: Ok(vec![Route { name: "r".to_owned(), rejected: Vec::new() }]),
        overlapping: Vec::new(),
    }
}

fn cluster() -> Cluster {
    let kind = |version: &str| {
        ("inference.networking.k8s.io".to_owned(), version.to_owned(), "inferencepools".to_owned())
    };
    let pod = crate::doctor::seen::Pod { ip: "10.0.0.1".parse().ok(), ready: true, ..Default::default() };
    Cluster {
        unreachable: None,
        version: "v1.36.3".to_owned(),
        kinds: vec![kind("v1")],
        account: "somebody".to_owned(),
        rights: Ok(vec![(Right { group: "", resource: "pods", verb: "list", need: Need::Ready }, true)]),
        namespace: "ns".to_owned(),
        pool: Some(Ok(pool())),
        pods: Ok(vec![pod]),
        capacity: Ok(crate::doctor::seen::Capacity::default()),
    }
}

fn sound() -> Observations {
    let host = |address: &str| Host { address: address.to_owned(), ..Host::default() };
    let known = |name: &str, address: &str| Known {
        name: name.to_owned(),
        address: address.to_owned(),
        ejected: None,
    };
    let chosen = |name: &str| (name.to_owned(), "8000".to_owned());
    Observations {
        version: "1.2.3",
        gateway: Ok(gateway()),
        envoy: Ok(Envoy {
            url: "http://gw:19000".to_owned(),
            version: "1.40.0".to_owned(),
            config: config(ORIGINAL_DST),
            hosts: [("usher".to_owned(), vec![host("10.0.0.9:9002")])].into(),
            probed: [("10.0.0.1:8000".to_owned(), 2), ("10.0.0.2:8000".to_owned(), 1)].into(),
            ..Envoy::default()
        }),
        envoy_given: true,
        picker: Ok(Picker {
            address: "10.0.0.9:9002".to_owned(),
            found: "--picker".to_owned(),
            tls: Err("not TLS".to_owned()),
            unreachable: None,
            reply: Ok(Choice::Destination("10.0.0.1:8000".to_owned())),
        }),
        metrics: Ok(PickerPage {
            url: "http://10.0.0.9:9090".to_owned(),
            given: true,
            families: 3,
            version: Some("1.2.3".to_owned()),
            chosen: [(chosen("a"), 2), (chosen("b"), 1)].into(),
            ..PickerPage::default()
        }),
        admin: Ok(vec![known("a", "10.0.0.1:8000"), known("b", "10.0.0.2:8000")]),
        admin_given: true,
        pods: Err("not asked".to_owned()),
        cluster: Ok(cluster()),
    }
}

/// Without TLS to the picker.
fn plain(config: &mut EnvoyConfig) {
    config.clusters.get_mut("usher").unwrap().tls = None;
}

/// Codes of the findings after a change, each once.
fn found(change: impl FnOnce(&mut Parts<'_>)) -> Vec<&'static str> {
    let mut seen = sound();
    let (Ok(gateway), Ok(envoy), Ok(picker), Ok(page), Ok(admin), Ok(cluster)) = (
        &mut seen.gateway,
        &mut seen.envoy,
        &mut seen.picker,
        &mut seen.metrics,
        &mut seen.admin,
        &mut seen.cluster,
    ) else {
        panic!("all was seen")
    };
    // Plain text on both sides.
    plain(&mut envoy.config);
    change(&mut Parts { gateway, envoy, picker, page, admin, cluster });
    let report = examine(&seen);
    let mut codes: Vec<&str> = report.findings().map(|(_, finding)| finding.rule.code).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

/// Everything that was seen, to be changed.
struct Parts<'a> {
    gateway: &'a mut Gateway,
    envoy: &'a mut Envoy,
    picker: &'a mut Picker,
    page: &'a mut PickerPage,
    admin: &'a mut Vec<Known>,
    cluster: &'a mut Cluster,
}

impl Parts<'_> {
    fn pool(&mut self) -> &mut Pool {
        self.cluster.pool.as_mut().unwrap().as_mut().unwrap()
    }

    fn count(&mut self, stat: &str) {
        self.envoy.stats.insert(stat.to_owned(), 3);
    }

    fn settings(&mut self) -> &mut crate::doctor::envoy::Settings {
        &mut self.envoy.config.managers[0].processors[0].settings
    }
}

type Change = fn(&mut Parts<'_>);

#[test]
fn sound_setup_has_no_findings() {
    assert_eq!(found(|_| {}), Vec::<&str>::new());
    assert_eq!(
        found(|seen| seen.envoy.config = {
            let mut config = config(OVERRIDE_HOST);
            plain(&mut config);
            config
        }),
        Vec::<&str>::new()
    );
}

#[test]
fn faults_of_the_request_path_are_found() {
    let table: [(Change, &[&str]); 13] = [
        (|seen| seen.gateway.routed[0].reason = "rejected-no-endpoints".to_owned(), &["no-endpoints"]),
        (|seen| seen.gateway.routed[0].reason = "rejected-saturated".to_owned(), &["pool-saturated"]),
        (|seen| seen.gateway.routed[0].status = 503, &["servers-fail"]),
        // By the pods' own words: b served what a was chosen for.
        (|seen| seen.gateway.routed[0].pod = "b".to_owned(), &["picker-choice-ignored"]),
        // By the hosts' counters, where servers don't say who they are.
        (|seen| seen.gateway.routed.iter_mut().for_each(|reply| reply.pod.clear()), &[]),
        (
            |seen| {
                seen.gateway.routed.iter_mut().for_each(|reply| reply.pod.clear());
                seen.envoy.probed.insert("10.0.0.1:8000".to_owned(), 1);
                seen.envoy.probed.insert("10.0.0.3:8000".to_owned(), 1);
            },
            &["picker-choice-ignored"],
        ),
        // Another replica of the gateway served some of them.
        (
            |seen| {
                seen.gateway.routed.iter_mut().for_each(|reply| reply.pod.clear());
                seen.envoy.probed.insert("10.0.0.1:8000".to_owned(), 1);
            },
            &[],
        ),
        // More than the probes is other traffic.
        (
            |seen| {
                seen.gateway.routed.iter_mut().for_each(|reply| reply.pod.clear());
                seen.envoy.probed.insert("10.0.0.1:8000".to_owned(), 99);
            },
            &[],
        ),
        (|seen| seen.page.chosen.clear(), &["picker-counters-still"]),
        // A page that was found by chance may be another picker's.
        (
            |seen| {
                seen.page.chosen.clear();
                seen.page.given = false;
            },
            &[],
        ),
        // A mark without words: the picker has other parsers, or no bodies.
        (|seen| seen.gateway.refusals[0].1 = reply(400, "{}"), &["bodies-not-read"]),
        (
            |seen| {
                seen.gateway.refusals[1].1 = seen.gateway.refusals[0].1.clone();
                seen.gateway.routed.iter_mut().for_each(|reply| reply.marked = false);
            },
            &["picker-not-in-path"],
        ),
        (|seen| seen.admin[1].ejected = Some("5 failures".to_owned()), &["endpoint-ejected"]),
    ];
    for (number, (change, codes)) in table.into_iter().enumerate() {
        assert_eq!(found(change), codes, "{number}");
    }
}

#[test]
fn faults_of_the_gateway_are_found() {
    let table: [(Change, &[&str]); 17] = [
        (|seen| seen.settings().request_headers = false, &["headers-not-sent"]),
        (|seen| seen.settings().response_headers = false, &["response-not-seen"]),
        (|seen| seen.settings().trailers[1] = false, &["trailers-not-sent"]),
        (
            |seen| {
                let processors = &mut seen.envoy.config.managers[0].processors;
                processors.push(processors[0].clone());
            },
            &["two-full-duplex"],
        ),
        (|seen| seen.envoy.config.managers[0].processors[0].disabled = true, &["ext-proc-disabled"]),
        (|seen| seen.envoy.config.managers.clear(), &["ext-proc-missing"]),
        (|seen| seen.count("http.inference.ext_proc.failure_mode_allowed"), &["failed-open"]),
        (|seen| seen.count("http.inference.ext_proc.message_timeouts"), &["messages-timed-out"]),
        (|seen| seen.count("http.inference.ext_proc.streams_failed"), &["streams-failed"]),
        (|seen| seen.count("cluster.usher.upstream_rq_pending_overflow"), &["breaker-trips"]),
        (|seen| seen.count("cluster.other.upstream_rq_pending_overflow"), &[]),
        (
            |seen| {
                seen.envoy.config = config(
                    &OVERRIDE_HOST
                        .replace("            - header: x-gateway-destination-endpoint\n", "")
                        .replace("receiving_namespaces: { untyped: [envoy.lb] }", ""),
                );
                plain(&mut seen.envoy.config);
            },
            &["metadata-not-received"],
        ),
        (
            |seen| seen.picker.reply = Ok(Choice::Destination("10.0.0.1:8000,10.0.0.2:8000".to_owned())),
            &["list-for-original-dst"],
        ),
        (|seen| seen.envoy.hosts.clear(), &["picker-unhealthy"]),
        (
            |seen| seen.picker.tls = Ok(Handshake { h2: true, chain: Vec::new() }),
            &["tls-certificate", "tls-mismatch"],
        ),
        (
            |seen| {
                seen.envoy.hosts.clear();
                seen.picker.unreachable = Some("refused".to_owned());
            },
            &["picker-unhealthy", "picker-unreachable"],
        ),
        (|seen| seen.picker.reply = Ok(Choice::Refused(503)), &["no-endpoints"]),
    ];
    for (number, (change, codes)) in table.into_iter().enumerate() {
        assert_eq!(found(change), codes, "{number}");
    }
}

#[test]
fn faults_of_the_cluster_and_of_versions_are_found() {
    let table: [(Change, &[&str]); 19] = [
        (|seen| seen.pool().fails_open = true, &["fail-mode-differs"]),
        (|seen| seen.settings().fails_open = true, &["fail-mode-differs", "fails-open"]),
        (|seen| seen.pool().routes = Ok(Vec::new()), &["no-route"]),
        (
            |seen| {
                let rejected = ("gw".to_owned(), "Accepted".to_owned(), "NotAllowed: no".to_owned());
                seen.pool().routes = Ok(vec![Route { name: "r".to_owned(), rejected: vec![rejected] }]);
            },
            &["route-not-accepted"],
        ),
        (|seen| seen.cluster.kinds[0].1 = "v1alpha2".to_owned(), &["crd-old"]),
        (|seen| seen.cluster.pool = Some(Err(NoPool::Unreadable("denied".to_owned()))), &[]),
        (|seen| seen.cluster.pool = Some(Err(NoPool::Missing("not found".to_owned()))), &["pool-missing"]),
        (|seen| seen.pool().service = Err("denied".to_owned()), &[]),
        (|seen| seen.envoy.version = "1.32.13".to_owned(), &["envoy-old"]),
        (|seen| seen.envoy.version = "1.36.2".to_owned(), &["envoy-duplicates"]),
        (|seen| seen.page.version = Some("1.2.2".to_owned()), &["versions-differ"]),
        (
            |seen| {
                let agreement = Agreement { compared: 30, not_cached: 0, not_told: 30 };
                seen.page.agreements.insert(("p".to_owned(), "ns/a".to_owned()), agreement);
            },
            &["kv-events-disagree"],
        ),
        (
            |seen| {
                let agreement = Agreement { compared: 30, not_cached: 3, not_told: 3 };
                seen.page.agreements.insert(("p".to_owned(), "ns/a".to_owned()), agreement);
            },
            &[],
        ),
        (
            |seen| {
                let counts = [("failed".to_owned(), 30), ("rendered".to_owned(), 3)].into();
                seen.page.tokens.insert("p".to_owned(), counts);
            },
            &["kv-events-without-tokens"],
        ),
        (|seen| seen.page.state_store = Some(StateStore::default()), &["state-store-away"]),
        (
            |seen| {
                seen.page.state_store = Some(StateStore { is_connected: true, ..StateStore::default() });
            },
            &[],
        ),
        (
            |seen| {
                let store = StateStore { is_connected: true, lacks_prefixes: true, ..StateStore::default() };
                seen.page.state_store = Some(store);
            },
            &["state-store-prefixes"],
        ),
        (
            |seen| {
                let store = StateStore { is_connected: true, lacks_learned: true, ..StateStore::default() };
                seen.page.state_store = Some(store);
            },
            &["state-store-learned"],
        ),
        // The build of llm-d-router.
        (|seen| seen.page.version = Some("main-ebab687".to_owned()), &[]),
    ];
    for (number, (change, codes)) in table.into_iter().enumerate() {
        assert_eq!(found(change), codes, "{number}");
    }
    // Servers that don't say who they are, and no counters: nothing to compare with.
    let mut silent = sound();
    silent.envoy = Err("none".to_owned());
    silent.envoy_given = false;
    let replies = &mut silent.gateway.as_mut().unwrap().routed;
    replies.iter_mut().for_each(|reply| (reply.pod, reply.port) = (String::new(), String::new()));
    assert_eq!(examine(&silent).findings().count(), 0);
    // An address that was given, and nothing responds there.
    let mut deaf = sound();
    (deaf.envoy, deaf.admin) = (Err("refused".to_owned()), Err("refused".to_owned()));
    let report = examine(&deaf);
    let codes: Vec<&str> = report.roots().iter().map(|root| root.rule.code).collect();
    assert_eq!(codes, ["envoy-admin-unreachable", "admin-unreachable"]);
    let obstacle = |check: &str| report.obstacle(check).map(|rule| rule.code);
    assert_eq!(obstacle("fail-mode"), Some("envoy-admin-unreachable"));
    assert_eq!(obstacle("pod-metrics"), Some("admin-unreachable"));
    let mut handshake = sound();
    handshake.picker.as_mut().unwrap().tls = Ok(Handshake::default());
    let report = examine(&handshake);
    assert!(report.findings().any(|(check, finding)| check == "tls" && finding.rule.code == "tls-no-alpn"));
}

#[test]
fn checks_without_data_are_skipped_with_a_reason() {
    let no = || "there is none".to_owned();
    let blind = Observations {
        version: "1.2.3",
        gateway: Err(no()),
        envoy: Err(no()),
        envoy_given: false,
        picker: Err(no()),
        metrics: Err(no()),
        admin: Err(no()),
        admin_given: false,
        pods: Err(no()),
        cluster: Err(no()),
    };
    let report = examine(&blind);
    for (name, outcome) in &report.checks {
        assert_eq!(outcome.status(), Status::Skipped, "{name}");
    }
    // A configuration that is elsewhere is not one that is missing.
    let mut seen = sound();
    let manager = &mut seen.envoy.as_mut().unwrap().config.managers[0];
    manager.processors.clear();
    manager.unseen.push("from-elsewhere".to_owned());
    let report = examine(&seen);
    let exchange = report.checks.iter().find(|(name, _)| *name == "body-mode").unwrap();
    assert_eq!(exchange.1.status(), Status::Skipped);
}

#[test]
fn every_check_is_in_one_group() {
    let grouped: Vec<&str> = super::GROUPS.iter().flat_map(|(_, checks)| *checks).copied().collect();
    for (name, _) in super::ALL {
        assert_eq!(grouped.iter().filter(|other| **other == name).count(), 1, "{name}");
    }
    assert_eq!(grouped.len(), super::ALL.len());
}
