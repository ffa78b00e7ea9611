//! Pods that plans asked for and that don't exist yet.
//!
//! Pods take minutes to start. A tick meanwhile that counts existing pods only would revert a rule, which
//! adds to them and then cools down. It would also revert a sized group, whatever its scale-down window,
//! which begins at the existing pods; and limits would let the group grow once per start of a pod, however
//! short their period.

use std::time::Duration;

use super::plan::{Plan, State};
use super::policy::{Policy, Sizing};

/// Longest startup of a pod, with its model; or a rule's cooldown, if longer.
const COMING_UP: Duration = Duration::from_secs(10 * 60);

/// Pods asked for, by role, and the end of their validity. Only rules keep requests to shrink: pods removed
/// by a sized group leave the list immediately.
#[derive(Clone, Debug, Default)]
pub struct Requested(Vec<Option<Request>>);

#[derive(Clone, Copy, Debug)]
struct Request {
    from: u32,
    to: u32,
    until: Duration,
}

impl Requested {
    /// Pods to count for each role: those asked for, until they exist or are overdue.
    pub fn replicas(&mut self, there: &[u32], now: Duration) -> Vec<u32> {
        self.0.resize(there.len(), None);
        let count = |(slot, there): (&mut Option<Request>, &u32)| {
            let is_open = |request: &Request| {
                let reached =
                    if request.to > request.from { *there >= request.to } else { *there <= request.to };
                !reached && now < request.until
            };
            *slot = slot.filter(is_open);
            slot.map_or(*there, |request| request.to)
        };
        self.0.iter_mut().zip(there).map(count).collect()
    }

    /// Records what a plan asks for, and sets its existing pods.
    pub fn note(&mut self, policy: &Policy, plan: &mut Plan, there: &[u32], now: Duration) {
        self.0.resize(plan.roles.len(), None);
        match &policy.sizing {
            Sizing::Rules(rules) => {
                for rule in rules.iter().filter(|rule| plan.fired.contains(&rule.name)) {
                    let (Some(role), Some(slot)) = (plan.roles.get(rule.role), self.0.get_mut(rule.role))
                    else {
                        continue;
                    };
                    let until = now + rule.cooldown.max(COMING_UP);
                    *slot = Some(Request { from: role.current, to: role.desired, until });
                }
            }
            Sizing::Total(_) | Sizing::Kept => {
                for ((role, slot), there) in plan.roles.iter().zip(&mut self.0).zip(there) {
                    // More of them begin to start now; fewer of those that start go on as they are.
                    let since = slot.filter(|request| request.to >= role.desired);
                    let until = since.map_or(now + COMING_UP, |request| request.until);
                    let request = Request { from: *there, to: role.desired, until };
                    *slot = (role.desired > *there).then_some(request);
                }
            }
        }
        for (role, there) in plan.roles.iter_mut().zip(there) {
            role.current = *there;
        }
        let changes = plan.roles.iter().any(|role| role.desired != role.current);
        plan.state = if changes { State::Scale } else { State::Idle };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::file;
    use crate::{History, Inputs, Pod, PodState, tick};

    #[test]
    fn requested_pods_count_until_created_or_overdue() {
        let text = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec:\n  roles: {d: {min: 1, max: 8}}\n  rules: [{name: up, role: d, metric: queue_depth, comparator: GREATER_THAN, threshold: 5, step: 2, cooldown: 300s}]\n";
        let policy = file::parse(text).unwrap().remove(0).policy;
        let (mut history, mut requested) = (History::default(), Requested::default());
        let mut desired = |at: u64, there: u32, queue: f64| {
            let now = Duration::from_secs(at);
            let pods = (0..there).map(|_| Pod {
                role: 0,
                is_ready: true,
                state: PodState::default(),
                values: [queue].into(),
            });
            let replicas = requested.replicas(&[there], now);
            let inputs = Inputs { replicas, pods: pods.collect(), ..Inputs::default() };
            let mut plan = tick(&inputs, &policy, &mut history, now);
            requested.note(&policy, &mut plan, &[there], now);
            (plan.roles[0].current, plan.roles[0].desired, plan.state)
        };
        assert_eq!(desired(0, 2, 9.0), (2, 4, State::Scale));
        assert_eq!(desired(15, 2, 9.0), (2, 4, State::Scale), "they are on their way");
        assert_eq!(desired(60, 3, 9.0), (3, 4, State::Scale));
        assert_eq!(desired(90, 4, 1.0), (4, 4, State::Idle));
        assert_eq!(desired(120, 3, 1.0), (3, 3, State::Idle), "what came and went isn't asked for");
        assert_eq!(desired(400, 3, 9.0), (3, 5, State::Scale));
        assert_eq!(desired(1_001, 3, 1.0), (3, 3, State::Idle), "it never came");
    }

    /// Current and desired pods and the state of a policy, by time in seconds, existing pods, and the total
    /// queue.
    fn by_size() -> impl FnMut(u64, u32, f64) -> (u32, u32, State) {
        let text = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec:\n  roles: {d: {min: 1, max: 40}}\n  total: {metrics: [{name: queue_depth, target: 4}]}\n";
        let policy = file::parse(text).unwrap().remove(0).policy;
        let (mut history, mut requested) = (History::default(), Requested::default());
        move |at, there, queue| {
            let now = Duration::from_secs(at);
            let mean = queue / f64::from(there);
            let pods = (0..there).map(|_| Pod {
                role: 0,
                is_ready: true,
                state: PodState::default(),
                values: [mean].into(),
            });
            let replicas = requested.replicas(&[there], now);
            let starting = vec![replicas[0].saturating_sub(there)];
            let inputs = Inputs { replicas, pods: pods.collect(), starting, ..Inputs::default() };
            let mut plan = tick(&inputs, &policy, &mut history, now);
            requested.note(&policy, &mut plan, &[there], now);
            (plan.roles[0].current, plan.roles[0].desired, plan.state)
        }
    }

    #[test]
    fn a_group_grows_by_its_limits_while_pods_start() {
        let mut desired = by_size();
        assert_eq!(desired(0, 2, 80.0), (2, 6, State::Scale));
        assert_eq!(desired(45, 2, 80.0), (2, 6, State::Scale), "four in a minute");
        assert_eq!(desired(60, 2, 80.0), (2, 12, State::Scale), "the first ones still start");
        assert_eq!(desired(120, 6, 80.0), (6, 20, State::Scale));
        assert_eq!(desired(180, 20, 80.0), (20, 20, State::Idle));
    }

    #[test]
    fn starting_pods_are_not_removed_at_once() {
        let mut desired = by_size();
        assert_eq!(desired(0, 2, 24.0).1, 6);
        assert_eq!(desired(15, 2, 4.0).1, 6, "five minutes have to ask for less");
        assert_eq!(desired(299, 2, 4.0).1, 6);
        assert_eq!(desired(300, 2, 4.0), (2, 1, State::Scale));
        assert_eq!(desired(315, 1, 4.0), (1, 1, State::Idle));
    }

    #[test]
    fn pods_never_created_count_for_ten_minutes() {
        let mut desired = by_size();
        assert_eq!(desired(0, 2, 24.0).1, 6);
        assert_eq!(desired(599, 2, 60.0).1, 12, "the limit is that of six");
        let mut desired = by_size();
        assert_eq!(desired(0, 2, 24.0).1, 6);
        assert_eq!(desired(300, 2, 24.0).1, 6);
        assert_eq!(desired(600, 2, 60.0).1, 6, "and now of two again");
    }
}
