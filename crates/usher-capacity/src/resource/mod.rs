//! Custom resources: CustomResourceDefinitions generated from the types, and statuses.
//!
//! `bounds.rs` adds constraints that the types lack. The result is in `deploy/chart/crds/`; a test compares
//! the two.

mod bounds;
pub mod status;
mod structural;
pub mod topology;
pub mod topology_file;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::policy::spec::Spec;
use status::PolicyStatus;
use topology::{TopologyObjectSpec, TopologyStatus};

/// API group of Usher's kinds.
pub const GROUP: &str = "usher.dev";
/// API version.
pub const VERSION: &str = "v1alpha1";

/// A CustomResourceDefinition.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// Plural of its kind.
    pub plural: &'static str,
    /// The CustomResourceDefinition.
    pub object: Value,
}

impl Definition {
    /// YAML for `kubectl apply`.
    pub fn yaml(&self) -> String {
        // Text, numbers and maps of them always serialise.
        let text = serde_saphyr::to_string(&self.object).unwrap_or_default();
        format!("# Written by `make crds-accept` from the types in crates/usher-capacity.\n{text}")
    }
}

/// All CustomResourceDefinitions of Usher.
pub fn definitions() -> [Definition; 2] {
    let policy = schema::<Spec, PolicyStatus>(bounds::policy(), bounds::policy_status());
    let topology =
        schema::<TopologyObjectSpec, TopologyStatus>(bounds::topology(), bounds::topology_status());
    let valid = |of: &str| format!(".status.conditions[?(@.type==\"{of}\")].status");
    [
        Definition {
            plural: POLICIES,
            object: definition(
                (POLICIES, "capacitypolicy", "CapacityPolicy", "Namespaced"),
                &policy.0,
                &[
                    ("Mode", "string", ".spec.mode"),
                    ("Accepted", "string", &valid("Accepted")),
                    ("State", "string", ".status.state"),
                    ("Current", "integer", ".status.current"),
                    ("Desired", "integer", ".status.desired"),
                    ("Age", "date", ".metadata.creationTimestamp"),
                ],
            ),
        },
        Definition {
            plural: TOPOLOGIES,
            object: definition(
                (TOPOLOGIES, "clustertopology", "ClusterTopology", "Cluster"),
                &topology.0,
                &[
                    ("Valid", "string", &valid("Valid")),
                    ("Nodes", "integer", ".status.nodes"),
                    ("Age", "date", ".metadata.creationTimestamp"),
                ],
            ),
        },
    ]
}

/// Plural of CapacityPolicy.
pub const POLICIES: &str = "capacitypolicies";
/// Plural of ClusterTopology.
pub const TOPOLOGIES: &str = "clustertopologies";

/// Schema of objects with this spec and status, and constraints with unknown paths.
fn schema<S: JsonSchema, T: JsonSchema>(
    of_spec: Vec<(&'static str, Value)>,
    of_status: Vec<(&'static str, Value)>,
) -> (Value, Vec<&'static str>) {
    let (mut spec, mut status) = (of::<S>(), of::<T>());
    let mut lost = bounds::bind(&mut spec, of_spec);
    lost.extend(bounds::bind(&mut status, of_status));
    let schema = json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    });
    (schema, lost)
}

/// Structural schema of a type.
fn of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    structural::structural(&mut schema);
    schema
}

fn definition(
    (plural, singular, kind, scope): (&str, &str, &str, &str),
    schema: &Value,
    columns: &[(&str, &str, &str)],
) -> Value {
    let column = |(name, of, path): &(&str, &str, &str)| json!({"name": name, "type": of, "jsonPath": path});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"plural": plural, "singular": singular, "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns.iter().map(column).collect::<Vec<_>>(),
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_names_a_field() {
        let policy = schema::<Spec, PolicyStatus>(bounds::policy(), bounds::policy_status());
        assert!(policy.1.is_empty(), "{:?}", policy.1);
        let topology =
            schema::<TopologyObjectSpec, TopologyStatus>(bounds::topology(), bounds::topology_status());
        assert!(topology.1.is_empty(), "{:?}", topology.1);
        let none =
            bounds::bind(&mut policy.0["properties"]["spec"].clone(), vec![("roles.*.mim", json!({}))]);
        assert_eq!(none, ["roles.*.mim"]);
    }

    /// Checks that a schema is structural, as the API server requires.
    fn check(schema: &Value, path: &str, wrong: &mut Vec<String>) {
        let object = schema.as_object().unwrap();
        let is_mixed = object.contains_key("x-kubernetes-int-or-string");
        if !is_mixed && !schema["type"].is_string() {
            wrong.push(format!("{path}: no type"));
        }
        for key in ["$ref", "oneOf", "const", "default", "title", "nullable"] {
            if object.contains_key(key) && !(key == "default" && path.ends_with("mode")) {
                wrong.push(format!("{path}: {key}"));
            }
        }
        let format = schema["format"].as_str();
        if format.is_some_and(|format| (schema["type"] == "string") != (format == "date-time")) {
            wrong.push(format!("{path}: format {format:?}"));
        }
        if object.contains_key("anyOf") != is_mixed {
            wrong.push(format!("{path}: anyOf"));
        }
        if path != ".metadata" && path.len() > 1 && path.matches('.').count() > 1 && !path.ends_with(".[]") {
            let has_words = |key: &str| schema[key].as_str().is_some_and(|text| text.len() > 5);
            if !has_words("description") && !path.ends_with(".*") {
                wrong.push(format!("{path}: no description"));
            }
        }
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            check(inner, &format!("{path}.{name}"), wrong);
        }
        for (key, sign) in [("items", "[]"), ("additionalProperties", "*")] {
            if let Some(inner) = object.get(key) {
                check(inner, &format!("{path}.{sign}"), wrong);
            }
        }
    }

    #[test]
    fn definitions_are_structural() {
        for Definition { object, .. } in definitions() {
            let mut wrong = Vec::new();
            check(&object["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut wrong);
            assert!(wrong.is_empty(), "{wrong:#?}");
        }
        let policy = &definitions()[0].object["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let spec = &policy["properties"]["spec"]["properties"];
        assert_eq!(spec["mode"]["enum"], json!(["Recommend", "Apply"]));
        let said = spec["deploy"]["properties"]["success"]["description"].as_str().unwrap();
        assert!(
            said.contains("`Ready` when absent") && said.contains("`Scheduled`: Bound to a node"),
            "{said}"
        );
        assert_eq!(spec["roles"]["additionalProperties"]["properties"]["max"]["maximum"], 1_000_000);
        let status = &policy["properties"]["status"]["properties"];
        for (list, time) in
            [("conditions", "lastTransitionTime"), ("lastWrites", "time"), ("rules", "lastTriggerTime")]
        {
            assert_eq!(status[list]["items"]["properties"][time]["format"], "date-time", "{list}");
        }
    }
}
