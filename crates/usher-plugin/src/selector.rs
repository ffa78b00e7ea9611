//! Label selectors as Kubernetes has them
//! (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node, Position};

/// A label selector: all it says has to hold, and an empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels and the value that each has to have.
    pub match_labels: BTreeMap<String, String>,
    /// More that has to hold: key, operator (In, NotIn, Exists, DoesNotExist) and values.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub match_expressions: Vec<LabelExpression>,
}

/// Requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelExpression {
    /// The label's key.
    pub key: String,
    /// Operator of the requirement.
    pub operator: LabelOperator,
    /// Values to compare with; empty where the operator takes none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Test of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabelOperator {
    /// Present with one of the values.
    In,
    /// Absent, or present with another value.
    NotIn,
    /// Present.
    Exists,
    /// Absent.
    DoesNotExist,
}

impl LabelSelector {
    /// Reads a selector and checks it as Kubernetes does.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and operators, wrong types, what can't be a
    /// label's key or value, and values that are missing or too many for the operator.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let selector: Self = node.decode()?;
        for label in node.get("matchLabels").map(Node::entries).unwrap_or_default() {
            check_key(&label.key, label.at)?;
            check_value(label.value.text().unwrap_or_default(), label.value.at)?;
        }
        let items = node.get("matchExpressions").map(Node::items).unwrap_or_default();
        for (expression, item) in selector.match_expressions.iter().zip(items) {
            expression.check(item)?;
        }
        Ok(selector)
    }

    /// Returns `true` if the labels that `label` looks up are as the selector wants them.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.match_labels.iter().all(|(key, value)| label(key) == Some(value))
            && self.match_expressions.iter().all(|expression| expression.holds(label(&expression.key)))
    }
}

impl LabelExpression {
    /// Checks what is written at this node.
    fn check(&self, node: &Node) -> Result<(), ConfigError> {
        let (operator, values) = (self.operator, node.get("values").map(Node::items).unwrap_or_default());
        check_key(&self.key, node.position_of("key"))?;
        match (operator, values.first()) {
            (LabelOperator::In | LabelOperator::NotIn, None) => {
                let message = format!("the operator {operator:?} needs values");
                return Err(ConfigError::at(node.position_of("operator"), message)
                    .hint("to ask for the label itself, write Exists"));
            }
            (LabelOperator::Exists | LabelOperator::DoesNotExist, Some(first)) => {
                let message = format!("the operator {operator:?} takes no values");
                return Err(ConfigError::at(first.at, message).hint("to compare with values, write In"));
            }
            _ => {}
        }
        self.values.iter().zip(values).try_for_each(|(value, node)| check_value(value, node.at))
    }

    fn holds(&self, value: Option<&str>) -> bool {
        let listed = || value.is_some_and(|value| self.values.iter().any(|one| one == value));
        match self.operator {
            LabelOperator::In => listed(),
            LabelOperator::NotIn => !listed(),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }
}

fn check_key(key: &str, at: Position) -> Result<(), ConfigError> {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if !name.is_empty() && is_name(name) && prefix.is_none_or(is_domain) {
        return Ok(());
    }
    Err(ConfigError::at(at, format!("'{key}' can't be a label's key")).hint(
        "up to 63 letters, digits, '-', '_' and '.', and before them, if you like, a domain and a slash",
    ))
}

fn check_value(value: &str, at: Position) -> Result<(), ConfigError> {
    if is_name(value) {
        return Ok(());
    }
    Err(ConfigError::at(at, format!("'{value}' can't be a label's value"))
        .hint("up to 63 letters, digits, '-', '_' and '.', the first and the last a letter or a digit"))
}

/// Returns `true` if a label's value can be this; also the part of a key behind the slash,
/// but for an empty one.
fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.len() <= 63 && text.bytes().all(inner) && has_firm_ends(text)
}

/// Returns `true` if this is a domain in lower case (RFC 1123).
fn is_domain(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 253
        && text.split('.').all(|part| !part.is_empty() && part.bytes().all(inner) && has_firm_ends(part))
}

/// Returns `true` if the first and the last character, if there are any, are letters or digits.
fn has_firm_ends(text: &str) -> bool {
    let bytes = text.as_bytes();
    [bytes.first(), bytes.last()].into_iter().flatten().all(u8::is_ascii_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked_as_kubernetes_does() {
        let longest = format!("{}/{}", ["d".repeat(61).as_str(); 4].join("."), "n".repeat(63));
        let too_long = ["n".repeat(64), format!("{}.{}/n", "d".repeat(250), "d".repeat(4))];
        let fine = ["tier", "llm-d.ai/role", "a", "A_b.c-9", "9", "x-1.y/Z", &longest];
        let bad = ["", "/", "a/", "/a", "a/b/c", "-a", "a-", "a b", "A.b/c", "a_b/c", ".a/b", "a../b", "ä"];
        let at = Position { line: 1, column: 1 };
        for key in fine {
            assert!(check_key(key, at).is_ok(), "{key}");
        }
        for key in bad.into_iter().chain(too_long.iter().map(String::as_str)) {
            assert!(check_key(key, at).is_err(), "{key}");
        }
    }

    #[test]
    fn values_are_checked_as_kubernetes_does() {
        let longest = "v".repeat(63);
        for value in ["", "gold", "A_b.c-9", "0", longest.as_str()] {
            assert!(is_name(value), "{value}");
        }
        for value in ["-", "_a", "a.", "a/b", "a b", "ä", &"v".repeat(64)] {
            assert!(!is_name(value), "{value}");
        }
    }
}
