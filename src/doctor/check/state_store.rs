//! Is the picker connected to the store through which replicas share their load, prefixes and learned state?

use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules::{self, Rule};
use crate::doctor::seen::{Observations, StateStore};

/// Remedies by the reason in `usher_state_store_failures_total`. Those of other reasons are in the log.
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
        (store.lacks_prefixes, &rules::STATE_STORE_PREFIXES, "shares no prefixes"),
        (store.lacks_learned, &rules::STATE_STORE_LEARNED, "hands on no learned state"),
    ];
    let away = (true, &rules::STATE_STORE_AWAY, "is not connected");
    let lacks = if store.is_connected { lacks.to_vec() } else { vec![away] };
    let found = lacks.into_iter().filter(|(lacks, ..)| *lacks);
    found.map(|(_, rule, what)| because_of_failures(store, rule, what)).collect()
}

/// Finding with the most frequent reason of failures, and its remedy.
fn because_of_failures(store: &StateStore, rule: &'static Rule, lacks: &str) -> Finding {
    // The first in order of the alphabet, where there is a tie.
    let most = store.failures.iter().rev().max_by_key(|(_, times)| **times);
    let Some((reason, times)) = most.filter(|(_, times)| **times > 0) else {
        return Finding::new(rule, format!("the picker {lacks} yet"));
    };
    let what = format!("the picker {lacks}; the reason so far, most often ({times} times): {reason}");
    let finding = Finding::new(rule, what);
    let remedy = REMEDIES.iter().find(|(reasons, _)| reasons.contains(&reason.as_str()));
    match remedy {
        Some((_, remedy)) => finding.fix(*remedy),
        None => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_has_the_most_frequent_reason_of_failures() {
        let store = |is_connected, failures: &[(&str, u64)]| StateStore {
            is_connected,
            lacks_prefixes: false,
            lacks_learned: false,
            failures: failures.iter().map(|(reason, times)| ((*reason).to_owned(), *times)).collect(),
        };
        let lacks_prefixes = |store| StateStore { lacks_prefixes: true, ..store };
        let lacks_learned = |store| StateStore { lacks_learned: true, ..store };
        // A store, and words of what is said of it, and of the remedy if it is more than the rule's.
        let table = [
            (store(true, &[("connect", 7)]), None),
            (store(false, &[]), Some(("is not connected yet", None))),
            (store(false, &[("connect", 0)]), Some(("is not connected yet", None))),
            (
                store(false, &[("closed", 1), ("connect", 35)]),
                Some(("(35 times): connect", Some("Start the store"))),
            ),
            (
                store(false, &[("closed", 1), ("password", 3)]),
                Some(("(3 times): password", Some("password-file"))),
            ),
            (lacks_prefixes(store(true, &[])), Some(("shares no prefixes yet", None))),
            (
                lacks_prefixes(store(true, &[("not_permitted", 3)])),
                Some((
                    "shares no prefixes; the reason so far, most often (3 times)",
                    Some("docs/guide/replicas.md"),
                )),
            ),
            (lacks_learned(store(true, &[])), Some(("hands on no learned state yet", None))),
            (
                lacks_learned(store(true, &[("wrong_type", 2)])),
                Some((
                    "hands on no learned state; the reason so far, most often (2 times): wrong_type",
                    None,
                )),
            ),
            (lacks_learned(lacks_prefixes(store(false, &[]))), Some(("is not connected yet", None))),
            (store(false, &[("tls", 2)]), Some(("tls", Some("--state-store-ca-file")))),
            (store(false, &[("read_only", 2)]), Some(("read_only", Some("primary")))),
            (store(false, &[("version", 2)]), Some(("version", Some("Redis 6.2")))),
            (store(false, &[("refused", 2)]), Some(("refused", None))),
        ];
        for (store, words) in table {
            let found = away(&store);
            assert_eq!(found.len(), usize::from(words.is_some()), "{store:?}");
            if let ([found], Some((what, fix))) = (&found[..], words) {
                assert!(found.what.contains(what), "{}", found.what);
                let said = found.fix.as_deref();
                assert_eq!(said.is_some(), fix.is_some(), "{said:?}");
                assert!(said.unwrap_or_default().contains(fix.unwrap_or_default()), "{said:?}");
            }
        }
        assert_eq!(away(&lacks_learned(lacks_prefixes(store(true, &[])))).len(), 2);
    }
}
