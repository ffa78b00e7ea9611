//! Pages of metrics: the picker's, the model servers', and Usher's admin port.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use serde_json::Value;

use super::http::HttpClient;
use super::plan::Pods;
use crate::doctor::json::{list, text};
use crate::doctor::seen::{Known, PickerPage, PodPage, Seen};
use crate::scrape::exposition::{Line, MetricSpec, Wanted};

/// Largest page that is read.
const MOST: usize = 32 << 20;

/// Pods that are asked at the same time.
const AT_ONCE: usize = 16;

/// Families that a picker has, whether it was asked for anything or not.
const FAMILIES: [&str; 6] = [
    "llm_d_epp_info",
    "llm_d_epp_ready_endpoints",
    "llm_d_epp_average_queue_size",
    "inference_extension_info",
    "inference_pool_ready_pods",
    "inference_pool_average_queue_size",
];

/// Families that count how often each endpoint was chosen, and the label that names it.
const ATTEMPTS: [(&str, &str); 2] = [
    ("llm_d_epp_scheduler_attempts_total", "endpoint_name"),
    ("inference_extension_scheduler_attempts_total", "pod_name"),
];

/// Families that compare what engines announced with what was cached.
const AGREEMENT: [&str; 2] = ["usher_precise_prefix_compared_total", "usher_precise_prefix_mismatches_total"];

/// Family that counts prompts whose tokens were asked for, by result.
const TOKENS: [&str; 1] = ["usher_tokens_rendered_total"];

/// Family that says how much is known of each engine's cache: 1 for a part.
const KNOWN: [&str; 1] = ["usher_kv_events_known"];

/// Families of a state store's connections: whether they are there, and when they failed last.
const STORE: [&str; 4] = [
    "usher_state_store_connected",
    "usher_replicas_prefix_connected",
    "usher_replicas_learned_connected",
    "usher_state_store_last_failure_timestamp_seconds",
];

/// The page of a picker, with its choices for `model`.
pub(super) async fn picker(client: &HttpClient, given: bool, model: &str) -> PickerPage {
    let mut seen = PickerPage { url: client.url(), given, ..PickerPage::default() };
    let page = match client.page("/metrics", MOST).await {
        Ok(page) => page,
        Err(problem) => {
            seen.problem = Some(problem);
            return seen;
        }
    };
    let mut found = [false; FAMILIES.len()];
    let names = FAMILIES.iter().chain(ATTEMPTS.iter().map(|(name, _)| name));
    let specs = names
        .chain(&AGREEMENT)
        .chain(&STORE)
        .chain(&TOKENS)
        .chain(&KNOWN)
        .map(|name| MetricSpec::named(name));
    let mut chosen = [BTreeMap::new(), BTreeMap::new()];
    Wanted::new(specs.collect()).scan(&page, |at, line| {
        let Line::Sample { labels, value, .. } = line else { return };
        let label = |name: &str| labels.get(name).map(|value| value.text().into_owned()).unwrap_or_default();
        let Some(attempts) = at.checked_sub(FAMILIES.len()) else {
            found[at] = true;
            let build = label("build_ref");
            if FAMILIES[at].ends_with("_info") && !build.is_empty() {
                seen.version = Some(build);
            }
            return;
        };
        if let Some(of) = attempts.checked_sub(ATTEMPTS.len() + AGREEMENT.len()) {
            if of >= STORE.len() + TOKENS.len() {
                if value == 1.0 {
                    seen.partly_known.insert(label("endpoint"));
                }
                return;
            }
            if of >= STORE.len() {
                let counts = seen.tokens.entry(label("plugin_name")).or_default();
                counts.insert(label("result"), value as u64);
                return;
            }
            let store = seen.state_store.get_or_insert_default();
            match of {
                0 => store.is_connected = value > 0.0,
                1 => store.lacks_prefixes = value == 0.0,
                2 => store.lacks_learned = value == 0.0,
                _ => {
                    let last = store.failed.entry(label("state")).or_default();
                    let failed = ((value * 1000.0) as u64, label("reason"));
                    *last = failed.max(std::mem::take(last));
                }
            }
            return;
        }
        if let Some(of) = attempts.checked_sub(ATTEMPTS.len()) {
            let agreement = seen.agreements.entry((label("plugin_name"), label("endpoint"))).or_default();
            match (of, label("kind").as_str()) {
                (0, _) => agreement.compared = value as u64,
                (_, "not_cached") => agreement.not_cached = value as u64,
                (_, "not_told") => agreement.not_told = value as u64,
                _ => {}
            }
            return;
        }
        if label("target_model_name") == model && label("status") == "success" && value > 0.0 {
            let key = (label(ATTEMPTS[attempts].1), label("port"));
            *chosen[attempts].entry(key).or_insert(0) += value as u64;
        }
    });
    seen.families = found.iter().filter(|found| **found).count();
    let [newer, older] = chosen;
    seen.chosen = if newer.is_empty() { older } else { newer };
    seen
}

/// Page with only the choices since an earlier page.
pub(super) fn since(mut now: PickerPage, before: &PickerPage) -> PickerPage {
    for (endpoint, count) in &mut now.chosen {
        *count = count.saturating_sub(before.chosen.get(endpoint).copied().unwrap_or(0));
    }
    now.chosen.retain(|_, count| *count > 0);
    now
}

/// Reads Usher's endpoints from its admin port.
///
/// # Errors
/// Text for a check that is skipped: the port can't be read, or isn't Usher's.
pub(super) async fn admin(client: &HttpClient) -> Seen<Vec<Known>> {
    let page = client.json("/endpoints", MOST).await?;
    if !page.get("endpoints").is_some_and(Value::is_array) {
        return Err(format!("{}/endpoints is not Usher's", client.url()));
    }
    let known = |row: &Value| {
        let id = text(row, "id");
        let ejected = row.pointer("/health/ejected").and_then(Value::as_bool).unwrap_or(false);
        let reason = row.pointer("/health/reason").and_then(Value::as_str).unwrap_or("it fails");
        Known {
            name: id.split_once('/').map_or(id, |(_, name)| name).to_owned(),
            address: text(row, "address").to_owned(),
            ejected: ejected.then(|| reason.to_owned()),
        }
    };
    Ok(list(&page, "endpoints").iter().map(known).collect())
}

/// The metrics of each model server.
pub(super) async fn pods(pods: Vec<Pods>, limit: std::time::Duration) -> Vec<PodPage> {
    let ask = |Pods { name, address, engine }: Pods| async move {
        let url = format!("http://{address}");
        let page = match HttpClient::parse(&url) {
            Ok(client) => client.within(limit).page("/metrics", MOST).await,
            Err(reason) => Err(reason),
        };
        PodPage { name, url: url + "/metrics", address, engine, page: page.map(Vec::from) }
    };
    stream::iter(pods).map(ask).buffered(AT_ONCE).collect().await
}
