//! Is the picker connected to the store through which replicas share their load, prefixes and learned state?

use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules::{self, Rule};
use crate::doctor::seen::{Observations, StateStore};

/// Remedies by the reason in `usher_state_store_last_failure_timestamp_seconds`. Those of other reasons are in the log.
const REMEDIES: [(&[&str], &str); 9] = [
    (
        &["connect", "timeout", "closed"],
        "Start the store; look at its address (rediss:// if it has TLS), its log and NetworkPolicies.",
    ),
    (
        &["tls"],
        "Give --state-store-ca-file what signed the store's certificate, which has to name its host, and --state-store-client-cert-file what it asks its clients for, unless tls-auth-clients is no.",
    ),
    (
        &["password", "password_missing"],
        "Give the right password with --state-store-password-file, or the parameters of redis-syncer, and the user in the URL.",
    ),
    (&["not_permitted"], "Give the store's user the rights in docs/guide/replicas.md."),
    (&["read_only"], "Name the primary: what is published at a replica reaches no other."),
    (&["mode"], "Name a server that stands alone: Cluster and Sentinel are not supported."),
    (&["version", "protocol"], "Name a server that speaks RESP3: Redis 6.2, Valkey 7.2 or later."),
    (&["out_of_memory"], "Raise the store's maxmemory, or free some."),
    (
        &["protected_mode", "max_clients"],
        "Give the store a password, as without one it takes clients of its own machine only; or raise its maxclients.",
    ),
];

pub(super) fn check(seen: &Observations) -> Outcome {
    let page = match &seen.metrics {
        Ok(page) => page,
        Err(reason) => return Outcome::skipped(reason),
    };
    match &page.state_store {
        None => Outcome::skipped("the picker has no state store, or shows none"),
        Some(store) => Outcome::looked("usher_state_store_connected", away(store)),
    }
}

fn away(store: &StateStore) -> Vec<Finding> {
    let lacks = [
        (store.lacks_prefixes, "prefixes", &rules::STATE_STORE_PREFIXES, "shares no prefixes"),
        (store.lacks_learned, "learned", &rules::STATE_STORE_LEARNED, "hands on no learned state"),
    ];
    let away = (true, "load", &rules::STATE_STORE_AWAY, "is not connected");
    let lacks = if store.is_connected { lacks.to_vec() } else { vec![away] };
    let found = lacks.into_iter().filter(|(lacks, ..)| *lacks);
    found.map(|(_, state, rule, what)| because_of_failure(store.failed.get(state), rule, what)).collect()
}

/// Finding with the reason of the last failure, and its remedy. Those before may be of another cause.
fn because_of_failure(failed: Option<&(u64, String)>, rule: &'static Rule, lacks: &str) -> Finding {
    let Some((_, reason)) = failed else {
        return Finding::new(rule, format!("the picker {lacks} yet"));
    };
    let finding = Finding::new(rule, format!("the picker {lacks}; the reason of the last failure: {reason}"));
    let remedy = REMEDIES.iter().find(|(reasons, _)| reasons.contains(&reason.as_str()));
    match remedy {
        Some((_, remedy)) => finding.fix(*remedy),
        None => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store whose connections of each state failed last at this time for this reason.
    fn store(is_connected: bool, failed: &[(&str, u64, &str)]) -> StateStore {
        let failed =
            failed.iter().map(|(state, at, reason)| ((*state).to_owned(), (*at, (*reason).to_owned())));
        StateStore { is_connected, failed: failed.collect(), ..StateStore::default() }
    }

    #[test]
    fn finding_has_the_reason_of_the_last_failure() {
        let lacks_prefixes = |store| StateStore { lacks_prefixes: true, ..store };
        let lacks_learned = |store| StateStore { lacks_learned: true, ..store };
        let away = |reason| store(false, &[("load", 9, reason), ("prefixes", 10, "connect")]);
        // A store, and words of what is said of it, and of the remedy if it is more than the rule's.
        let table = [
            (store(true, &[("load", 7, "connect")]), None),
            (store(false, &[]), Some(("is not connected yet", None))),
            (store(false, &[("learned", 7, "not_permitted")]), Some(("is not connected yet", None))),
            (
                away("connect"),
                Some(("is not connected; the reason of the last failure: connect", Some("Start the store"))),
            ),
            (away("password"), Some(("password", Some("password-file")))),
            (lacks_prefixes(store(true, &[])), Some(("shares no prefixes yet", None))),
            (
                lacks_prefixes(store(true, &[("load", 180, "connect"), ("prefixes", 5, "out_of_memory")])),
                Some((
                    "shares no prefixes; the reason of the last failure: out_of_memory",
                    Some("maxmemory"),
                )),
            ),
            (
                lacks_prefixes(store(true, &[("prefixes", 3, "not_permitted")])),
                Some(("not_permitted", Some("docs/guide/replicas.md"))),
            ),
            (lacks_learned(store(true, &[])), Some(("hands on no learned state yet", None))),
            (
                lacks_learned(store(true, &[("learned", 2, "wrong_type"), ("prefixes", 3, "timeout")])),
                Some(("hands on no learned state; the reason of the last failure: wrong_type", None)),
            ),
            (lacks_learned(lacks_prefixes(store(false, &[]))), Some(("is not connected yet", None))),
            (away("tls"), Some(("tls", Some("--state-store-ca-file")))),
            (away("read_only"), Some(("read_only", Some("primary")))),
            (away("version"), Some(("version", Some("Redis 6.2")))),
            (away("refused"), Some(("refused", None))),
        ];
        for (store, words) in table {
            let found = super::away(&store);
            assert_eq!(found.len(), usize::from(words.is_some()), "{store:?}");
            if let ([found], Some((what, fix))) = (&found[..], words) {
                assert!(found.what.contains(what), "{}", found.what);
                let said = found.fix.as_deref();
                assert_eq!(said.is_some(), fix.is_some(), "{said:?}");
                assert!(said.unwrap_or_default().contains(fix.unwrap_or_default()), "{said:?}");
            }
        }
        assert_eq!(super::away(&lacks_learned(lacks_prefixes(store(true, &[])))).len(), 2);
    }
}
