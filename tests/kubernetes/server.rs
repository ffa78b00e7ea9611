//! A real API server with its etcd, on free ports of loopback.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Users of the API server and their tokens. `admin` may do everything, the others what they
/// are granted.
const TOKENS: &str = "\
token-admin,admin,admin,\"system:masters\"
token-epp,epp,epp
token-epp-0,epp,epp-0
token-epp-1,epp,epp-1
token-epp-2,epp,epp-2
token-epp-3,epp,epp-3
token-epp-4,epp,epp-4
token-epp-5,epp,epp-5
token-scraper,scraper,scraper
token-stranger,stranger,stranger
";

/// Audit policy of an audited server: writes of the user `epp` are logged, once they are answered.
const AUDIT: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: RequestResponse, verbs: [create, update, patch, delete], users: [epp]}
- {level: None}
";

/// The longest that an API server takes to be ready, and to say whether it is.
const STARTS: Duration = Duration::from_secs(180);
const ASKS: Duration = Duration::from_secs(5);

/// Folder of kube-apiserver and etcd. `None`, and a word about it, where nobody says so; CI
/// has to.
pub(crate) fn assets() -> Option<&'static Path> {
    static ASSETS: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = ASSETS.get_or_init(|| {
        let folder = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
        let whole = |folder: &PathBuf| ["kube-apiserver", "etcd"].iter().all(|name| folder.join(name).is_file());
        let found = folder.filter(whole);
        if found.is_none() {
            let text = "KUBEBUILDER_ASSETS names no folder with kube-apiserver and etcd; deploy/ci/kube.sh builds them";
            assert!(std::env::var_os("CI").is_none(), "{text}");
            println!("NOT TESTED: {text}");
        }
        found
    });
    found.as_deref()
}

/// A process that ends when the value is dropped, and also when the test's process ends in
/// any other way: it watches a pipe from it.
struct Guarded(Child);

