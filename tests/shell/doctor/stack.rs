//! Servers, Usher and Envoy, and the flags with which a doctor finds them.

use std::net::SocketAddr;

use crate::doctor::program::{Examined, examined};
use crate::support::client;
use crate::support::envoy::{Edit, Envoy};
use crate::support::servers::Servers;
use crate::support::usher::Usher;

pub(crate) const ORIGINAL_DST: &str = "original-dst.yaml";
pub(crate) const OVERRIDE_HOST: &str = "override-host.yaml";

/// Servers and Usher, which gateways come and go before.
pub(crate) struct Back {
    pub(crate) servers: Servers,
    pub(crate) usher: Usher,
    metrics: SocketAddr,
    admin: SocketAddr,
}

impl Back {
    pub(crate) async fn start(flags: &[&str]) -> Self {
        let servers = Servers::start().await;
        // Servers that share a busy machine with a test may be slow to respond, and none of these is about that.
        let own =
            ["--admin-address=127.0.0.1:0", "--metrics-endpoint-auth=false", "--outlier-detection=false"];
        let flags = [&own, flags].concat();
        let usher = Usher::start(&servers.addresses, &flags).await;
        let (metrics, admin) = (usher.port("metrics").await, usher.port("admin").await);
        Self { servers, usher, metrics, admin }
    }

    /// Address of its metrics.
    pub(crate) fn metrics_url(&self) -> String {
        url(self.metrics)
    }

    /// Address of the metrics.
    pub(crate) async fn metrics(&self) -> String {
        let request = http::Request::get("/metrics").body(client::full("")).unwrap();
        client::send(self.metrics, client::Protocol::Http1, request).await.text().to_owned()
    }

    /// A gateway before it.
    pub(crate) async fn envoy(&self, configuration: &str, edits: &[Edit<'_>]) -> Envoy {
        Envoy::start(configuration, self.usher.address, &self.servers.addresses, edits).await
    }

    /// Examination by a doctor that is given every address.
    pub(crate) async fn examined(&self, envoy: &Envoy, flags: &[&str]) -> Examined {
        let all = [
            ("--gateway", url(envoy.address)),
            ("--envoy-admin", url(envoy.admin)),
            ("--metrics", url(self.metrics)),
            ("--admin", url(self.admin)),
        ];
        let given: Vec<&str> = all.iter().flat_map(|(name, value)| [*name, value.as_str()]).collect();
        examined(&[&given, flags].concat()).await
    }
}

pub(crate) fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}
