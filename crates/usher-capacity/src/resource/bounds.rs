//! Schema constraints that the Rust types don't express: ranges, required fields, and fields that depend on
//! each other. [`validate`](crate::policy::validate) checks the same, and more than the API server's rules
//! can.

use serde_json::{Value, json};

use crate::policy::rollout::LONGEST_STEP;
use crate::policy::{LONGEST_LAYER, MOST_LAYERS, MOST_PODS, MOST_ROLES, MOST_RULES};

/// Path (properties joined by dots, `*` for map values, `[]` for list items), and schema keywords for it.
type Bound = (&'static str, Value);

/// Longest name of a role, rule or metric, which bounds the cost of rules.
const LONGEST_NAME: u64 = 253;

/// Constraints of CapacityPolicy's `spec`.
pub(super) fn policy() -> Vec<Bound> {
    let pods = json!({"minimum": 0, "maximum": MOST_PODS});
    let at_least_one = json!({"minimum": 1, "maximum": MOST_PODS});
    let percent = json!({"minimum": 0, "maximum": 100});
    let many_percent = json!({"minimum": 0, "maximum": 1000});
    let positive = json!({"minimum": 0, "exclusiveMinimum": true});
    let name = json!({"minLength": 1, "maxLength": LONGEST_NAME});
    let some = json!({"minLength": 1});
    let of_roles = json!({"maxProperties": MOST_ROLES});
    let half_an_hour = json!({"x-kubernetes-validations": [
        rule("duration(self) <= duration('30m')", "at most 30m"),
    ]});
    let a_day = format!("duration(self) <= duration('{}h')", LONGEST_STEP.as_secs() / 3600);
    let named = |required: Value| {
        json!({
            "maxItems": MOST_RULES, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"required": required},
        })
    };
    let min_max =
        json!([rule("!has(self.min) || !has(self.max) || self.min <= self.max", "min is above max")]);
    let mut bounds = vec![
        (
            "",
            json!({"required": ["roles"], "x-kubernetes-validations": [
                rule("!has(self.total) || !has(self.rules) || size(self.rules) == 0", "total and rules exclude each other: keep one of them"),
                rule("!has(self.scaling) || !has(self.deploy) || !has(self.deploy.steps) || size(self.deploy.steps) == 0", "scaling and deploy.steps exclude each other: keep one of them"),
                rule("has(self.scaling) || !has(self.deploy) || (has(self.deploy.steps) && size(self.deploy.steps) > 0)", "deploy has no steps: say how many pods of each role come up together"),
                rule("self.mode != 'Apply' || self.roles.all(r, has(self.roles[r].scaleTargetRef))", "mode Apply needs a scaleTargetRef for every role"),
            rule("!has(self.rules) || self.rules.all(r, r.role in self.roles)", "a rule names an unknown role"),
                rule("!has(self.deploy) || !has(self.deploy.steps) || self.deploy.steps.all(r, r in self.roles)", "deploy.steps names an unknown role"),
                rule("!has(self.coordination) || !has(self.coordination.preferredRatio) || self.coordination.preferredRatio.all(r, r in self.roles)", "coordination.preferredRatio names an unknown role"),
                rule("!has(self.coordination) || !has(self.coordination.pressure) || self.coordination.pressure.all(r, r in self.roles)", "coordination.pressure names an unknown role"),
                rule("!has(self.coordination) || !has(self.coordination.ratio) || (self.coordination.ratio.numerator in self.roles && self.coordination.ratio.denominator in self.roles)", "coordination.ratio names an unknown role"),
            ]}),
        ),
        ("poolRef", json!({"required": ["name"]})),
        ("poolRef.name", name.clone()),
        ("mode", json!({"default": "Recommend"})),
        (
            "interval",
            json!({"x-kubernetes-validations": [
                rule("duration(self) >= duration('1s') && duration(self) <= duration('30m')", "1s to 30m"),
            ]}),
        ),
        ("roles", json!({"minProperties": 1, "maxProperties": MOST_ROLES})),
        ("roles.*", json!({"required": ["max"], "x-kubernetes-validations": min_max})),
        ("roles.*.min", pods.clone()),
        ("roles.*.max", at_least_one.clone()),
        ("roles.*.cost", json!({"minimum": 0})),
        ("roles.*.scaleTargetRef", json!({"required": ["apiVersion", "kind", "name"]})),
        ("roles.*.scaleTargetRef.apiVersion", some.clone()),
        ("roles.*.scaleTargetRef.kind", some.clone()),
        ("roles.*.scaleTargetRef.name", some.clone()),
        ("roles.*.scaleTargetRef.replicasPath", json!({"pattern": "^/"})),
        ("total", json!({"required": ["metrics"]})),
        ("total.metrics", named(json!(["name", "target"]))),
        ("total.metrics", json!({"minItems": 1})),
        ("total.metrics.[].name", name.clone()),
        ("total.metrics.[].target", positive.clone()),
        ("total.tolerancePercent", percent.clone()),
        ("total.costExpansionPercent", pods.clone()),
        (
            "behavior.scaleDown",
            json!({"x-kubernetes-validations": [
                rule("!has(self.panic)", "panic is for scale-up only: move it to scaleUp"),
            ]}),
        ),
        (
            "behavior.scaleUp",
            json!({"x-kubernetes-validations": [
                rule("!has(self.drainTimeout)", "drainTimeout is for scale-down only: move it to scaleDown"),
            ]}),
        ),
    ];
    for (instances, percent, period, stabilization) in [
        (
            "behavior.scaleUp.instances",
            "behavior.scaleUp.percent",
            "behavior.scaleUp.period",
            "behavior.scaleUp.stabilization",
        ),
        (
            "behavior.scaleDown.instances",
            "behavior.scaleDown.percent",
            "behavior.scaleDown.period",
            "behavior.scaleDown.stabilization",
        ),
    ] {
        bounds.push((instances, pods.clone()));
        bounds.push((percent, many_percent.clone()));
        bounds.push((period, half_an_hour.clone()));
        bounds.push((stabilization, half_an_hour.clone()));
    }
    bounds.extend([
        ("behavior.scaleUp.panic.thresholdPercent", json!({"minimum": 110, "maximum": 1000})),
        ("behavior.scaleUp.panic.percent", many_percent),
        ("behavior.scaleUp.panic.period", half_an_hour.clone()),
        ("behavior.scaleUp.panic.hold", half_an_hour.clone()),
        ("behavior.scaleUp.drainTimeout", half_an_hour.clone()),
        ("behavior.scaleDown.drainTimeout", half_an_hour),
        ("coordination.mode", json!({"default": "Off"})),
        ("coordination.alpha", json!({"minimum": 0, "maximum": 1})),
        ("coordination.preferredRatio", of_roles.clone()),
        ("coordination.preferredRatio", json!({"x-kubernetes-validations": [
            rule("self.map(r, has(self[r].min) ? self[r].min : 0).sum() <= 100", "the minima are more than 100 percent together"),
        ]})),
        ("coordination.preferredRatio.*", json!({"x-kubernetes-validations": min_max})),
        ("coordination.preferredRatio.*.min", percent.clone()),
        ("coordination.preferredRatio.*.max", percent.clone()),
        ("coordination.pressure", of_roles.clone()),
        ("coordination.pressure.*", json!({"maxItems": MOST_RULES})),
        ("coordination.pressure.*.[]", json!({"required": ["metric", "target"]})),
        ("coordination.pressure.*.[].metric", name.clone()),
        ("coordination.pressure.*.[].target", positive),
        ("coordination.ratio", json!({"required": ["numerator", "denominator"], "x-kubernetes-validations": [
            rule("self.numerator != self.denominator", "name two roles"),
            rule("has(self.min) || has(self.max)", "give min or max"),
        ]})),
        ("coordination.ratio.numerator", name.clone()),
        ("coordination.ratio.denominator", name.clone()),
        ("rules", named(json!(["name", "role", "metric", "step"]))),
        ("rules.[]", json!({"x-kubernetes-validations": [
            rule("(has(self.comparator) || has(self.threshold)) != (has(self.minThreshold) || has(self.maxThreshold))", "give comparator and threshold, or minThreshold or maxThreshold"),
            rule("has(self.comparator) == has(self.threshold)", "comparator and threshold go together"),
            rule("!has(self.minThreshold) || !has(self.maxThreshold) || self.minThreshold < self.maxThreshold", "minThreshold has to be below maxThreshold, or the role flaps"),
            rule("self.step != 0", "a step of 0 changes nothing"),
            rule("has(self.comparator) || self.step > 0", "step has no sign beside minThreshold and maxThreshold"),
            rule("!has(self.min) || !has(self.max) || self.min <= self.max", "min is above max"),
        ]})),
        ("rules.[].name", name.clone()),
        ("rules.[].role", name.clone()),
        ("rules.[].metric", name.clone()),
        ("rules.[].step", json!({"minimum": -MOST_PODS, "maximum": MOST_PODS})),
        ("rules.[].min", pods),
        ("rules.[].max", at_least_one.clone()),
        ("rules.[].minCoverage", json!({"minimum": 0, "maximum": 1})),
        ("deploy.steps", of_roles),
        ("deploy.steps.*", at_least_one),
        ("deploy.batchTimeout", json!({"x-kubernetes-validations": [
            rule("duration(self) > duration('0s')", "batchTimeout has to be above 0"),
            rule(&a_day, "at most 24h"),
        ]})),
        ("deploy.provisioningTimeout", json!({"x-kubernetes-validations": [rule(&a_day, "at most 24h")]})),
        ("deploy.topology", json!({"x-kubernetes-validations": [
            rule("!has(self.clusterTopology) || !has(self.layers) || size(self.layers) == 0", "the layers are those of the ClusterTopology: keep one of the two"),
            rule("!has(self.layer) || !has(self.layers) || size(self.layers) == 0 || self.layer in self.layers", "layer is not one of the layers"),
        ]})),
        ("deploy.topology.clusterTopology", name.clone()),
        ("deploy.topology.layers", layers()),
        ("deploy.topology.layer", name),
        ("scaling.maxSkewPercent", percent.clone()),
        ("update.maxSkewPercent", percent.clone()),
        ("update.maxUnavailablePercent", percent),
    ]);
    bounds
}

