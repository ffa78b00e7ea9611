//! docs/reference/metrics.md, from what running pickers show.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use usher::sim::{EngineConfig, SimConfig};

use crate::migrate::{exchange, pages};
use crate::support::*;

#[path = "../docs/reference/literals.rs"]
mod literals;
#[path = "../docs/reference/page.rs"]
mod page;

use literals::literals;
use page::{assert_written, row};

/// Folders with families of metrics.
const FOLDERS: [&str; 3] = ["src", "crates/usher-core/src", "crates/usher-plugins/src"];

/// A family that has no series until something happens: its name, type and labels, and its older name.
type Rare = (&'static str, &'static str, &'static [&'static str], Option<&'static str>);

/// Families of which the pickers of this test need not have a series.
const RARE: [Rare; 53] = [
    ("llm_d_epp_flow_control_revocations_issued_total", "counter", &["inference_pool", "priority"], None),
    ("llm_d_epp_kv_cache_events_removals_skipped_total", "counter", &["cache_kind", "reason"], None),
    ("llm_d_epp_kv_cache_events_stores_skipped_total", "counter", &["cache_kind", "reason"], None),
    (
        "llm_d_epp_request_slo_violation_total",
        "counter",
        &["model_name", "plugin_name", "plugin_type", "target_model_name", "type"],
        Some("inference_objective_request_slo_violation_total"),
    ),
    (
        "llm_d_epp_model_rewrite_decisions_total",
        "counter",
        &["model_name", "model_rewrite_name", "target_model"],
        Some("inference_extension_model_rewrite_decisions_total"),
    ),
    ("usher_capacity_admitted_replicas", "gauge", &["policy", "role"], None),
    ("usher_capacity_condition", "gauge", &["condition", "policy"], None),
    ("usher_capacity_current_replicas", "gauge", &["policy", "role"], None),
    ("usher_capacity_decisions_total", "counter", &["policy", "reason"], None),
    ("usher_capacity_desired_replicas", "gauge", &["policy", "role"], None),
    ("usher_capacity_frozen_seconds", "gauge", &["policy", "reason"], None),
    ("usher_capacity_goal_replicas", "gauge", &["policy", "role"], None),
    ("usher_capacity_policy_reloads_total", "counter", &["result"], None),
    ("usher_capacity_pressure", "gauge", &["policy", "role"], None),
    ("usher_capacity_queries_total", "counter", &["result"], None),
    ("usher_capacity_rules_fired_total", "counter", &["policy", "rule"], None),
    ("usher_capacity_waiting", "gauge", &["policy"], None),
    ("usher_demand_bytes", "gauge", &["model_name", "priority", "target_model_name"], None),
    ("usher_demand_requests", "gauge", &["model_name", "priority", "target_model_name"], None),
    ("usher_extproc_unsupported_body_mode_total", "counter", &["direction", "mode"], None),
    ("usher_kubernetes_age_seconds", "gauge", &["resource"], None),
    ("usher_kubernetes_connected", "gauge", &["resource"], None),
    ("usher_kv_events_age_seconds", "gauge", &["endpoint", "plugin_name"], None),
    ("usher_kv_events_skipped_total", "counter", &["plugin_name", "reason"], None),
    ("usher_latency_prediction_coverage_ratio", "gauge", &["load_decile", "time"], None),
    ("usher_latency_prediction_error_ratio", "gauge", &["load_decile", "time"], None),
    ("usher_latency_predictions_total", "counter", &["load_decile", "time"], None),
    ("usher_latency_prefill_throughput_ratio", "gauge", &["accelerator", "role"], None),
    ("usher_latency_prefill_tokens_per_second", "gauge", &["accelerator", "role"], None),
    ("usher_long_headers_ignored_total", "counter", &["header"], None),
    ("usher_metrics_refused_total", "counter", &["reason"], None),
    ("usher_prefix_index_tokens_ratio", "gauge", &["plugin_name", "plugin_type"], None),
    ("usher_replicas_age_seconds", "gauge", &["replica"], None),
    ("usher_replicas_learned_bytes_total", "counter", &["direction"], None),
    ("usher_replicas_learned_connected", "gauge", &[], None),
    ("usher_replicas_learned_entries_ignored_total", "counter", &["reason"], None),
    ("usher_replicas_learned_imported_total", "counter", &["plugin_name"], None),
    ("usher_replicas_messages_total", "counter", &["result"], None),
    ("usher_replicas_prefix_blocks_total", "counter", &["result"], None),
    ("usher_replicas_prefix_connected", "gauge", &[], None),
    ("usher_replicas_prefix_entries_ignored_total", "counter", &["reason"], None),
    ("usher_replicas_prefix_matched_blocks_total", "counter", &["source"], None),
    ("usher_replicas_prefix_stream_bytes", "gauge", &[], None),
    ("usher_replicas_prefix_warm_up_seconds", "gauge", &[], None),
    ("usher_scheduler_invalid_scores_total", "counter", &["plugin_name", "plugin_type"], None),
    ("usher_slo_headers_ignored_total", "counter", &["header"], None),
    ("usher_state_store_connected", "gauge", &[], None),
    ("usher_state_store_failures_total", "counter", &["reason"], None),
    ("usher_state_store_last_failure_timestamp_seconds", "gauge", &["reason", "state"], None),
    ("usher_state_store_received_bytes_total", "counter", &[], None),
    ("usher_state_store_sent_bytes_total", "counter", &[], None),
    ("usher_tokens_text_bytes_total", "counter", &["plugin_name", "source"], None),
    ("usher_trace_spans_total", "counter", &["result"], None),
];

