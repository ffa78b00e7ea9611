//! An Envoy that follows the endpoints of a Service, as a gateway's control plane sends them.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use super::workload::Deployment;
use crate::support::envoy::{Envoy, folder};
use crate::support::servers::Servers;

const CONFIGURATION: &str = "original-dst.yaml";

/// By what a gateway judges a picker that Kubernetes says is ready.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Judges {
    /// By the picker's health service.
    Health,
    /// By nothing, as most gateways.
    Nothing,
}

pub(super) struct Gateway {
    envoy: Envoy,
    _following: AbortOnDropHandle<()>,
    _folder: TempDir,
}

impl Gateway {
    pub(super) async fn start(servers: &Servers, deployment: &Deployment, judges: Judges) -> Self {
        let files = tempfile::tempdir().unwrap();
        let mut endpoints = deployment.endpoints();
        write(files.path(), &endpoints.borrow_and_update());
        let path = files.path().to_owned();
        let following = AbortOnDropHandle::new(tokio::spawn(async move {
            while endpoints.changed().await.is_ok() {
                let now = endpoints.borrow_and_update().clone();
                println!("gateways learn of {now:?}");
                write(&path, &now);
            }
        }));

        let text = std::fs::read_to_string(folder().join(CONFIGURATION)).unwrap();
        // From a line to another one, of the picker's cluster.
        let cluster = text.find("  - name: usher\n").unwrap();
        let part = |from: &str, to: Option<&str>| {
            let start = cluster + text[cluster..].find(from).unwrap();
            let end = to.map_or(text.len(), |to| start + text[start..].find(to).unwrap());
            text[start..end].to_owned()
        };
        let followed = format!(
            "    type: EDS\n    eds_cluster_config:\n      service_name: usher\n      eds_config:\n        resource_api_version: V3\n        path_config_source: {{ path: {} }}\n",
            file(files.path()).display()
        );
        let named = "  - name: usher\n    type: STATIC\n";
        let kind = named.replace("    type: STATIC\n", &followed);
        // The picker's port has been written into it by then.
        let placed = part("    load_assignment:\n", None).replace("9002 ", "1 ");
        let (health, tls) = (
            part("    health_checks:\n", Some("    common_lb_config:\n")),
            part("    transport_socket:\n", Some("    load_assignment:\n")),
        );
        let mut edits = vec![
            // Envoy follows nothing without a name.
            ("\nadmin:\n", "\nnode: { id: gateway, cluster: gateways }\nadmin:\n"),
            (named, kind.as_str()),
            (placed.as_str(), ""),
            (tls.as_str(), ""),
            // A request that passes without a picker would not show that there was none.
            ("failure_mode_allow: true", "failure_mode_allow: false"),
        ];
        if judges == Judges::Nothing {
            edits.push((&health, ""));
        }
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        let envoy = Envoy::start(CONFIGURATION, nobody, &servers.addresses, &edits).await;
        Self { envoy, _following: following, _folder: files }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.envoy.address
    }
}

fn file(folder: &Path) -> std::path::PathBuf {
    folder.join("endpoints.json")
}

/// Replaced as a whole: Envoy waits for a file to be moved there.
fn write(folder: &Path, endpoints: &[SocketAddr]) {
    let endpoint = |address: &SocketAddr| {
        let socket = json!({"address": address.ip().to_string(), "port_value": address.port()});
        json!({"endpoint": {"address": {"socket_address": socket}}})
    };
    let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
    let assignment = json!({
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": "usher",
        "endpoints": [{"lb_endpoints": endpoints}],
    });
    let new = folder.join("new");
    std::fs::write(&new, json!({"resources": [assignment]}).to_string()).unwrap();
    std::fs::rename(new, file(folder)).unwrap();
}
