//! Subjects of reported problems; each is logged once until it clears.

use std::fmt;

use crate::capacity::Policy;
use crate::capacity::policy::TargetRef;

/// Subject of a reported problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ProblemSubject {
    /// Something in the namespace.
    Namespace(&'static str),
    /// Pods of a policy, by name.
    Pods(String),
    /// A target: a prefix, its kind and name.
    Target(&'static str, String, String),
}

impl ProblemSubject {
    pub(super) fn pods(policy: &Policy) -> Self {
        Self::Pods(policy.name.clone())
    }

    pub(super) fn target(what: &'static str, of: &TargetRef) -> Self {
        Self::Target(what, of.kind.clone(), of.name.clone())
    }

    /// Returns `true` if it is about a policy.
    pub(super) fn concerns(&self, policy: &Policy) -> bool {
        let mut targets = policy.roles.iter().filter_map(|role| role.target.as_ref());
        match self {
            Self::Namespace(_) => true,
            Self::Pods(name) => *name == policy.name,
            Self::Target(_, kind, name) => targets.any(|of| of.kind == *kind && of.name == *name),
        }
    }
}

impl From<&'static str> for ProblemSubject {
    fn from(what: &'static str) -> Self {
        Self::Namespace(what)
    }
}

impl fmt::Display for ProblemSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(what) => f.write_str(what),
            Self::Pods(policy) => write!(f, "pods of policy {policy}"),
            Self::Target(what, kind, name) => write!(f, "{what}{kind} {name}"),
        }
    }
}
