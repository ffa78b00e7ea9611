//! Parts that are found on this machine without an address.

use std::time::Duration;

use usher::doctor::{LocalPorts, Plan, gather};

use crate::doctor::program::doctor;
use crate::support::nobody;
use crate::support::servers::Servers;
use crate::support::usher::Usher;

/// Ports at which nothing listens.
fn silent() -> LocalPorts {
    let [envoy, picker, metrics, admin] = std::array::from_fn(|_| nobody().port());
    LocalPorts { envoy, picker, metrics, admin }
}

/// A doctor without any address.
fn bare(ports: LocalPorts) -> Plan {
    Plan {
        gateway: None,
        envoy: None,
        picker: None,
        metrics: None,
        admin: None,
        model: None,
        endpoints: None,
        engine: "vllm".to_owned(),
        pool: None,
        is_bare: true,
        ports,
        limit: Duration::from_secs(5),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_picker_is_found_with_its_metrics_and_admin_port() {
    let servers = Servers::start().await;
    let flags = ["--admin-address=127.0.0.1:0", "--secure-serving=false"];
    let usher = Usher::start(&servers.addresses, &flags).await;
    let (metrics, admin) = (usher.port("metrics").await.port(), usher.port("admin").await.port());
    let ports = LocalPorts { picker: usher.address.port(), metrics, admin, ..silent() };
    let by_picker = Plan { picker: Some(usher.address.to_string()), is_bare: false, ..bare(ports) };
    for plan in [bare(ports), by_picker] {
        let seen = gather(&plan).await;
        assert!(seen.picker.as_ref().is_ok_and(|picker| picker.reply.is_ok()), "{:?}", seen.picker);
        assert!(seen.metrics.is_ok() && !seen.is_empty(), "{:?}", seen.metrics);
        assert_eq!(seen.admin.as_ref().map(Vec::len), Ok(servers.addresses.len()), "{:?}", seen.admin);
        assert!(seen.envoy.is_err() && seen.gateway.is_err());
    }
    // Another server at the picker's usual port is none.
    let other = LocalPorts { picker: servers.addresses[0].port(), ..silent() };
    assert!(gather(&bare(other)).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_without_an_address_says_where_it_looks() {
    assert!(gather(&bare(silent())).await.is_empty());
    let said = doctor(&[]).await;
    assert_eq!(said.stderr.lines().count(), 1, "{said:?}");
    let ports =
        "127.0.0.1:19000 (Envoy's admin interface), :9002 (picker), :9090 (metrics), :9095 (admin port)";
    // Something of this machine may be there.
    if said.stdout.is_empty() {
        let says = format!("usher: nothing to look at on {ports}; give --gateway");
        assert!(said.code == 1 && said.stderr.starts_with(&says), "{said:?}");
    } else {
        assert_eq!(said.stderr, format!("usher: no address given, looked at {ports}\n"));
    }
}
