//! Choice of gates to open, and of pods to evict.

use serde_json::{Value, json};

use super::pods::PodObject;
use super::{GATE, SENT};
use crate::capacity::rollout::Placement;

/// Pods of a role whose gate opens: the oldest ones, until `admitted` are past the gate.
pub fn to_open<'a>(pods: &[&'a PodObject], admitted: u32) -> Vec<&'a PodObject> {
    let past = pods.iter().filter(|pod| pod.is_alive() && !pod.is_gated()).count();
    let mut waiting: Vec<&PodObject> =
        pods.iter().copied().filter(|pod| pod.is_alive() && pod.is_gated()).collect();
    waiting.sort_by_key(|pod| (pod.created(), pod.name()));
    waiting.truncate((admitted as usize).saturating_sub(past));
    waiting
}

/// Pods of a role to evict, of those past the gate beyond `admitted`: those with the least startup progress,
/// then those already chosen, then the youngest. Each is replaced by a pod at the gate.
pub fn to_delete<'a>(
    pods: &[&'a PodObject],
    admitted: u32,
    is_leaving: impl Fn(&PodObject) -> bool,
) -> Vec<&'a PodObject> {
    let mut past: Vec<&PodObject> =
        pods.iter().copied().filter(|pod| pod.is_alive() && !pod.is_gated()).collect();
    let surplus = past.len().saturating_sub(admitted as usize);
    let far = |pod: &PodObject| {
        let state = pod.state(None);
        (pod.is_ready(), state.is_running, state.is_scheduled, !is_leaving(pod))
    };
    past.sort_by(|a, b| far(a).cmp(&far(b)).then(b.created().cmp(a.created())).then(a.name().cmp(b.name())));
    past.truncate(surplus);
    past
}

/// JSON patch that opens a pod's gate: first its placement, then the gate. `None`: it has no gate of ours.
/// The patch fails if the pod has changed.
pub fn opening(pod: &PodObject, place: Option<&Placement>, is_required: bool) -> Option<Value> {
    let gates = &pod.spec.scheduling_gates;
    let index = gates.iter().position(|gate| gate.name == GATE)?;
    let version = &pod.metadata.resource_version;
    let mut patch = vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})];
    if let Some(place) = place {
        let affinity = affinity(pod.spec.needs.affinity.as_ref(), place, is_required);
        // `add` replaces what is there.
        patch.push(json!({"op": "add", "path": "/spec/affinity", "value": affinity}));
        // The added term is not the pod's own.
        let sent = format!("{}={}", place.layer, place.domain);
        patch.push(match pod.metadata.annotations.is_empty() {
            true => json!({"op": "add", "path": "/metadata/annotations", "value": {SENT: sent}}),
            false => json!({"op": "add", "path": format!("/metadata/annotations/{}", SENT.replace('/', "~1")), "value": sent}),
        });
    }
    // The API server has no empty list of gates.
    let path = if gates.len() == 1 {
        "/spec/schedulingGates".to_owned()
    } else {
        format!("/spec/schedulingGates/{index}")
    };
    patch.push(json!({"op": "remove", "path": path}));
    Some(Value::Array(patch))
}

