//! A configuration for the simulated servers: what it says of plugins and profiles stays,
//! where endpoints and their metrics are found is replaced.

use std::path::Path;

use serde_json::{Map, Number, Value, json};

use usher_core::config::{ConfigError, Node, Value as Written};

const DISCOVERY: &str = "file-discovery";

/// Parameters of `metrics-data-source` that say where the metrics of real servers are.
const ELSEWHERE: [&str; 5] = ["port", "scheme", "caCertPath", "clientCertPath", "clientKeyPath"];

/// The configuration as JSON with the endpoints of a file, and what was changed besides.
///
/// # Errors
/// `ConfigError` if the text is no map in YAML or JSON. Other mistakes are left to the pickers.
pub(super) fn for_servers(text: &str, endpoints: &Path) -> Result<(String, Vec<String>), ConfigError> {
    let root = Node::parse(text)?;
    let Value::Object(mut config) = json_of(&root) else {
        let message = "the configuration is no map";
        return Err(ConfigError::at(root.at, message).hint("write an EndpointPickerConfig"));
    };
    let mut notes = Vec::new();
    let parameters = json!({"path": endpoints});
    let plugins = config.entry("plugins").or_insert_with(|| json!([]));
    // What isn't as it should be is left to the pickers.
    if let Value::Array(plugins) = plugins {
        for plugin in plugins.iter_mut().filter(|plugin| plugin["type"] == "metrics-data-source") {
            let Some(parameters) = plugin.get_mut("parameters").and_then(Value::as_object_mut) else {
                continue;
            };
            for key in ELSEWHERE {
                if parameters.remove(key).is_some() {
                    notes.push(format!(
                        "metrics-data-source: {key} is left out, as the servers are simulated"
                    ));
                }
            }
        }
        plugins.retain(|plugin| plugin["type"] != DISCOVERY);
        plugins.push(json!({"name": DISCOVERY, "type": DISCOVERY, "parameters": parameters}));
    }
    let layer = config.entry("dataLayer").or_insert_with(|| json!({}));
    if layer.is_null() {
        *layer = json!({});
    }
    if let Value::Object(layer) = layer {
        layer.insert("discovery".to_owned(), json!({"pluginRef": DISCOVERY}));
    }
    Ok((format!("{:#}\n", Value::Object(config)), notes))
}

fn json_of(node: &Node) -> Value {
    match &node.value {
        Written::Null => Value::Null,
        Written::Bool(value) => Value::Bool(*value),
        Written::Int(value) => Value::from(*value),
        Written::Float(value) => Number::from_f64(*value).map_or(Value::Null, Value::Number),
        Written::Text(text) => Value::from(text.as_str()),
        Written::List(items) => items.iter().map(json_of).collect(),
        Written::Map(entries) => entries
            .iter()
            .map(|entry| (entry.key.clone(), json_of(&entry.value)))
            .collect::<Map<_, _>>()
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str) -> (Value, Vec<String>) {
        let (text, notes) = for_servers(text, Path::new("/tmp/endpoints.yaml")).unwrap();
        (serde_json::from_str(&text).unwrap(), notes)
    }

    #[test]
    fn only_the_endpoints_of_the_configuration_change() {
        let (config, notes) = changed(
            "plugins:\n- {type: queue-scorer}\n- {name: mine, type: file-discovery, parameters: {path: a}}\n\
             schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer, weight: 2.5}]}]\n\
             dataLayer: {discovery: {pluginRef: mine}, injectDefaults: true}\n",
        );
        assert_eq!(
            config["plugins"],
            json!([
                {"type": "queue-scorer"},
                {"name": DISCOVERY, "type": DISCOVERY, "parameters": {"path": "/tmp/endpoints.yaml"}},
            ])
        );
        let layer = json!({"discovery": {"pluginRef": DISCOVERY}, "injectDefaults": true});
        assert_eq!(config["dataLayer"], layer);
        assert_eq!(config["schedulingProfiles"][0]["plugins"][0]["weight"], 2.5);
        assert_eq!(notes, [""; 0]);
    }

    #[test]
    fn metrics_are_read_where_the_servers_are() {
        let (config, notes) = changed(
            "plugins: [{type: metrics-data-source, parameters: {port: 9400, scheme: https, path: /m}}]\ndataLayer:\n",
        );
        assert_eq!(config["plugins"][0]["parameters"], json!({"path": "/m"}));
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(for_servers("[]", Path::new("a")).is_err());
        assert!(for_servers("a: {", Path::new("a")).is_err());
    }
}
