//! Is there a pool, with pods and a picker?

use crate::doctor::finding::{Finding, Outcome, count};
use crate::doctor::rules;
use crate::doctor::seen::{Cluster, NoPool, Observations, Pool};

use super::preconditions::responded;

pub(super) fn check(seen: &Observations) -> Outcome {
    let cluster = match responded(&seen.cluster) {
        Ok(cluster) => cluster,
        Err(outcome) => return outcome,
    };
    let mut findings = Vec::new();
    let name = match &cluster.pool {
        None => "the selector".to_owned(),
        Some(Err(NoPool::Unreadable(reason))) => {
            return Outcome::skipped(format!("the pool can't be read: {reason}; see rbac"));
        }
        Some(Err(NoPool::Missing(reason))) => {
            let what = format!("no InferencePool in namespace {}: {reason}", cluster.namespace);
            return Outcome::looked("the pool", vec![Finding::new(&rules::POOL_MISSING, what)]);
        }
        Some(Ok(pool)) => {
            findings.extend(of_picker(pool));
            for (parent, kind, message) in &pool.rejected {
                let what = format!("gateway {parent}, {kind} of pool {} is false: {message}", pool.name);
                findings.push(Finding::new(&rules::POOL_NOT_ACCEPTED, what));
            }
            for other in &pool.overlapping {
                let what = format!("pools {} and {other} have the same selector", pool.name);
                findings.push(Finding::new(&rules::POOLS_OVERLAP, what));
            }
            format!("pool {}", pool.name)
        }
    };
    let ports = cluster.pool.as_ref().and_then(|pool| pool.as_ref().ok()).map_or(&[][..], |pool| &pool.ports);
    let at = match &cluster.pods {
        Err(reason) => format!("{name}; its pods are not known: {reason}"),
        Ok(pods) => {
            let ready = pods.iter().filter(|pod| pod.ready && pod.ip.is_some()).count();
            if ready == 0 {
                let what = format!(
                    "{name} of namespace {} selects {}, none of them ready",
                    cluster.namespace,
                    count(pods.len(), "pod", "pods")
                );
                findings.push(Finding::new(&rules::POOL_EMPTY, what));
            }
            findings.extend(of_ports(cluster, ports));
            format!("{name} has {} of which {ready} are ready", count(pods.len(), "pod", "pods"))
        }
    };
    Outcome::looked(at, findings)
}

fn of_picker(pool: &Pool) -> Option<Finding> {
    let Some((service, port)) = &pool.picker else {
        let what = format!("pool {} names no picker", pool.name);
        return Some(Finding::new(&rules::POOL_WITHOUT_PICKER, what));
    };
    let found = match &pool.service {
        Ok(Some(found)) => found,
        Ok(None) => {
            let what = format!("pool {} names the Service {service}, which does not exist", pool.name);
            return Some(Finding::new(&rules::PICKER_SERVICE, what));
        }
        // Without the right to read Services there is nothing to say.
        Err(_) => return None,
    };
    match port {
        None => {
            let what = format!("pool {} names no port of the Service {service}", pool.name);
            return Some(Finding::new(&rules::PICKER_SERVICE, what));
        }
        Some(port) if !found.ports.contains(port) => {
            let ports: Vec<String> = found.ports.iter().map(u16::to_string).collect();
            let what = format!(
                "pool {} names port {port} of the Service {service}, which has {}",
                pool.name,
                ports.join(", ")
            );
            return Some(Finding::new(&rules::PICKER_SERVICE, what));
        }
        Some(_) => {}
    }
    (found.ready == Ok(0)).then(|| {
        let what = format!("the Service {service} of pool {} has no ready address", pool.name);
        Finding::new(&rules::PICKER_SERVICE_EMPTY, what)
    })
}

/// Ports that containers declare are only words, but words that are meant.
fn of_ports(cluster: &Cluster, targets: &[u16]) -> Option<Finding> {
    let pods = cluster.pods.as_deref().unwrap_or_default();
    let lacks = |port: &&u16| {
        let mut declared = pods.iter().filter(|pod| !pod.ports.is_empty()).peekable();
        declared.peek().is_some() && declared.all(|pod| !pod.ports.contains(port))
    };
    let missing: Vec<String> = targets.iter().filter(lacks).map(u16::to_string).collect();
    (!missing.is_empty()).then(|| {
        let what = format!("no container of the pods declares port {}", missing.join(", "));
        Finding::new(&rules::POOL_PORTS, what)
    })
}