/// Constraints of ClusterTopology's `spec`.
pub(super) fn topology() -> Vec<Bound> {
    let at_least_one = json!({"minItems": 1});
    vec![("", json!({"required": ["layers"]})), ("layers", layers()), ("layers", at_least_one)]
}

/// Keys of lists in a `status`, for server-side apply.
pub(super) fn policy_status() -> Vec<Bound> {
    let keyed = |key: &str| json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]});
    vec![
        ("conditions", keyed("type")),
        ("roles", keyed("name")),
        ("rules", keyed("name")),
        ("lastWrites", keyed("role")),
    ]
}

/// Keys of lists in the `status` of ClusterTopology.
pub(super) fn topology_status() -> Vec<Bound> {
    let keyed = |key: &str| json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]});
    vec![("conditions", keyed("type")), ("layers", keyed("key"))]
}

/// Distinct keys of node labels.
fn layers() -> Value {
    json!({
        "maxItems": MOST_LAYERS, "x-kubernetes-list-type": "set",
        "items": {"minLength": 1, "maxLength": LONGEST_LAYER},
    })
}

fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message})
}

/// Adds constraints to a schema. Returns paths that it lacks.
pub(super) fn bind(schema: &mut Value, bounds: Vec<Bound>) -> Vec<&'static str> {
    let mut lost = Vec::new();
    for (path, bound) in bounds {
        match place(schema, path) {
            Some(there) => merge(there, bound),
            None => lost.push(path),
        }
    }
    lost
}

fn place<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').filter(|step| !step.is_empty()).try_fold(schema, |at, step| match step {
        "*" => at.get_mut("additionalProperties"),
        "[]" => at.get_mut("items"),
        name => at.get_mut("properties")?.get_mut(name),
    })
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
