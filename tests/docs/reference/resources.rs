//! docs/reference/custom-resources.md, from the definitions that the chart installs.

use serde_json::Value;
use usher::capacity::resource::definitions;

use super::page::{assert_written, row};

/// The type of a field, with its bounds.
fn kind(field: &Value) -> String {
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<String> = values.iter().filter_map(Value::as_str).map(|v| format!("`{v}`")).collect();
        return values.join(", ");
    }
    if field["x-kubernetes-int-or-string"] == true {
        return "integer or text".to_owned();
    }
    match field["type"].as_str().unwrap_or_default() {
        "string" if field["format"] == "date-time" => "time".to_owned(),
        // Durations have no format of their own.
        "string" if field["pattern"].as_str().is_some_and(|pattern| pattern.contains("|ms|")) => {
            "duration".to_owned()
        }
        "string" => "text".to_owned(),
        "boolean" => "true or false".to_owned(),
        "array" => "list".to_owned(),
        "object" if field["additionalProperties"].is_object() => "map".to_owned(),
        number @ ("integer" | "number") => {
            let above = if field["exclusiveMinimum"] == true { "above" } else { "from" };
            match (&field["minimum"], &field["maximum"]) {
                (Value::Null, Value::Null) => number.to_owned(),
                (least, Value::Null) if *least == 0 && above == "from" => number.to_owned(),
                (least, Value::Null) => format!("{number}, {above} {least}"),
                (Value::Null, most) => format!("{number}, up to {most}"),
                (least, most) => format!("{number}, {least} to {most}"),
            }
        }
        other => other.to_owned(),
    }
}

/// Rows of the fields of a schema, each followed by those in it.
fn fields(schema: &Value, path: &str, text: &mut String) {
    for (inside, end) in [("items", "[]"), ("additionalProperties", ".*")] {
        if schema[inside].is_object() {
            fields(&schema[inside], &format!("{path}{end}"), text);
        }
    }
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let default = match &field["default"] {
            Value::Null if required.contains(&name.as_str()) => "required".to_owned(),
            Value::Null => String::new(),
            Value::String(default) => format!("`{default}`"),
            default => format!("`{default}`"),
        };
        let meaning = field["description"].as_str().unwrap_or_else(|| panic!("{path} has no description"));
        *text += &row([&format!("`{path}`"), &kind(field), &default, meaning]);
        fields(field, &path, text);
    }
}

#[test]
fn every_field_has_its_row() {
    let mut sections = Vec::new();
    for definition in definitions() {
        let spec = &definition.object["spec"];
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let version = &spec["versions"][0];
        let (kind, scope) = (word(&spec["names"]["kind"]), word(&spec["scope"]).to_lowercase());
        let of = format!("`{}/{}`, {scope}", word(&spec["group"]), word(&version["name"]));
        let schema = &version["schema"]["openAPIV3Schema"]["properties"];
        for part in ["spec", "status"] {
            let title = if part == "spec" { format!("{kind}\n\n{of}.") } else { format!("Status of {kind}") };
            let mut text = format!("## {title}\n\n| field | type | default | meaning |\n|---|---|---|---|\n");
            fields(&schema[part], part, &mut text);
            sections.push(text);
        }
    }
    assert_written(
        "docs/reference/custom-resources.md",
        "the types in crates/usher-capacity",
        &sections.join("\n"),
    );
}
