//! The pool that is served.

use std::time::Duration;

use clap::{ArgAction, Args};

use super::pflag::{BOOL, given};
use super::selector::check;
use super::unused::Unused;
use crate::config::units::{parse_bool, parse_duration};
use crate::settings::{ElectionTimes, Environment, PoolSettings};

const DEFAULT_GROUP: &str = "inference.networking.k8s.io";

/// Limit of InferencePool.
const MAX_TARGET_PORTS: usize = 8;

/// Longer, and nobody would lead for an hour after a crash.
const LONGEST_LEASE: Duration = Duration::from_hours(1);

/// The pool that is served.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pool")]
pub struct PoolFlags {
    /// Name of the InferencePool. Its pods are picked from; where endpoints come from a file, it only names the
    /// pool in metrics.
    #[arg(long, value_name = "NAME")]
    pub pool_name: Option<String>,

    /// Namespace of the pool. By default that of the environment variable NAMESPACE, else
    /// "default".
    #[arg(long, value_name = "NAME")]
    pub pool_namespace: Option<String>,

    /// API group of the pool. [default: inference.networking.k8s.io]
    #[arg(long, value_name = "GROUP")]
    pub pool_group: Option<String>,

    /// Pick from the pods with these labels. Written as for `kubectl -l`; instead of --pool-name.
    #[arg(long, value_name = "SELECTOR")]
    pub endpoint_selector: Option<String>,

    /// Serving ports of the selected pods. With --endpoint-selector; 1 to 8, separated by commas.
    #[arg(long, value_name = "PORTS", value_delimiter = ',', value_parser = parse_port)]
    pub endpoint_target_ports: Vec<Option<u16>>,

    /// Elect a leader among the replicas, with a Lease in the pool's namespace; it acts on capacity policies. Only
    /// the leader is ready; with a state store all replicas are.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = ArgAction::Set)]
    pub ha_enable_leader_election: bool,

    /// Time after the last renewal of the Lease until another replica may lead; whole seconds.
    /// [default: 4s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub leader_elect_lease_duration: Option<Duration>,

    /// Time after its last renewal for which a leader acts on the cluster for capacity policies;
    /// shorter than the lease. It keeps serving requests. [default: 3s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub leader_elect_renew_deadline: Option<Duration>,

    /// Time between two renewals, and between two tries of the other replicas; shorter than the renew
    /// deadline. [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub leader_elect_retry_period: Option<Duration>,
}

impl PoolFlags {
    pub(super) fn settings(
        self,
        environment: Environment,
        unused: &mut Unused,
    ) -> Result<PoolSettings, String> {
        let (name, selector) = (given(&self.pool_name), given(&self.endpoint_selector));
        if name.is_some() && selector.is_some() {
            return Err("--pool-name and --endpoint-selector are both given; give one of them".to_owned());
        }
        if let Some(selector) = selector {
            check(selector).map_err(|error| format!("--endpoint-selector: {error}"))?;
        }
        let election = self.election(unused)?;
        let mut ports: Vec<u16> = Vec::new();
        for port in self.endpoint_target_ports.into_iter().flatten() {
            if !ports.contains(&port) {
                ports.push(port);
            }
        }
        if ports.len() > MAX_TARGET_PORTS {
            return Err(format!(
                "--endpoint-target-ports: {} ports are given; give at most {MAX_TARGET_PORTS}",
                ports.len()
            ));
        }
        if selector.is_some() && ports.is_empty() {
            return Err("--endpoint-selector needs the ports of its pods; give --endpoint-target-ports, for example 8000".to_owned());
        }
        unused.note(
            name.is_some() && !ports.is_empty(),
            "--endpoint-target-ports",
            "the ports are those of the InferencePool; it goes with --endpoint-selector",
        );
        unused.note_with_a_file(
            self.ha_enable_leader_election,
            "--ha-enable-leader-election",
            "endpoints come from a file; leaders are elected with Kubernetes only",
        );
        unused.note_with_a_file(selector.is_some(), "--endpoint-selector", "endpoints come from a file");
        Ok(PoolSettings {
            group: given(&self.pool_group).unwrap_or(DEFAULT_GROUP).to_owned(),
            namespace: given(&self.pool_namespace)
                .map(str::to_owned)
                .or(environment.namespace.filter(|name| !name.is_empty()))
                .unwrap_or_else(|| "default".to_owned()),
            name: name.map(str::to_owned),
            endpoint_selector: selector.map(str::to_owned),
            endpoint_target_ports: ports,
            leader_election: self.ha_enable_leader_election,
            election,
            pod: environment.pod.filter(|name| !name.is_empty()),
        })
    }
}

impl PoolFlags {
    fn election(&self, unused: &mut Unused) -> Result<ElectionTimes, String> {
        let flags = [
            ("--leader-elect-lease-duration", self.leader_elect_lease_duration, 4),
            ("--leader-elect-renew-deadline", self.leader_elect_renew_deadline, 3),
            ("--leader-elect-retry-period", self.leader_elect_retry_period, 1),
        ];
        for (flag, given, _) in flags {
            let alone = given.is_some() && !self.ha_enable_leader_election;
            unused.note(alone, flag, "no leader is elected; it goes with --ha-enable-leader-election");
        }
        let [lease, renew, retry] =
            flags.map(|(_, given, default)| given.unwrap_or(Duration::from_secs(default)));
        if lease.subsec_nanos() > 0 || lease > LONGEST_LEASE {
            let longest = LONGEST_LEASE.as_secs();
            return Err(format!(
                "--leader-elect-lease-duration: {lease:?} can't be written into a Lease; give whole seconds, {longest} at most"
            ));
        }
        if retry.is_zero() || retry >= renew || renew >= lease {
            return Err(format!(
                "--leader-elect-retry-period ({retry:?}) has to be above 0 and shorter than --leader-elect-renew-deadline ({renew:?}), and that shorter than --leader-elect-lease-duration ({lease:?}); give all three, for example 2s, 10s and 15s"
            ));
        }
        Ok(ElectionTimes { lease, renew, retry })
    }
}

/// One of several ports; nothing where a chart renders none.
fn parse_port(text: &str) -> Result<Option<u16>, String> {
    match text.trim() {
        "" => Ok(None),
        text => match text.parse() {
            Ok(0) | Err(_) => {
                Err("write ports from 1 to 65535, separated by commas, for example 8000,8001".to_owned())
            }
            Ok(port) => Ok(Some(port)),
        },
    }
}
