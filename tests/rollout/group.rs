//! A group whose state machine is ticked with lines.

use std::time::Duration;

use serde_json::{Value, json};
use usher::capacity::policy::Policy;
use usher::capacity::timeline::parse;
use usher::capacity::{History, Inputs, Plan, tick};

use crate::cluster::policy;

/// A policy that is ticked with lines.
pub(crate) struct Group {
    pub(crate) policy: Policy,
    pub(crate) history: History,
}

impl Group {
    pub(crate) fn new(spec: &str) -> Self {
        Self { policy: policy(spec), history: History::default() }
    }

    /// `pods` are (role, how many, what they say).
    pub(crate) fn tick(
        &mut self,
        t: u64,
        replicas: [u32; 2],
        pods: &[(&str, u32, &str)],
        more: &Value,
    ) -> Plan {
        self.tick_with(t, replicas, pods, more, |_| {})
    }

    /// The same, with inputs that no line says.
    pub(crate) fn tick_with(
        &mut self,
        t: u64,
        replicas: [u32; 2],
        pods: &[(&str, u32, &str)],
        more: &Value,
        set: impl FnOnce(&mut Inputs),
    ) -> Plan {
        let endpoints: Vec<Value> = pods
            .iter()
            .flat_map(|(role, count, states)| {
                let mut pod = json!({"role": role});
                states.split_whitespace().for_each(|state| match state {
                    "outdated" => pod["updated"] = false.into(),
                    state => pod[state] = true.into(),
                });
                vec![pod; *count as usize]
            })
            .collect();
        let [decode, prefill] = replicas;
        let mut line =
            json!({"t": t, "replicas": {"decode": decode, "prefill": prefill}, "endpoints": endpoints});
        for (key, value) in more.as_object().into_iter().flatten() {
            line[key] = value.clone();
        }
        let mut line = parse(&line.to_string(), &self.policy).unwrap();
        set(&mut line.inputs);
        tick(&line.inputs, &self.policy, &mut self.history, Duration::from_secs(t))
    }
}
