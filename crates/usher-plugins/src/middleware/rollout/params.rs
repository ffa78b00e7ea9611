//! Parameters of `disaggregatedset-rollout-screener`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::LabelSelector;
use usher_plugin::params::{anything, header_name, or_default};

const REVISION_LABEL: &str = "disaggregatedset.x-k8s.io/revision";
const ROLE_LABEL: &str = "disaggregatedset.x-k8s.io/role";

/// Parameters of `disaggregatedset-rollout-screener`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutParams {
    /// Endpoints that are screened.
    pub scope: Scope,
    /// Headers with which clients choose.
    pub header_selectors: Vec<HeaderSelector>,
    /// Choice of one revision.
    #[schemars(extend("x-required" = true))]
    pub revision_gating: RevisionGating,
}

/// Endpoints that are screened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Scope {
    /// The endpoints that are screened, as Kubernetes selects pods.
    #[serde(deserialize_with = "anything")]
    #[schemars(with = "serde_json::Value", extend("x-required" = true))]
    pub label_selector: LabelSelector,
}

/// A header with which clients choose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HeaderSelector {
    /// Name of the selector in metrics.
    #[schemars(extend("default" = "the header's"))]
    pub name: String,
    /// The header, of requests and of responses.
    ///
    /// Lower case once it is read.
    #[schemars(extend("x-required" = true))]
    pub header_name: String,
    /// The label that has to have the header's value.
    #[schemars(extend("x-required" = true))]
    pub label_key: String,
    /// Without a match, strict leaves no endpoint and prefer all.
    pub mode: HeaderMode,
}

/// Treatment of a request whose header no endpoint matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HeaderMode {
    /// The request finds no endpoint in the scope. The same holds if all that match are of revisions that
    /// can't serve.
    #[default]
    Strict,
    /// The header doesn't count.
    Prefer,
}

/// Choice of a revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RevisionGating {
    /// The label that has the revision.
    pub revision_label_key: String,
    /// The label that has the role.
    pub role_label_key: String,
    /// Weight of a revision: sum, its endpoints; max-role, those of the largest role; disabled.
    pub mode: GatingMode,
    /// Roles without which a revision can't serve.
    pub require_roles: RequireRoles,
}

impl Default for RevisionGating {
    fn default() -> Self {
        Self {
            revision_label_key: REVISION_LABEL.to_owned(),
            role_label_key: ROLE_LABEL.to_owned(),
            mode: GatingMode::default(),
            require_roles: RequireRoles::default(),
        }
    }
}

/// Roles without which a revision can't serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RequireRoles {
    /// Roles without which a revision gets no requests.
    pub values: Vec<String>,
}

/// Weight of a revision in the choice among revisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GatingMode {
    /// Endpoints, of all roles.
    #[default]
    Sum,
    /// Endpoints of the role that has the most, over all revisions.
    MaxRole,
    /// No revision is chosen.
    Disabled,
}

impl GatingMode {
    /// Spelling in configurations.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::MaxRole => "max-role",
            Self::Disabled => "disabled",
        }
    }
}

impl RolloutParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and modes, wrong types, a missing scope or gating,
    /// names that can't be headers.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        let Some(selector) = node.find("scope.labelSelector") else {
            return Err(ConfigError::at(node.at, "scope.labelSelector is missing")
                .hint("write {} to screen all endpoints"));
        };
        if node.find("revisionGating").is_none() {
            return Err(ConfigError::at(node.at, "revisionGating is missing")
                .hint("write {mode: disabled} to choose no revision"));
        }
        params.scope.label_selector = LabelSelector::decode(selector)?;
        let items = node.get("headerSelectors").map(Node::items).unwrap_or_default();
        for (selector, item) in params.header_selectors.iter_mut().zip(items) {
            selector.check(item)?;
        }
        or_default(&mut params.revision_gating.revision_label_key, REVISION_LABEL);
        or_default(&mut params.revision_gating.role_label_key, ROLE_LABEL);
        Ok(params)
    }
}

impl HeaderSelector {
    /// Checks and completes what is written at this node.
    fn check(&mut self, node: &Node) -> Result<(), ConfigError> {
        let missing =
            |key: &str| ConfigError::at(node.at, format!("headerSelectors: a selector has no {key}"));
        if self.header_name.is_empty() {
            return Err(missing("headerName"));
        }
        self.header_name = header_name(node.position_of("headerName"), &self.header_name)?;
        if self.label_key.is_empty() {
            return Err(missing("labelKey"));
        }
        or_default(&mut self.name, &self.header_name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Result<RolloutParams, ConfigError> {
        RolloutParams::decode(&Node::parse(text).unwrap())
    }

    #[test]
    fn defaults_are_filled_in() {
        let params = decode(
            "{scope: {labelSelector: {}}, headerSelectors: [{headerName: X-Rev, labelKey: rev}], revisionGating: {}}",
        )
        .unwrap();
        let expected = serde_json::json!({
            "scope": {"labelSelector": {"matchLabels": {}, "matchExpressions": []}},
            "headerSelectors": [{"name": "x-rev", "headerName": "x-rev", "labelKey": "rev", "mode": "strict"}],
            "revisionGating": {
                "revisionLabelKey": "disaggregatedset.x-k8s.io/revision",
                "roleLabelKey": "disaggregatedset.x-k8s.io/role",
                "mode": "sum",
                "requireRoles": {"values": []},
            },
        });
        assert_eq!(serde_json::to_value(params).unwrap(), expected);
        for mode in [GatingMode::Sum, GatingMode::MaxRole, GatingMode::Disabled] {
            let text =
                format!("{{scope: {{labelSelector: {{}}}}, revisionGating: {{mode: {}}}}}", mode.as_str());
            assert_eq!(decode(&text).unwrap().revision_gating.mode, mode);
        }
    }

    #[test]
    fn invalid_parameters_are_refused_with_position() {
        let rest = "scope: {labelSelector: {}}, revisionGating: {}";
        let table = [
            ("{}".to_owned(), "scope.labelSelector is missing", 1),
            ("{scope: {labelSelector: {}}}".to_owned(), "revisionGating is missing", 1),
            ("{scope: {labelSelector: {app: x}}, revisionGating: {}}".to_owned(), "unknown field 'app'", 26),
            (
                "{scope: {labelSelector: {}}, revisionGating: {mode: max}}".to_owned(),
                "mode: unknown value 'max'",
                53,
            ),
            (format!("{{headerSelectors: [{{labelKey: a}}], {rest}}}"), "a selector has no headerName", 20),
            (format!("{{headerSelectors: [{{headerName: a}}], {rest}}}"), "a selector has no labelKey", 20),
            (
                format!("{{headerSelectors: [{{headerName: a b, labelKey: c}}], {rest}}}"),
                "'a b' can't be the name of a header",
                33,
            ),
            (
                format!("{{headerSelectors: [{{headerName: a, labelKey: c, mode: loose}}], {rest}}}"),
                "mode: unknown value 'loose'",
                55,
            ),
        ];
        for (text, message, column) in table {
            let error = decode(&text).expect_err(&text);
            assert!(error.message().contains(message), "{text}: {error}");
            assert_eq!(error.position().map(|at| at.column), Some(column), "{text}: {error}");
        }
    }
}
