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
    /// Only pods and workloads that match this label selector, as of `kubectl -l`. Policies in files are not known here:
    /// leave their pods out.
    #[arg(long, short = 'l', value_name = "SELECTOR", default_value = "")]
    selector: String,
    /// Include pods and workloads of existing CapacityPolicies.
    #[arg(long)]
    all: bool,
    /// Show what would change, and change nothing.
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
    for (object, released) in &became {
        let line = line(object, released, args.dry_run);
        writeln!(out, "{line}").map_err(|error| CliError::Failed(format!("cannot print: {error}")))?;
    }
    for problem in &unlisted {
        eprintln!("usher: workloads with a held update can't be listed: {problem}");
    }
    if became.is_empty() {
        eprintln!(
            "usher: no scheduling gate, deletion cost or held update to remove in namespace {}",
            release.namespace
        );
    }
    match became.values().filter(|released| matches!(released, Released::Failed(_))).count() {
        0 => Ok(()),
        failed => Err(CliError::Failed(format!("{failed} of these could not be patched"))),
    }
}

/// Outcome for a pod, by its name, or for a workload, `Kind/name`: the object as of `kubectl`, and its change.
fn line(object: &str, released: &Released, dry_run: bool) -> String {
    let kind = if object.contains('/') { "" } else { "pod/" };
    let done = |change: &str| format!("{change}{}", if dry_run { " (dry run)" } else { "" });
    let change = match released {
        Released::Free => done("scheduling gate removed"),
        Released::Unmarked => done("deletion cost removed"),
        Released::Resumed => done("rollout resumed"),
        Released::Kept { policy, held } if held.is_empty() => {
            format!("unchanged, CapacityPolicy {policy} applies")
        }
        Released::Kept { policy, held } => {
            let why = held.join(", ");
            format!("unchanged, CapacityPolicy {policy} applies but is blocked ({why}); --all includes it")
        }
        Released::Failed(problem) => problem.to_string(),
    };
    format!("{kind}{}: {change}", object.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Problem;

    #[test]
    fn lines_name_the_object_and_its_change() {
        let kept = |held: &[&str]| Released::Kept {
            policy: "p".to_owned(),
            held: held.iter().map(|reason| (*reason).to_owned()).collect(),
        };
        let failed = Released::Failed(Problem::NotFound("pods \"d-0\" not found".to_owned()));
        for (object, released, expected) in [
            ("d-0", Released::Free, "pod/d-0: scheduling gate removed"),
            ("d-0", Released::Unmarked, "pod/d-0: deletion cost removed"),
            ("Deployment/d", Released::Resumed, "deployment/d: rollout resumed"),
            ("d-0", kept(&[]), "pod/d-0: unchanged, CapacityPolicy p applies"),
            (
                "d-0",
                kept(&["Suspended"]),
                "pod/d-0: unchanged, CapacityPolicy p applies but is blocked (Suspended); --all includes it",
            ),
            ("d-0", failed, "pod/d-0: not found: pods \"d-0\" not found"),
        ] {
            assert_eq!(line(object, &released, false), expected);
        }
        assert_eq!(line("d-0", &Released::Free, true), "pod/d-0: scheduling gate removed (dry run)");
    }
}
