//! Timelines: inputs of a group tick by tick, as JSON lines.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::inputs::{Inputs, Pod, PodState, Work};
use super::policy::{Policy, Role};
use super::rollout::Domain;

/// Latest time of a tick, in seconds: a hundred years.
const LATEST: f64 = 3.2e9;

/// One line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    t: serde_json::Number,
    replicas: Option<BTreeMap<String, u32>>,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
    #[serde(default)]
    waiting: u64,
    #[serde(default)]
    external: BTreeMap<String, Option<f64>>,
    /// Free capacity in pods of each role, by layer and domain.
    domains: Option<BTreeMap<String, BTreeMap<String, BTreeMap<String, u32>>>>,
    #[serde(default)]
    provisioning: bool,
    /// Roles with requests in flight or waiting, or whose work is unknown.
    #[serde(default)]
    busy: Vec<String>,
    /// Total of requests sent to a role's pods.
    #[serde(default)]
    sent: BTreeMap<String, u64>,
    /// `true` if another replica of the picker ticks from now on.
    #[serde(default)]
    restart: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoint {
    #[serde(default, rename = "name")]
    _name: String,
    role: String,
    #[serde(default)]
    ready: bool,
    #[serde(default)]
    scheduled: bool,
    #[serde(default)]
    running: bool,
    #[serde(default)]
    serving: bool,
    #[serde(default)]
    gated: bool,
    #[serde(default)]
    unschedulable: bool,
    /// `true` if it is of the newest revision.
    #[serde(default = "yes")]
    updated: bool,
    /// Node of a scheduled pod.
    node: Option<String>,
    /// Domains of its node, by layer; repeated in the tick's `domains`.
    #[serde(default, rename = "topology")]
    _topology: BTreeMap<String, String>,
    #[serde(default)]
    metrics: BTreeMap<String, Option<f64>>,
}

fn yes() -> bool {
    true
}

/// A tick of a timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Time as written.
    pub t: serde_json::Number,
    /// Time since the timeline's zero.
    pub at: Duration,
    /// Inputs of the tick. [`Inputs::replicas`] is empty if omitted in the line.
    pub inputs: Inputs,
    /// `true` if the line has replicas.
    pub has_replicas: bool,
    /// `true` if another replica of the picker ticks from now on, which knows the policy's status only.
    pub is_restart: bool,
}

/// Parses one line of a timeline. Roles unknown to the policy are dropped.
///
/// # Errors
/// A message about the error in the line.
pub fn parse(line: &str, policy: &Policy) -> Result<Tick, String> {
    let line = line.trim();
    if line.starts_with('[') || line == "null" {
        return Err("is not an object; write {\"t\": 0, …}".to_owned());
    }
    let line: Line = serde_json::from_str(&without_nan(line)).map_err(|error| {
        // The line's own number is that of the file, which the caller knows.
        error.to_string().replace(" at line 1 column ", ", at column ")
    })?;
    let seconds = line.t.as_f64().filter(|t| (0.0..=LATEST).contains(t));
    let seconds = seconds.ok_or_else(|| format!("t is {}; write seconds, from 0 on", line.t))?;
    let role = |name: &str| policy.roles.iter().position(|role| role.name == name);
    let has_replicas = line.replicas.is_some();
    let mut replicas = if has_replicas { vec![0; policy.roles.len()] } else { Vec::new() };
    for (name, count) in line.replicas.into_iter().flatten() {
        if let Some(slot) = role(&name).and_then(|place| replicas.get_mut(place)) {
            *slot = count;
        }
    }
    let pods = line.endpoints.iter().filter_map(|endpoint| {
        let value = |name: &String| endpoint.metrics.get(name).copied().flatten().unwrap_or(f64::NAN);
        Some(Pod {
            role: role(&endpoint.role)?,
            is_ready: endpoint.ready,
            state: PodState {
                is_gated: endpoint.gated,
                is_scheduled: endpoint.scheduled || endpoint.node.is_some(),
                is_running: endpoint.running,
                is_serving: endpoint.serving,
                is_unschedulable: endpoint.unschedulable,
                is_outdated: !endpoint.updated,
                is_leaving: false,
            },
            values: policy.signals.iter().map(value).collect(),
        })
    });
    let pods = pods.collect();
    let external = line.external.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect();
    let domains = line.domains.map(|layers| {
        let domain = |(name, slots): (String, BTreeMap<String, u32>)| {
            let slots = policy.roles.iter().map(|role| slots.get(&role.name).copied().unwrap_or(0));
            Domain { name, slots: slots.collect(), ..Domain::default() }
        };
        layers
            .into_iter()
            .map(|(layer, domains)| (layer, domains.into_iter().map(domain).collect()))
            .collect()
    });
    let (provisioning, waiting) = (line.provisioning, line.waiting);
    let work = |role: &Role| Work {
        is_busy: line.busy.contains(&role.name),
        sent: line.sent.get(&role.name).copied().unwrap_or_default(),
    };
    let says_work = !line.busy.is_empty() || !line.sent.is_empty();
    let work = if says_work { policy.roles.iter().map(work).collect() } else { Vec::new() };
    let inputs =
        Inputs { replicas, pods, waiting, work, external, domains, provisioning, ..Inputs::default() };
    let (at, is_restart) = (Duration::from_secs_f64(seconds), line.restart);
    Ok(Tick { t: line.t, at, inputs, has_replicas, is_restart })
}

