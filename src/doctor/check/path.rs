//! Is the picker in the path of requests, and is what it chooses followed?
//!
//! A picker reads bodies and refuses two kinds of broken ones, each in words of its own; a model server
//! or a page that always says the same does not tell them apart in a picker's words. If the picker's
//! counters can be read, the endpoints that it chose for the probes are compared with those that served
//! them.

use std::collections::BTreeMap;

use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::{Broken, Gateway, Known, Observations, PickerPage, Reply};

/// Beginning of pickers' refusals of broken requests.
const WORDS: &str = "inference error: BadRequest - ";

pub(super) fn check(seen: &Observations) -> Outcome {
    let gateway = match &seen.gateway {
        Ok(gateway) => gateway,
        Err(reason) => return Outcome::skipped(reason),
    };
    if let Some(reason) = &gateway.unreachable {
        return Outcome::looked(&gateway.url, vec![Finding::new(&rules::GATEWAY_UNREACHABLE, reason)]);
    }
    let reads_bodies = can_identify(gateway);
    let decides = !gateway.routed.is_empty() && gateway.routed.iter().all(is_picked);
    if !reads_bodies && !decides {
        return Outcome::looked(&gateway.url, vec![absence(gateway)]);
    }
    let mut findings = Vec::new();
    let mut proof = vec![
        if reads_bodies {
            "broken bodies are refused in a picker's words"
        } else {
            findings.push(Finding::new(
                &rules::BODIES_NOT_READ,
                format!(
                    "{} responds to broken bodies with {}",
                    gateway.url,
                    statuses(gateway.refusals.iter().map(|(_, reply)| reply))
                ),
            ));
            "responses bear a picker's mark"
        }
        .to_owned(),
    ];
    findings.extend(refused(gateway));
    let served = gateway.routed.iter().filter(|reply| reply.marked && reply.status < 500).count();
    // Without bodies the picker does not know the model, under which it counts.
    if reads_bodies && served == gateway.routed.len() {
        match destination(seen, gateway) {
            Ok(words) => proof.push(words),
            Err(Some(finding)) => findings.push(finding),
            Err(None) => proof
                .push("destinations not compared, for want of the picker's metrics (--metrics)".to_owned()),
        }
    }
    Outcome::looked(proof.join("; "), findings)
}

/// Returns `true` if each kind of broken request gets a response of its own, always the
/// same, in a picker's words.
fn can_identify(gateway: &Gateway) -> bool {
    let of = |kind: Broken| {
        let mut replies =
            gateway.refusals.iter().filter(|(broken, _)| *broken == kind).map(|(_, reply)| reply);
        let first = replies.next()?;
        let is_refusal = first.status == 400 && first.body.starts_with(WORDS);
        (is_refusal && replies.all(|reply| reply == first)).then_some(&first.body)
    };
    matches!((of(Broken::Json), of(Broken::Messages)), (Some(one), Some(other)) if one != other)
}

/// Returns `true` if a picker had its hand in a response: it marked it, or refused the request and says why.
fn is_picked(reply: &Reply) -> bool {
    reply.marked || !reply.reason.is_empty()
}

/// Finding for a gateway none of whose responses is a picker's.
fn absence(gateway: &Gateway) -> Finding {
    let replies = || gateway.refusals.iter().map(|(_, reply)| reply).chain(&gateway.routed);
    let said = statuses(replies());
    let all = |is: fn(u16) -> bool| replies().all(|reply| is(reply.status));
    let what = format!("{} responds to the probes with {said}", gateway.url);
    if all(|status| matches!(status, 401 | 403 | 407)) {
        return Finding::new(&rules::PICKER_PATH_UNPROVEN, what + ": it does not let the doctor in");
    }
    if all(|status| status == 404) {
        return Finding::new(&rules::GATEWAY_NO_ROUTE, what);
    }
    if all(|status| status >= 500) {
        return Finding::new(&rules::GATEWAY_FAILS, what + ", none of them in a picker's words");
    }
    Finding::new(&rules::PICKER_NOT_IN_PATH, what + ", and nothing in the responses is a picker's")
}

