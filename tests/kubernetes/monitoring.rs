//! Alerts and dashboards in the chart.

use serde_json::Value;

use crate::chart::{of_kind, the};
use crate::tools::{Helm, documents, root};

const LABELS: &str = "router.modelServers.matchLabels.app=llama";

fn rendered(helm: &Helm, set: &str) -> Vec<Value> {
    helm.template("models", &["--set", LABELS, "--set", set]).unwrap()
}

/// ConfigMaps of dashboards.
fn dashboards(objects: &[Value]) -> Vec<&Value> {
    let is_dashboard = |object: &&Value| object["metadata"]["labels"]["grafana_dashboard"] == "1";
    of_kind(objects, "ConfigMap").filter(is_dashboard).collect()
}

#[test]
fn alerts_and_dashboards_are_opt_in_and_independent() {
    let Some(helm) = Helm::find() else { return };
    let alerts = |objects: &[Value]| of_kind(objects, "PrometheusRule").count();
    for (set, rules, maps) in [
        ("router.epp.replicas=1", 0, 0),
        ("router.monitoring.alerts.enabled=true", 1, 0),
        ("router.monitoring.dashboards.enabled=true", 0, 4),
    ] {
        let objects = rendered(&helm, set);
        assert_eq!((alerts(&objects), dashboards(&objects).len()), (rules, maps), "{set}");
    }
}

#[test]
fn the_chart_has_the_rules_and_dashboards_of_the_repository() {
    let Some(helm) = Helm::find() else { return };
    let folder = root().join("deploy/observability");
    let objects = rendered(
        &helm,
        "router.monitoring.alerts.enabled=true,router.monitoring.dashboards.enabled=true,router.monitoring.alerts.extraLabels.release=p",
    );
    let rule = the(&objects, "PrometheusRule");
    let text = std::fs::read_to_string(folder.join("rules.yaml")).unwrap();
    assert_eq!(rule["spec"], documents(&text).next().unwrap(), "`make chart-accept` copies it");
    assert_eq!(rule["metadata"]["labels"]["release"], "p");
    for map in dashboards(&objects) {
        let (file, dashboard) = map["data"].as_object().unwrap().iter().next().unwrap();
        let path = folder.join("dashboards").join(file.strip_prefix("usher-").unwrap());
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let of_repository = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            parsed(dashboard.as_str().unwrap()),
            parsed(&of_repository),
            "`make chart-accept` copies it"
        );
    }
}

#[test]
fn alert_links_use_the_configured_documentation() {
    let Some(helm) = Helm::find() else { return };
    let set = "router.monitoring.alerts.enabled=true,router.monitoring.alerts.runbookUrl=https://git.example.com/usher/";
    let objects = rendered(&helm, set);
    let rules = the(&objects, "PrometheusRule")["spec"]["groups"][0]["rules"].as_array().unwrap();
    assert!(!rules.is_empty());
    for rule in rules {
        let url = rule["annotations"]["runbook_url"].as_str().unwrap();
        assert!(url.starts_with("https://git.example.com/usher/docs/guide/observability.md#"), "{url}");
    }
}
