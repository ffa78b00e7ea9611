//! One run of one picker.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep, timeout};

use super::args::Plan;
use super::servers::Servers;
use crate::cli::demo::children::Group;
use crate::cli::demo::ports::{Ports, local};
use crate::load::body::Style;
use crate::load::decide::{Asker, Decided};
use crate::load::settings::{Api, TlsMode};
use crate::load::{Failure, LoadError};
use usher_terminal::Progress;

/// For a picker to respond.
const START: Duration = Duration::from_secs(30);

/// For one decision.
const DECISION: Duration = Duration::from_secs(10);

/// For a picker to say which flags it takes.
const HELP: Duration = Duration::from_secs(5);

/// For a picker to read the servers' metrics. A configuration may ask for none.
const METRICS: Duration = Duration::from_secs(3);

/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Requests in a row that break until a picker is given up.
const MOST_BROKEN: usize = 3;

/// Flags of Usher's own that keep it off other interfaces and ports. llm-d-router has neither.
const QUIET: [&str; 2] = ["--bind-address=127.0.0.1", "--admin-address=off"];

/// A picker that is compared.
pub(super) struct Picker {
    pub(super) name: &'static str,
    /// Start of its files' names.
    pub(super) file: &'static str,
    /// A shell's command.
    pub(super) command: String,
    pub(super) config: PathBuf,
}

/// Setting of a picker's run.
pub(super) struct Scene<'a> {
    pub(super) plan: &'a Plan,
    pub(super) folder: &'a Path,
    pub(super) servers: &'a mut Servers,
    pub(super) title: &'a str,
    pub(super) number: usize,
}

impl Picker {
    /// Starts the picker, asks it all requests, and ends it.
    ///
    /// # Errors
    /// Returns an error if the picker doesn't start, ends early or stops responding.
    pub(super) async fn replay(
        &self,
        scene: Scene<'_>,
        progress: &mut Progress,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<Vec<Decided>> {
        let Scene { plan, folder, servers, title, number } = scene;
        progress.step(title);
        let ports = Ports::choose(0, 0)?;
        let mut group = Group::new(folder)?;
        let quiet = self.quiet(&group, folder).await?;
        let log = folder.join(format!("{}-{number}.log", self.file));
        servers.set(0);
        group.spawn(self.name, self.start(&ports, &quiet), log.clone())?;
        let asker = self.connect(&ports, &plan.headers, &mut group, &log).await?;
        let mut reads = true;
        let mut decided = Vec::with_capacity(plan.rows.len());
        let (mut step, mut broken) = (None, 0);
        for (request, row) in plan.rows.iter().enumerate() {
            if step != Some(plan.step(request)) {
                step = Some(plan.step(request));
                servers.set(plan.step(request));
                // Who doesn't read them once won't the next time.
                if reads {
                    reads = servers.read_by_all(METRICS).await;
                    let note = format!("{} doesn't read all servers' metrics", self.name);
                    if !reads && !notes.contains(&note) {
                        notes.push(note);
                    }
                }
                progress.part(request as u64, plan.rows.len() as u64, &format!("requests, {title}"));
            }
            sleep(plan.pause).await;
            let asked = timeout(DECISION, asker.ask(request as u64, row)).await;
            let late = || Failure::new("timeout", format!("no decision within {} s", DECISION.as_secs()));
            match asked.unwrap_or_else(|_| Err(late())) {
                Ok(one) => {
                    broken = 0;
                    decided.push(one);
                }
                Err(failure) => {
                    // That it ended shows a moment later than its connection.
                    sleep(POLL_INTERVAL).await;
                    group.check()?;
                    broken += 1;
                    if broken == MOST_BROKEN {
                        let log = log.display();
                        bail!("{} stopped responding ({failure}); its output is in {log}", self.name);
                    }
                    decided.push(Decided::broken(&failure));
                }
            }
        }
        Ok(decided)
    }

    /// The command with further arguments. The shell makes way for it.
    fn shell(&self) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("exec {} \"$@\"", self.command)).arg(self.file);
        command
    }

    /// Flags in `QUIET` that the picker knows, as its `--help` shows.
    async fn quiet(&self, group: &Group, folder: &Path) -> anyhow::Result<Vec<&'static str>> {
        let path = folder.join(format!("{}-help.log", self.file));
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut command = self.shell();
        command.arg("--help").process_group(group.id()).stdin(Stdio::null());
        command.stdout(file.try_clone()?).stderr(file);
        let mut child = command.spawn().context("cannot start sh")?;
        let deadline = Instant::now() + HELP;
        // Who knows no --help may start in earnest, or say so and end; both say nothing of flags.
        while child.try_wait()?.is_none() && Instant::now() < deadline {
            sleep(POLL_INTERVAL).await;
        }
        let _ = child.kill();
        child.wait()?;
        let help = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        let flag = |quiet: &&str| quiet.split('=').next().is_some_and(|flag| help.contains(flag));
        Ok(QUIET.into_iter().filter(flag).collect())
    }

    fn start(&self, ports: &Ports, quiet: &[&str]) -> Command {
        let mut command = self.shell();
        command
            .arg(format!("--grpc-port={}", ports.extproc))
            .arg(format!("--grpc-health-port={}", ports.health))
            .arg(format!("--metrics-port={}", ports.metrics))
            .arg(format!("--config-file={}", self.config.display()))
            // llm-d-router asks for it, wherever its endpoints come from.
            .arg("--pool-name=compare")
            .arg("--refresh-metrics-interval=50ms")
            .arg("--secure-serving=false")
            // Nothing here could answer a question about rights, or receives traces.
            .args(["--metrics-endpoint-auth=false", "--tracing=false"])
            .args(quiet);
        command
    }

    /// Waits until the picker responds.
    async fn connect(
        &self,
        ports: &Ports,
        headers: &[(String, String)],
        group: &mut Group,
        log: &Path,
    ) -> anyhow::Result<Asker> {
        let address = local(ports.extproc).to_string();
        let deadline = Instant::now() + START;
        loop {
            group.check()?;
            let style = Style { api: Api::Completions, model: "m".to_owned(), stream: false };
            match Asker::connect(&address, TlsMode::Off, style, headers).await {
                Ok(asker) => return Ok(asker),
                Err(LoadError::Unreachable { .. }) if Instant::now() < deadline => sleep(POLL_INTERVAL).await,
                Err(error) => bail!("{}: {error}; its output is in {}", self.name, log.display()),
            }
        }
    }
}
