//! Gathers the state of all reachable parts. Decides nothing.

mod api;
mod capacity;
mod cluster;
mod envoy;
mod gateway;
mod http;
mod pages;
mod picker;
mod plan;

pub(crate) use self::capacity::of_file as policies_of_file;
pub use self::http::HttpClient;
pub use self::plan::{Plan, Pods, PoolPlan};

use super::seen::{Cluster, Envoy, Known, Observations, PickerPage, Seen};

/// Port of Envoy's admin interface in `deploy/envoy` and in llm-d-router's charts.
const ENVOY_ADMIN: u16 = 19000;

/// Port of a picker's metrics, and of Usher's admin page.
const METRICS: u16 = 9090;
const USHER_ADMIN: u16 = 9095;

/// Offset of the metrics port in `usher demo`: after the port of its gateway.
const DEMO_METRICS: u16 = 3;
const DEMO_USHER_ADMIN: u16 = 4;
const DEMO_ENVOY_ADMIN: u16 = 5;

/// Gathers everything.
pub async fn gather(plan: &Plan) -> Observations {
    let local = plan.gateway.as_ref().filter(|client| client.is_local());
    let port = plan.gateway.as_ref().map(HttpClient::port);
    let (envoy_site, mut envoy) = find_envoy(plan, local, port).await;
    let client = plan.gateway.clone().or_else(|| listener(&envoy, envoy_site.as_ref()?));
    let mut gateway = match &client {
        Some(client) => Ok(gateway::refusals(client).await),
        None => Err("give --gateway".to_owned()),
    };
    let picker = ask_picker(plan, &envoy).await;
    let model = plan.model.as_deref().unwrap_or(gateway::NO_MODEL);

    // The picker was asked for a decision above; what it counted for that comes before.
    let metrics = find_metrics(plan, local, model).await;
    let before = match &envoy_site {
        Some(client) => envoy::hosts(client).await,
        None => Err(String::new()),
    };
    if let (Ok(seen), Some(client)) = (&mut gateway, &client)
        && seen.unreachable.is_none()
    {
        gateway::routed(client, model, seen).await;
    }
    let metrics = match metrics {
        Ok((client, page)) => {
            let after = pages::picker(&client, page.given, model).await;
            Ok(pages::since(after, &page))
        }
        Err(reason) => Err(reason),
    };
    if let (Ok(seen), Ok(before), Some(client)) = (&mut envoy, before, &envoy_site)
        && let Ok(after) = envoy::hosts(client).await
    {
        let earlier: std::collections::HashMap<_, _> = before
            .iter()
            .flat_map(|(name, hosts)| hosts.iter().map(move |host| ((name, &host.address), host.requests)))
            .collect();
        let pickers: Vec<String> = seen.config.picker_clusters().into_iter().map(str::to_owned).collect();
        for (name, hosts) in after.iter().filter(|(name, _)| !pickers.contains(name)) {
            for host in hosts {
                let new =
                    host.requests.saturating_sub(earlier.get(&(name, &host.address)).copied().unwrap_or(0));
                *seen.probed.entry(host.address.clone()).or_insert(0) += new;
            }
        }
    }
    let admin = find_admin(plan, local).await;
    let cluster = match &plan.pool {
        Some(pool) => Ok(cluster::look(pool).await),
        None => Err("give --pool-name or --endpoint-selector for a cluster".to_owned()),
    };
    let pods = match servers(plan, &admin, &cluster) {
        Ok(servers) => Ok(pages::pods(servers, plan.limit).await),
        Err(reason) => Err(reason),
    };
    let version = env!("CARGO_PKG_VERSION");
    let (envoy_given, admin_given) = (plan.envoy.is_some(), plan.admin.is_some());
    Observations { version, gateway, envoy, envoy_given, picker, metrics, admin, admin_given, pods, cluster }
}

async fn find_envoy(
    plan: &Plan,
    local: Option<&HttpClient>,
    port: Option<u16>,
) -> (Option<HttpClient>, Seen<Envoy>) {
    if let Some(client) = &plan.envoy {
        let seen = envoy::look(client, port).await;
        return (seen.is_ok().then(|| client.clone()), seen);
    }
    let Some(gateway) = local else {
        return (
            None,
            Err("give --envoy-admin; without it only requests show what the gateway does".to_owned()),
        );
    };
    for port in [Some(ENVOY_ADMIN), gateway.port().checked_add(DEMO_ENVOY_ADMIN)].into_iter().flatten() {
        let client = HttpClient::local(port).within(plan.limit);
        if envoy::listens(&client, gateway.port()).await {
            let seen = envoy::look(&client, Some(gateway.port())).await;
            return (Some(client), seen);
        }
    }
    (
        None,
        Err(format!(
            "no admin interface of the Envoy on port {} on 127.0.0.1:{ENVOY_ADMIN}; give --envoy-admin",
            gateway.port()
        )),
    )
}

