//! docs/guide/migrate-from-llm-d.md says of metrics what a running picker shows.

use std::time::Duration;

use serde_json::json;
use tokio::sync::OnceCell;
use usher::sim::{EngineConfig, SimConfig};

use crate::guide::{assert_known, becomes, table};
use crate::support::*;

/// The Go picker's families, without `llm_d_epp_`, and the older name of those that have one.
const FAMILIES: &str = "
request_total=inference_objective_request_total
request_error_total=inference_objective_request_error_total
request_duration_seconds=inference_objective_request_duration_seconds
request_size_bytes=inference_objective_request_sizes
response_size_bytes=inference_objective_response_sizes
request_input_tokens=inference_objective_input_tokens
request_output_tokens=inference_objective_output_tokens
request_cached_tokens=inference_objective_prompt_cached_tokens
request_running=inference_objective_running_requests
request_ntpot_seconds=inference_objective_normalized_time_per_output_token_seconds
request_ttft_seconds
request_streaming_tpot_seconds
request_streaming_itl_seconds
average_kv_cache_utilization=inference_pool_average_kv_cache_utilization
average_queue_size=inference_pool_average_queue_size
average_running_requests=inference_pool_average_running_requests
std_dev_kv_cache_utilization
std_dev_queue_size
std_dev_running_requests
ready_endpoints=inference_pool_ready_pods
per_endpoint_queue_size=inference_pool_per_pod_queue_size
scheduler_e2e_duration_seconds=inference_extension_scheduler_e2e_duration_seconds
scheduler_attempts_total=inference_extension_scheduler_attempts_total
plugin_duration_seconds=inference_extension_plugin_duration_seconds
plugin_data_scope_violations_total
request_processing_duration_seconds
response_processing_duration_seconds
info=inference_extension_info
flow_control_request_queue_duration_seconds=inference_extension_flow_control_request_queue_duration_seconds
flow_control_dispatch_cycle_duration_seconds=inference_extension_flow_control_dispatch_cycle_duration_seconds
flow_control_request_enqueue_duration_seconds=inference_extension_flow_control_request_enqueue_duration_seconds
flow_control_queue_size=inference_extension_flow_control_queue_size
flow_control_queue_bytes=inference_extension_flow_control_queue_bytes
flow_control_pool_saturation=inference_extension_flow_control_pool_saturation
flow_control_stale_endpoints
flow_control_capacity_utilization_requests
flow_control_capacity_utilization_bytes
flow_control_global_capacity_utilization_requests
flow_control_global_capacity_utilization_bytes
flow_control_requests_total
flow_control_revocations_issued_total
flow_control_revocations_total
flow_control_reclaim_target
flow_control_pending_reclaim
flow_control_revocation_confirmation_seconds
model_rewrite_decisions_total=inference_extension_model_rewrite_decisions_total
datalayer_poll_errors_total=llm_d_inference_scheduler_datalayer_poll_errors_total
datalayer_extract_errors_total=llm_d_inference_scheduler_datalayer_extract_errors_total
extproc_streams_inflight
extproc_stream_duration_seconds
extproc_streams_total
prefix_indexer_size=inference_extension_prefix_indexer_size
prefix_indexer_hit_ratio=inference_extension_prefix_indexer_hit_ratio
prefix_indexer_hit_bytes=inference_extension_prefix_indexer_hit_bytes
inflight_requests
inflight_tokens
encoder_cache_queries_total
encoder_cache_hits_total
encoder_cache_hit_ratio
pd_decision_total=llm_d_inference_scheduler_pd_decision_total
disagg_decision_total=llm_d_inference_scheduler_disagg_decision_total
disaggregatedset_strict_header_no_match_total
disaggregatedset_revision_gating_share
program_aware_jains_fairness_index
program_aware_avg_wait_time_milliseconds
program_aware_attained_service_tokens
inference_request_metric=inference_objective_inference_request_metric
request_predicted_ttft_seconds=inference_objective_request_predicted_ttft_seconds
request_predicted_tpot_seconds=inference_objective_request_predicted_tpot_seconds
request_ttft_prediction_duration_seconds=inference_objective_request_ttft_prediction_duration_seconds
request_tpot_prediction_duration_seconds=inference_objective_request_tpot_prediction_duration_seconds
request_slo_violation_total=inference_objective_request_slo_violation_total
kv_cache_index_admissions_total=kvcache_index_admissions_total
kv_cache_index_evictions_total=kvcache_index_evictions_total
kv_cache_index_lookup_requests_total=kvcache_index_lookup_requests_total
kv_cache_index_lookup_hits_total=kvcache_index_lookup_hits_total
kv_cache_index_max_pod_hit_count_total=kvcache_index_max_pod_hit_count_total
kv_cache_index_lookup_latency_seconds=kvcache_index_lookup_latency_seconds
kv_cache_events_dedup_removed_hashes_suppressed_total=kvcache_kvevents_dedup_removed_hashes_suppressed_total
kv_cache_events_dedup_removed_hashes_forwarded_total=kvcache_kvevents_dedup_removed_hashes_forwarded_total
kv_cache_events_stores_skipped_total
kv_cache_events_removals_skipped_total
kv_cache_events_active_subscribers
kv_cache_events_subscriber_reconnections_total
kv_cache_events_messages_received_total
kv_cache_events_zmq_errors_total
kv_cache_events_pool_queue_depth
kv_cache_events_pool_capacity
";

