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
pub use self::plan::{LocalPorts, Plan, Pods, PoolPlan};

use std::time::Duration;

use super::seen::{Cluster, Envoy, Known, Observations, Picker, PickerPage, Seen};

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
    let usual = plan.ports.envoy;
    let Some(gateway) = local else {
        if !plan.is_bare {
            let reason = "give --envoy-admin; without it only requests show what the gateway does";
            return (None, Err(reason.to_owned()));
        }
        let client = HttpClient::local(usual).within(plan.limit);
        return match envoy::look(&client, None).await {
            Ok(seen) => (Some(client), Ok(seen)),
            Err(_) => {
                (None, Err(format!("no admin interface of Envoy on 127.0.0.1:{usual}; give --envoy-admin")))
            }
        };
    };
    for port in [Some(usual), gateway.port().checked_add(DEMO_ENVOY_ADMIN)].into_iter().flatten() {
        let client = HttpClient::local(port).within(plan.limit);
        if envoy::listens(&client, gateway.port()).await {
            let seen = envoy::look(&client, Some(gateway.port())).await;
            return (Some(client), seen);
        }
    }
    (
        None,
        Err(format!(
            "no admin interface of the Envoy on port {} on 127.0.0.1:{usual}; give --envoy-admin",
            gateway.port()
        )),
    )
}

/// Listener that asks a picker, beside Envoy's admin interface.
fn listener(envoy: &Seen<Envoy>, admin: &HttpClient) -> Option<HttpClient> {
    let (manager, _) = envoy.as_ref().ok()?.config.pickers().next()?;
    Some(admin.with_port(manager.port?))
}

async fn ask_picker(plan: &Plan, envoy: &Seen<Envoy>) -> Seen<Picker> {
    if let Some(address) = &plan.picker {
        return Ok(picker::ask(address, "--picker", plan.limit).await);
    }
    match ask_picker_of(envoy, plan.limit).await {
        Err(reason) if plan.is_bare => {
            let address = format!("127.0.0.1:{}", plan.ports.picker);
            let seen = picker::ask(&address, "default", plan.limit).await;
            // What else listens there is none of ours.
            if seen.reply.is_ok() { Ok(seen) } else { Err(reason) }
        }
        seen => seen,
    }
}

/// Asks the picker that Envoy's configuration names.
async fn ask_picker_of(envoy: &Seen<Envoy>, limit: Duration) -> Seen<Picker> {
    let envoy = envoy.as_ref().map_err(|_| "give --picker, or --envoy-admin to find it".to_owned())?;
    let clusters = envoy.config.picker_clusters();
    let name = clusters.first().ok_or("Envoy's configuration names no picker; give --picker")?;
    let resolved = envoy.hosts.get(*name).and_then(|hosts| hosts.first()).map(|host| host.address.clone());
    let written = envoy.config.clusters.get(*name).and_then(|cluster| cluster.addresses.first().cloned());
    let address = resolved
        .or(written)
        .ok_or_else(|| format!("cluster {name} of the gateway has no host; give --picker"))?;
    let seen = picker::ask(&address, &format!("cluster {name}"), limit).await;
    let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host);
    match seen.unreachable {
        // An address that means something to the gateway alone.
        Some(reason) if !(envoy.local && self::http::is_local(host)) => {
            Err(format!("{address} of cluster {name} can't be reached from here ({reason}); give --picker"))
        }
        _ => Ok(seen),
    }
}

/// Ports of this machine where a part of the picker is looked for: the one of `usher demo` beside its gateway, then the
/// usual one. `None` if neither the gateway nor the picker is of this machine.
fn local_ports(
    plan: &Plan,
    gateway: Option<&HttpClient>,
    demo: u16,
    usual: u16,
) -> Option<impl Iterator<Item = u16>> {
    let picker = plan.picker.as_ref().and_then(|address| address.rsplit_once(':'));
    let is_here =
        plan.is_bare || gateway.is_some() || picker.is_some_and(|(host, _)| self::http::is_local(host));
    let demo = gateway.and_then(|gateway| gateway.port().checked_add(demo));
    is_here.then(|| demo.into_iter().chain([usual]))
}

async fn find_metrics(
    plan: &Plan,
    local: Option<&HttpClient>,
    model: &str,
) -> Seen<(HttpClient, PickerPage)> {
    if let Some(client) = &plan.metrics {
        return Ok((client.clone(), pages::picker(client, true, model).await));
    }
    let usual = plan.ports.metrics;
    for port in local_ports(plan, local, DEMO_METRICS, usual).ok_or("give --metrics")? {
        let client = HttpClient::local(port).within(plan.limit);
        let page = pages::picker(&client, false, model).await;
        if page.families > 0 {
            return Ok((client, page));
        }
    }
    Err(format!("no picker's metrics on 127.0.0.1:{usual}; give --metrics"))
}

async fn find_admin(plan: &Plan, local: Option<&HttpClient>) -> Seen<Vec<Known>> {
    if let Some(client) = &plan.admin {
        return pages::admin(client).await;
    }
    let usual = plan.ports.admin;
    for port in local_ports(plan, local, DEMO_USHER_ADMIN, usual).ok_or("give --admin")? {
        if let Ok(known) = pages::admin(&HttpClient::local(port).within(plan.limit)).await {
            return Ok(known);
        }
    }
    Err(format!("no admin port of Usher on 127.0.0.1:{usual}; give --admin"))
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
