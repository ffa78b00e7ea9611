//! Envoy's admin interface: version, configuration, counters, hosts.

use std::collections::BTreeMap;

use serde_json::Value;

use super::http::HttpClient;
use crate::doctor::envoy::{EnvoyConfig, socket};
use crate::doctor::json::{list, number, text};
use crate::doctor::seen::{Envoy, Host, Seen};

/// Largest page that is read: a dump of thousands of routes and clusters.
const MOST: usize = 64 << 20;

/// Reads the state of Envoy from its admin interface. `port` is that of the gateway, if it is one of its own.
///
/// # Errors
/// Text for a check that is skipped: the admin interface can't be read, or isn't Envoy's.
pub(super) async fn look(client: &HttpClient, port: Option<u16>) -> Seen<Envoy> {
    let info = client.json("/server_info", MOST).await?;
    let version = version(text(&info, "version"));
    let Some(version) = version else { return Err(format!("{}/server_info is not Envoy's", client.url())) };
    let dump = client.json("/config_dump", MOST).await?;
    let config = EnvoyConfig::read(&dump, port);
    let filter = "ext_proc%7Cupstream_rq_pending_overflow%7Cupstream_cx_overflow";
    let stats = client.json(&format!("/stats?format=json&filter={filter}"), MOST).await?;
    let hosts = hosts(client).await?;
    let (url, local) = (client.url(), client.is_local());
    Ok(Envoy { url, local, version, config, stats: counters(&stats), hosts, probed: BTreeMap::new() })
}

/// Returns `true` if one of its listeners has this port.
pub(super) async fn listens(client: &HttpClient, port: u16) -> bool {
    let Ok(page) = client.json("/listeners?format=json", MOST).await else { return false };
    let has = |listener: &Value| {
        listener
            .get("local_address")
            .and_then(socket)
            .is_some_and(|address| address.ends_with(&format!(":{port}")))
    };
    list(&page, "listener_statuses").iter().any(has)
}

/// Hosts of all clusters.
///
/// # Errors
/// Text for a check that is skipped: the admin interface can't be read.
pub(super) async fn hosts(client: &HttpClient) -> Seen<BTreeMap<String, Vec<Host>>> {
    let page = client.json("/clusters?format=json", MOST).await?;
    let of = |cluster: &Value| {
        let hosts = list(cluster, "host_statuses").iter().filter_map(host).collect();
        (text(cluster, "name").to_owned(), hosts)
    };
    Ok(list(&page, "cluster_statuses").iter().map(of).collect())
}

fn host(status: &Value) -> Option<Host> {
    let stats = list(status, "stats");
    let requests = stats.iter().find(|stat| text(stat, "name") == "rq_total");
    let health = status.get("health_status").and_then(Value::as_object);
    let bad = |(name, value): (&String, &Value)| match value {
        Value::Bool(true) if name.starts_with("failed_") => Some(name.clone()),
        Value::String(text) if name == "eds_health_status" && text == "UNHEALTHY" => {
            Some("UNHEALTHY by EDS".to_owned())
        }
        _ => None,
    };
    Some(Host {
        address: socket(status.get("address")?)?,
        unhealthy: health.into_iter().flatten().filter_map(bad).collect(),
        requests: requests.and_then(|stat| number(stat, "value")).unwrap_or(0),
    })
}

fn counters(page: &Value) -> BTreeMap<String, u64> {
    let of = |stat: &Value| Some((text(stat, "name").to_owned(), number(stat, "value")?));
    list(page, "stats").iter().filter_map(of).collect()
}

/// The number in `COMMIT/1.40.0/Clean/RELEASE/BoringSSL`.
fn version(text: &str) -> Option<String> {
    text.split('/')
        .nth(1)
        .filter(|version| version.starts_with(|c: char| c.is_ascii_digit()))
        .map(str::to_owned)
}
