//! Flags of capacity policies, and of KEDA.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args};
use http::Uri;

use super::pflag::{BOOL, given};
use crate::config::units::parse_bool;
use crate::settings::PrometheusSettings;

/// Flags of capacity policies, and of KEDA.
#[derive(Debug, Args)]
#[command(next_help_heading = "Capacity")]
pub struct CapacityFlags {
    /// File of capacity policies (YAML or JSON, one document each), read again when it changes. Plans
    /// go to the metrics, the admin port and KEDA.
    #[arg(long, value_name = "FILE")]
    pub capacity_policy: Option<String>,

    /// Follow the CapacityPolicies (custom resources) of the pool's namespace, in place of a file.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = ArgAction::Set)]
    pub capacity_policies: bool,

    /// Assert that this picker never has more than one replica, not even during a roll-out (replicas:
    /// 1, strategy: Recreate). Without leader election, policies with mode Apply require it.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = ArgAction::Set)]
    pub capacity_single_replica: bool,

    /// Address and port for KEDA's external scaler calls in plain text; off unless it is given. KEDA runs
    /// in a pod of its own, so in a cluster for example 0.0.0.0:9006.
    #[arg(long, value_name = "IP:PORT")]
    pub keda_address: Option<String>,

    /// Base URL of the Prometheus API for the queries of policies (source: prometheus).
    #[arg(long, value_name = "URL")]
    pub prometheus_address: Option<String>,

    /// PEM file of the authorities that sign the Prometheus server's certificate. By default those
    /// that the system trusts.
    #[arg(long, value_name = "FILE")]
    pub prometheus_ca_file: Option<String>,

    /// File with the bearer token for Prometheus, read again for every query.
    #[arg(long, value_name = "FILE")]
    pub prometheus_token_file: Option<String>,
}

impl CapacityFlags {
    /// The file of policies.
    pub(super) fn policy(&self) -> Result<Option<PathBuf>, String> {
        match given(&self.capacity_policy) {
            Some(_) if self.capacity_policies => {
                Err("--capacity-policy and --capacity-policies are both given; give one of them".to_owned())
            }
            file => Ok(file.map(Into::into)),
        }
    }

    /// Address that KEDA asks.
    pub(super) fn keda(&self) -> Result<Option<SocketAddr>, String> {
        let Some(text) = given(&self.keda_address) else { return Ok(None) };
        let address = text.parse().map_err(|_| {
            format!("--keda-address: {text:?} is no address with a port; write for example 127.0.0.1:9006 or 0.0.0.0:9006")
        })?;
        if self.policy()?.is_none() && !self.capacity_policies {
            let text = "--keda-address has nothing to serve without policies; give --capacity-policy or --capacity-policies, too";
            return Err(text.to_owned());
        }
        Ok(Some(address))
    }

    /// Server that answers queries; `None` without `--prometheus-address`.
    pub(super) fn prometheus(&self) -> Result<Option<PrometheusSettings>, String> {
        let (ca, token) = (given(&self.prometheus_ca_file), given(&self.prometheus_token_file));
        let Some(url) = given(&self.prometheus_address) else {
            let alone = [("--prometheus-ca-file", ca), ("--prometheus-token-file", token)];
            return match alone.into_iter().find(|(_, file)| file.is_some()) {
                None => Ok(None),
                Some((flag, _)) => {
                    Err(format!("{flag} says nothing of which server; give --prometheus-address, too"))
                }
            };
        };
        // What is wrong is not repeated: somebody may have written a password into it.
        let wrong = |why: &str| {
            format!("--prometheus-address: {why}; write for example http://prometheus.monitoring:9090")
        };
        if self.policy()?.is_none() && !self.capacity_policies {
            let text = "--prometheus-address has nothing to ask without policies; give --capacity-policy or --capacity-policies, too";
            return Err(text.to_owned());
        }
        let uri: Uri = url.parse().map_err(|error| wrong(&format!("no URL ({error})")))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("no http:// or https:// at its start")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("credentials in it; put a token into a file for --prometheus-token-file"));
        }
        if uri.query().is_some() || url.contains('#') {
            return Err(wrong("it has a query of its own"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(wrong("no host"));
        }
        // An empty or too large port is no port for the parser, which then says there is none.
        let port = match authority.as_str().rsplit_once(']').map_or(authority.as_str(), |(_, rest)| rest) {
            rest if rest.contains(':') => authority
                .port_u16()
                .filter(|port| *port > 0)
                .ok_or_else(|| wrong("no port after the colon"))?,
            _ if tls => 443,
            _ => 80,
        };
        if ca.is_some() && !tls {
            return Err(wrong("--prometheus-ca-file is for https://, and this is http://"));
        }
        let prefix = uri.path().trim_end_matches('/').to_owned();
        let (ca_file, token_file) = (ca.map(Into::into), token.map(Into::into));
        Ok(Some(PrometheusSettings { tls, host, port, prefix, ca_file, token_file }))
    }
}
