//! Envoy with one of the configurations in `deploy/envoy`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use http::Request;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;

use super::client::{self, Protocol};
use super::eventually;
use super::log::Log;
use super::servers::SERVERS;

/// A replacement in the text of a configuration; it must be found.
pub(crate) type Edit<'a> = (&'a str, &'a str);

/// A running Envoy.
pub(crate) struct Envoy {
    // Killed when dropped.
    _child: Child,
    _folder: TempDir,
    access: Log,
    pub(crate) admin: SocketAddr,
    pub(crate) address: SocketAddr,
}

impl Envoy {
    /// Starts Envoy with the configuration `name`. Its ports become free ones, those of
    /// the picker and the model servers the given ones; `edits` are made after that.
    pub(crate) async fn start(
        name: &str,
        picker: SocketAddr,
        servers: &[SocketAddr],
        edits: &[Edit<'_>],
    ) -> Self {
        Self::start_on(1, name, picker, servers, edits).await
    }

    /// The same with so many worker threads.
    pub(crate) async fn start_on(
        threads: usize,
        name: &str,
        picker: SocketAddr,
        servers: &[SocketAddr],
        edits: &[Edit<'_>],
    ) -> Self {
        Self::run(threads, &adapted(name, picker, servers, edits)).await
    }

    /// Starts Envoy with so many threads and this text, and finds the port of its listener
    /// `inference`.
    pub(crate) async fn run(threads: usize, text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let configuration = folder.path().join("envoy.yaml");
        std::fs::write(&configuration, text).unwrap();
        let mut child = Command::new(binary().await)
            .arg("--config-path")
            .arg(configuration)
            // Several run side by side, mostly on one thread each, as the machine is shared.
            .args(["--disable-hot-restart", "--concurrency", &threads.to_string()])
            // The access log is waited for.
            .args(["--file-flush-interval-msec", "10"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let access = Log::follow("Envoy's access log", child.stdout.take().unwrap());
        let log = Log::follow("Envoy", child.stderr.take().unwrap());
        let admin = log
            .find(0, "its admin address", |line| line.split_once("admin address: ")?.1.trim().parse().ok())
            .await;
        // Clusters come first, with their first health check; then listeners, then this.
        eventually("Envoy to be ready", async || (ask(admin, "/ready").await.status == 200).then_some(()))
            .await;
        let listeners = ask(admin, "/listeners?format=json").await.json();
        let mut listeners = listeners["listener_statuses"].as_array().unwrap().iter();
        let listener = listeners.find(|listener| listener["name"] == "inference").unwrap();
        let socket = &listener["local_address"]["socket_address"];
        let port = socket["port_value"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap();
        Self { _child: child, _folder: folder, access, admin, address: ([127, 0, 0, 1], port).into() }
    }

    /// Waits until Envoy sends to the picker, or doesn't, for what it found out about it.
    pub(crate) async fn picker_is(&self, usable: bool) {
        eventually("Envoy to judge the picker", async || {
            (is_usable(&self.pickers().await[0]) == usable).then_some(())
        })
        .await;
    }

    /// Waits until Envoy sends to so many pickers.
    pub(crate) async fn has_pickers(&self, count: usize) {
        eventually("Envoy to find pickers", async || {
            let pickers = self.pickers().await;
            (pickers.iter().filter(|picker| is_usable(picker)).count() == count).then_some(())
        })
        .await;
    }

    /// Streams to a picker: those that Envoy has begun, and the open ones.
    pub(crate) async fn streams_to(&self, picker: SocketAddr) -> (u64, u64) {
        let pickers = self.pickers().await;
        let port = |picker: &Value| picker["address"]["socket_address"]["port_value"].as_u64();
        let picker = pickers.iter().find(|found| port(found) == Some(picker.port().into())).unwrap();
        let value = |name: &str| {
            let mut all = picker["stats"].as_array().unwrap().iter();
            let found = all.find(|statistic| statistic["name"] == name).unwrap();
            // Without a value it is 0.
            found["value"].as_str().map_or(0, |value| value.parse().unwrap())
        };
        (value("rq_total"), value("rq_active"))
    }

    /// Envoy's view of each picker.
    async fn pickers(&self) -> Vec<Value> {
        let clusters = ask(self.admin, "/clusters?format=json").await.json();
        let mut clusters = clusters["cluster_statuses"].as_array().unwrap().iter();
        let pickers = clusters.find(|cluster| cluster["name"] == "usher").unwrap();
        pickers["host_statuses"].as_array().unwrap().clone()
    }

    /// A counter or a gauge of its statistics.
    pub(crate) async fn statistic(&self, name: &str) -> u64 {
        let page = ask(self.admin, &format!("/stats?filter=^{name}$")).await;
        let (_, value) = page.text().trim().rsplit_once(": ").unwrap_or_else(|| panic!("no {name}"));
        value.parse().unwrap()
    }

    /// The end of the access log: where to look for what is written from now on.
    pub(crate) fn access_end(&self) -> usize {
        self.access.end()
    }

    /// The first line of the access log from `start` on that `read` makes something of.
    pub(crate) async fn access<T>(
        &self,
        start: usize,
        what: &str,
        read: impl FnMut(&AccessLine<'_>) -> Option<T>,
    ) -> T {
        let mut read = read;
        self.access.find(start, what, |line| read(&AccessLine(line))).await
    }
}

/// One line of the access log, `name=value` after method and path.
pub(crate) struct AccessLine<'a>(&'a str);

impl<'a> AccessLine<'a> {
    pub(crate) fn field(&self, name: &str) -> &'a str {
        let value = |part: &'a str| part.strip_prefix(name)?.strip_prefix('=');
        self.0.split(' ').find_map(value).unwrap_or_else(|| panic!("no {name} in {:?}", self.0))
    }
}

/// Returns `true` if Envoy sends to a picker.
fn is_usable(picker: &Value) -> bool {
    let against = ["failed_active_health_check", "failed_outlier_check"];
    against.iter().all(|check| picker["health_status"][check] != true)
}

async fn ask(admin: SocketAddr, path: &str) -> client::HttpResponse {
    client::send(admin, Protocol::Http1, Request::get(path).body(client::empty()).unwrap()).await
}

fn adapted(name: &str, picker: SocketAddr, servers: &[SocketAddr], edits: &[Edit<'_>]) -> String {
    let mut text = std::fs::read_to_string(folder().join(name)).unwrap();
    let mut replace = |from: &str, to: &str| {
        assert!(text.contains(from), "{name} has no {from:?}");
        text = text.replace(from, to);
    };
    // Placeholders first become what can't be a port, as a free port may look like one.
    for port in ["8081", "19000"] {
        replace(&format!("port_value: {port} "), "port_value: 0 ");
    }
    replace("port_value: 9002 ", "port_value: PICKER ");
    for index in 0..SERVERS {
        replace(&format!("port_value: 800{index} "), &format!("port_value: SERVER{index} "));
    }
    replace("PICKER", &picker.port().to_string());
    for (index, server) in servers.iter().enumerate() {
        replace(&format!("SERVER{index}"), &server.port().to_string());
    }
    for (from, to) in edits {
        replace(from, to);
    }
    text
}

/// Folder of the configurations.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/envoy")
}

/// Path of Envoy; fetched when it is not there.
async fn binary() -> &'static Path {
    static BINARY: OnceCell<PathBuf> = OnceCell::const_new();
    BINARY
        .get_or_init(async || {
            let output = Command::new(folder().join("get.sh")).output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "no Envoy, so nothing can be tested through it: {said}\
                 Run `make envoy` to see this again, or set USHER_ENVOY to the path of an Envoy."
            );
            String::from_utf8(output.stdout).unwrap().trim_end().into()
        })
        .await
}