/// Families that need what is not in this test, and the test that shows each.
const ELSEWHERE: [(&str, &str); 12] = [
    ("flow_control_revocations_issued_total", "tests/schedule/flow/eviction.rs"),
    ("request_slo_violation_total", "tests/schedule/predicted_latency.rs"),
    ("model_rewrite_decisions_total", "src/extproc/exchange/tests/mod.rs"),
    ("kv_cache_index_admissions_total", KV_EVENTS),
    ("kv_cache_index_lookup_requests_total", KV_EVENTS),
    ("kv_cache_index_lookup_hits_total", KV_EVENTS),
    ("kv_cache_events_stores_skipped_total", KV_EVENTS),
    ("kv_cache_events_removals_skipped_total", KV_EVENTS),
    ("kv_cache_events_active_subscribers", KV_EVENTS),
    ("kv_cache_events_messages_received_total", KV_EVENTS),
    ("kv_cache_events_pool_queue_depth", KV_EVENTS),
    ("kv_cache_events_pool_capacity", KV_EVENTS),
];

const KV_EVENTS: &str = "tests/wire/kv_events/mod.rs";

/// Everything that counts, but for the deprecated profile handler.
const CONFIG: &str = "
featureGates: [flowControl]
plugins:
- {type: HANDLER, parameters: {PARAMETERS}}
- {name: always, type: always-disagg-pd-decider}
- {type: prefix-cache-scorer}
- {type: mm-embeddings-cache-scorer}
- {type: active-request-scorer}
- {type: program-aware-fairness}
- {type: predicted-latency-producer, parameters: {streamingMode: true}}
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: {}}
    revisionGating: {}
    headerSelectors: [{name: revision, headerName: x-revision, labelKey: revision}]
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefix-cache-scorer}]
- name: decode
  plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: mm-embeddings-cache-scorer}, {pluginRef: active-request-scorer}]
flowControl:
  maxRequests: 100
  maxBytes: 100Mi
  defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}
  saturationDetector: {pluginRef: utilization-detector}
";

const CHAT: [(&str, &str); 3] =
    [(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")];

/// A request with a picture, and its whole response, as a stream or not.
pub(crate) async fn exchange(picker: &Picker, streamed: bool) {
    let mut stream = picker.stream().await;
    stream.send(headers(&CHAT, false));
    let content = json!([
        {"type": "text", "text": "What is this? ".repeat(100)},
        {"type": "image_url", "image_url": {"url": "http://example.com/cat.png"}},
    ]);
    let request =
        json!({"model": "m", "stream": streamed, "messages": [{"role": "user", "content": content}]});
    stream.send(body(request.to_string(), true));
    stream.request_headers().await;
    while !stream.request_body().await.1 {}
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12,
                       "prompt_tokens_details": {"cached_tokens": 4}});
    let content_type = if streamed { "text/event-stream" } else { "application/json" };
    stream.send(response_headers(&[(":status", "200"), ("content-type", content_type)], false));
    stream.response_headers().await;
    if streamed {
        for _ in 0..2 {
            stream.send(response_body("data: {\"choices\": [{}]}\n\n", false));
            stream.response_body().await;
        }
        stream.send(response_body(format!("data: {}\n\n", json!({"usage": usage})), true));
    } else {
        stream.send(response_body(json!({ "usage": usage }).to_string(), true));
    }
    while !stream.response_body().await.1 {}
    assert!(stream.half_close().message().await.unwrap().is_none());
}

