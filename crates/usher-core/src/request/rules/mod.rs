//! Rules that a pool's operators make for requests by a name in them: the priority of an objective's
//! requests, and the model that is served instead of another.
//!
//! Discovery replaces the [`Rules`] as a whole; requests load them without a lock.

mod rewrites;

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tokio::sync::watch;

pub use rewrites::{ModelRewrite, RewriteRule, Rewrites, Rewritten, Target};

use super::Headers;

/// Header that names a request's objective, and its older name.
const OBJECTIVE_HEADERS: [&str; 2] = ["x-llm-d-inference-objective", "x-gateway-inference-objective"];

/// The rules that hold at one moment. Without any, requests go as they came.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Priority of each objective, by name.
    pub objectives: HashMap<String, i32>,
    /// Rewrites of model names.
    pub rewrites: Rewrites,
}

impl Rules {
    /// The priority of a request with these headers: 0 unless they name an objective that
    /// is known.
    pub fn priority(&self, headers: &Headers) -> i32 {
        if self.objectives.is_empty() {
            return 0;
        }
        let name = headers.first_text(&OBJECTIVE_HEADERS);
        name.and_then(|name| self.objectives.get(name)).copied().unwrap_or(0)
    }
}

/// Holder of the current rules. Discovery is the only writer.
#[derive(Debug, Default)]
pub struct RuleBook {
    current: ArcSwap<Rules>,
    replaced: watch::Sender<()>,
}

impl RuleBook {
    /// A book of these rules.
    pub fn new(rules: Rules) -> Self {
        Self { current: ArcSwap::from_pointee(rules), replaced: watch::Sender::default() }
    }

    /// The rules that hold now. Keep the guard no longer than a decision.
    pub fn current(&self) -> Guard<Arc<Rules>> {
        self.current.load()
    }

    /// Makes these the rules of all requests from now on.
    pub fn replace(&self, rules: Rules) {
        self.current.store(Arc::new(rules));
        self.replaced.send_replace(());
    }

    /// Changes whenever the rules are replaced.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.replaced.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_follows_the_objective_header() {
        let objectives = [("batch", -1), ("chat", 10)].map(|(name, p)| (name.to_owned(), p)).into();
        let book = RuleBook::new(Rules { objectives, ..Rules::default() });
        // headers, priority
        let table: [(&[(&str, &str)], i32); 7] = [
            (&[], 0),
            (&[("x-llm-d-inference-objective", "batch")], -1),
            (&[("X-LLM-D-Inference-Objective", "chat")], 10),
            (&[("x-gateway-inference-objective", "batch")], -1),
            (&[("x-llm-d-inference-objective", "nobody")], 0),
            (&[("x-gateway-inference-objective", "batch"), ("x-llm-d-inference-objective", "chat")], 10),
            (&[("x-gateway-inference-objective", "batch"), ("x-llm-d-inference-objective", "")], -1),
        ];
        for (headers, priority) in table {
            let headers: Headers = headers.iter().copied().collect();
            assert_eq!(book.current().priority(&headers), priority, "{headers:?}");
        }
        let changes = book.subscribe();
        assert!(!changes.has_changed().unwrap());
        book.replace(Rules::default());
        assert!(changes.has_changed().unwrap());
        let headers: Headers = [("x-llm-d-inference-objective", "batch")].into_iter().collect();
        assert_eq!(book.current().priority(&headers), 0);
    }
}
