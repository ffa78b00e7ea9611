//! Checks that the program and a careful cluster accept the objects that the chart renders.

use std::collections::BTreeSet;

use serde_json::Value;
use usher::cli::check::{CheckArgs, Output, run_with};
use usher::cli::{Command, parse};
use usher::settings::Environment;

use crate::tools::{Helm, values_files};

/// All objects of a kind.
pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// The only object of a kind.
pub(crate) fn the<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut found = of_kind(objects, kind);
    let first = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "more than one {kind}");
    first
}

/// The Deployment of Usher and its container.
pub(crate) fn usher(objects: &[Value]) -> (&Value, &Value) {
    let has = |container: &&Value| container["name"] == "epp";
    let of = |deployment: &'_ Value| -> Option<usize> {
        deployment["spec"]["template"]["spec"]["containers"].as_array()?.iter().position(|c| has(&c))
    };
    let (deployment, index) =
        of_kind(objects, "Deployment").find_map(|found| Some((found, of(found)?))).expect("no container epp");
    (deployment, &deployment["spec"]["template"]["spec"]["containers"][index])
}

/// The arguments of a container.
pub(crate) fn arguments(container: &Value) -> Vec<String> {
    let arguments = container["args"].as_array().unwrap().iter();
    arguments.map(|argument| argument.as_str().unwrap().to_owned()).collect()
}