/// Requests that should have been routed and were not.
fn refused(gateway: &Gateway) -> Option<Finding> {
    let replies = &gateway.routed;
    let with = |reason: &str| replies.iter().filter(|reply| reply.reason == reason).count();
    if with("rejected-no-endpoints") > 0 {
        let what = format!(
            "{} of {} probes are refused with rejected-no-endpoints",
            with("rejected-no-endpoints"),
            replies.len()
        );
        return Some(Finding::new(&rules::NO_ENDPOINTS, what));
    }
    if let Some(reply) = replies.iter().find(|reply| !reply.reason.is_empty()) {
        let what = format!("probes are refused with {}", reply.reason);
        return Some(Finding::new(&rules::POOL_SATURATED, what));
    }
    let failed = replies.iter().filter(|reply| reply.status >= 500).count();
    (failed > 0).then(|| {
        let what = format!("{failed} of {} probes end with {}", replies.len(), statuses(replies.iter()));
        Finding::new(&rules::SERVERS_FAIL, what)
    })
}

/// Compares what the picker chose with what served.
///
/// # Errors
/// A finding that says what does not fit; `None` when there is nothing to compare with.
fn destination(seen: &Observations, gateway: &Gateway) -> Result<String, Option<Finding>> {
    let page = seen.metrics.as_ref().map_err(|_| None)?;
    if page.problem.is_some() {
        return Err(None);
    }
    let sent = gateway.routed.len() as u64;
    let counted: u64 = page.chosen.values().sum();
    if counted < sent {
        if !page.given {
            return Err(None);
        }
        let what = format!("{} counts {counted} of {sent} probes", page.url);
        return Err(Some(Finding::new(&rules::PICKER_COUNTERS_STILL, what)));
    }
    let known = known(seen);
    let served = Served::of(seen, gateway, page, &known);
    // Another replica of the gateway has served some, and counts them.
    if served.counts.values().sum::<u64>() < sent {
        return Err(None);
    }
    for ((name, port), chosen) in &page.chosen {
        if served.by(name, port, &known) < *chosen {
            let what = format!(
                "the picker chose {name} (port {port}) for {chosen} of {sent} probes, and it served {}, by {}",
                served.by(name, port, &known),
                served.witness
            );
            return Err(Some(Finding::new(&rules::PICKER_CHOICE_IGNORED, what)));
        }
    }
    Ok(format!("{sent} of {sent} probes were served where the picker chose, by {}", served.witness))
}

/// Endpoints with their names and addresses.
fn known(seen: &Observations) -> Vec<Known> {
    let mut known = seen.admin.clone().unwrap_or_default();
    let pods = seen.pods.as_deref().unwrap_or_default().iter();
    known.extend(pods.map(|pod| Known {
        name: pod.name.clone(),
        address: pod.address.to_string(),
        ejected: None,
    }));
    known
}

/// Servers of the probes, and the witness of that.
struct Served {
    witness: &'static str,
    /// Pods, addresses or ports, as the witness knows them.
    counts: BTreeMap<String, u64>,
}

const BY_POD: &str = "the servers' x-inference-pod";
const BY_PORT: &str = "the servers' x-inference-port";
const BY_HOST: &str = "Envoy's counters of each host";

impl Served {
    fn of(seen: &Observations, gateway: &Gateway, page: &PickerPage, known: &[Known]) -> Self {
        let counted = |of: fn(&Reply) -> &str| {
            let mut counts = BTreeMap::new();
            for name in gateway.routed.iter().map(of).filter(|name| !name.is_empty()) {
                *counts.entry(name.to_owned()).or_insert(0) += 1;
            }
            counts
        };
        let pods = counted(|reply| &reply.pod);
        let names = || page.chosen.keys().map(|(name, _)| name).chain(known.iter().map(|known| &known.name));
        if names().any(|name| pods.contains_key(name)) {
            return Self { witness: BY_POD, counts: pods };
        }
        if let Ok(envoy) = &seen.envoy {
            return Self { witness: BY_HOST, counts: envoy.probed.clone() };
        }
        Self { witness: BY_PORT, counts: counted(|reply| &reply.port) }
    }

    /// Number that an endpoint served.
    fn by(&self, name: &str, port: &str, known: &[Known]) -> u64 {
        let of = |key: &str| self.counts.get(key).copied().unwrap_or(0);
        match self.witness {
            BY_POD => of(name),
            BY_PORT => of(port),
            _ => {
                let ends = format!(":{port}");
                let address = known.iter().find(|known| known.name == name && known.address.ends_with(&ends));
                match address {
                    Some(known) => of(&known.address),
                    // Without its address, all that have its port.
                    None => self
                        .counts
                        .iter()
                        .filter(|(host, _)| host.ends_with(&ends))
                        .map(|(_, count)| count)
                        .sum(),
                }
            }
        }
    }
}

/// Statuses, each once.
fn statuses<'a>(replies: impl Iterator<Item = &'a Reply>) -> String {
    let mut all: Vec<u16> = replies.map(|reply| reply.status).collect();
    all.sort_unstable();
    all.dedup();
    all.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}
