//! Kinds of files that Usher reads, told apart by what is in them.

use super::error::{ConfigError, Position, nearest};
use super::node::{Node, Value};

/// Keys of an EndpointPickerConfig that no other kind has.
const CONFIG_KEYS: [&str; 8] = [
    "featureGates",
    "plugins",
    "schedulingProfiles",
    "dataLayer",
    "flowControl",
    "requestHandler",
    "saturationDetector",
    "parser",
];

/// Kind of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// EndpointPickerConfig.
    Config,
    /// CapacityPolicy.
    Policy,
    /// ClusterTopology.
    Topology,
    /// List of endpoints.
    Endpoints,
    /// Kind with this name, which is none of Usher's files.
    Other(String),
}

impl FileKind {
    /// Kind of a document and the place that says so; `None` if nothing does.
    pub fn of(root: &Node) -> Option<(Self, Position)> {
        let list = root.get("endpoints").filter(|node| matches!(node.value, Value::List(_)));
        let written = root.get("kind").and_then(|node| Some((node.text()?, node.at)));
        match written.filter(|(kind, _)| !kind.is_empty()) {
            Some(("EndpointPickerConfig", at)) => return Some((Self::Config, at)),
            Some(("CapacityPolicy", at)) => return Some((Self::Policy, at)),
            Some(("ClusterTopology", at)) => return Some((Self::Topology, at)),
            Some((kind, at)) if list.is_none() => return Some((Self::Other(kind.to_owned()), at)),
            _ => {}
        }
        let has = |key: &str| root.entries().iter().find(|entry| entry.key == key);
        if let Some(entry) = CONFIG_KEYS.iter().find_map(|key| has(key)) {
            return Some((Self::Config, entry.at));
        }
        if let Some(entry) = has("endpoints") {
            return Some((Self::Endpoints, entry.at));
        }
        if let Some(entry) = has("spec") {
            return Some((Self::Policy, entry.at));
        }
        let misspelt = root.entries().iter().find(|entry| nearest(&entry.key, ["endpoints"]).is_some());
        misspelt.map(|entry| (Self::Endpoints, entry.at))
    }

    /// The kind with its article, for a sentence.
    pub fn a(&self) -> String {
        match self {
            Self::Config => "an EndpointPickerConfig".to_owned(),
            Self::Policy => "a CapacityPolicy".to_owned(),
            Self::Topology => "a ClusterTopology".to_owned(),
            Self::Endpoints => "an endpoints file".to_owned(),
            Self::Other(kind) => format!("of kind '{kind}'"),
        }
    }

    /// Error of a document of this kind where another is read.
    pub fn instead_of(&self, wanted: &Self, at: Position) -> ConfigError {
        let error = ConfigError::at(at, format!("this is {}, not {}", self.a(), wanted.a()));
        match self {
            Self::Config => error.hint("serve takes it as --config-file"),
            Self::Policy => error.hint("serve takes it as --capacity-policy"),
            Self::Topology => error.hint("kubectl apply takes it; in a file, a policy has layers of its own"),
            Self::Endpoints => error.hint("serve takes it as --endpoints-file"),
            Self::Other(_) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_kind_is_detected() {
        use FileKind::{Config, Endpoints, Other, Policy, Topology};
        // document, kind, column
        let table = [
            ("kind: EndpointPickerConfig", Some((Config, 7))),
            ("kind: CapacityPolicy", Some((Policy, 7))),
            ("kind: ClusterTopology", Some((Topology, 7))),
            ("kind: ConfigMap", Some((Other("ConfigMap".to_owned()), 7))),
            ("{kind: '', plugins: []}", Some((Config, 12))),
            ("{dataLayer: {}, endpoints: []}", Some((Config, 2))),
            ("endpoints:", Some((Endpoints, 1))),
            ("{kind: Pods, endpoints: []}", Some((Endpoints, 14))),
            ("{kind: Endpoints, endpoints: {}}", Some((Other("Endpoints".to_owned()), 8))),
            ("spec: {}", Some((Policy, 1))),
            ("{version: 1, endpoint: []}", Some((Endpoints, 14))),
            ("kind: 3", None),
            ("[]", None),
        ];
        for (text, expected) in table {
            let found = FileKind::of(&Node::parse(text).unwrap());
            assert_eq!(found.map(|(kind, at)| (kind, at.column)), expected, "{text}");
        }
    }

    #[test]
    fn wrong_kind_error_names_the_right_flag() {
        let at = Position { line: 1, column: 7 };
        let error = FileKind::Policy.instead_of(&FileKind::Config, at).in_file("f");
        let want = "f:1:7: this is a CapacityPolicy, not an EndpointPickerConfig (serve takes it as --capacity-policy)";
        assert_eq!(error, want);
    }
}
