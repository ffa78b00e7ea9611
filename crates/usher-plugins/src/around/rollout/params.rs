//! Parameters of `disaggregatedset-rollout-screener`.

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node, Positioned};
use usher_plugin::LabelSelector;
use usher_plugin::params::header_name;

const REVISION_LABEL: &str = "disaggregatedset.x-k8s.io/revision";
const ROLE_LABEL: &str = "disaggregatedset.x-k8s.io/role";

/// Parameters of `disaggregatedset-rollout-screener`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutParams {
    /// Which endpoints are screened.
    pub scope: Scope,
    /// Headers with which clients choose among them.
    pub header_selectors: Vec<HeaderSelector>,
    /// How a revision is chosen.
    pub revision_gating: RevisionGating,
}

/// Which endpoints are screened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Scope {
    /// By their labels.
    pub label_selector: LabelSelector,
}

/// A header with which clients choose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderSelector {
    /// Its name in metrics. Default: the header's.
    pub name: String,
    /// Name of the header, of requests and of answers; lower case.
    pub header_name: String,
    /// The label that has to have the header's value.
    pub label_key: String,
    /// What happens where no endpoint has it. Default `strict`.
    pub mode: HeaderMode,
}

/// What happens to a request whose header no endpoint matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderMode {
    /// It finds no endpoint in the scope. So it does where those that match are of no
    /// revision that can serve.
    #[default]
    Strict,
    /// The header doesn't count.
    Prefer,
}

/// How a revision is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionGating {
    /// The label that has the revision. Default `disaggregatedset.x-k8s.io/revision`.
    pub revision_label_key: String,
    /// The label that has the role. Default `disaggregatedset.x-k8s.io/role`.
    pub role_label_key: String,
    /// What a revision weighs. Default `sum`.
    pub mode: GatingMode,
    /// Roles without which a revision can't serve.
    pub require_roles: RequireRoles,
}

/// Roles without which a revision can't serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequireRoles {
    /// Values of the role's label. Default: none.
    pub values: Vec<String>,
}

/// What a revision weighs in the choice among revisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatingMode {
    /// Its endpoints, of all roles.
    #[default]
    Sum,
    /// Its endpoints of the role that has the most, over all revisions.
    MaxRole,
    /// No revision is chosen.
    Disabled,
}

impl GatingMode {
    /// As it is written.
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
    /// Unknown keys and modes, wrong types, a missing scope or gating, names that can't
    /// be headers, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            scope: WrittenScope,
            header_selectors: Vec<Positioned<WrittenSelector>>,
            revision_gating: Option<WrittenGating>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct WrittenScope {
            label_selector: Option<Node>,
        }
        let written: Written = node.decode()?;
        let Some(selector) = written.scope.label_selector else {
            return Err(ConfigError::at(node.at, "scope.labelSelector is missing")
                .hint("write {} to screen all endpoints"));
        };
        let Some(gating) = written.revision_gating else {
            return Err(ConfigError::at(node.at, "revisionGating is missing")
                .hint("write {mode: disabled} to choose no revision"));
        };
        let selectors = written.header_selectors.into_iter().map(WrittenSelector::checked);
        let or = |name: String, default: &str| if name.is_empty() { default.to_owned() } else { name };
        Ok(Self {
            scope: Scope { label_selector: LabelSelector::decode(&selector)? },
            header_selectors: selectors.collect::<Result<_, _>>()?,
            revision_gating: RevisionGating {
                revision_label_key: or(gating.revision_label_key, REVISION_LABEL),
                role_label_key: or(gating.role_label_key, ROLE_LABEL),
                mode: gating.mode.unwrap_or_default(),
                require_roles: gating.require_roles,
            },
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenGating {
    revision_label_key: String,
    role_label_key: String,
    mode: Option<GatingMode>,
    require_roles: RequireRoles,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenSelector {
    name: String,
    header_name: Option<Name>,
    label_key: String,
    mode: Option<HeaderMode>,
}

impl WrittenSelector {
    fn checked(Positioned { at, value }: Positioned<Self>) -> Result<HeaderSelector, ConfigError> {
        let missing = |key: &str| ConfigError::at(at, format!("headerSelectors: a selector has no {key}"));
        let header = value.header_name.filter(|name| !name.value.is_empty());
        let header_name = header_name(&header.ok_or_else(|| missing("headerName"))?)?;
        if value.label_key.is_empty() {
            return Err(missing("labelKey"));
        }
        let name = if value.name.is_empty() { header_name.clone() } else { value.name };
        Ok(HeaderSelector {
            name,
            header_name,
            label_key: value.label_key,
            mode: value.mode.unwrap_or_default(),
        })
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
    fn what_can_not_be_is_refused_at_its_place() {
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
