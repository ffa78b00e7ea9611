//! The engines whose metrics are known without configuration, with llm-d-router's names for them.

use crate::endpoints::{AttributeId, Lease};

use super::engine::{AttributeReading, AttributeSpec, ENGINE_LABEL, Engine, EngineSpec, Engines, Join};
use super::exposition::MetricSpec;
use super::metrics::DCGM_EXTRACTOR_TYPE;

/// Metrics of all models and kinds in one family; a label says what a series is.
const TENSORRT_REQUESTS: (&str, &str) = ("nv_trt_llm_request_metrics", "request_type");
const TENSORRT_BLOCKS: (&str, &str) = ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type");

impl EngineSpec {
    /// Every engine that needs no configuration.
    pub fn built_in() -> [Self; 5] {
        [Self::vllm(), Self::sglang(), Self::trtllm_serve(), Self::triton_tensorrt_llm(), Self::triton()]
    }

    /// vLLM, version 1 of its engine.
    pub fn vllm() -> Self {
        Self {
            adapters: Some(MetricSpec::named("vllm:lora_requests_info")),
            cache_info: Some(MetricSpec::named("vllm:cache_config_info")),
            block_size_label: "block_size".to_owned(),
            num_blocks_label: "num_gpu_blocks".to_owned(),
            ..Self::with_load(
                "vllm",
                "vllm:num_requests_waiting",
                "vllm:num_requests_running",
                "vllm:kv_cache_usage_perc",
            )
        }
    }

    /// SGLang. Its pages are what others call blocks.
    pub fn sglang() -> Self {
        Self {
            cache_info: Some(MetricSpec::named("sglang:cache_config_info")),
            block_size_label: "page_size".to_owned(),
            num_blocks_label: "num_pages".to_owned(),
            ..Self::with_load(
                "sglang",
                "sglang:num_queue_reqs",
                "sglang:num_running_reqs",
                "sglang:token_usage",
            )
        }
    }

    /// TensorRT-LLM with its own server.
    pub fn trtllm_serve() -> Self {
        Self {
            block_size: Some(MetricSpec::named("trtllm_kv_cache_tokens_per_block")),
            num_blocks: Some(MetricSpec::named("trtllm_kv_cache_max_blocks")),
            ..Self::with_load(
                "trtllm-serve",
                "trtllm_num_requests_waiting",
                "trtllm_num_requests_running",
                "trtllm_kv_cache_utilization",
            )
        }
    }

    /// TensorRT-LLM behind Triton.
    pub fn triton_tensorrt_llm() -> Self {
        let of = |(name, label): (&str, &str), value: &str| {
            Some(MetricSpec { name: name.to_owned(), labels: vec![(label.to_owned(), value.to_owned())] })
        };
        Self {
            name: "triton-tensorrt-llm".to_owned(),
            waiting: of(TENSORRT_REQUESTS, "waiting"),
            running: of(TENSORRT_REQUESTS, "scheduled"),
            kv_usage: of(TENSORRT_BLOCKS, "fraction"),
            block_size: of(TENSORRT_BLOCKS, "tokens_per"),
            num_blocks: of(TENSORRT_BLOCKS, "max"),
            ..Self::default()
        }
    }

    /// Triton with any other backend, which says nothing about a cache, nor how many requests
    /// run: all it has beside those that wait are counters. `nv_inference_exec_count`, which
    /// others read, counts executions of batches since the start.
    pub fn triton() -> Self {
        Self {
            name: "triton".to_owned(),
            waiting: Some(MetricSpec::named("nv_inference_pending_request_count")),
            ..Self::default()
        }
    }

    /// NVIDIA's exporter of what GPUs do. It is no engine, but has metrics like one.
    fn dcgm(utilization: Lease<AttributeId>) -> Self {
        // In percent, and of a node's exporter for all pods on it.
        let reading = AttributeReading { join: Join::Largest, factor: 0.01, of_pod: true };
        let attribute = AttributeSpec {
            id: utilization,
            name: "GPUUtilization".to_owned(),
            metric: MetricSpec::named("DCGM_FI_DEV_GPU_UTIL"),
            reading,
        };
        Self { name: "dcgm".to_owned(), attributes: vec![attribute], ..Self::default() }
    }

    fn with_load(name: &str, waiting: &str, running: &str, kv_usage: &str) -> Self {
        Self {
            name: name.to_owned(),
            waiting: Some(MetricSpec::named(waiting)),
            running: Some(MetricSpec::named(running)),
            kv_usage: Some(MetricSpec::named(kv_usage)),
            ..Self::default()
        }
    }
}

impl Engines {
    /// The exporter of an endpoint's GPUs: how busy the busiest is, 0..=1.
    pub fn dcgm(utilization: Lease<AttributeId>) -> Self {
        Self::only(DCGM_EXTRACTOR_TYPE, Engine::new(EngineSpec::dcgm(utilization)))
    }
}

impl Default for Engines {
    /// The built-in engines; vLLM unless the label says another.
    fn default() -> Self {
        let others = EngineSpec::built_in().map(Engine::new).into();
        Self::new(ENGINE_LABEL, Engine::new(EngineSpec::vllm()), others)
    }
}
