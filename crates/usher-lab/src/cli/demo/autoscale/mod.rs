//! The scenario `autoscale`: the load grows, stays, and ends. Usher says how many servers there
//! should be, and the demo starts and ends them as a cluster would.

mod cluster;
mod load;
mod plan;
mod report;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::time::sleep;

use super::args::DemoArgs;
use super::client::Client;
use super::ports::{Ports, local};
use super::replay::Counters;
use super::stack::{Plan, Setup, Stack};
use cluster::Cluster;
use load::Load;
use plan::CurrentPlan;
use report::{AutoscaleReport, Measured, Moment};
use usher_terminal::Progress;

/// Usher's configuration.
const CONFIG: &str = include_str!("../../../../../../deploy/demo/autoscale.yaml");

/// Policy for the number of servers; at most as many as the arguments say.
const POLICY: &str = include_str!("../../../../../../deploy/demo/autoscale-policy.yaml");
const MOST: &str = "max: 8,";

/// Between two looks at the plan.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time for everything to end after the last request was due.
const PATIENCE: Duration = Duration::from_secs(60);

/// Path of Usher's plans.
const PLANS: &str = "/capacity/v1/plans";

/// Sends requests to a pool that is empty at first, and has as many servers as Usher asks for.
///
/// # Errors
/// Returns an error that says in one line what failed.
pub(super) async fn follow(
    args: &DemoArgs,
    ports: Ports,
    progress: &mut Progress,
) -> anyhow::Result<(Stack, AutoscaleReport)> {
    let setup = Setup {
        config: Some(CONFIG.to_owned()),
        policy: Some(POLICY.replace(MOST, &format!("max: {},", ports.servers.len()))),
        starts_empty: true,
        ..Setup::default()
    };
    let plan = Plan { dir: args.dir.clone(), ports: ports.clone(), speed: args.speed(), setup };
    let mut stack = Stack::start(plan, progress).await?;
    let (client, admin) = (Client::default(), local(ports.admin));
    let mut cluster = Cluster::new(ports.servers.clone(), args.speed(), client.clone());
    let load = Load::new(args.requests());
    progress.step(&format!("sending {} requests, {:.0} per second at most", load.requests(), load.most()));

    let counters = Arc::new(Counters::default());
    let begin = Instant::now();
    let traffic = tokio::spawn(load::send(stack.envoy(), load.due(), Arc::clone(&counters)));
    let mut moments: Vec<Moment> = Vec::new();
    loop {
        stack.check()?;
        let page = client.json(admin, PLANS).await?;
        let after = begin.elapsed();
        if let Some(current_plan) =
            CurrentPlan::read(&page).with_context(|| format!("http://{admin}{PLANS}"))?
        {
            cluster.follow(&mut stack, current_plan.desired).await?;
            let at = after.saturating_sub(current_plan.age);
            let moment = Moment::new(at, load.rate(at), cluster.starting(), &current_plan);
            if moments.last().is_none_or(|last| moment.is_later_than(last)) {
                moments.push(moment);
            }
        }
        let (sent, done) = (counters.sent.load(Relaxed), counters.done.load(Relaxed));
        // The plan says a tick later than the cluster that the pool is empty.
        let is_scaled_down = moments.last().is_some_and(|moment| moment.current == 0);
        if traffic.is_finished() && cluster.is_empty() && is_scaled_down {
            break;
        }
        ensure!(
            after < load::END + PATIENCE,
            "{} of {sent} requests are open and {} servers are there {} s after the last request was due; the logs are in {}",
            sent.saturating_sub(done),
            cluster.len(),
            PATIENCE.as_secs(),
            stack.logs()
        );
        progress.update(&format!(
            "{:.0} requests per second, {} open, {} servers, {:.1} s",
            load.rate(after),
            sent.saturating_sub(done),
            cluster.len(),
            after.as_secs_f64()
        ));
        sleep(POLL_INTERVAL).await;
    }
    let outcomes = traffic.await.context("the requests were lost")?;
    let measured = Measured {
        outcomes,
        took: begin.elapsed(),
        moments,
        started: cluster.started(),
        ended: cluster.ended(),
    };
    let report = AutoscaleReport::new(measured, args.speed(), ports);
    Ok((stack, report))
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_capacity::policy::file;

    #[test]
    fn the_policy_is_valid_and_about_the_servers() {
        let read = file::parse(&POLICY.replace(MOST, "max: 3,")).unwrap().remove(0);
        assert_eq!((read.warnings.len(), read.policy.roles[0].range.max), (0, 3));
        assert_eq!(read.policy.roles[0].selector.get("app").map(String::as_str), Some(cluster::APP));
    }
}
