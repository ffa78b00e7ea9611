//! `usher capacity release`: clears leftovers of deleted policies.

use std::io::{self, Write};

use clap::Args;

use crate::cluster::{Cluster, connect};
use crate::scaling::release::{Release, Released};
use usher_terminal::CliError;

/// Clear leftovers of deleted capacity policies: scheduling gates, pod deletion costs and paused updates. The API server is that of KUBECONFIG, of the pod, or of ~/.kube/config.
#[derive(Args, Clone, Debug)]
pub(super) struct ReleaseArgs {
    /// Namespace of the pods. By default that of the environment variable NAMESPACE, else "default".
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Only pods and workloads with these labels, as of `kubectl -l`. Policies in files are not known here: leave their
    /// pods out.
    #[arg(long, short = 'l', value_name = "SELECTOR", default_value = "")]
    selector: String,
    /// Include pods and workloads that a CapacityPolicy is for.
    #[arg(long)]
    all: bool,
    /// Print these and change nothing.
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
    let (became, unlisted) = runtime.block_on(async {
        let cluster: Cluster = connect().await.map_err(|error| CliError::Usage(error.to_string()))?;
        release.run(&cluster).await.map_err(|problem| CliError::Failed(problem.to_string()))
    })?;
    let mut out = io::stdout().lock();
    let mut failed = 0;
    let says = |would: &str, does: &str| if args.dry_run { would.to_owned() } else { does.to_owned() };
    for (pod, released) in &became {
        let line = match released {
            Released::Free => format!("{pod}: {}", says("would be let go", "let go")),
            Released::Unmarked => {
                format!("{pod}: {}", says("would go no sooner than others", "goes no sooner than others"))
            }
            Released::Resumed => format!("{pod}: {}", says("its update would go on", "its update goes on")),
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
    for problem in &unlisted {
        eprintln!("usher: updates that are held back can't be looked for: {problem}");
    }
    if became.is_empty() {
        eprintln!(
            "usher: no pod waits at the gate, and nothing else is held, in namespace {}",
            release.namespace
        );
    }
    match failed {
        0 => Ok(()),
        failed => Err(CliError::Failed(format!("{failed} of these could not be let go"))),
    }
}
