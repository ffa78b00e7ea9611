//! Metrics page of a model server.

use std::fmt::Write as _;

/// A page as large as a real one, about 59 KB, most of it histograms. The names
/// are vLLM's; the last ones only fill up.
pub fn page() -> String {
    let labels = r#"engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct""#;
    let mut page = String::new();
    let mut family = |name: &str, kind: &str, samples: &[(String, f64)]| {
        writeln!(page, "# HELP {name} What the server knows about {name}.\n# TYPE {name} {kind}").unwrap();
        samples.iter().for_each(|(series, value)| writeln!(page, "{series} {value:?}").unwrap());
    };
    let one = |name: &str, value: f64| (format!("{name}{{{labels}}}"), value);
    for (name, value) in [
        ("vllm:num_requests_running", 12.0),
        ("vllm:num_requests_waiting", 3.0),
        ("vllm:kv_cache_usage_perc", 0.4375),
    ] {
        family(name, "gauge", &[one(name, value)]);
    }
    for name in ["vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:prompt_tokens"] {
        family(name, "counter", &[one(&format!("{name}_total"), 1_234_567.0)]);
    }
    let cache =
        r#"vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="27592"}"#;
    family("vllm:cache_config_info", "gauge", &[(cache.to_owned(), 1.0)]);
    let adapters =
        r#"vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql,chat",waiting_lora_adapters=""}"#;
    family("vllm:lora_requests_info", "gauge", &[(adapters.to_owned(), 1_755_820_800.5)]);
    let buckets = [
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
        40.0, 80.0, 160.0, 640.0, 2560.0,
    ];
    for name in [
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_inference_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds",
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
        "vllm:request_max_num_generation_tokens",
        "vllm:request_params_n",
        "vllm:request_params_max_tokens",
        "vllm:iteration_tokens_total",
        "http_request_duration_seconds",
        "http_request_duration_highr_seconds",
        "http_request_size_bytes",
        "http_response_size_bytes",
        "vllm:kv_block_lifetime_seconds",
        "vllm:kv_block_idle_before_evict_seconds",
        "vllm:kv_block_reuse_gap_seconds",
    ] {
        let mut samples: Vec<_> =
            (buckets.iter()).map(|le| (format!("{name}_bucket{{le=\"{le}\",{labels}}}"), 60_000.0)).collect();
        samples.push(one(&format!("{name}_sum"), 8_231.625));
        samples.push(one(&format!("{name}_count"), 60_000.0));
        family(name, "histogram", &samples);
    }
    page
}
