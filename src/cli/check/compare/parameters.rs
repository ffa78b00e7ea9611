//! Parameters of the plugins that both configurations have.

use serde_json::Value;

use super::change::Change;
use super::pairs::Pairs;

/// Changes of types and parameters.
pub(super) fn changes(pairs: &Pairs<'_>) -> Vec<Change> {
    let mut changes = Vec::new();
    for (old_name, new_name) in pairs.iter() {
        let (Some(old), Some(new)) = (pairs.old.plugin(old_name), pairs.new.plugin(new_name)) else {
            continue;
        };
        let place = format!("plugin {new_name}");
        if old.plugin_type != new.plugin_type {
            changes.push(Change::changed(&place, "type", old.plugin_type, new.plugin_type));
            continue;
        }
        differences(pairs, &place, "", &old.parameters, &new.parameters, &mut changes);
    }
    changes
}

/// Changes within a value, one for each innermost key of maps.
fn differences(
    pairs: &Pairs<'_>,
    place: &str,
    path: &str,
    old: &Value,
    new: &Value,
    changes: &mut Vec<Change>,
) {
    if let (Value::Object(before), Value::Object(now)) = (old, new) {
        let more = now.keys().filter(|key| !before.contains_key(*key));
        for key in before.keys().chain(more) {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            differences(pairs, place, &path, &old[key.as_str()], &new[key.as_str()], changes);
        }
        return;
    }
    if !is_equal(pairs, old, new) {
        changes.push(Change::changed(place, path, shown(old), shown(new)));
    }
}

/// Returns `true` if two values mean the same. Names of plugins are compared by the plugin.
fn is_equal(pairs: &Pairs<'_>, old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::String(before), Value::String(now)) => {
            before == now || pairs.renamed(before) == Some(now.as_str())
        }
        (Value::Number(before), Value::Number(now)) => before.as_f64() == now.as_f64(),
        (Value::Array(before), Value::Array(now)) => {
            before.len() == now.len() && before.iter().zip(now).all(|(b, n)| is_equal(pairs, b, n))
        }
        (Value::Object(before), Value::Object(now)) => {
            before.len() == now.len()
                && before.iter().all(|(key, b)| now.get(key).is_some_and(|n| is_equal(pairs, b, n)))
        }
        _ => old == new,
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string().replace(",\"", ", \"").replace(",{", ", {"),
    }
}
