//! The scenario `plain`: a trace with llm-d-router's default policy, and with Usher's.

mod report;

use std::sync::Arc;

use anyhow::Context;

use super::args::DemoArgs;
use super::latency;
use super::ports::Ports;
use super::replay::{replayed, span};
use super::stack::{Plan, Setup, Stack};
use crate::load::trace::Row;
use report::{Measured, PlainReport, Run};
use usher_terminal::Progress;

/// A policy that is shown.
#[derive(Debug, Clone, Copy)]
struct Policy {
    /// Heading of its column.
    name: &'static str,
    /// Usher's configuration; `None`: the built-in one.
    config: Option<&'static str>,
}

/// Usher's own policy.
const OWN: &str = include_str!("../../../../../../deploy/demo/expected-latency.yaml");

/// The policies, one after the other.
const POLICIES: [Policy; 2] =
    [Policy { name: "llm-d-router's", config: None }, Policy { name: "Usher's", config: Some(OWN) }];

/// Replays the trace once for each policy, each time with fresh servers, and compares. The last stack goes on.
///
/// # Errors
/// Returns an error that says in one line what failed.
pub(super) async fn compare(
    args: &DemoArgs,
    rows: &Arc<[Row]>,
    ports: Ports,
    progress: &mut Progress,
) -> anyhow::Result<(Stack, PlainReport)> {
    let speed = args.speed();
    let mut report = PlainReport::new(speed, ports.clone());
    let mut last: Option<Stack> = None;
    for (number, policy) in (1..).zip(POLICIES) {
        if let Some(before) = last.take() {
            before.end();
        }
        let setup = Setup { config: policy.config.map(str::to_owned), ..Setup::default() };
        let plan = Plan { dir: args.dir.clone(), ports: ports.clone(), speed, setup };
        let mut stack = Stack::start(plan, progress).await?;
        let before = stack.usher();
        let servers = stack.servers();
        let probes = latency::measure(stack.envoy(), &servers, rows, span(rows, speed));
        let what = format!("{number} of {}, {} policy", POLICIES.len(), policy.name);
        let (outcomes, took, added) = replayed(&mut stack, rows, speed, progress, &what, probes).await?;
        let usher = before.zip(stack.usher());
        let measured = Measured { outcomes, added, took, usher };
        report.runs.push(Run::new(policy.name, &measured, speed, stack.names()));
        last = Some(stack);
        if report.failed() > 0 {
            // Its logs are what one wants to see now.
            break;
        }
    }
    let stack = last.context("there is no policy to show")?;
    Ok((stack, report))
}
