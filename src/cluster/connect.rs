//! Connection to the API server, and our identity there.

use std::time::Duration;

use kube::Config;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tower::util::AndThenLayer;

use super::Cluster;
use super::problem::keep_retry_after;

/// Time to open a connection. A server on the same network responds in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a request to leave.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Error of finding a way to the API server. One line: problem, place, remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A kubeconfig file can't be used.
    #[error("cannot use the kubeconfig {place}: {reason}")]
    Kubeconfig {
        /// Place where it was looked for.
        place: String,
        /// Description of what is wrong with it.
        reason: String,
    },
    /// The files that every pod gets can't be used.
    #[error(
        "cannot use the service account of this pod: {0}; mount its token (automountServiceAccountToken)"
    )]
    InCluster(String),
    /// The settings make no client.
    #[error("cannot talk to the Kubernetes API server: {0}")]
    Client(String),
}

/// A connection as the environment says: the file that `KUBECONFIG` names, else the
/// service account of the pod that this runs in, else `~/.kube/config`. Sends nothing
/// yet, so it doesn't matter whether the server is up.
///
/// # Errors
/// `ConnectError` if the environment names no cluster, or a file that can't be used.
pub async fn connect() -> Result<Cluster, ConnectError> {
    let named = std::env::var("KUBECONFIG").ok().filter(|paths| !paths.is_empty());
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let config = match named {
        None if in_pod => Config::incluster().map_err(|error| ConnectError::InCluster(error.to_string()))?,
        named => {
            let place = named.unwrap_or_else(|| {
                "~/.kube/config (neither KUBECONFIG nor KUBERNETES_SERVICE_HOST is set)".to_owned()
            });
            from_kubeconfig()
                .await
                .map_err(|error| ConnectError::Kubeconfig { place, reason: error.to_string() })?
        }
    };
    client(config).map_err(|error| ConnectError::Client(error.to_string()))
}

async fn from_kubeconfig() -> Result<Config, kube::config::KubeconfigError> {
    let read = match Kubeconfig::from_env()? {
        Some(kubeconfig) => kubeconfig,
        None => Kubeconfig::read()?,
    };
    Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await
}

/// A connection by these settings.
///
/// # Errors
/// `kube::Error` if no client can be made, for example for a certificate that can't be read.
fn client(mut config: Config) -> Result<Cluster, kube::Error> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.write_timeout = Some(WRITE_TIMEOUT);
    // Whoever asks knows when it is worth asking again.
    config.default_retry = false;
    Ok(ClientBuilder::try_from(config)?.with_layer(&AndThenLayer::new(keep_retry_after)).build().into())
}