/// Replaces `NaN`, which some writers use for unknown values although it isn't JSON.
fn without_nan(line: &str) -> Cow<'_, str> {
    if !line.contains("NaN") {
        return Cow::Borrowed(line);
    }
    let mut text = String::with_capacity(line.len() + 8);
    let (mut in_string, mut escaped) = (false, false);
    let mut rest = line;
    while let Some(next) = rest.chars().next() {
        if !in_string && rest.starts_with("NaN") {
            text.push_str("null");
            rest = &rest[3..];
            continue;
        }
        in_string ^= next == '"' && !escaped;
        escaped = in_string && next == '\\' && !escaped;
        text.push(next);
        rest = &rest[next.len_utf8()..];
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::file;

    fn policy() -> Policy {
        let text = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec:\n  roles: {a: {max: 5}, b: {max: 5}}\n  total: {metrics: [{name: queue_depth, target: 4}, {name: kv, target: 0.5}]}\n";
        file::parse(text).unwrap().remove(0).policy
    }

    #[test]
    fn a_line_is_read_for_its_policy() {
        let line = r#"{"t": 1.5, "replicas": {"b": 2, "other": 9}, "waiting": 3, "external": {"q\"NaN": NaN},
            "endpoints": [{"name": "x", "role": "b", "ready": true, "scheduled": true, "metrics": {"kv": 0.25, "queue_depth": null}},
                          {"name": "y", "role": "other", "ready": true, "metrics": {}}, {"role": "a"}]}"#;
        let tick = parse(line, &policy()).unwrap();
        assert_eq!((tick.at, tick.inputs.waiting), (Duration::from_millis(1500), 3));
        assert_eq!(tick.inputs.replicas, [0, 2]);
        assert_eq!(tick.inputs.pods.len(), 2);
        let pod = &tick.inputs.pods[0];
        assert!(pod.role == 1 && pod.is_ready && pod.values[0].is_nan() && pod.values[1] == 0.25);
        assert!(!tick.inputs.pods[1].is_ready);
        assert!(tick.inputs.external["q\"NaN"].is_nan());
        let bare = parse(r#"{"t": 0}"#, &policy()).unwrap();
        assert!(!bare.has_replicas && bare.inputs == Inputs::default());
    }

    #[test]
    fn broken_timeline_lines_have_an_error() {
        for (line, part) in [
            ("", "EOF"),
            ("{\"t\": 1\n", "EOF while parsing an object, at column 7"),
            ("{\"t\": \"1\"}", "expected"),
            ("{\"t\": -1}", "write seconds"),
            ("{\"replicas\": {}}", "missing field `t`"),
            ("{\"t\": 1, \"replica\": {}}", "unknown field `replica`"),
            ("{\"t\": 1, \"replicas\": {\"a\": -1}}", "invalid value"),
            ("{\"t\": 1, \"endpoints\": [{\"ready\": true}]}", "missing field `role`"),
        ] {
            let error = parse(line, &policy()).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