/// A pod's node affinity, restricted to this domain: in every alternative if required (all that the API
/// server allows for gated pods), otherwise as one more preference.
fn affinity(there: Option<&Value>, place: &Placement, is_required: bool) -> Value {
    let mut affinity = there.filter(|value| value.is_object()).cloned().unwrap_or_else(|| json!({}));
    let own = json!({"key": place.layer, "operator": "In", "values": [place.domain]});
    let node = &mut affinity["nodeAffinity"];
    if !is_required {
        let more = json!({"weight": 100, "preference": {"matchExpressions": [own]}});
        match &mut node["preferredDuringSchedulingIgnoredDuringExecution"] {
            Value::Array(all) => all.push(more),
            none => *none = json!([more]),
        }
        return affinity;
    }
    let required = &mut node["requiredDuringSchedulingIgnoredDuringExecution"];
    match &mut required["nodeSelectorTerms"] {
        Value::Array(terms) if !terms.is_empty() => {
            for term in terms {
                match &mut term["matchExpressions"] {
                    Value::Array(all) => all.push(own.clone()),
                    none => *none = json!([own.clone()]),
                }
            }
        }
        none => *none = json!([{"matchExpressions": [own]}]),
    }
    affinity
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actuator::pods::tests::pod;

    fn of(name: &str, age: u32, gates: &[&str], conditions: &Value) -> PodObject {
        let gates: Vec<Value> = gates.iter().map(|name| json!({"name": name})).collect();
        pod(json!({
            "metadata": {"name": name, "resourceVersion": "7",
                         "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", 60 - age)},
            "spec": {"schedulingGates": gates},
            "status": {"conditions": conditions},
        }))
    }

    fn names(pods: &[&PodObject]) -> Vec<String> {
        pods.iter().map(|pod| pod.name().to_owned()).collect()
    }

    #[test]
    fn oldest_gated_pods_are_opened_first_up_to_the_limit() {
        let pods = [
            of("a", 5, &[GATE], &json!([])),
            of("b", 9, &["other", GATE], &json!([])),
            of("c", 20, &[], &json!([])),
            of("d", 7, &[GATE], &json!([])),
        ];
        let pods: Vec<&PodObject> = pods.iter().collect();
        assert_eq!(names(&to_open(&pods, 3)), ["b", "d"]);
        assert_eq!(names(&to_open(&pods, 9)), ["b", "d", "a"]);
        assert!(to_open(&pods, 1).is_empty() && to_open(&pods, 0).is_empty());
    }

    #[test]
    fn pods_least_advanced_are_deleted_first() {
        let ready = json!([{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]);
        let scheduled = json!([{"type": "PodScheduled", "status": "True"}]);
        let pods = [
            of("ready-young", 1, &[], &ready),
            of("ready-old", 9, &[], &ready),
            of("scheduled", 2, &[], &scheduled),
            of("pending", 8, &[], &json!([])),
            of("gated", 3, &[GATE], &json!([])),
        ];
        let pods: Vec<&PodObject> = pods.iter().collect();
        let to_delete = |admitted, leaving| names(&to_delete(&pods, admitted, |pod| pod.name() == leaving));
        assert!(to_delete(4, "").is_empty());
        assert_eq!(to_delete(2, "ready-old"), ["pending", "scheduled"]);
        assert_eq!(to_delete(1, ""), ["pending", "scheduled", "ready-young"]);
        assert_eq!(to_delete(1, "ready-old"), ["pending", "scheduled", "ready-old"]);
    }

    #[test]
    fn gate_is_opened_only_on_an_unchanged_pod() {
        let place = Placement { layer: "rack".to_owned(), domain: "r1".to_owned() };
        let own = json!({"key": "rack", "operator": "In", "values": ["r1"]});
        let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"});
        let only = of("a", 1, &[GATE], &json!([]));
        let whole = json!({"op": "remove", "path": "/spec/schedulingGates"});
        assert_eq!(opening(&only, None, true), Some(json!([test, whole])));
        let patch = opening(&only, Some(&place), true).unwrap();
        let terms = &patch[1]["value"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        assert_eq!(terms, &json!([{"matchExpressions": [own]}]));
        let two = of("b", 1, &["other", GATE], &json!([]));
        let patch = opening(&two, Some(&place), false).unwrap();
        assert_eq!(
            patch[2],
            json!({"op": "add", "path": "/metadata/annotations", "value": {SENT: "rack=r1"}})
        );
        assert_eq!(patch[3], json!({"op": "remove", "path": "/spec/schedulingGates/1"}));
        let preferred = &patch[1]["value"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(preferred[0]["preference"], json!({"matchExpressions": [own]}));
        assert_eq!(opening(&of("c", 1, &["other"], &json!([])), None, true), None);
    }

    #[test]
    fn own_affinity_of_a_pod_is_kept() {
        let place = Placement { layer: "rack".to_owned(), domain: "r1".to_owned() };
        let there = json!({
            "podAntiAffinity": {"x": 1},
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                {"matchFields": [{"key": "b"}]},
            ]}},
        });
        let narrowed = affinity(Some(&there), &place, true);
        assert_eq!(narrowed["podAntiAffinity"], there["podAntiAffinity"]);
        let terms =
            &narrowed["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        assert_eq!(terms[0]["matchExpressions"].as_array().unwrap().len(), 2);
        assert_eq!(terms[1]["matchExpressions"][0]["key"], "rack");
        assert_eq!(terms[1]["matchFields"][0]["key"], "b");
    }
}