/// The page of a picker that has seen requests of all kinds, under a profile handler.
async fn page(handler: &str, parameters: &str) -> String {
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let sims = SimConfig { engine: EngineConfig::instant(), ..SimConfig::default() };
    let servers = usher::sim::start(sims, vec![bind(), bind()]).await.unwrap();
    let labels =
        "llm-d.ai/role: both, disaggregatedset.x-k8s.io/revision: r1, disaggregatedset.x-k8s.io/role: all";
    let mut entries: String = servers
        .addresses()
        .iter()
        .enumerate()
        .map(|(number, address)| {
            let (ip, port) = (address.ip(), address.port());
            format!("- {{name: p{number}, address: {ip}, port: '{port}', labels: {{{labels}}}}}\n")
        })
        .collect();
    // Where nobody listens, and where something else than metrics is.
    let closed = bind().local_addr().unwrap().port();
    entries += &format!("- {{name: gone, address: 127.0.0.1, port: '{closed}', labels: {{{labels}}}}}\n");
    let odd = OddPage::start();
    entries += &format!("- {{name: odd, address: 127.0.0.1, port: '{}', labels: {{{labels}}}}}\n", odd.port);
    let config = CONFIG.replace("HANDLER", handler).replace("PARAMETERS", parameters);
    let flags =
        [&format!("--config-text={config}"), "--allow-experimental-plugins", "--enable-grpc-stream-metrics"];
    let picker = Picker::start_with(&entries, &flags).await;
    for streamed in [false, true, false] {
        exchange(&picker, streamed).await;
    }
    let mut broken = picker.stream().await;
    broken.send(headers(&CHAT, false));
    broken.send(body("{", true));
    assert_eq!(broken.immediate().await.status.unwrap().code, 400);
    let mut nobody = picker.stream().await;
    nobody.send(headers(&[&CHAT[..], &[("x-revision", "r9")]].concat(), false));
    nobody.send(body(PROMPT, true));
    nobody.immediate().await;
    // Scrapes and their errors show with time.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let page = Picker::get(picker.metrics, "/metrics");
        let settled = ["llm_d_epp_datalayer_poll_errors_total{", "llm_d_epp_datalayer_extract_errors_total{"]
            .iter()
            .all(|series| page.contains(series))
            && picker.metric("llm_d_epp_ready_endpoints{name=\"epp\"}").is_some_and(|ready| ready >= 2.0);
        if settled || std::time::Instant::now() > deadline {
            servers.shutdown().await;
            return page;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The Go picker's families, each with its older name.
fn families() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let pair = |text: &'static str| text.split_once('=').map_or((text, None), |(new, old)| (new, Some(old)));
    FAMILIES.split_whitespace().map(pair)
}

/// The pages of two pickers that have seen requests of all kinds.
pub(crate) async fn pages() -> &'static [String; 2] {
    static PAGES: OnceCell<[String; 2]> = OnceCell::const_new();
    let show = async || {
        [
            page("disagg-profile-handler", "deciders: {prefill: always}").await,
            page("pd-profile-handler", "deciderPluginName: always").await,
        ]
    };
    PAGES.get_or_init(show).await
}

#[tokio::test]
async fn metric_families_match_their_migration_rows() {
    let rows = table("Metrics");
    let known: Vec<&str> = families().map(|(name, _)| name).collect();
    assert_known(&rows, &known);
    let pages = pages().await;
    let is_shown = |name: &str| pages.iter().any(|page| page.contains(&format!("# TYPE {name} ")));
    for (family, older) in families() {
        if let Some((_, test)) = ELSEWHERE.iter().find(|(elsewhere, _)| *elsewhere == family) {
            let test = std::fs::read_to_string(test).unwrap();
            assert!(test.contains(family.trim_start_matches("flow_control_")), "{family}");
            continue;
        }
        let is = becomes(&rows, family);
        for name in [Some(format!("llm_d_epp_{family}").as_str()), older].into_iter().flatten() {
            assert_eq!(is_shown(name), is != "missing", "{name} is {is}\n{}", pages[0]);
        }
    }
}

/// A server whose metrics page is none.
struct OddPage {
    port: u16,
}

impl OddPage {
    /// Responds until the test's process ends.
    fn start() -> Self {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let page = "vllm:num_requests_waiting many\n";
                let length = page.len();
                let response =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{page}");
                // Whoever went away doesn't need it.
                let _ = stream.read(&mut [0; 4096]).and_then(|_| stream.write_all(response.as_bytes()));
            }
        });
        Self { port }
    }
}
