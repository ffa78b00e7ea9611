//! A group that is ticked, as `usher capacity simulate` does it.

use serde_json::{Value, json};
use std::time::Duration;
use usher::capacity::plan::RolePlan;
use usher::capacity::policy::{Policy, file};
use usher::capacity::timeline::parse;
use usher::capacity::{Growth, History, Plan, Surge, tick};

/// A policy of a spec.
pub fn policy(spec: &str) -> Policy {
    let spec = spec.replace('\n', "\n  ");
    let text = format!(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p}}\nspec:\n  {spec}\n"
    );
    match file::parse(&text) {
        Ok(mut read) => read.remove(0).policy,
        Err(errors) => panic!("{}", errors[0].in_file("policy")),
    }
}

/// A policy and what its ticks remember.
pub struct Group {
    pub policy: Policy,
    history: History,
}

impl Group {
    pub fn new(spec: &str) -> Self {
        Self::of(policy(spec))
    }

    pub fn of(policy: Policy) -> Self {
        Self { policy, history: History::default() }
    }

    /// Another process goes on at `t` seconds, which knows what the last plan was to come to, as a status says it.
    pub fn restart(&mut self, t: u64, last: &Plan) {
        let changes = self.history.changes().to_vec();
        let surges: Vec<_> = (0..last.roles.len()).map(|place| self.history.growth().surge(place)).collect();
        let counts = |(role, surge): (&RolePlan, &Option<Surge>)| {
            surge.map_or(role.write, |surge| surge.counts(role.write))
        };
        let size = last.roles.iter().zip(&surges).map(counts).sum();
        self.history = History::resumed(size, Duration::from_secs(t));
        let goals: Vec<u32> = last.roles.iter().map(|role| role.desired).collect();
        self.history.rollout.resume(last.state, &goals);
        self.history.resume_changes(changes);
        self.history.resume_growth(Growth::of(surges));
    }

    /// One tick at `t` seconds. `pods` are (role, count, ready, metrics).
    pub fn tick(
        &mut self,
        t: u64,
        replicas: &Value,
        pods: &[(&str, u32, bool, Value)],
        more: &Value,
    ) -> Plan {
        self.tick_gated(t, replicas, pods, false, more)
    }

    /// The same; `gated`: pods that aren't ready wait at a gate.
    pub fn tick_gated(
        &mut self,
        t: u64,
        replicas: &Value,
        pods: &[(&str, u32, bool, Value)],
        gated: bool,
        more: &Value,
    ) -> Plan {
        let endpoints: Vec<Value> = pods
            .iter()
            .flat_map(|(role, count, ready, metrics)| {
                let gated = gated && !ready;
                (0..*count)
                    .map(move |_| json!({"role": role, "ready": ready, "gated": gated, "metrics": metrics}))
            })
            .collect();
        let mut line = json!({"t": t, "replicas": replicas, "endpoints": endpoints});
        for (key, value) in more.as_object().unwrap() {
            line[key] = value.clone();
        }
        let line = parse(&line.to_string(), &self.policy).unwrap();
        tick(&line.inputs, &self.policy, &mut self.history, Duration::from_secs(t))
    }
}

/// The desired counts, in the order of the roles.
pub fn desired(plan: &Plan) -> Vec<u32> {
    plan.roles.iter().map(|role| role.desired).collect()
}
