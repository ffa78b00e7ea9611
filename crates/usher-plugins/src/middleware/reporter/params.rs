//! Parameters of `request-attribute-reporter`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::or_default;

use super::expression::{Expression, Kind};

/// Namespace in which gateways look for numbers about a request.
const NAMESPACE: &str = "envoy.lb";

/// Parameters of `request-attribute-reporter`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReporterParams {
    /// Attributes to report; at least one.
    pub attributes: Vec<AttributeParams>,
}

/// One attribute.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttributeParams {
    /// Destination of the number.
    pub key: KeyParams,
    /// Value of the attribute.
    pub expression: Expression,
    /// When it is reported; `None`: always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<Expression>,
}

/// A place in the gateway's dynamic metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyParams {
    /// Namespace. Default `envoy.lb`.
    pub namespace: String,
    /// Key in the namespace.
    pub name: String,
}

impl ReporterParams {
    /// Reads the parameters and compiles their expressions.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, missing attributes, names and
    /// expressions, and expressions that can't be compiled.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let written: Written = node.decode()?;
        if written.attributes.is_empty() {
            return Err(ConfigError::at(node.at, "attributes: at least one is needed")
                .hint("write for example {key: {name: x-cost}, expression: usage.total_tokens}"));
        }
        let items = node.get("attributes").map(Node::items).unwrap_or_default();
        let attributes = written.attributes.into_iter().zip(items);
        let attributes = attributes.map(|(attribute, item)| attribute.compiled(item));
        Ok(Self { attributes: attributes.collect::<Result<_, _>>()? })
    }
}

/// The parameters as they are written, with expressions that are not compiled.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Written {
    /// Attributes to report, at least one.
    #[schemars(extend("x-required" = true))]
    attributes: Vec<WrittenAttribute>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct WrittenAttribute {
    key: WrittenKey,
    /// The number in CEL, over usage; 0 is not reported.
    #[schemars(extend("x-required" = true))]
    expression: String,
    /// When it is reported, in CEL.
    condition: String,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct WrittenKey {
    /// Namespace of the dynamic metadata.
    #[schemars(extend("default" = NAMESPACE))]
    namespace: String,
    /// Key in the namespace.
    #[schemars(extend("x-required" = true))]
    name: String,
}

impl WrittenAttribute {
    fn compiled(self, node: &Node) -> Result<AttributeParams, ConfigError> {
        let missing = |what: &str| ConfigError::at(node.at, format!("this attribute has no {what}"));
        let WrittenKey { mut namespace, name } = self.key;
        if name.is_empty() {
            return Err(missing("key.name"));
        }
        if self.expression.trim().is_empty() {
            return Err(missing("expression"));
        }
        or_default(&mut namespace, NAMESPACE);
        let condition = Some(self.condition).filter(|text| !text.trim().is_empty());
        Ok(AttributeParams {
            key: KeyParams { namespace, name },
            expression: compiled(node, "expression", &self.expression, Kind::Number)?,
            condition: condition.map(|text| compiled(node, "condition", &text, Kind::Truth)).transpose()?,
        })
    }
}

fn compiled(node: &Node, key: &str, text: &str, kind: Kind) -> Result<Expression, ConfigError> {
    Expression::compile(text, kind).map_err(|problem| {
        let error = ConfigError::at(node.position_of(key), format!("{key}: {}", problem.message));
        match problem.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Result<ReporterParams, ConfigError> {
        ReporterParams::decode(&Node::parse(text).unwrap())
    }

    #[test]
    fn parameters_are_shown_as_written() {
        let params = decode(
            "{attributes: [{key: {name: a}, expression: usage.total_tokens, condition: ''}, {key: {namespace: ns, name: b}, expression: '1', condition: 'true'}]}",
        )
        .unwrap();
        let expected = serde_json::json!({"attributes": [
            {"key": {"namespace": "envoy.lb", "name": "a"}, "expression": "usage.total_tokens"},
            {"key": {"namespace": "ns", "name": "b"}, "expression": "1", "condition": "true"},
        ]});
        assert_eq!(serde_json::to_value(params).unwrap(), expected);
    }

    #[test]
    fn errors_have_their_position() {
        let table = [
            ("{}", "at least one is needed", 1),
            ("{attributes: []}", "at least one is needed", 1),
            ("{attributes: [{expression: '1'}]}", "this attribute has no key.name", 15),
            ("{attributes: [{key: {name: a}}]}", "this attribute has no expression", 15),
            ("{attributes: [{key: {name: a, kind: b}, expression: '1'}]}", "unknown field 'kind'", 31),
            ("{attributes: [{key: {name: a}, expression: 1}]}", "expression: expected text, found 1", 44),
            ("{attributes: [{key: {name: a}, expression: '1 +'}]}", "expression: not a CEL expression", 44),
            (
                "{attributes: [{key: {name: a}, expression: '1', condition: usage}]}",
                "condition: it gives a map",
                60,
            ),
        ];
        for (text, message, column) in table {
            let error = decode(text).expect_err(text);
            assert!(error.message().contains(message), "{text}: {error}");
            assert_eq!(error.position().map(|at| at.column), Some(column), "{text}: {error}");
        }
    }
}
