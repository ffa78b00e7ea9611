//! Metrics pages with the names of other engines: what a picker reads of them, and some
//! series beside it that it must not take for that.

use super::MetricsPage;
use crate::sim::Dialect;
use crate::sim::model::Engine;

impl MetricsPage {
    /// The page of another engine than vLLM.
    pub(super) fn dialect(&mut self, dialect: Dialect, engine: &Engine) {
        match dialect {
            // Its page is the one around this.
            Dialect::Vllm => {}
            Dialect::Sglang => self.sglang(engine),
            Dialect::TrtllmServe => self.trtllm_serve(engine),
            Dialect::TritonTensorrtLlm => self.triton_tensorrt_llm(engine),
            Dialect::Triton => self.triton(engine),
        }
    }

    fn sglang(&mut self, engine: &Engine) {
        let (state, config) = (engine.state(), engine.config());
        let used_tokens = state.kv_used_blocks as f64 * f64::from(config.block_size);
        let labels =
            |page: &Self| format!(r#"engine_type="unified",model_name="{}",tp_rank="0""#, page.model);
        for (name, help, value) in [
            ("sglang:num_running_reqs", "Running requests.", state.running as f64),
            ("sglang:num_queue_reqs", "Requests in the waiting queue.", state.waiting as f64),
            ("sglang:token_usage", "Share of the token pool in use.", state.kv_usage),
            ("sglang:num_used_tokens", "Tokens in the pool.", used_tokens),
        ] {
            self.comments(name, "gauge", help);
            self.sample(value, |page| format!("{name}{{{}}} ", labels(page)));
        }
        let name = "sglang:cache_config_info";
        self.comments(name, "gauge", "Geometry of the token pool.");
        let geometry = format!(r#"num_pages="{}",page_size="{}""#, config.num_blocks, config.block_size);
        self.sample(1.0, |page| format!("{name}{{{geometry},{}}} ", labels(page)));
        let stats = engine.stats();
        let before = r#"engine_type="unified","#;
        for (name, help, times) in [
            ("sglang:time_to_first_token_seconds", "Time to the first token.", &stats.time_to_first_token),
            ("sglang:inter_token_latency_seconds", "Time between two tokens.", &stats.inter_token),
        ] {
            self.histogram(name, help, times, before, true);
        }
        self.started();
    }

    /// Start of the process, which all of Python's clients show.
    fn started(&mut self) {
        let name = "process_start_time_seconds";
        self.comments(name, "gauge", "Start time since unix epoch in seconds.");
        self.sample(self.started, |_| format!("{name} "));
    }

    fn trtllm_serve(&mut self, engine: &Engine) {
        let (state, config) = (engine.state(), engine.config());
        for (name, help, value) in [
            ("trtllm_num_requests_running", "Requests in the batch.", state.running as f64),
            ("trtllm_num_requests_waiting", "Requests waiting for the batch.", state.waiting as f64),
            ("trtllm_kv_cache_utilization", "Share of the blocks in use.", state.kv_usage),
            ("trtllm_kv_cache_tokens_per_block", "Tokens per block.", f64::from(config.block_size)),
            ("trtllm_kv_cache_max_blocks", "Blocks in all.", f64::from(config.num_blocks)),
        ] {
            self.comments(name, "gauge", help);
            self.sample(value, |page| {
                format!(r#"{name}{{engine_type="pytorch",model_name="{}"}} "#, page.model)
            });
        }
        let stats = engine.stats();
        let before = r#"engine_type="pytorch","#;
        for (name, help, times) in [
            ("trtllm_time_to_first_token_seconds", "Time to the first token.", &stats.time_to_first_token),
            (
                "trtllm_time_per_output_token_seconds",
                "Mean time per output token of a request.",
                &stats.time_per_output_token,
            ),
        ] {
            self.histogram(name, help, times, before, true);
        }
        self.started();
    }

    fn triton_tensorrt_llm(&mut self, engine: &Engine) {
        let (state, config) = (engine.state(), engine.config());
        let (running, waiting) = (state.running as f64, state.waiting as f64);
        let blocks = f64::from(config.num_blocks);
        let used = (state.kv_usage * blocks).round();
        for (name, help, label, series) in [
            (
                "nv_trt_llm_request_metrics",
                "Requests, by what they are doing.",
                "request_type",
                &[("active", running + waiting), ("scheduled", running), ("waiting", waiting)][..],
            ),
            (
                "nv_trt_llm_kv_cache_block_metrics",
                "The KV cache, by what is told of it.",
                "kv_cache_block_type",
                &[
                    ("fraction", state.kv_usage),
                    ("free", blocks - used),
                    ("max", blocks),
                    ("tokens_per", f64::from(config.block_size)),
                    ("used", used),
                ],
            ),
        ] {
            self.comments(name, "gauge", help);
            for (kind, value) in series {
                self.sample(*value, |_| {
                    format!(r#"{name}{{{label}="{kind}",model="ensemble",version="1"}} "#)
                });
            }
        }
    }

    fn triton(&mut self, engine: &Engine) {
        let (state, stats) = (engine.state(), engine.stats());
        for (name, kind, help, value) in [
            ("nv_inference_pending_request_count", "gauge", "Requests waiting.", state.waiting as f64),
            (
                "nv_inference_exec_count",
                "counter",
                "Executions of a batch since the start.",
                stats.tokens_per_step.count() as f64,
            ),
        ] {
            self.comments(name, kind, help);
            self.sample(value, |page| format!(r#"{name}{{model="{}",version="1"}} "#, page.model));
        }
    }
}
