//! Do the KV events of engines mean here what they mean there?

use std::collections::BTreeMap;

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
    let lacking: Vec<Finding> =
        page.tokens.iter().filter_map(|(of, counts)| of_tokenizer(of, counts)).collect();
    if page.agreements.is_empty() && lacking.is_empty() {
        return Outcome::skipped("the picker's metrics show no KV events");
    }
    let compared = page.agreements.values().filter(|agreement| agreement.compared >= ENOUGH).count();
    if compared == 0 && lacking.is_empty() {
        return Outcome::skipped(too_few(page.partly_known.len()));
    }
    let findings = page.agreements.iter().filter_map(|(of, agreement)| of_endpoint(of, *agreement));
    Outcome::looked(count(compared, "endpoint", "endpoints"), findings.chain(lacking).collect())
}

/// Reason that there is nothing to compare, where so many endpoints may hold more than they published.
fn too_few(partly_known: usize) -> String {
    let partly = match partly_known {
        0 => String::new(),
        known => format!(
            "{} only partly known, and compared where events show more than two blocks of a prompt; ",
            count(known, "endpoint is", "endpoints are")
        ),
    };
    format!(
        "no endpoint has {ENOUGH} requests to compare; {partly}vLLM tells what was cached with --enable-prompt-tokens-details, SGLang with --enable-cache-report"
    )
}

/// Some prompts are late, or ask for what no tokenizer knows.
fn of_tokenizer(plugin: &str, counts: &BTreeMap<String, u64>) -> Option<Finding> {
    let all: u64 = counts.values().sum();
    let unknown = all - counts.get("rendered").copied().unwrap_or(0);
    if all < ENOUGH || unknown * 2 < all {
        return None;
    }
    let results = counts.iter().filter(|(result, count)| *result != "rendered" && **count > 0);
    let results: Vec<String> = results.map(|(result, count)| format!("{result} {count}")).collect();
    let what = format!("{plugin}: {unknown} of {all} prompts have no tokens ({})", results.join(", "));
    Some(Finding::new(&rules::KV_EVENTS_WITHOUT_TOKENS, what))
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
    fn tokenizer_of_half_of_enough_prompts_is_a_finding() {
        // rendered, failed, late
        for (counts, words) in [
            ([0, 19, 0], None),
            ([11, 9, 0], None),
            ([10, 9, 1], Some("tokens: 10 of 20 prompts have no tokens (failed 9, late 1)")),
        ] {
            let counts: BTreeMap<String, u64> =
                ["rendered", "failed", "late"].map(str::to_owned).into_iter().zip(counts).collect();
            let found = of_tokenizer("tokens", &counts).map(|finding| finding.what);
            assert_eq!(found.as_deref(), words);
        }
    }

    #[test]
    fn endpoints_that_are_partly_known_are_named() {
        for (partly_known, words) in [
            (0, "compare; vLLM"),
            (1, "compare; 1 endpoint is only partly known, "),
            (3, "compare; 3 endpoints are only partly known, "),
        ] {
            assert!(too_few(partly_known).contains(words), "{}", too_few(partly_known));
        }
    }

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
