//! Compares the speeds that a running picker has learned with the constants of a configuration.

use std::time::Duration;

use serde::Deserialize;

use crate::doctor::HttpClient;
use crate::registry::Resolved;
use crate::schedule::latency::{FAR, FEWEST, GroupReport, LinkReport};

/// Path of the picker's page.
const PAGE: &str = "/latency";

/// Parameters that are compared.
const THROUGHPUT: &str = "peakPrefillThroughput";
const KV_BYTES: &str = "kvBytesPerToken";

/// Longest time to respond.
const PATIENCE: Duration = Duration::from_secs(10);

/// Largest page, in bytes.
const MOST: usize = 4 << 20;

#[derive(Deserialize)]
struct Page {
    groups: Vec<GroupReport>,
    /// A picker of an earlier version shows none.
    #[serde(default)]
    links: Vec<LinkReport>,
}

/// Sentences about a running picker.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Learned {
    /// Constants that are far from what it has learned.
    pub(super) warnings: Vec<String>,
    /// Groups of endpoints that have learned too little to judge a constant by.
    pub(super) notes: Vec<String>,
}

/// Compares the picker at an admin port with a configuration.
///
/// # Errors
/// A message in one line if the page can't be read.
pub(super) fn learned(admin: &str, resolved: &Resolved) -> Result<Learned, String> {
    let parameter = |name| resolved.plugins.iter().find_map(|plugin| plugin.parameters.get(name)?.as_f64());
    let page = read(admin).map_err(|error| format!("--admin: {error}"))?;
    let (Some(configured), Some(page)) = (parameter(THROUGHPUT), page) else { return Ok(Learned::default()) };
    let mut learned = compare(&page.groups, configured);
    if parameter(KV_BYTES).is_some() {
        learned.warnings.extend(transfers(&page.links));
    }
    Ok(learned)
}

/// Sentences about links that are far slower or faster than the picker's configuration says.
fn transfers(links: &[LinkReport]) -> Vec<String> {
    let known = links.iter().filter(|link| link.samples >= FEWEST).count();
    let (slow, fast): (Vec<&LinkReport>, Vec<_>) =
        links.iter().filter(|link| link.is_far()).partition(|link| link.factor > 1.0);
    let sentence = |mut far: Vec<&LinkReport>| {
        far.sort_by(|a, b| a.factor.total_cmp(&b.factor));
        let LinkReport { endpoint, samples, factor } = far.get(far.len() / 2)?;
        let of = far.len();
        Some(format!(
            "KV cache transfers to {of} of {known} endpoints take far from as long as links and {KV_BYTES} of the picker say, for {endpoint} {factor:.2} times as learned from {samples} measurements: set them near the speed that there is, so that decisions are good from the start"
        ))
    };
    [slow, fast].into_iter().filter_map(sentence).collect()
}

fn compare(groups: &[GroupReport], configured: f64) -> Learned {
    let mut notes: Vec<String> = groups.iter().filter_map(GroupReport::shortage).collect();
    if groups.is_empty() {
        notes.push(format!(
            "nothing was learned yet to judge {THROUGHPUT}: 0 first tokens so far, and it takes {FEWEST}"
        ));
    }
    let known = groups.iter().filter(|group| group.throughput_ratio.is_some());
    let far = known.filter(|group| {
        let ratio = group.prefill_throughput / configured;
        !(1.0 / FAR..=FAR).contains(&ratio)
    });
    Learned { warnings: far.map(|group| group.advice(configured)).collect(), notes }
}

/// The page; `None` where the picker has no model of latencies.
fn read(admin: &str) -> Result<Option<Page>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let client = HttpClient::parse_server(admin)?.within(PATIENCE);
    let page = runtime.block_on(client.json(PAGE, MOST))?;
    serde_json::from_value(page)
        .map_err(|error| format!("{}{PAGE}: this is no page about latencies: {error}", client.url()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(accelerator: &str, throughput: f64, is_learned: bool) -> GroupReport {
        let page = serde_json::json!({
            "accelerator": accelerator, "role": "", "samples": if is_learned { 80 } else { 40 }, "prefill_throughput": throughput,
            "throughput_ratio": is_learned.then_some(1.0), "first_token_s": 0.0, "first_token_per_request_s": 0.0,
            "output_token_s": 0.0, "output_token_per_request_s": 0.0, "output_token_per_cached_token_s": 0.0,
        });
        serde_json::from_value(page).unwrap()
    }

    #[test]
    fn only_speeds_off_by_more_than_twice_are_warned_of() {
        let groups = [group("a", 500.0, true), group("b", 1900.0, true), group("c", 2100.0, true)];
        let warnings = compare(&groups, 1000.0).warnings;
        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0].contains("peakPrefillThroughput is 1000")
                && warnings[0].contains("of c compute 2100")
        );
        let warnings = compare(&groups, 3900.0).warnings;
        assert!(
            warnings.len() == 2 && warnings[0].contains("of a") && warnings[1].contains("of b"),
            "{warnings:?}"
        );
    }

    #[test]
    fn links_off_by_more_than_twice_are_warned_of() {
        let link =
            |endpoint: &str, samples, factor| LinkReport { endpoint: endpoint.to_owned(), samples, factor };
        let links = [
            link("a", 80, 8.0),
            link("b", 80, 1.9),
            link("c", 80, 0.25),
            link("d", 40, 9.0),
            link("e", 80, 7.0),
            link("f", 80, 9.0),
        ];
        let sentences = transfers(&links);
        let [slow, fast] = &sentences[..] else { panic!("{sentences:?}") };
        assert!(slow.contains("to 3 of 5 endpoints") && slow.contains("for a 8.00 times"), "{slow}");
        assert!(fast.contains("to 1 of 5 endpoints") && fast.contains("for c 0.25 times"), "{fast}");
        assert_eq!(transfers(&links[1..2]), [""; 0]);
    }

    #[test]
    fn too_few_samples_are_noted_with_their_count() {
        let Learned { warnings, notes } =
            compare(&[group("a", 9.0, false), group("b", 1000.0, true)], 1000.0);
        assert_eq!(warnings, [""; 0]);
        let [only] = &notes[..] else { panic!("{notes:?}") };
        assert!(only.contains("of a to judge") && only.contains("40 first tokens"), "{only}");
        let nothing = compare(&[], 1000.0).notes;
        assert!(nothing.len() == 1 && nothing[0].contains("0 first tokens so far"), "{nothing:?}");
    }
}
