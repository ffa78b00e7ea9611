//! A real browser: Chromium without a window, driven over a pipe with the protocol of its developer tools.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{OpenOptions, Sender};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex as Turns, MutexGuard, oneshot};

use crate::support::PATIENCE;

/// One browser at a time: several on a small machine are slower than one after the other.
static TURN: Turns<()> = Turns::const_new(());

/// Messages from the browser: events, and those who wait for a reply.
#[derive(Default)]
struct Inbox {
    events: Vec<Value>,
    waiting: HashMap<u64, oneshot::Sender<Value>>,
}

/// A running browser with one tab.
pub(crate) struct Browser {
    // Killed when dropped.
    _child: Child,
    _folder: TempDir,
    _turn: MutexGuard<'static, ()>,
    inbox: Arc<Mutex<Inbox>>,
    commands: Turns<Sender>,
    next: AtomicU64,
    session: String,
}

impl Browser {
    /// Starts it with an empty tab of so many pixels; `None`: this machine has none.
    pub(crate) async fn start(width: u32, height: u32) -> Option<Self> {
        Self::start_with(width, height, &[]).await
    }

    /// The same with more flags.
    pub(crate) async fn start_with(width: u32, height: u32, flags: &[&str]) -> Option<Self> {
        let program = installed()?;
        let turn = TURN.lock().await;
        let folder = tempfile::tempdir().unwrap();
        let [commands, replies] = ["commands", "replies"].map(|name| folder.path().join(name));
        assert!(Program::new("mkfifo").args([&commands, &replies]).status().unwrap().success());
        // Both ends, so that neither waits for the browser to open its own.
        let both = OpenOptions::new().read_write(true).clone();
        let (sender, receiver) =
            (both.open_sender(&commands).unwrap(), both.open_receiver(&replies).unwrap());
        let child = Command::new("sh")
            .args(["-c", "commands=$1 replies=$2 program=$3; shift 3; exec \"$program\" \"$@\" 3<\"$commands\" 4>\"$replies\"", "sh"])
            .args([&commands, &replies, &program])
            .args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-default-apps", "--mute-audio", "--no-proxy-server"])
            .args(flags)
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .arg("about:blank")
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let inbox: Arc<Mutex<Inbox>> = Arc::default();
        let filled = Arc::clone(&inbox);
        tokio::spawn(async move {
            let mut messages = BufReader::new(receiver).split(0);
            while let Ok(Some(message)) = messages.next_segment().await {
                let message: Value = serde_json::from_slice(&message).unwrap();
                let mut inbox = filled.lock().unwrap();
                match message["id"].as_u64().and_then(|id| inbox.waiting.remove(&id)) {
                    Some(waits) => drop(waits.send(message)),
                    None => inbox.events.push(message),
                }
            }
        });
        let mut browser = Self {
            _child: child,
            _folder: folder,
            _turn: turn,
            inbox,
            commands: Turns::new(sender),
            next: AtomicU64::new(1),
            session: String::new(),
        };
        let targets = browser.call("Target.getTargets", json!({})).await;
        let pages = targets["targetInfos"].as_array().unwrap();
        let tab = pages.iter().find(|target| target["type"] == "page").unwrap()["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": tab, "flatten": true})).await;
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        browser.resize(width, height).await;
        Some(browser)
    }

    /// Opens an address in another window, and returns the window's session.
    pub(crate) async fn window(&self, address: &str) -> String {
        let target = json!({"url": address, "newWindow": true, "width": 600, "height": 600});
        let target = self.call_in("", "Target.createTarget", target).await["targetId"].clone();
        let attach = json!({"targetId": target, "flatten": true});
        let attached = self.call_in("", "Target.attachToTarget", attach).await;
        let session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Runtime", "Log"] {
            self.call_in(&session, &format!("{domain}.enable"), json!({})).await;
        }
        session
    }

    /// Sends a command, and returns its result.
    pub(crate) async fn call(&self, method: &str, parameters: Value) -> Value {
        self.call_in(&self.session, method, parameters).await
    }

    /// The same to a window, or to the browser itself without one.
    async fn call_in(&self, session: &str, method: &str, parameters: Value) -> Value {
        let id = self.next.fetch_add(1, Relaxed);
        let (sender, reply) = oneshot::channel();
        self.inbox.lock().unwrap().waiting.insert(id, sender);
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if !session.is_empty() {
            message["sessionId"] = session.into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.lock().await.write_all(&bytes).await.unwrap();
        let mut reply = tokio::time::timeout(PATIENCE, reply)
            .await
            .unwrap_or_else(|_| panic!("the browser doesn't reply to {method}"))
            .unwrap();
        assert!(reply.get("error").is_none(), "{method}: {reply}");
        reply["result"].take()
    }

    /// Opens an address.
    pub(crate) async fn open(&self, address: &str) {
        let opened = self.call("Page.navigate", json!({"url": address})).await;
        assert!(opened.get("errorText").is_none(), "{address}: {opened}");
    }

    /// Value of an expression, awaited if it is a promise.
    pub(crate) async fn value(&self, expression: &str) -> Value {
        self.value_in(&self.session, expression).await
    }

    /// The same in a window.
    pub(crate) async fn value_in(&self, window: &str, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut result = self.call_in(window, "Runtime.evaluate", parameters).await;
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        self.until_in(&self.session, expression).await;
    }

    /// The same in a window.
    pub(crate) async fn until_in(&self, window: &str, expression: &str) {
        let mut pause = tokio::time::interval(Duration::from_millis(30));
        let is_true = async {
            while self.value_in(window, expression).await != true {
                pause.tick().await;
            }
        };
        if tokio::time::timeout(PATIENCE, is_true).await.is_err() {
            let text = self.value_in(window, "document.body.innerText").await;
            panic!("waited for {expression}; the page shows:\n{}", text.as_str().unwrap_or_default());
        }
    }

    /// Presses a key.
    pub(crate) async fn press(&self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "End" => 35,
            "Home" => 36,
            "ArrowUp" => 38,
            "ArrowDown" => 40,
            "Tab" => 9,
            other => u32::from(other.as_bytes()[0]),
        };
        let text = match key {
            "Enter" => "\r",
            key if key.len() == 1 => key,
            _ => "",
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Types a text.
    pub(crate) async fn type_in(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Makes the tab so many pixels large.
    pub(crate) async fn resize(&self, width: u32, height: u32) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Prefers a color scheme.
    pub(crate) async fn prefer(&self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    /// A picture of the tab as PNG, in base64.
    pub(crate) async fn picture(&self) -> String {
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"})).await;
        picture["data"].as_str().unwrap().to_owned()
    }

    fn events(&self, method: &str) -> Vec<Value> {
        let inbox = self.inbox.lock().unwrap();
        let events = inbox.events.iter().filter(|event| event["method"] == method);
        events.map(|event| event["params"].clone()).collect()
    }

    /// Errors that the console shows: of scripts, of the policy, and of the network where `of_network`.
    pub(crate) fn errors(&self, of_network: bool) -> Vec<String> {
        let thrown = self.events("Runtime.exceptionThrown");
        let written = self.events("Runtime.consoleAPICalled");
        let written = written
            .into_iter()
            .filter(|call| ["error", "assert", "warning"].iter().any(|kind| call["type"] == *kind));
        let logged = self.events("Log.entryAdded").into_iter().filter(|entry| {
            entry["entry"]["level"] == "error" && (of_network || entry["entry"]["source"] != "network")
        });
        thrown.into_iter().chain(written).chain(logged).map(|event| event.to_string()).collect()
    }

    /// Addresses that the page has asked for.
    pub(crate) fn requests(&self) -> Vec<String> {
        let requests = self.events("Network.requestWillBeSent");
        requests.iter().map(|event| event["request"]["url"].as_str().unwrap().to_owned()).collect()
    }
}

/// Path of Chromium; CI has to have it.
#[expect(clippy::print_stdout, reason = "says why nothing is tested")]
fn installed() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let find = |name: &str| {
        std::env::split_paths(&paths).map(|folder| folder.join(name)).find(|path| path.is_file())
    };
    let found = ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(find);
    if found.is_none() {
        let why = "no chromium on the PATH; the package chromium of Debian has it";
        assert!(std::env::var_os("CI").is_none(), "{why}");
        println!("NOT TESTED: {why}");
    }
    found
}

/// The script of axe-core; CI has to get it.
#[expect(clippy::print_stdout, reason = "says why nothing is tested")]
pub(crate) fn axe() -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/ci/axe.sh");
    let output = Program::new(script).output().unwrap();
    if output.status.success() {
        let path = String::from_utf8(output.stdout).unwrap();
        return Some(std::fs::read_to_string(path.trim()).unwrap());
    }
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(std::env::var_os("CI").is_none(), "{why}");
    println!("NOT TESTED: {why}");
    None
}