/// Plugins with families of their own, beside those of the other pickers.
const OTHERS: &str = "
plugins:
- {type: token-producer, parameters: {vllm: {url: http://127.0.0.1:9}}}
- {type: precise-prefix-cache-producer}
- {name: burst, type: burst-prefix-cache-producer, parameters: {windowDurationMs: 1}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: burst}}
- {type: expected-latency-scorer}
- {type: prefix-cache-affinity-filter}
- {type: session-affinity-scorer, parameters: {strategy: session_id}}
- {type: request-attribute-reporter, parameters: {attributes: [{key: {name: a}, expression: usage.total_tokens}]}}
";

/// The page of a picker with these plugins, a policy, and detection of endpoints that fail.
async fn others() -> String {
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let sims = SimConfig { engine: EngineConfig::instant(), ..SimConfig::default() };
    let servers = usher::sim::start(sims, vec![bind()]).await.unwrap();
    let port = servers.addresses()[0].port();
    let entry =
        format!("- {{name: p, address: 127.0.0.1, port: '{port}', labels: {{llm-d.ai/role: decode}}}}\n");
    let config = format!("--config-text={OTHERS}");
    let policy = "--capacity-policy=deploy/capacity/rules.yaml";
    let folder = tempfile::tempdir().unwrap();
    let record = format!("--record={}", folder.path().join("recording.jsonl").display());
    let flags = [
        config.as_str(),
        "--allow-experimental-plugins",
        "--outlier-detection",
        "--gen-ai-metrics",
        policy,
        &record,
    ];
    let picker = Picker::start_with(&entry, &flags).await;
    exchange(&picker, true).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let page = Picker::get(picker.metrics, "/metrics");
        if page.contains("usher_capacity_ticks_total{") || Instant::now() > deadline {
            servers.shutdown().await;
            return page;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A family as pages show it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
    help: String,
    older: Option<String>,
}

/// Names of the labels of a series.
fn labels(series: &str) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    let (mut name, mut is_value, mut is_escaped) = (String::new(), false, false);
    for c in series.split_once('{').map_or("", |(_, labels)| labels).chars() {
        match (is_value, c) {
            (true, _) if is_escaped => is_escaped = false,
            (true, '\\') => is_escaped = true,
            (true, '"') => is_value = false,
            (true, _) | (false, '=' | ',') => {}
            (false, '"') => {
                labels.insert(std::mem::take(&mut name));
                is_value = true;
            }
            (false, '}') => break,
            (false, c) => name.push(c),
        }
    }
    labels.remove("le");
    labels
}

/// The families of a page.
fn families(page: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            current = name.to_owned();
            let family = Family { help: help.to_owned(), ..Family::default() };
            assert!(families.insert(current.clone(), family).is_none(), "{name} is shown twice");
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            assert_eq!(name, current, "a type without a help");
            families.get_mut(name).unwrap().kind = kind.to_owned();
        } else if let Some(family) = families.get_mut(&current) {
            family.labels.extend(labels(line));
        }
    }
    families
}

