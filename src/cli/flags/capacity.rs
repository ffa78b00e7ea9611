//! How many pods there should be, and who is told.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::given;

/// How many pods there should be, and who is told.
#[derive(Debug, Args)]
#[command(next_help_heading = "Capacity")]
pub struct CapacityFlags {
    /// File of capacity policies (YAML or JSON, one document each), read again when it changes. Says how
    /// many pods there should be: in the metrics, on the admin port, and to KEDA.
    #[arg(long, value_name = "FILE")]
    pub capacity_policy: Option<String>,

    /// Address and port for KEDA's external scaler calls in plain text; off unless it is given. KEDA runs
    /// in a pod of its own, so in a cluster for example 0.0.0.0:9006.
    #[arg(long, value_name = "IP:PORT")]
    pub keda_address: Option<String>,
}

impl CapacityFlags {
    /// The file of policies.
    pub(super) fn policy(&self) -> Option<PathBuf> {
        given(&self.capacity_policy).map(Into::into)
    }

    /// Where KEDA asks.
    pub(super) fn keda(&self) -> Result<Option<SocketAddr>, String> {
        let Some(text) = given(&self.keda_address) else { return Ok(None) };
        let address = text.parse().map_err(|_| {
            format!("--keda-address: {text:?} is no address with a port; write for example 127.0.0.1:9006 or 0.0.0.0:9006")
        })?;
        match self.policy() {
            Some(_) => Ok(Some(address)),
            None => {
                Err("--keda-address has nothing to tell without policies; give --capacity-policy, too"
                    .to_owned())
            }
        }
    }
}
