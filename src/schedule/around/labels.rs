//! Which endpoints are meant, by their labels, as Kubernetes selects pods.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, Name, Node, Positioned};
use crate::endpoints::Endpoint;

/// A Kubernetes LabelSelector: everything that it says has to hold. An empty one selects
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    match_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    match_expressions: Vec<Requirement>,
}

/// What has to hold of one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Requirement {
    key: String,
    operator: Operator,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl LabelSelector {
    /// Reads a selector.
    ///
    /// # Errors
    /// Unknown keys and operators, wrong types, a missing key, and values where there
    /// can't be any or have to be some, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            match_labels: BTreeMap<String, String>,
            match_expressions: Vec<Positioned<WrittenRequirement>>,
        }
        let written: Written = node.decode()?;
        let expressions = written.match_expressions.into_iter().map(WrittenRequirement::checked);
        Ok(Self {
            match_labels: written.match_labels,
            match_expressions: expressions.collect::<Result<_, _>>()?,
        })
    }

    /// Whether the endpoint is selected.
    pub fn matches(&self, endpoint: &Endpoint) -> bool {
        self.match_labels.iter().all(|(key, value)| endpoint.label(key) == Some(value))
            && self
                .match_expressions
                .iter()
                .all(|requirement| requirement.holds(endpoint.label(&requirement.key)))
    }
}

impl Requirement {
    fn holds(&self, label: Option<&str>) -> bool {
        let is_listed = || label.is_some_and(|label| self.values.iter().any(|value| value == label));
        match self.operator {
            Operator::In => is_listed(),
            // Also where the label is absent.
            Operator::NotIn => !is_listed(),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenRequirement {
    key: Option<Name>,
    operator: Option<Operator>,
    values: Vec<String>,
}

impl WrittenRequirement {
    fn checked(Positioned { at, value }: Positioned<Self>) -> Result<Requirement, ConfigError> {
        let refused = |message: &str| Err(ConfigError::at(at, format!("matchExpressions: {message}")));
        let Some(key) = value.key.filter(|key| !key.value.is_empty()) else {
            return refused("an expression has no key");
        };
        let Some(operator) = value.operator else { return refused("an expression has no operator") };
        match (operator, value.values.is_empty()) {
            (Operator::In | Operator::NotIn, true) => refused("In and NotIn need values"),
            (Operator::Exists | Operator::DoesNotExist, false) => {
                refused("Exists and DoesNotExist have no values")
            }
            _ => Ok(Requirement { key: key.value, operator, values: value.values }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::endpoints::{EndpointSpec, Store};

    fn endpoint(labels: &[(&str, &str)]) -> Arc<Endpoint> {
        let store = Store::default();
        let mut spec = EndpointSpec::new("pod", ([10, 0, 0, 1], 8000));
        spec.labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        store.replace(vec![spec]);
        Arc::clone(&store.snapshot().endpoints()[0])
    }

    fn decode(text: &str) -> Result<LabelSelector, ConfigError> {
        LabelSelector::decode(&Node::parse(text).unwrap())
    }

    #[test]
    fn selectors_match_as_in_kubernetes() {
        let (gold, iron, none) =
            (endpoint(&[("tier", "gold"), ("zone", "a")]), endpoint(&[("tier", "iron")]), endpoint(&[]));
        let table = [
            ("{}", [true, true, true]),
            ("{matchLabels: {tier: gold}}", [true, false, false]),
            ("{matchLabels: {tier: gold, zone: b}}", [false, false, false]),
            ("{matchExpressions: [{key: tier, operator: In, values: [gold, iron]}]}", [true, true, false]),
            ("{matchExpressions: [{key: tier, operator: NotIn, values: [iron]}]}", [true, false, true]),
            ("{matchExpressions: [{key: tier, operator: Exists}]}", [true, true, false]),
            ("{matchExpressions: [{key: zone, operator: DoesNotExist, values: []}]}", [false, true, true]),
            (
                "{matchLabels: {tier: gold}, matchExpressions: [{key: zone, operator: Exists}]}",
                [true, false, false],
            ),
        ];
        for (text, expected) in table {
            let selector = decode(text).unwrap();
            assert_eq!([&gold, &iron, &none].map(|endpoint| selector.matches(endpoint)), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused_at_its_place() {
        let table = [
            ("{matchLabel: {}}", "unknown field 'matchLabel'", 2),
            ("{matchLabels: {a: 1}}", "expected text, found 1", 19),
            ("{matchExpressions: [{operator: Exists}]}", "has no key", 21),
            ("{matchExpressions: [{key: a}]}", "has no operator", 21),
            ("{matchExpressions: [{key: a, operator: Is}]}", "operator: unknown value 'Is'", 40),
            ("{matchExpressions: [{key: a, operator: In}]}", "In and NotIn need values", 21),
            ("{matchExpressions: [{key: a, operator: Exists, values: [b]}]}", "have no values", 21),
        ];
        for (text, message, column) in table {
            let error = decode(text).expect_err(text);
            assert!(error.message().contains(message), "{text}: {error}");
            assert_eq!(error.position().map(|at| at.column), Some(column), "{text}: {error}");
        }
    }

    #[test]
    fn a_selector_is_shown_as_it_is_written() {
        let json = serde_json::json!({
            "matchLabels": {"a": "b"},
            "matchExpressions": [{"key": "c", "operator": "Exists"}, {"key": "d", "operator": "In", "values": ["e"]}],
        });
        let selector = decode(&json.to_string()).unwrap();
        assert_eq!(serde_json::to_value(selector).unwrap(), json);
    }
}
