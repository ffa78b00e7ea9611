//! Compares the speeds that a running picker has learned with the constants of a configuration.

use std::time::Duration;

use serde::Deserialize;

use crate::doctor::HttpClient;
use crate::registry::Resolved;
use crate::schedule::latency::{FAR, FEWEST, GroupReport};

/// Path of the picker's page.
const PAGE: &str = "/latency";

/// Parameter that is compared.
const THROUGHPUT: &str = "peakPrefillThroughput";

/// Longest time to respond.
const PATIENCE: Duration = Duration::from_secs(10);

/// Largest page, in bytes.
const MOST: usize = 4 << 20;

#[derive(Deserialize)]
struct Page {
    groups: Vec<GroupReport>,
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
    let mut plugins = resolved.plugins.iter();
    let configured = plugins.find_map(|plugin| plugin.parameters.get(THROUGHPUT)?.as_f64());
    let page = read(admin).map_err(|error| format!("--admin: {error}"))?;
    let (Some(configured), Some(page)) = (configured, page) else { return Ok(Learned::default()) };
    Ok(compare(&page.groups, configured))
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
