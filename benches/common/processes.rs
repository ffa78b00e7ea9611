//! Processes of a benchmark with a real gateway: their files, flags and starts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep};
use usher_lab::cli::demo::children::Group;
use usher_lab::cli::demo::ports::Ports;

/// Time to get ready.
pub const START: Duration = Duration::from_secs(30);

/// After everything is ready: first scrapes, and the end of what is done once.
pub const SETTLE: Duration = Duration::from_secs(1);

/// Between two looks at whether something is ready.
const LOOK: Duration = Duration::from_millis(50);

/// The line of a shipped configuration after which its plugins are.
const PLUGINS: &str = "\nplugins:\n";

/// The line after which its data layer is, if it has one.
const DATA_LAYER: &str = "\ndataLayer:\n";

/// An empty folder of this name.
///
/// # Errors
/// Returns an error if the directory can't be created.
pub fn folder(scratch: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let folder = scratch.join(name);
    // Left by a run that was killed: its endpoints must not be taken for these.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Writes a file.
///
/// # Errors
/// Returns an error with the path if the file can't be written.
pub fn write(path: &str, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {path}"))
}

/// A shipped configuration, with its endpoints in this file. Any picker takes it so, whatever flags it has.
///
/// # Errors
/// Returns an error if the program lists no plugins.
pub fn with_endpoints(text: &str, file: &str) -> anyhow::Result<String> {
    if text.matches(PLUGINS).count() != 1 {
        bail!("the configuration has no line {:?}", PLUGINS.trim());
    }
    // A JSON text is a YAML text.
    let path = serde_json::Value::from(file);
    let plugin = format!("  - {{type: file-discovery, parameters: {{path: {path}, watchFile: true}}}}\n");
    let text = text.replace(PLUGINS, &format!("{PLUGINS}{plugin}"));
    let discovery = "  discovery: {pluginRef: file-discovery}\n";
    Ok(match text.contains(DATA_LAYER) {
        true => text.replace(DATA_LAYER, &format!("{DATA_LAYER}{discovery}")),
        false => format!("{text}{}{discovery}", DATA_LAYER.trim_start()),
    })
}

/// A program and its arguments, to be started.
pub fn command(words: &[String]) -> Command {
    let (program, arguments) = words.split_first().map_or(("", words), |(first, rest)| (first, rest));
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Flags of a picker behind Envoy at these ports.
pub fn picker_flags(ports: &Ports) -> Vec<String> {
    vec![
        format!("--grpc-port={}", ports.extproc),
        format!("--grpc-health-port={}", ports.health),
        format!("--metrics-port={}", ports.metrics),
        "--refresh-metrics-interval=50ms".to_owned(),
        "--secure-serving=false".to_owned(),
        // Envoy asks on the ext_proc port.
        "--health-checking=true".to_owned(),
        // Nothing here could answer a question about rights, or receives traces.
        "--metrics-endpoint-auth=false".to_owned(),
        "--tracing=false".to_owned(),
    ]
}

/// Envoy with a configuration, on so many threads.
pub fn envoy(program: &str, config: &str, threads: u16) -> Vec<String> {
    let threads = threads.to_string();
    [program, "--disable-hot-restart", "--concurrency", &threads, "--log-level", "error", "-c", config]
        .map(str::to_owned)
        .to_vec()
}

/// Waits until the simulated servers listen: their endpoints file is written after the last one
/// does.
///
/// # Errors
/// Returns an error that names the process that ended by itself.
pub async fn until_listed(group: &mut Group, endpoints: &str) -> anyhow::Result<()> {
    while !Path::new(endpoints).exists() {
        group.check()?;
        sleep(LOOK).await;
    }
    Ok(())
}

/// Waits until a look at something says that it is ready; otherwise the look says why not.
///
/// # Errors
/// Returns an error if it takes too long, or a process of the group ends by itself.
pub async fn until_ready<F>(group: &mut Group, name: &str, mut look: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = Result<(), String>>,
{
    let deadline = Instant::now() + START;
    while let Err(last) = look().await {
        group.check()?;
        if Instant::now() >= deadline {
            bail!("{name} was not ready within {} s: {last}", START.as_secs());
        }
        sleep(LOOK).await;
    }
    Ok(())
}