/// The configuration that these objects start Usher with.
pub(crate) fn configuration(objects: &[Value]) -> &str {
    let (deployment, container) = usher(objects);
    let arguments = arguments(container);
    let path = arguments.iter().find_map(|argument| argument.strip_prefix("--config-file=/config/")).unwrap();
    let volumes = deployment["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == "plugins-config").unwrap();
    let map = of_kind(objects, "ConfigMap")
        .find(|map| map["metadata"]["name"] == volume["configMap"]["name"])
        .expect("no ConfigMap of this name");
    map["data"][path].as_str().unwrap_or_else(|| panic!("no file {path}"))
}

#[test]
fn program_accepts_the_flags_of_the_chart() {
    let Some(helm) = Helm::find() else { return };
    for values in values_files() {
        let objects = helm.rendered(&values);
        let (_, container) = usher(&objects);
        let given = ["usher", "serve"].map(str::to_owned).into_iter().chain(arguments(container));
        let command = parse(given.map(Into::into)).unwrap_or_else(|error| panic!("{values}: {error}"));
        let Command::Serve(flags) = command else { panic!("{values}: not serve") };
        let environment = Environment {
            namespace: Some("models".to_owned()),
            pod: Some("u-1-2".to_owned()),
            ..Environment::default()
        };
        let settings = flags.settings(environment).unwrap_or_else(|error| panic!("{values}: {error}"));
        assert_eq!(settings.pool.namespace, "models");
        let arguments = CheckArgs {
            files: vec!["-".into()],
            output: Output::Json,
            allow_experimental_plugins: false,
            compare: None,
            endpoints_file: None,
            admin: None,
            memory_budget: usher::settings::MemoryBudget::Off,
        };
        let (mut out, mut error) = (Vec::new(), Vec::new());
        let code = run_with(&arguments, &mut configuration(&objects).as_bytes(), &mut out, &mut error);
        assert_eq!(code, 0, "{values}: {}", String::from_utf8_lossy(&error));
    }
}

#[test]
fn pods_are_restricted_and_know_their_identity() {
    let Some(helm) = Helm::find() else { return };
    for values in values_files() {
        let objects = helm.rendered(&values);
        for deployment in of_kind(&objects, "Deployment") {
            let pod = &deployment["spec"]["template"]["spec"];
            let security = &pod["securityContext"];
            assert_eq!(security["runAsNonRoot"], true, "{values}");
            assert!(security["runAsUser"].as_u64().unwrap() > 0, "{values}");
            assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault", "{values}");
            let containers = ["initContainers", "containers"].map(|of| pod[of].as_array().cloned());
            for container in containers.into_iter().flatten().flatten() {
                let security = &container["securityContext"];
                assert_eq!(security["allowPrivilegeEscalation"], false, "{values}");
                assert_eq!(security["readOnlyRootFilesystem"], true, "{values}");
                assert_eq!(security["capabilities"]["drop"][0], "ALL", "{values}");
                // The budget of docs/guide/memory.md.
                assert!(container["resources"]["limits"]["memory"].is_string(), "{values}");
                assert!(container["readinessProbe"].is_object(), "{values}");
            }
        }
        let (deployment, container) = usher(&objects);
        let names: Vec<_> = container["env"].as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
        assert_eq!(names[..2], ["NAMESPACE", "POD_NAME"], "{values}");
        let elects = arguments(container).contains(&"--ha-enable-leader-election=true".to_owned());
        let service = if elects { "readiness" } else { "inference-extension" };
        assert_eq!(container["readinessProbe"]["grpc"]["service"], service, "{values}");
        // A Service finds what the Deployment makes.
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        let selector = &deployment["spec"]["selector"]["matchLabels"];
        let fits = |selector: &Value| {
            selector.as_object().unwrap().iter().all(|(name, value)| labels[name] == *value)
        };
        assert!(fits(selector), "{values}");
        let name = &deployment["metadata"]["name"];
        let service = of_kind(&objects, "Service").find(|service| service["metadata"]["name"] == *name);
        assert!(fits(&service.expect("no Service")["spec"]["selector"]), "{values}");
    }
}

#[test]
fn invalid_values_are_named_in_the_error() {
    let Some(helm) = Helm::find() else { return };
    let labels = "router.modelServers.matchLabels.app=llama";
    let table: [(&[&str], &[&str]); 42] = [
        (&[], &["router.modelServers.matchLabels is required"]),
        (&[labels, "router.epp.replica=2"], &["/router/epp", "replica"]),
        (&[labels, "router.modelServers.type=vlm"], &["/router/modelServers/type"]),
        (
            &[labels, "router.modelServers.targetPorts[0].number=0"],
            &["/router/modelServers/targetPorts/0/number"],
        ),
        (&[labels, "router.modelServers.targetPorts=null"], &["targetPorts"]),
        (&[labels, "rooter.epp.replicas=2"], &["rooter"]),
        (&[labels, "provider.name=kgatway"], &["/provider/name"]),
        (&[labels, "router.proxy.proxyType=agentgateway"], &["/router/proxy/proxyType"]),
        (
            &[labels, "inferenceExtension.replicas=2"],
            &["inferenceExtension.* is not read any more", "router.epp"],
        ),
        (
            &[labels, "inferencePool.modelServerType=vllm"],
            &["inferencePool.* is not read any more", "router.modelServers"],
        ),
        (&[labels, "experimentalHttpRoute.enabled=true"], &["experimentalHttpRoute.*", "httpRoute"]),
        (
            &[labels, "inferenceObjectives[0].name=x"],
            &["inferenceObjectives is not read any more", "router.inferenceObjectives"],
        ),
        (
            &[labels, "router.proxy.presets.envoy.name=x"],
            &["router.proxy.presets is not read", "gateways.md"],
        ),
        (
            &[labels, "router.proxy.imagePullPolicy=Always"],
            &["router.proxy.imagePullPolicy is not read", "router.proxy.image.pullPolicy"],
        ),
        (&[labels, "router.modelServers.targetPortNumber=8000"], &["router.modelServers.targetPorts"]),
        (&[labels, "router.metricsPort=9091"], &["router.epp.metricsPort"]),
        (&[labels, "router.priorityRouting.enabled=true"], &["router.priorityRouting.enabled"]),
        (
            &[
                labels,
                "router.epp.pluginsConfig.kind=x",
                "router.epp.pluginsCustomConfig.default-plugins\\.yaml=x",
            ],
            &["default-plugins.yaml is in both"],
        ),
        (&[labels, "router.tokenizer.enabled=true"], &["router.tokenizer.enabled"]),
        (&[labels, "router.epp.autoscaling.enabled=true"], &["router.epp.autoscaling.enabled"]),
        (
            &[labels, "router.epp.flags.client-ca-path=/ca.pem", "router.monitoring.prometheus.enabled=true"],
            &["client-ca-path", "router.monitoring.prometheus.enabled to false"],
        ),
        (
            &[labels, "provider.name=gke,router.monitoring.alerts.enabled=true"],
            &["router.monitoring.alerts.enabled", "write deploy/observability/rules.yaml as Rules"],
        ),
        (
            &[labels, "router.monitoring.alerts.runbookUrl=javascript:x"],
            &["/router/monitoring/alerts/runbookUrl"],
        ),
        (
            &[labels, "router.proxy.enabled=true,httpRoute.create=true"],
            &["httpRoute.create is for gateway mode"],
        ),
        (
            &[labels, "router.inferencePool.create=false,httpRoute.create=true"],
            &["httpRoute.create needs an InferencePool"],
        ),
        (
            &[labels, "router.inferencePool.create=false,provider.name=istio"],
            &["provider.name istio needs an InferencePool"],
        ),
        (
            &[labels, "router.epp.capacityPolicies.clusterTopologies=true"],
            &["needs router.epp.capacityPolicies.enabled"],
        ),
        (
            &[
                labels,
                "router.epp.capacityPolicies.apply.enabled=true,router.epp.flags.ha-enable-leader-election=false",
            ],
            &["capacityPolicies.apply.enabled needs a leader"],
        ),
        (
            &[labels, "router.epp.flags.capacity-single-replica=true"],
            &["router.epp.deploymentStrategy", "never more than one replica"],
        ),
        (
            &[
                labels,
                "router.epp.flags.capacity-single-replica=true,router.epp.deploymentStrategy.type=Recreate,router.epp.replicas=2",
            ],
            &["router.epp.replicas to 1"],
        ),
        (
            &[labels, "router.stateStore.address=redis://:secret@valkey:6379"],
            &["/router/stateStore/address", "pattern"],
        ),
        (
            &[labels, "router.stateStore.address=redis://valkey:6379,router.stateStore.valkey.enabled=true"],
            &["router.stateStore.valkey.enabled are both set"],
        ),
        (
            &[
                labels,
                "router.stateStore.valkey.enabled=true,router.epp.flags.state-store=redis://valkey:6379",
            ],
            &["router.epp.flags.state-store and router.stateStore both"],
        ),
        (&[labels, "router.stateStore.passwordSecret.name=valkey"], &["of no store", "address"]),
        (
            &[labels, "router.stateStore.address=redis://valkey:6379,router.stateStore.user=usher"],
            &["router.stateStore.passwordSecret.name"],
        ),
        (
            &[labels, "router.stateStore.address=redis://valkey:6379,router.stateStore.ca.secretName=ca"],
            &["rediss://"],
        ),
        (
            &[
                labels,
                "router.stateStore.address=rediss://valkey:6379,router.stateStore.ca.secretName=ca,router.stateStore.ca.configMapName=ca",
            ],
            &["a Secret and a ConfigMap"],
        ),
        (
            &[
                labels,
                "router.stateStore.address=redis://valkey:6379,router.stateStore.clientCertSecret.name=c",
            ],
            &["router.stateStore.clientCertSecret", "rediss://"],
        ),
        (&[labels, "router.stateStore.clientCertSecret.name=c"], &["of no store", "address"]),
        (&[labels, "router.epp.pluginsConfigFile=mine.yaml"], &["mine.yaml is in neither"]),
        (&[labels, "router.epp.capacityPolicies.keda.enabled=true"], &["needs policies", "capacity-policy"]),
        (
            &[
                labels,
                "router.epp.capacityPolicies.keda.scaledObjects[0].policy=p",
                "router.epp.capacityPolicies.keda.scaledObjects[0].role=r",
                "router.epp.capacityPolicies.keda.scaledObjects[0].scaleTargetRef.name=t",
                "router.epp.capacityPolicies.keda.scaledObjects[0].maxReplicaCount=2",
            ],
            &["keda.scaledObjects", "keda.enabled opens"],
        ),
    ];
    for (set, words) in table {
        let arguments: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        let error = helm.template("models", &arguments).expect_err(&format!("{set:?} is taken"));
        for word in words {
            assert!(error.contains(word), "{set:?}: {error}");
        }
    }
}

#[test]
fn rights_beyond_scaling_are_granted_by_opt_in() {
    let Some(helm) = Helm::find() else { return };
    let policies = "router.epp.capacityPolicies";
    let labels = format!(
        "router.modelServers.matchLabels.app=a,{policies}.enabled=true,{policies}.apply.enabled=true"
    );
    // What may be written, by its resource.
    let written = |more: &str| -> BTreeSet<String> {
        let objects = helm.template("models", &["--set", &format!("{labels}{more}")]).unwrap();
        let is_written = |rule: &&Value| {
            let verbs = rule["verbs"].as_array().unwrap();
            verbs.iter().any(|verb| ["patch", "update", "delete", "*"].contains(&verb.as_str().unwrap()))
        };
        let roles = ["Role", "ClusterRole"].into_iter().flat_map(|kind| of_kind(&objects, kind));
        let rules: Vec<Value> = roles.flat_map(|role| role["rules"].as_array().unwrap().clone()).collect();
        let resources =
            rules.iter().filter(is_written).flat_map(|rule| rule["resources"].as_array().unwrap());
        resources.map(|resource| resource.as_str().unwrap().to_owned()).collect()
    };
    let set = |all: &[&str]| -> BTreeSet<String> { all.iter().map(|one| (*one).to_owned()).collect() };
    // Of two replicas that are there during a rollout one acts.
    let least = ["capacitypolicies/status", "deployments/scale", "leases", "statefulsets/scale"];
    assert_eq!(written(""), set(&least));
    let objects = helm.template("models", &["--set", &labels]).unwrap();
    assert!(arguments(usher(&objects).1).contains(&"--ha-enable-leader-election=true".to_owned()));
    // Where there is never more than one, none is elected.
    let single = "router.epp.flags.capacity-single-replica=true,router.epp.flags.ha-enable-leader-election=false,router.epp.deploymentStrategy.type=Recreate";
    assert!(helm.template("models", &["--set", &format!("{labels},{single}")]).is_ok());
    assert_eq!(written(&format!(",{policies}.apply.nodes=true")), set(&least));
    assert_eq!(written(&format!(",{policies}.apply.pods=true")), set(&[&least[..], &["pods"]].concat()));
    let whole = format!(
        ",{policies}.apply.targets[0].apiGroup=apps,{policies}.apply.targets[0].resources={{deployments/scale,deployments}}"
    );
    assert_eq!(
        written(&whole),
        set(&["capacitypolicies/status", "deployments/scale", "deployments", "leases"])
    );
}

#[test]
fn releases_fit_into_one_namespace_and_one_cluster() {
    let Some(helm) = Helm::find() else { return };
    let all = "router.epp.podDisruptionBudget.create=true,router.networkPolicy.create=true,router.monitoring.prometheus.enabled=true,router.monitoring.dashboards.enabled=true,router.epp.capacityPolicies.enabled=true,router.epp.capacityPolicies.clusterTopologies=true,router.epp.capacityPolicies.apply.enabled=true,router.epp.capacityPolicies.apply.nodes=true,router.epp.capacityPolicies.keda.enabled=true,router.epp.replicas=2";
    for mode in [
        "httpRoute.create=true,provider.name=istio",
        "httpRoute.create=true,provider.name=gke",
        "router.proxy.enabled=true,router.proxy.mode=service",
        "router.proxy.enabled=true,router.proxy.mode=sidecar",
    ] {
        let mut seen = BTreeSet::new();
        let apart = [("a-llama", "team"), ("llama", "team-a")];
        for (release, namespace) in [("llama", "models"), ("qwen", "models")].into_iter().chain(apart) {
            // A Deployment and a StatefulSet of one name, and of both releases.
            let scaled = ["decode", "prefill"].into_iter().zip(["Deployment", "StatefulSet"]).enumerate();
            let scaled = scaled.map(|(place, (role, kind))| {
                let of = format!("router.epp.capacityPolicies.keda.scaledObjects[{place}]");
                format!("{of}.policy=p,{of}.role={role},{of}.maxReplicaCount=2,{of}.scaleTargetRef.kind={kind},{of}.scaleTargetRef.name=model")
            });
            let scaled: Vec<String> = scaled.collect();
            let values =
                format!("router.modelServers.matchLabels.app={release},{all},{mode},{}", scaled.join(","));
            for object in helm.release(release, namespace, &["--set", &values]).unwrap() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let metadata = &object["metadata"];
                // Cluster roles and their bindings are in no namespace.
                let is_everywhere = text(&object["kind"]).starts_with("Cluster");
                let within = if is_everywhere { "" } else { namespace };
                let known = [&object["apiVersion"], &object["kind"], &metadata["name"]].map(text);
                assert!(seen.insert((within, known.clone())), "{mode}: {known:?} twice");
            }
        }
        assert!(seen.len() > 20, "{mode}: {}", seen.len());
    }
}