/// Adds a family that may be known already: then it has to be the same.
fn add(families: &mut BTreeMap<String, Family>, name: &str, family: Family) {
    let new = || Family { kind: family.kind.clone(), ..Family::default() };
    let known = families.entry(name.to_owned()).or_insert_with(new);
    assert_eq!(known.kind, family.kind, "{name}");
    known.labels.extend(family.labels);
    if known.help.is_empty() {
        known.help = family.help;
    }
    if known.older.is_none() {
        known.older = family.older;
    }
}

/// The help that stands behind the name of a family in the code.
fn help_of(name: &str, files: &[Vec<String>]) -> String {
    let short = name.strip_prefix("llm_d_epp_flow_control_").unwrap_or(name);
    // Other code that reads the family has its name, too, but no sentence behind it.
    let is_help = |text: &&String| !text.starts_with(|c: char| c == ' ' || c.is_lowercase());
    let behind = |names: &Vec<String>| {
        let at = names.iter().position(|text| text == name || text == short)?;
        names[at..].iter().find(|text| text.contains(' ')).filter(is_help).cloned()
    };
    files.iter().find_map(behind).unwrap_or_else(|| panic!("the code has no help of {name}"))
}

/// Names that are older ones take their place beside the new ones.
fn pair(mut families: BTreeMap<String, Family>) -> BTreeMap<String, Family> {
    let new_of = |family: &Family| {
        let (_, rest) = family.help.split_once("[Deprecated: Use ")?;
        Some(rest.split_once(']')?.0.to_owned())
    };
    let older: Vec<(String, String)> =
        families.iter().filter_map(|(name, family)| Some((name.clone(), new_of(family)?))).collect();
    for (older, new) in older {
        families.remove(&older);
        let Some(family) = families.get_mut(&new) else { panic!("{older} is of {new}, which isn't shown") };
        family.older = Some(older);
    }
    families
}

#[tokio::test]
async fn every_family_has_its_row() {
    let files = literals(&FOLDERS);
    let mut all = BTreeMap::new();
    for page in pages().await.iter().chain([&others().await]) {
        for (name, family) in pair(families(page)) {
            add(&mut all, &name, family);
        }
    }
    for (name, kind, labels, older) in RARE {
        let labels: BTreeSet<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        if let Some(shown) = all.get(name) {
            assert_eq!((shown.kind.as_str(), &shown.labels), (kind, &labels), "{name}");
        }
        let (kind, help, older) = (kind.to_owned(), help_of(name, &files), older.map(str::to_owned));
        add(&mut all, name, Family { kind, labels, help, older });
    }
    // What looks like a family in the code is one.
    let is_family = |text: &&String| {
        let is_ours = ["usher_", "llm_d_epp_"].iter().any(|start| text.starts_with(start));
        is_ours
            && !text.ends_with('_')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    for name in files.iter().flatten().filter(is_family) {
        let of = ["_sum", "_count", "_bucket"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(
            all.contains_key(of)
                || all.contains_key(name.as_str())
                || all.values().any(|family| family.older.as_ref() == Some(name)),
            "{name} is neither shown nor in RARE"
        );
    }
    let sections = [
        ("As llm-d-router's", "llm_d_epp_"),
        ("Usher's own", "usher_"),
        ("By OpenTelemetry's conventions", "gen_ai_"),
        ("The process", "process_"),
    ];
    let mut texts = Vec::new();
    for (title, start) in sections {
        let has_older = all.iter().any(|(name, family)| name.starts_with(start) && family.older.is_some());
        let mut text = format!("## {title}\n\n");
        text += if has_older {
            "| family | type | labels | meaning | older name |\n|---|---|---|---|---|\n"
        } else {
            "| family | type | labels | meaning |\n|---|---|---|---|\n"
        };
        for (name, family) in all.iter().filter(|(name, _)| name.starts_with(start)) {
            let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            let help = family.help.strip_prefix("[ALPHA] ").unwrap_or(&family.help);
            let (name, labels) = (format!("`{name}`"), labels.join(", "));
            let older = family.older.as_ref().map(|older| format!("`{older}`")).unwrap_or_default();
            text += &match has_older {
                true => row([&name, &family.kind, &labels, help, &older]),
                false => row([&name, &family.kind, &labels, help]),
            };
        }
        texts.push(text);
    }
    let is_in_none = |name: &&String| sections.iter().all(|(_, start)| !name.starts_with(start));
    let others: Vec<_> = all.keys().filter(is_in_none).collect();
    assert!(others.is_empty(), "in no section: {others:?}");
    assert_written("docs/reference/metrics.md", "what a picker shows", &texts.join("\n"));
}