impl Guarded {
    fn start(program: &Path, arguments: &[String], log: &Path) -> Self {
        let log = std::fs::File::options().append(true).create(true).open(log).unwrap();
        // The shell's first argument is its name.
        let script =
            "\"$@\" <&- & pid=$!; trap 'kill -CONT $pid; kill -9 $pid; wait $pid' EXIT; read -r _; exit";
        let child = Command::new("bash")
            .args(["-c", script, "guard"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Ends it without a warning.
    fn kill(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An API server and its etcd.
pub(crate) struct Server {
    folder: TempDir,
    _etcd: Guarded,
    apiserver: Option<Guarded>,
    pub(crate) port: u16,
    etcd_port: u16,
    assets: &'static Path,
    is_audited: bool,
}

impl Server {
    /// The one that tests share which don't disturb it: with all kinds of objects.
    pub(crate) async fn shared() -> Option<&'static Self> {
        static SHARED: OnceCell<Server> = OnceCell::const_new();
        let assets = assets()?;
        let server = SHARED.get_or_init(async || {
            let server = Server::start(assets, false).await;
            server
                .define(&[crate::objects::POOLS, crate::objects::OBJECTIVES, crate::objects::REWRITES])
                .await;
            server
        });
        Some(server.await)
    }

    /// Another one that tests share: with pools, capacity policies and topologies.
    pub(crate) async fn with_policies() -> Option<&'static Self> {
        static SHARED: OnceCell<Server> = OnceCell::const_new();
        let assets = assets()?;
        let server = SHARED.get_or_init(async || {
            let server = Server::start(assets, false).await;
            server
                .define(&[crate::objects::POOLS, crate::objects::POLICIES, crate::objects::TOPOLOGIES])
                .await;
            server
        });
        Some(server.await)
    }

    /// One that tests have after each other, as all nodes are theirs: with pools, without nodes and pods, and with a
    /// picker's right to see all of them.
    pub(crate) async fn with_nodes() -> Option<MutexGuard<'static, Self>> {
        static SHARED: OnceCell<Mutex<Server>> = OnceCell::const_new();
        let assets = assets()?;
        let server = SHARED.get_or_init(async || {
            let server = Server::start(assets, false).await;
            server.define(&[crate::objects::POOLS]).await;
            let reads = crate::objects::rule(&[""], &["nodes", "pods"], &["get", "list", "watch"]);
            server.grant_everywhere("epp-nodes", crate::objects::user("epp"), &[reads]).await;
            Mutex::new(server)
        });
        let server = server.await.lock().await;
        server.delete_nodes_and_pods().await;
        Some(server)
    }

    /// One of a test's own.
    pub(crate) async fn own() -> Option<Self> {
        Some(Self::start(assets()?, false).await)
    }

    /// One of a test's own that writes down what pickers write.
    pub(crate) async fn audited() -> Option<Self> {
        Some(Self::start(assets()?, true).await)
    }

    /// All writes of pickers that have been answered so far, as `audit.k8s.io/v1` events.
    pub(crate) fn writes(&self) -> Vec<Value> {
        let log = std::fs::read_to_string(self.folder.path().join("audit.log")).unwrap();
        // The last line may not be whole yet.
        let (whole, _) = log.rsplit_once('\n').unwrap_or_default();
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    async fn start(assets: &'static Path, is_audited: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        certificates(folder.path());
        std::fs::write(folder.path().join("tokens.csv"), TOKENS).unwrap();
        let [port, etcd_port, peer_port] = free_ports();
        let (url, peer) = (format!("http://127.0.0.1:{etcd_port}"), format!("http://127.0.0.1:{peer_port}"));
        let etcd = [
            format!("--data-dir={}", folder.path().join("etcd").display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=error".to_owned(),
        ];
        let etcd = Guarded::start(&assets.join("etcd"), &etcd, &folder.path().join("etcd.log"));
        let mut server = Self { folder, _etcd: etcd, apiserver: None, port, etcd_port, assets, is_audited };
        server.up().await;
        server
    }

    /// Starts the API server, where it was before, and waits until it is ready.
    pub(crate) async fn up(&mut self) {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let mut arguments = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--cert-dir={}", path("certs")),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.port),
            format!("--tls-cert-file={}", path("server.pem")),
            format!("--tls-private-key-file={}", path("server.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", path("server.pub")),
            format!("--service-account-signing-key-file={}", path("server.key")),
            format!("--token-auth-file={}", path("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--profiling=false".to_owned(),
        ];
        if self.is_audited {
            std::fs::write(self.folder.path().join("audit.yaml"), AUDIT).unwrap();
            arguments.push(format!("--audit-policy-file={}", path("audit.yaml")));
            arguments.push(format!("--audit-log-path={}", path("audit.log")));
        }
        let log = self.folder.path().join("kube-apiserver.log");
        self.apiserver = Some(Guarded::start(&self.assets.join("kube-apiserver"), &arguments, &log));
        let client = self.client().await;
        let ready = || http::Request::get("/readyz").body(Vec::new()).unwrap();
        // It is the largest program of all here, and starts in 3 s where nothing else runs.
        let started = Instant::now();
        // One that it took too early it may never answer.
        let asks = async || tokio::time::timeout(ASKS, client.request_text(ready())).await;
        while !matches!(asks().await, Ok(Ok(_))) {
            if started.elapsed() > STARTS {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(30).collect();
                panic!("the API server is not ready after {STARTS:?}; the last lines of its log:\n{last:#?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the API server as a crash would. etcd stays.
    pub(crate) fn down(&mut self) {
        self.apiserver = None;
    }

    /// A client that may do everything.
    pub(crate) async fn client(&self) -> Client {
        let kubeconfig: Kubeconfig = serde_json::from_value(self.kubeconfig("admin", self.port)).unwrap();
        let mut config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        config.default_retry = false;
        Client::try_from(config).unwrap()
    }

    /// A kubeconfig of a user, by way of a port: the server's own or a relay's.
    pub(crate) fn kubeconfig(&self, user: &str, port: u16) -> Value {
        self.kubeconfig_with(&format!("token-{user}"), port)
    }

    /// A kubeconfig of whoever has this token.
    pub(crate) fn kubeconfig_with(&self, token: &str, port: u16) -> Value {
        let ca = self.folder.path().join("ca.pem");
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority": ca}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        })
    }
}

/// Ports that nobody listens on. They are below those that Linux gives to whoever connects, and above those
/// that a demo looks for: a server that is away for a while finds its port free when it comes back.
fn free_ports<const N: usize>() -> [u16; N] {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Processes begin at different places.
    let begin = std::process::id().wrapping_mul(61);
    [(); N].map(|()| {
        loop {
            let place = begin.wrapping_add(TRIED.fetch_add(1, Relaxed)) % 2_700;
            let port = 30_000 + u16::try_from(place).unwrap();
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return port;
            }
        }
    })
}

/// A CA of our own and a certificate for 127.0.0.1, so that TLS is really checked.
fn certificates(folder: &Path) {
    let write = |name: &str, text: &str| {
        std::fs::File::create(folder.join(name)).unwrap().write_all(text.as_bytes()).unwrap();
    };
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority_key = KeyPair::generate().unwrap();
    write("ca.pem", &authority.self_signed(&authority_key).unwrap().pem());
    let mut server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let server_key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(authority, authority_key);
    write("server.pem", &server.signed_by(&server_key, &issuer).unwrap().pem());
    write("server.key", &server_key.serialize_pem());
    write("server.pub", &server_key.public_key_pem());
}
