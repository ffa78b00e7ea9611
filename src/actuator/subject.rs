//! Subjects of complaints: each is complained of once, until it is well again or gone.

use std::fmt;

use crate::capacity::Policy;
use crate::capacity::policy::TargetRef;

/// Subject of a complaint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// Subject of the namespace.
    Namespace(&'static str),
    /// Pods of a policy, by its name.
    Pods(String),
    /// A target: text that goes before its kind and name, and these.
    Target(&'static str, String, String),
}

impl Subject {
    pub(super) fn pods(policy: &Policy) -> Self {
        Self::Pods(policy.name.clone())
    }

    pub(super) fn target(what: &'static str, of: &TargetRef) -> Self {
        Self::Target(what, of.kind.clone(), of.name.clone())
    }

    /// Returns `true` if it is one of a policy's.
    pub(super) fn concerns(&self, policy: &Policy) -> bool {
        let mut targets = policy.roles.iter().filter_map(|role| role.target.as_ref());
        match self {
            Self::Namespace(_) => true,
            Self::Pods(name) => *name == policy.name,
            Self::Target(_, kind, name) => targets.any(|of| of.kind == *kind && of.name == *name),
        }
    }
}

impl From<&'static str> for Subject {
    fn from(what: &'static str) -> Self {
        Self::Namespace(what)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(what) => f.write_str(what),
            Self::Pods(policy) => write!(f, "pods of policy {policy}"),
            Self::Target(what, kind, name) => write!(f, "{what}{kind} {name}"),
        }
    }
}
