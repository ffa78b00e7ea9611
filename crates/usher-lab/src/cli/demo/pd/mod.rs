//! The scenario `pd`: servers that compute prompts and servers that decode, and what
//! becomes of a trace with each way to pair them.

mod layout;
mod report;

use std::sync::Arc;

use anyhow::Context;

use super::args::DemoArgs;
use super::client::Client;
use super::ports::Ports;
use super::replay::replayed;
use super::stack::{Plan, Setup, Stack};
use crate::load::trace::Row;
use layout::{LINKS, layout};
use report::{PdReport, Run, Server};
use usher_terminal::Progress;

/// A way to choose who computes the prompt of a request and who decodes.
#[derive(Debug, Clone, Copy)]
struct Pairing {
    name: &'static str,
    /// Usher's configuration.
    config: &'static str,
}

/// The ways that are compared, one after the other.
const PAIRINGS: [Pairing; 2] = [
    Pairing {
        name: "independent",
        config: include_str!("../../../../../../deploy/demo/pd-independent.yaml"),
    },
    Pairing { name: "joint", config: include_str!("../../../../../../deploy/demo/pd-joint.yaml") },
];

/// A configuration for servers that are so many times as fast: what it says per second is
/// as much more.
fn sped_up(config: &str, speed: f64) -> String {
    let rates = LINKS.iter().map(|(layer, _, bytes)| (*layer, *bytes));
    let rates = rates.chain([("peakPrefillThroughput", PREFILL)]);
    rates.fold(config.to_owned(), |config, (key, rate)| {
        config.replace(&format!("{key}: {rate}\n"), &format!("{key}: {}\n", rate as f64 * speed))
    })
}

/// Prompt tokens that a simulated server computes per second.
const PREFILL: u64 = 15_928;

/// Path under which a server reports its state.
const STATE: &str = "/admin/state";

/// Replays the trace once for each pairing, each time with fresh servers, and compares.
/// The last stack goes on.
///
/// # Errors
/// Returns an error that says in one line what failed.
pub(super) async fn compare(
    args: &DemoArgs,
    rows: &Arc<[Row]>,
    ports: Ports,
    progress: &mut Progress,
) -> anyhow::Result<(Stack, PdReport)> {
    let mut report = PdReport::new(args.speed(), ports.clone());
    let mut last: Option<Stack> = None;
    for pairing in PAIRINGS {
        if let Some(before) = last.take() {
            before.end();
        }
        let config = Some(sped_up(pairing.config, args.speed()));
        let setup = Setup { servers: layout(ports.servers.len()), config, ..Setup::default() };
        let plan = Plan { dir: args.dir.clone(), ports: ports.clone(), speed: args.speed(), setup };
        let mut stack = Stack::start(plan, progress).await?;
        let what = format!("pairing {}", pairing.name);
        let (outcomes, took, ()) =
            replayed(&mut stack, rows, args.speed(), progress, &what, std::future::ready(())).await?;
        let mut servers = Vec::new();
        for server in stack.servers() {
            let state = Client::default().json(server, STATE).await?;
            servers.push(Server::read(&state).with_context(|| format!("http://{server}{STATE}"))?);
        }
        report.runs.push(Run::new(pairing.name, &outcomes, took, &servers));
        last = Some(stack);
        if report.failed() > 0 {
            // Its logs are what one wants to see now.
            break;
        }
    }
    let stack = last.context("there is no pairing to show")?;
    Ok((stack, report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joint_pairing_has_the_speeds_of_the_servers() {
        let joint = PAIRINGS.iter().find(|pairing| pairing.name == "joint").unwrap();
        let text = sped_up(joint.config, 12.0);
        for (layer, _, bytes) in LINKS {
            assert!(text.contains(&format!("{layer}: {}\n", bytes * 12)), "{text}");
        }
        assert!(text.contains("peakPrefillThroughput: 191136\n"), "{text}");
    }
}
