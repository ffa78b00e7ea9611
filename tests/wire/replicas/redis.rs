//! A real Redis server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// A running `redis-server`, at a socket in a folder of its own.
pub(crate) struct Redis {
    child: Child,
    folder: TempDir,
    arguments: Vec<String>,
}

impl Redis {
    /// Starts one with these arguments; `None` where none is installed, which CI has to have.
    #[expect(clippy::print_stdout, reason = "says why nothing is tested")]
    pub(crate) async fn start(arguments: &[&str]) -> Option<Self> {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&paths).any(|folder| folder.join("redis-server").is_file()) {
            let why = "no redis-server on the PATH; the package redis-server of Debian has it";
            assert!(std::env::var_os("CI").is_none(), "{why}");
            println!("NOT TESTED: {why}");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let redis = Self { child: spawn(folder.path(), &arguments), folder, arguments };
        redis.wait().await;
        Some(redis)
    }

    /// The path of its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// The flag that names it.
    pub(crate) fn flag(&self) -> String {
        format!("--state-store=unix://{}", self.socket().display())
    }

    /// Sends a command, and returns what comes next.
    pub(crate) fn ask(&self, command: &[&[u8]]) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.write_all(&written(command)).unwrap();
        let mut reply = [0; 4096];
        let read = stream.read(&mut reply).unwrap();
        String::from_utf8_lossy(&reply[..read]).into_owned()
    }

    /// Sends a command, and returns the whole reply.
    pub(super) fn ask_to_the_end(&self, command: &[&[u8]]) -> Vec<u8> {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let end: &[&[u8]] = &[b"QUIT"];
        stream.write_all(&[written(command), written(end)].concat()).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        reply
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([format!("-{signal}"), id]).status().unwrap().success());
    }

    /// Ends it without a warning.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // It leaves it behind.
        std::fs::remove_file(self.socket()).unwrap();
    }

    /// Starts it again after [`kill`](Self::kill).
    pub(crate) async fn restart(&mut self) {
        self.child = spawn(self.folder.path(), &self.arguments);
        self.wait().await;
    }

    async fn wait(&self) {
        super::eventually("a server", async || UnixStream::connect(self.socket()).is_ok()).await;
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The bytes of a command.
fn written(command: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        bytes.extend(format!("${}\r\n", argument.len()).bytes().chain(argument.iter().copied()));
        bytes.extend(b"\r\n");
    }
    bytes
}

fn spawn(folder: &Path, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
        .arg(folder.join("redis.sock"))
        .arg("--dir")
        .arg(folder)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("redis-server: {error}"))
}

/// The time that anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
