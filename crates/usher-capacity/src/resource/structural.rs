//! Converts a JSON schema to a structural one, as the API server requires of custom resources: no references,
//! one type each, no `null`, enums as lists.

use serde_json::{Map, Value, json};

/// Integer formats that the API server knows.
const FORMATS: [&str; 2] = ["int32", "int64"];

/// Makes a schema structural, recursively.
pub(super) fn structural(value: &mut Value) {
    let Value::Object(schema) = value else { return };
    for key in ["$schema", "title", "default"] {
        schema.remove(key);
    }
    without_null(schema);
    enums(schema);
    if let Some(Value::String(format)) = schema.get("format")
        && schema.get("type").is_some_and(|of| of == "integer")
        && !FORMATS.contains(&format.as_str())
    {
        // Of whole numbers without a sign, which say with their minimum that they have none.
        schema.insert("format".to_owned(), json!("int64"));
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = plain(text);
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(structural);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(key) {
            structural(inner);
        }
    }
}

/// Removes `null` alternatives: optional fields are not required, and the API server prunes `null`.
fn without_null(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|of| of != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            schema.insert("type".to_owned(), one);
        }
    }
    let Some(Value::Array(any)) = schema.get("anyOf") else { return };
    let is_null = |value: &Value| value["type"] == "null";
    if !any.iter().any(is_null) {
        return;
    }
    let of = any.iter().find(|value| !is_null(value)).cloned();
    schema.remove("anyOf");
    if let Some(Value::Object(of)) = of {
        for (key, value) in of {
            // The field's description takes precedence over its type's.
            if key == "description"
                && let Some(Value::String(text)) = schema.get_mut(&key)
            {
                let more = value.as_str().unwrap_or_default();
                if let Some((_, words)) = more.split_once(" `") {
                    *text = format!("{text} `{words}");
                }
                continue;
            }
            schema.entry(key).or_insert(value);
        }
    }
}

/// Merges variants with a description each into a list, and their descriptions into the schema's.
fn enums(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let Some(Value::Array(variants)) = schema.get("oneOf") else { return };
    let (mut names, mut words) = (Vec::new(), Vec::new());
    for variant in variants {
        let description = variant["description"].as_str().unwrap_or_default();
        let listed = variant["enum"].as_array().cloned().unwrap_or_default();
        for name in listed.into_iter().chain(variant.get("const").cloned()) {
            if let Some(name) = name.as_str().filter(|_| !description.is_empty()) {
                words.push(format!("`{name}`: {}", description.trim_end_matches('.')));
            }
            names.push(name);
        }
    }
    schema.remove("oneOf");
    schema.insert("type".to_owned(), json!("string"));
    schema.insert("enum".to_owned(), json!(names));
    if !words.is_empty() {
        let said = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        schema.insert("description".to_owned(), json!(format!("{said} {}.", words.join("; ")).trim()));
    }
}

/// Removes rustdoc links and line breaks.
fn plain(text: &str) -> String {
    let text = text.replace("[`", "`").replace("`]", "`");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
