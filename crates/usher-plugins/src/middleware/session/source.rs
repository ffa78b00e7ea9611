//! Sources of the name of a session.

use usher_core::request::Request;
use usher_plugin::data::SessionId;
use usher_plugin::{Facts, Key};

/// One place to look for the name of a request's session.
#[derive(Clone, Debug)]
pub enum SessionSource {
    /// A header; its name is in lower case.
    Header(String),
    /// The name that `agent-identity` found.
    Agent,
    /// The name that a `session-id-producer` found.
    Produced(Key<SessionId>),
}

impl SessionSource {
    /// The first name that one of the sources has.
    pub fn first<'a>(sources: &[Self], request: &'a Request, facts: &'a Facts) -> Option<&'a str> {
        sources.iter().find_map(|source| source.read(request, facts))
    }

    fn read<'a>(&self, request: &'a Request, facts: &'a Facts) -> Option<&'a str> {
        let found = match self {
            Self::Header(name) => request.headers.text(name),
            Self::Agent => request.agent.as_deref(),
            Self::Produced(key) => facts.get(*key).map(|session| session.0.as_str()),
        };
        found.filter(|name| !name.is_empty())
    }
}
