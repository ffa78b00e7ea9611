//! The scenario `rollout`: a group of prefill and decode pods comes up in a cluster that has nodes for
//! half of them, and gets more later. Pods, nodes and time are virtual; what may exist when is said by the
//! same code as in the server.

mod cluster;
mod report;

use std::time::Duration;

use anyhow::Context;

use cluster::{Cluster, MORE_NODES};
pub(super) use report::RolloutReport;
use report::{Moment, Way};
use usher_capacity::policy::{Policy, file};
use usher_capacity::rollout::Pace;

/// Capacity policy with the pods that come up, and the steps.
const POLICY: &str = include_str!("../../../../../../deploy/demo/rollout-policy.yaml");

/// Time between two ticks.
const TICK: Duration = Duration::from_secs(15);
/// Time for which it is looked at.
const END: Duration = Duration::from_secs(75 * 60);

/// Brings the group up twice: in steps, and all at once.
///
/// # Errors
/// Returns an error if the policy can't be read, which a test excludes.
pub(super) fn compare() -> anyhow::Result<RolloutReport> {
    let policy = policy()?;
    let mut at_once = policy.clone();
    if let Some(rollout) = &mut at_once.rollout {
        rollout.pace = Some(Pace::Steps(policy.roles.iter().map(|role| role.range.max).collect()));
    }
    let steps = run(&policy, "in steps", &policy);
    let all = run(&at_once, "all at once", &policy);
    Ok(RolloutReport::new(&policy, vec![steps, all]))
}

fn policy() -> anyhow::Result<Policy> {
    let mut read = file::parse(POLICY).ok().context("the policy of the demo can't be read")?;
    read.pop().map(|read| read.policy).context("the policy of the demo is empty")
}

/// Ticks until the end. `measure` has the steps by which usable groups are counted.
fn run(policy: &Policy, name: &str, measure: &Policy) -> Way {
    let pods: u32 = policy.roles.iter().map(|role| role.range.max).sum();
    let mut cluster = Cluster::new(policy, pods / 2);
    let mut moments: Vec<Moment> = Vec::new();
    let mut now = Duration::ZERO;
    while now <= END {
        if now >= MORE_NODES {
            cluster.room = pods;
        }
        let plan = cluster.tick(policy, now);
        let groups = usable(measure, &cluster);
        moments.push(Moment::new(now, &plan, &cluster, groups));
        cluster.apply(&plan, now);
        now += TICK;
    }
    Way::new(name, moments, TICK)
}

/// Number of whole groups of a step that are ready.
fn usable(policy: &Policy, cluster: &Cluster) -> u32 {
    let Some(Pace::Steps(steps)) = policy.rollout.as_ref().and_then(|rollout| rollout.pace.as_ref()) else {
        return 0;
    };
    let whole = steps.iter().enumerate().filter(|(_, step)| **step > 0);
    whole.map(|(role, step)| cluster.ready(role) / step).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use usher_terminal::misfits;

    use super::*;

    #[test]
    fn steps_leave_more_usable_groups_than_all_at_once() {
        let report = compare().unwrap();
        let [steps, all] = report.ways() else { panic!("two ways") };
        assert_eq!((steps.last(), all.last()), (8, 8), "there is room for all in the end");
        assert_eq!(steps.before(MORE_NODES), 4, "all that half of the nodes have room for");
        assert!(all.before(MORE_NODES) < 4);
        assert!(steps.states().contains(&"Blocked".to_owned()));
        assert_eq!(steps.states().last().map(String::as_str), Some("Idle"));
        assert_eq!(misfits(&report), Vec::<String>::new());
        let narrow = format!("{report:80}");
        let blocked = "  4  BatchTimeout, Unschedulable";
        assert!(narrow.lines().any(|line| line.ends_with(blocked)), "no table of one line per row: {narrow}");
        let text = report.to_string();
        assert!(text.contains("\n=> Short of nodes, 4 groups serve in steps and "), "{text}");
    }
}
