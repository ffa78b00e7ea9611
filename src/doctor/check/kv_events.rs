//! Do the KV events of engines mean here what they mean there?

use crate::doctor::finding::{Finding, Outcome, count};
use crate::doctor::rules;
use crate::doctor::seen::{Agreement, Observations};

/// Requests to an endpoint from which on a share says something.
const ENOUGH: u64 = 20;

pub(super) fn check(seen: &Observations) -> Outcome {
    let page = match &seen.metrics {
        Ok(page) => page,
        Err(reason) => return Outcome::skipped(reason),
    };
    if page.agreements.is_empty() {
        return Outcome::skipped("the picker's metrics show no KV events");
    }
    let compared = page.agreements.values().filter(|agreement| agreement.compared >= ENOUGH).count();
    if compared == 0 {
        return Outcome::skipped(format!(
            "no endpoint has {ENOUGH} requests to compare; vLLM tells what was cached with --enable-prompt-tokens-details, SGLang with --enable-cache-report"
        ));
    }
    let findings = page.agreements.iter().filter_map(|(of, agreement)| of_endpoint(of, *agreement));
    Outcome::looked(count(compared, "endpoint", "endpoints"), findings.collect())
}

/// Events that were on their way, and blocks that were evicted before a request's turn, make a small part differ, and
/// other tokens nearly all: half is between them.
fn of_endpoint((plugin, endpoint): &(String, String), agreement: Agreement) -> Option<Finding> {
    let Agreement { compared, not_cached, not_told } = agreement;
    if compared < ENOUGH || (not_cached + not_told) * 2 < compared {
        return None;
    }
    let (number, problem, fix) = if not_told >= not_cached {
        (
            not_told,
            "had prompts cached that its events don't show",
            "Give token-producer the tokenizer and chat template of the engine (usher check shows those in use), and requests the model name of its topics. A cache behind the engine's that publishes nothing does the same.",
        )
    } else {
        (
            not_cached,
            "had nothing cached of prompts that its events show",
            "Look whether the engine keeps prompts apart that are alike here: cache salts, adapters, images. It may also cache nothing, or evict blocks before their request is run: then its cache is too small.",
        )
    };
    let what = format!("{endpoint} by {plugin}: the engine {problem}, in {number} of {compared} requests");
    Some(Finding::new(&rules::KV_EVENTS_DISAGREE, what).on(endpoint, problem).fix(fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_enough_requests_is_a_finding() {
        // compared, not cached, not told, words
        let table = [
            (19, 0, 19, None),
            (20, 0, 20, Some("cached that its events don't show, in 20 of 20")),
            (1000, 300, 199, None),
            (1000, 300, 200, Some("nothing cached of prompts that its events show, in 300 of 1000")),
            (1000, 0, 0, None),
        ];
        for (compared, not_cached, not_told, words) in table {
            let of = ("precise".to_owned(), "ns/a".to_owned());
            let found = of_endpoint(&of, Agreement { compared, not_cached, not_told });
            assert_eq!(found.is_some(), words.is_some(), "{compared} {not_cached} {not_told}");
            if let (Some(finding), Some(words)) = (found, words) {
                assert!(finding.what.contains(words), "{}", finding.what);
                assert!(finding.what.starts_with("ns/a by precise: "), "{}", finding.what);
            }
        }
    }
}