#[test]
fn keda_triggers_query_an_open_port() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.rendered("istio");
    let (deployment, container) = usher(&objects);
    let list = |value: &Value| value.as_array().unwrap().clone();
    let mut count = 0;
    for object in of_kind(&objects, "ScaledObject") {
        let trigger = &object["spec"]["triggers"][0];
        assert_eq!(trigger["type"], "external-push");
        let (host, port) = trigger["metadata"]["scalerAddress"].as_str().unwrap().split_once(':').unwrap();
        let port = port.parse::<u64>().ok();
        let name =
            host.strip_suffix(".models.svc.cluster.local").expect("a name that KEDA's namespace knows");
        let service =
            of_kind(&objects, "Service").find(|service| service["metadata"]["name"] == name).unwrap();
        // Ready ones alone: the leader, or all that one of them may be.
        assert_ne!(service["spec"]["publishNotReadyAddresses"], true);
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        let selector = service["spec"]["selector"].as_object().unwrap();
        assert!(selector.iter().all(|(name, value)| labels[name] == *value));
        let ports = list(&service["spec"]["ports"]);
        let open = ports.iter().find(|open| open["port"].as_u64() == port).expect("a port of the Service");
        let ports = list(&container["ports"]);
        let bound = ports.iter().find(|bound| bound["name"] == open["targetPort"]).expect("of the container");
        let number = &bound["containerPort"];
        assert!(arguments(container).contains(&format!("--keda-address=0.0.0.0:{number}")));
        let rules = list(&the(&objects, "NetworkPolicy")["spec"]["ingress"]);
        let rule = rules.iter().find(|rule| list(&rule["ports"]).iter().any(|port| port["port"] == *number));
        let from = &rule.expect("a rule that lets KEDA in")["from"][0]["namespaceSelector"]["matchLabels"];
        assert_eq!(from["kubernetes.io/metadata.name"], "keda");
        count += 1;
    }
    assert_eq!(count, 2);
    // Not opened without being asked for.
    let plain = helm.template("models", &["--set", "router.modelServers.matchLabels.app=a"]).unwrap();
    assert!(!serde_json::to_string(&plain).unwrap().contains("keda"));
}

