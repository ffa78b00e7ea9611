//! Metrics and labels that published dashboards, alerts and autoscalers of llm-d query.

/// A metric, and its labels in queries. Labels that Prometheus adds to what it scrapes (`namespace`, `pod`, `job`)
/// and `le` are left out.
pub(crate) type Queried = (&'static str, &'static [&'static str]);

/// Names that the Go picker shows as well. Dashboards of its release 0.9 have `llm_d_router_epp_` in place of
/// `llm_d_epp_`, which no picker shows any more.
pub(crate) const QUERIED: [Queried; 38] = [
    // The dashboard "Inference Gateway".
    ("llm_d_epp_average_kv_cache_utilization", &["name"]),
    ("llm_d_epp_average_queue_size", &["name"]),
    ("llm_d_epp_per_endpoint_queue_size", &["name", "model_server_endpoint"]),
    ("llm_d_epp_request_duration_seconds_bucket", &["model_name"]),
    ("llm_d_epp_request_total", &["model_name", "target_model_name"]),
    ("llm_d_epp_request_error_total", &["error_code", "model_name", "target_model_name"]),
    ("llm_d_epp_request_size_bytes_bucket", &[]),
    ("llm_d_epp_response_size_bytes_bucket", &[]),
    ("llm_d_epp_request_input_tokens_bucket", &[]),
    ("llm_d_epp_request_output_tokens_bucket", &[]),
    ("llm_d_epp_flow_control_pool_saturation", &["inference_pool"]),
    ("llm_d_epp_flow_control_queue_size", &["priority", "fairness_id"]),
    ("llm_d_epp_flow_control_queue_bytes", &["priority", "fairness_id"]),
    ("llm_d_epp_flow_control_request_enqueue_duration_seconds_count", &["priority", "fairness_id"]),
    ("llm_d_epp_flow_control_request_enqueue_duration_seconds_bucket", &[]),
    ("llm_d_epp_flow_control_request_queue_duration_seconds_count", &["priority", "fairness_id", "outcome"]),
    ("llm_d_epp_flow_control_request_queue_duration_seconds_bucket", &["priority", "fairness_id"]),
    ("llm_d_epp_flow_control_dispatch_cycle_duration_seconds_bucket", &[]),
    // The dashboard of failures and saturation.
    ("llm_d_epp_scheduler_e2e_duration_seconds_bucket", &[]),
    ("llm_d_epp_plugin_duration_seconds_bucket", &["plugin_type"]),
    // The dashboard "KV-Cache Index"; what engines send that is not indexed is in tests/wire/kv_events/mod.rs.
    ("llm_d_epp_kv_cache_index_admissions_total", &[]),
    ("llm_d_epp_kv_cache_index_lookup_requests_total", &[]),
    ("llm_d_epp_kv_cache_index_lookup_hits_total", &[]),
    ("llm_d_epp_kv_cache_events_active_subscribers", &[]),
    ("llm_d_epp_kv_cache_events_messages_received_total", &["pod_identifier"]),
    ("llm_d_epp_kv_cache_events_pool_queue_depth", &[]),
    ("llm_d_epp_kv_cache_events_pool_capacity", &[]),
    ("kvcache_index_admissions_total", &[]),
    // Alerts and autoscalers, which have the older names.
    ("inference_pool_average_queue_size", &["name"]),
    ("inference_pool_average_kv_cache_utilization", &["name"]),
    ("inference_pool_ready_pods", &["name"]),
    ("inference_objective_running_requests", &["model_name"]),
    ("inference_objective_request_total", &["model_name", "target_model_name"]),
    ("inference_objective_request_error_total", &["model_name", "error_code"]),
    ("inference_objective_request_duration_seconds_bucket", &["model_name"]),
    ("inference_extension_flow_control_queue_size", &["inference_pool", "target_model_name"]),
    ("inference_extension_flow_control_queue_bytes", &["inference_pool", "fairness_id"]),
    ("inference_extension_flow_control_pool_saturation", &["inference_pool"]),
];