/// Listener that asks a picker, beside Envoy's admin interface.
fn listener(envoy: &Seen<Envoy>, admin: &HttpClient) -> Option<HttpClient> {
    let (manager, _) = envoy.as_ref().ok()?.config.pickers().next()?;
    Some(admin.with_port(manager.port?))
}

async fn ask_picker(plan: &Plan, envoy: &Seen<Envoy>) -> Seen<super::seen::Picker> {
    if let Some(address) = &plan.picker {
        return Ok(picker::ask(address, "--picker", plan.limit).await);
    }
    let envoy = envoy.as_ref().map_err(|_| "give --picker, or --envoy-admin to find it".to_owned())?;
    let clusters = envoy.config.picker_clusters();
    let name = clusters.first().ok_or("Envoy's configuration names no picker; give --picker")?;
    let resolved = envoy.hosts.get(*name).and_then(|hosts| hosts.first()).map(|host| host.address.clone());
    let written = envoy.config.clusters.get(*name).and_then(|cluster| cluster.addresses.first().cloned());
    let address = resolved
        .or(written)
        .ok_or_else(|| format!("cluster {name} of the gateway has no host; give --picker"))?;
    let seen = picker::ask(&address, &format!("cluster {name}"), plan.limit).await;
    let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host);
    match seen.unreachable {
        // An address that means something to the gateway alone.
        Some(reason) if !(envoy.local && self::http::is_local(host)) => {
            Err(format!("{address} of cluster {name} can't be reached from here ({reason}); give --picker"))
        }
        _ => Ok(seen),
    }
}

async fn find_metrics(
    plan: &Plan,
    local: Option<&HttpClient>,
    model: &str,
) -> Seen<(HttpClient, PickerPage)> {
    if let Some(client) = &plan.metrics {
        return Ok((client.clone(), pages::picker(client, true, model).await));
    }
    let gateway = local.ok_or("give --metrics")?;
    for port in [gateway.port().checked_add(DEMO_METRICS), Some(METRICS)].into_iter().flatten() {
        let client = HttpClient::local(port).within(plan.limit);
        let page = pages::picker(&client, false, model).await;
        if page.families > 0 {
            return Ok((client, page));
        }
    }
    Err(format!("no picker's metrics on 127.0.0.1:{METRICS}; give --metrics"))
}

async fn find_admin(plan: &Plan, local: Option<&HttpClient>) -> Seen<Vec<Known>> {
    if let Some(client) = &plan.admin {
        return pages::admin(client).await;
    }
    let gateway = local.ok_or("give --admin")?;
    for port in [gateway.port().checked_add(DEMO_USHER_ADMIN), Some(USHER_ADMIN)].into_iter().flatten() {
        if let Ok(known) = pages::admin(&HttpClient::local(port).within(plan.limit)).await {
            return Ok(known);
        }
    }
    Err(format!("no admin port of Usher on 127.0.0.1:{USHER_ADMIN}; give --admin"))
}

/// The model servers whose metrics are looked at.
fn servers(plan: &Plan, admin: &Seen<Vec<Known>>, cluster: &Seen<Cluster>) -> Seen<Vec<Pods>> {
    if let Some(servers) = &plan.endpoints {
        return Ok(servers.clone());
    }
    if let (Some(pool), Ok(cluster)) = (&plan.pool, cluster) {
        let ports = match &cluster.pool {
            Some(Ok(pool)) => &pool.ports,
            _ => &pool.ports,
        };
        let pods = cluster.pods.as_ref().map_err(|reason| format!("the pods are not known: {reason}"))?;
        let ready = pods.iter().filter(|pod| pod.ready).filter_map(|pod| pod.ip.map(|ip| (pod, ip)));
        let of = |(pod, ip): (&super::seen::Pod, std::net::IpAddr)| {
            let engine = pod.engine.clone().unwrap_or_else(|| plan.engine.clone());
            let name = pod.name.clone();
            ports
                .iter()
                .map(move |port| Pods {
                    name: name.clone(),
                    address: (ip, *port).into(),
                    engine: engine.clone(),
                })
                .collect::<Vec<_>>()
        };
        return Ok(ready.flat_map(of).collect());
    }
    let known = admin.as_ref().map_err(|reason| {
        format!("the endpoints are not known: {reason}, or --endpoints-file, or --pool-name")
    })?;
    let of = |known: &Known| {
        let address = known.address.parse().ok()?;
        Some(Pods { name: known.name.clone(), address, engine: plan.engine.clone() })
    };
    Ok(known.iter().filter_map(of).collect())
}