/// Rollout of the Deployment controller with a strategy: the arithmetic of
/// `pkg/controller/deployment/rolling.go` of Kubernetes 1.36. With `elects`, only the leader is
/// ever available. Returns whether all pods became new, and the fewest that were available on the
/// way.
fn rolled(replicas: i64, surge: i64, unavailable: i64, elects: bool) -> (bool, i64) {
    // Pods of the old and of the new, and how many of them are available.
    let (mut old, mut new) = (replicas, 0);
    let (mut old_ready, mut new_ready) = (if elects { 1 } else { replicas }, 0);
    let mut fewest = old_ready;
    let least = replicas - unavailable;
    for _ in 0..10 * replicas {
        let before = (old, new, old_ready, new_ready);
        if new < replicas {
            new = replicas.min(new + (replicas + surge - old - new).max(0));
        }
        // Those that the controller takes first are not available.
        let limit = old + new - least - (new - new_ready);
        if limit > 0 {
            let idle = limit.min(old - old_ready);
            old -= idle;
            let more = (old_ready + new_ready - least).max(0).min(old);
            old -= more;
            old_ready = old_ready.min(old);
        }
        fewest = fewest.min(old_ready + new_ready);
        // A moment later those that can be are ready: all, or the leader, who has handed
        // over to the new if there is one, and goes on being ready until that one is.
        if elects {
            if new > 0 {
                new_ready = 1;
                fewest = fewest.min(old_ready + new_ready);
                old_ready = 0;
            }
        } else {
            new_ready = new;
        }
        if before == (old, new, old_ready, new_ready) {
            break;
        }
    }
    (old == 0 && new == replicas, fewest)
}

#[test]
fn rollout_ends_and_always_has_a_ready_pod() {
    let Some(helm) = Helm::find() else { return };
    for replicas in 1..=5i64 {
        for elects in [true, false] {
            let flags = format!(
                "router.modelServers.matchLabels.app=a,router.epp.replicas={replicas},router.epp.flags.ha-enable-leader-election={elects}"
            );
            let objects = helm.template("models", &["--set", &flags]).unwrap();
            let rolling = &usher(&objects).0["spec"]["strategy"]["rollingUpdate"];
            let surge = rolling["maxSurge"].as_i64().unwrap();
            let unavailable = rolling["maxUnavailable"].as_i64().unwrap();
            let least = if elects { 1 } else { replicas };
            assert_eq!(rolled(replicas, surge, unavailable, elects), (true, least), "{replicas} {elects}");
        }
    }
    // The check can fail: all but the leader's successor are waited for, or nobody is left.
    assert!(!rolled(3, 1, 0, true).0);
    assert_eq!(rolled(3, 1, 3, true).1, 0);
}
