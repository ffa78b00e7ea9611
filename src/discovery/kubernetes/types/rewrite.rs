//! InferenceModelRewrite: which model is served instead of another.

use serde::{Deserialize, Serialize};

use super::{Object, PoolReference};
use crate::request::rules::{ModelRewrite, RewriteRule, Target};

/// Rules for the models of requests.
pub type InferenceModelRewrite = Object<RewriteSpec>;

/// Specification of an InferenceModelRewrite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RewriteSpec {
    /// The pool whose requests it is about.
    pub pool_ref: PoolReference,
    /// Rules; the first that fits counts.
    pub rules: Vec<Rewrite>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewrite {
    /// Requests that it is for: those of any of these. None: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<RuleMatch>,
    /// Models that are served instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<RewriteTarget>,
}

/// Requests that a rule is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleMatch {
    /// By the model that the client asks for.
    pub model: ModelMatch,
}

/// A model that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelMatch {
    /// Kind of comparison. Default: exactly.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<MatchType>,
    /// Name with which it is compared.
    pub value: String,
}

/// Kind of comparison of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MatchType {
    /// Every character.
    Exact,
    /// In a way that this version doesn't know; fits nothing.
    #[serde(untagged)]
    Other(String),
}

/// A model that is served instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RewriteTarget {
    /// Share, 1 to 1,000,000. Either all targets of a rule have one or none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Name of the model.
    pub model_rewrite: String,
}

impl From<&InferenceModelRewrite> for ModelRewrite {
    fn from(object: &InferenceModelRewrite) -> Self {
        let rule = |rule: &Rewrite| {
            let exact = |fits: &&RuleMatch| matches!(fits.model.kind, None | Some(MatchType::Exact));
            let models = rule.matches.iter().filter(exact).map(|fits| fits.model.value.clone());
            let targets = rule.targets.iter();
            let targets =
                targets.map(|target| Target { model: target.model_rewrite.clone(), weight: target.weight });
            RewriteRule {
                models: (!rule.matches.is_empty()).then(|| models.collect()),
                targets: targets.collect(),
            }
        };
        Self {
            name: object.metadata.name.clone(),
            created: object.metadata.creation_timestamp.clone().unwrap_or_default(),
            rules: object.spec.rules.iter().map(rule).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_the_api_server_writes_them() {
        let text = r#"{"metadata":{"name":"r","creationTimestamp":"2026-01-02T03:04:05Z"},
            "spec":{"poolRef":{"name":"p"},"rules":[
            {"matches":[{"model":{"type":"Exact","value":"a"}},{"model":{"value":"b"}},
                        {"model":{"type":"Prefix","value":"c"}}],
             "targets":[{"modelRewrite":"x","weight":9},{"modelRewrite":"y"}]},
            {"matches":[{"model":{"type":"Prefix","value":"c"}}],"targets":[{"modelRewrite":"z"}]},
            {"targets":[{"modelRewrite":"any"}]}]}}"#;
        let object: InferenceModelRewrite = serde_json::from_str(text).unwrap();
        let target = |model: &str, weight| Target { model: model.to_owned(), weight };
        let expected = ModelRewrite {
            name: "r".to_owned(),
            created: "2026-01-02T03:04:05Z".to_owned(),
            rules: vec![
                RewriteRule {
                    models: Some(vec!["a".to_owned(), "b".to_owned()]),
                    targets: vec![target("x", Some(9)), target("y", None)],
                },
                RewriteRule { models: Some(vec![]), targets: vec![target("z", None)] },
                RewriteRule { models: None, targets: vec![target("any", None)] },
            ],
        };
        assert_eq!(ModelRewrite::from(&object), expected);
        assert_eq!(object.spec.pool_ref.group, "inference.networking.k8s.io");
        let again: InferenceModelRewrite =
            serde_json::from_value(serde_json::to_value(&object).unwrap()).unwrap();
        assert_eq!(again, object);
    }
}
