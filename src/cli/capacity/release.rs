//! `usher capacity release`: lets pods go that wait at a gate that nobody opens.

use std::io::{self, Write};

use clap::Args;

use crate::cluster::{Cluster, connect};
use crate::scaling::release::{Release, Released};
use usher_terminal::CliError;

/// Let pods go that wait at Usher's scheduling gate and that no CapacityPolicy is for. The API server is
/// that of KUBECONFIG, of the pod, or of ~/.kube/config.
#[derive(Args, Clone, Debug)]
pub(super) struct ReleaseArgs {
    /// Namespace of the pods. By default that of the environment variable NAMESPACE, else "default".
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Only pods with these labels, as of `kubectl -l`. Policies in files are not known here: leave their
    /// pods out.
    #[arg(long, short = 'l', value_name = "SELECTOR", default_value = "")]
    selector: String,
    /// Pods as well that a CapacityPolicy is for.
    #[arg(long)]
    all: bool,
    /// Say which pods these are, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &ReleaseArgs) -> Result<(), CliError> {
    let namespace = args.namespace.clone().or_else(|| std::env::var("NAMESPACE").ok());
    let release = Release {
        namespace: namespace.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned()),
        labels: args.selector.clone(),
        all: args.all,
        dry_run: args.dry_run,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::Failed(format!("cannot start: {error}")))?;
    let became = runtime.block_on(async {
        let cluster: Cluster = connect().await.map_err(|error| CliError::Usage(error.to_string()))?;
        release.run(&cluster).await.map_err(|problem| CliError::Failed(problem.to_string()))
    })?;
    let mut out = io::stdout().lock();
    let (mut failed, free) = (0, if args.dry_run { "would be let go" } else { "let go" });
    for (pod, released) in &became {
        let line = match released {
            Released::Free => format!("{pod}: {free}"),
            Released::Kept { policy, held } if held.is_empty() => format!("{pod}: left to policy {policy}"),
            Released::Kept { policy, held } => {
                let why = held.join(", ");
                format!("{pod}: left to policy {policy}, which stands still ({why}); --all lets it go")
            }
            Released::Failed(problem) => {
                failed += 1;
                format!("{pod}: {problem}")
            }
        };
        writeln!(out, "{line}").map_err(|error| CliError::Failed(format!("cannot print: {error}")))?;
    }
    if became.is_empty() {
        eprintln!("usher: no pod waits at the gate in namespace {}", release.namespace);
    }
    match failed {
        0 => Ok(()),
        failed => Err(CliError::Failed(format!("{failed} pods could not be let go"))),
    }
}
