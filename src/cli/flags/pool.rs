//! The pool that is served.

use clap::{ArgAction, Args};

use super::{BOOL, Unused, given, parse_bool, selector::check};
use crate::config::settings::{Environment, PoolSettings};

const DEFAULT_GROUP: &str = "inference.networking.k8s.io";

/// As the InferencePool allows.
const MAX_TARGET_PORTS: usize = 8;

/// The pool that is served.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pool")]
pub struct PoolFlags {
    /// Name of the InferencePool, whose pods are picked from; names the pool in metrics, too.
    #[arg(long, value_name = "NAME")]
    pub pool_name: Option<String>,

    /// Namespace of the pool. By default that of the environment variable NAMESPACE, else
    /// "default".
    #[arg(long, value_name = "NAME")]
    pub pool_namespace: Option<String>,

    /// API group of the pool. [default: inference.networking.k8s.io]
    #[arg(long, value_name = "GROUP")]
    pub pool_group: Option<String>,

    /// Pick from the pods with these labels, instead of --pool-name: as of `kubectl -l`.
    #[arg(long, value_name = "SELECTOR")]
    pub endpoint_selector: Option<String>,

    /// Ports of the pods that --endpoint-selector finds, 1 to 8, separated by commas.
    #[arg(long, value_name = "PORTS", value_delimiter = ',', value_parser = parse_port)]
    pub endpoint_target_ports: Vec<Option<u16>>,

    /// Elect the one of several replicas that is ready, with a Lease beside the pool.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = ArgAction::Set)]
    pub ha_enable_leader_election: bool,
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
            pod: environment.pod.filter(|name| !name.is_empty()),
        })
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
