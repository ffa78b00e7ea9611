//! `/metrics` in the text format, with the families that a vLLM server shows: its own
//! under current and former names, those of its HTTP layer, and Python's. Other engines'
//! pages are shorter.

mod dialects;

use std::collections::VecDeque;
use std::fmt::Write;

use bytes::Bytes;

use super::http_stats::HttpStats;
use super::model::Engine;
use super::openai::Api;
use super::stats::Histogram;
use super::{Dialect, SimConfig};

// vLLM keeps a series for every combination of adapters it ever had; this many of them
// are enough to make a reader choose.
const KEPT_LORA_SERIES: usize = 16;

/// The page of one server. What is constant in a line is put together once; a page
/// whose numbers have not changed is not written again.
#[derive(Debug)]
pub(crate) struct MetricsPage {
    dialect: Dialect,
    model: String,
    cache_info: String,
    max_loras: usize,
    started: f64,
    // Level of sleep, 0 while awake.
    sleep: u8,
    // Everything of a line (and the comments before it) up to its value.
    heads: Vec<String>,
    // Number of the line being written.
    line: usize,
    comments: String,
    out: String,
    // Label sets seen, with the time when they were last true; the newest is the last.
    lora_series: VecDeque<(String, f64)>,
    // The changes of engine and HTTP layer that `page` shows.
    shows: Option<(u64, u64)>,
    page: Bytes,
}

impl MetricsPage {
    /// A page for a server that started at the Unix time `started`, in seconds.
    pub(crate) fn new(config: &SimConfig, started: f64) -> Self {
        let engine = &config.engine;
        let cache_info = format!(
            r#"block_size="{}",cache_dtype="auto",calculate_kv_scales="False",cpu_kvcache_space_bytes="None",cpu_offload_gb="0.0",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",is_attention_free="False",kv_cache_memory_bytes="None",mamba_block_size="None",mamba_cache_dtype="auto",mamba_page_size_padded="None",mamba_ssm_cache_dtype="auto",num_cpu_blocks="None",num_gpu_blocks="{}",num_gpu_blocks_override="None",prefix_caching_hash_algo="sha256",sliding_window="None",swap_space="4.0",swap_space_bytes="4294967296.0",user_specified_block_size="True""#,
            engine.block_size, engine.num_blocks,
        );
        Self {
            dialect: config.dialect,
            model: escape(&config.model),
            cache_info,
            max_loras: engine.max_loras,
            started,
            sleep: 0,
            heads: Vec::new(),
            line: 0,
            comments: String::new(),
            out: String::new(),
            lora_series: VecDeque::new(),
            shows: None,
            page: Bytes::new(),
        }
    }

    /// Its process started anew at the Unix time `started`, in seconds.
    pub(crate) fn restarted(&mut self, started: f64) {
        (self.started, self.shows) = (started, None);
    }

    /// Sets the level of sleep, 1 or 2; `None`: awake.
    pub(crate) fn sleeps(&mut self, level: Option<u8>) {
        (self.sleep, self.shows) = (level.unwrap_or(0), None);
    }

    /// The page as it is now.
    pub(crate) fn render(&mut self, engine: &Engine, http: &HttpStats) -> Bytes {
        let changes = Some((engine.changes(), http.changes));
        if self.shows != changes {
            self.line = 0;
            self.out = String::with_capacity(self.page.len() + 1024);
            if self.dialect == Dialect::Vllm {
                self.python();
                self.engine(engine);
                self.histograms(engine);
                self.http(http);
            } else {
                self.dialect(self.dialect, engine);
            }
            self.page = std::mem::take(&mut self.out).into();
            self.shows = changes;
        }
        self.page.clone()
    }

    fn engine(&mut self, engine: &Engine) {
        let (state, stats) = (engine.state(), engine.stats());
        let usage = state.kv_usage;
        self.gauge("vllm:num_requests_running", "Requests in model execution batches.", state.running as f64);
        self.gauge("vllm:num_requests_waiting", "Requests waiting to be processed.", state.waiting as f64);
        self.comments(
            "vllm:engine_sleep_state",
            "gauge",
            "Whether the engine is awake or asleep, by depth of sleep.",
        );
        for (level, name) in (0_u8..).zip(["awake", "weights_offloaded", "discard_all"]) {
            self.sample(f64::from(u8::from(self.sleep == level)), |page| {
                let model = &page.model;
                format!(r#"vllm:engine_sleep_state{{engine="0",model_name="{model}",sleep_state="{name}"}} "#)
            });
        }
        self.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", usage);
        self.gauge(
            "vllm:gpu_cache_usage_perc",
            "KV-cache usage under its former name. 1 means 100 percent usage.",
            usage,
        );
        let counters = [
            (
                "vllm:prefix_cache_queries",
                "Prefix cache queries, in terms of queried tokens.",
                stats.prefix_queries,
            ),
            ("vllm:prefix_cache_hits", "Prefix cache hits, in terms of cached tokens.", stats.prefix_hits),
            (
                "vllm:gpu_prefix_cache_queries",
                "Prefix cache queries under the former name.",
                stats.prefix_queries,
            ),
            ("vllm:gpu_prefix_cache_hits", "Prefix cache hits under the former name.", stats.prefix_hits),
            ("vllm:external_prefix_cache_queries", "Queries to the cache of a KV connector, in tokens.", 0),
            ("vllm:external_prefix_cache_hits", "Hits in the cache of a KV connector, in tokens.", 0),
            ("vllm:mm_cache_queries", "Queries to the cache of multimodal items.", 0),
            ("vllm:mm_cache_hits", "Hits in the cache of multimodal items.", 0),
            ("vllm:num_preemptions", "Preemptions by the scheduler since the start.", stats.preemptions),
            ("vllm:prompt_tokens", "Prefill tokens processed.", stats.prompt_tokens),
            ("vllm:generation_tokens", "Generation tokens processed.", stats.generation_tokens),
        ];
        for (name, help, value) in counters {
            self.counter(name, help, value);
        }
        let reasons = [
            ("stop", stats.finished_stop),
            ("length", stats.finished_length),
            ("abort", stats.aborted),
            ("error", 0),
        ];
        for (suffix, kind) in [("total", "counter"), ("created", "gauge")] {
            let name = format!("vllm:request_success_{suffix}");
            self.comments(&name, kind, "Requests that ended, by the reason why they ended.");
            for (reason, value) in reasons {
                let value = if kind == "gauge" { self.started } else { value as f64 };
                self.sample(value, |page| {
                    let model = &page.model;
                    format!(r#"{name}{{engine="0",finished_reason="{reason}",model_name="{model}"}} "#)
                });
            }
        }
        self.comments("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
        self.sample(1.0, |page| format!("vllm:cache_config_info{{{}}} ", page.cache_info));
        self.loras(engine);
    }

    fn loras(&mut self, engine: &Engine) {
        let join = |names: &[std::sync::Arc<str>]| escape(&names.join(","));
        let (running, waiting) = engine.adapters();
        let labels = format!(
            r#"max_lora="{}",running_lora_adapters="{}",waiting_lora_adapters="{}""#,
            self.max_loras,
            join(&running),
            join(&waiting)
        );
        self.lora_series.retain(|(known, _)| *known != labels);
        if self.lora_series.len() == KEPT_LORA_SERIES {
            self.lora_series.pop_front();
        }
        self.lora_series.push_back((labels, self.started + engine.now().as_secs_f64()));
        // The lines vary in number, so they are not among the remembered ones.
        self.out.push_str("# HELP vllm:lora_requests_info Running stats on lora requests.\n");
        self.out.push_str("# TYPE vllm:lora_requests_info gauge\n");
        for (labels, at) in &self.lora_series {
            let _ = write!(self.out, "vllm:lora_requests_info{{{labels}}} ");
            push_value(&mut self.out, *at);
        }
    }

    fn histograms(&mut self, engine: &Engine) {
        let stats = engine.stats();
        let families = [
            ("iteration_tokens_total", "Tokens per engine step.", &stats.tokens_per_step),
            ("request_prompt_tokens", "Prefill tokens of a request.", &stats.request_prompt_tokens),
            (
                "request_prefill_kv_computed_tokens",
                "Prefill tokens of a request without those from the prefix cache.",
                &stats.request_computed_tokens,
            ),
            (
                "request_generation_tokens",
                "Generation tokens of a request.",
                &stats.request_generation_tokens,
            ),
            (
                "request_max_num_generation_tokens",
                "Largest number of generation tokens requested.",
                &stats.request_generation_tokens,
            ),
            ("request_params_n", "The request parameter n.", &stats.request_n),
            ("request_params_max_tokens", "The request parameter max_tokens.", &stats.request_max_tokens),
            ("time_to_first_token_seconds", "Time to first token in seconds.", &stats.time_to_first_token),
            ("inter_token_latency_seconds", "Time between two tokens in seconds.", &stats.inter_token),
            (
                "time_per_output_token_seconds",
                "Time between two tokens in seconds, under its former name.",
                &stats.inter_token,
            ),
            (
                "request_time_per_output_token_seconds",
                "Mean time per output token of a request in seconds.",
                &stats.time_per_output_token,
            ),
            (
                "time_per_prefill_token_request_seconds",
                "Time per token in the PREFILL phase in seconds.",
                &stats.time_per_prefill_token,
            ),
            ("e2e_request_latency_seconds", "End to end latency of a request in seconds.", &stats.e2e),
            ("request_queue_time_seconds", "Time in the WAITING phase of a request.", &stats.queue),
            ("request_inference_time_seconds", "Time in the RUNNING phase of a request.", &stats.inference),
            ("request_prefill_time_seconds", "Time in the PREFILL phase of a request.", &stats.prefill),
            ("request_decode_time_seconds", "Time in the DECODE phase of a request.", &stats.decode),
        ];
        for (name, help, histogram) in families {
            let name = format!("vllm:{name}");
            self.histogram(&name, help, histogram, r#"engine="0","#, true);
        }
    }

    fn http(&mut self, http: &HttpStats) {
        let handlers = || Api::ALL.iter().map(|api| api.path()).zip(&http.handlers);
        for (suffix, kind) in [("total", "counter"), ("created", "gauge")] {
            let name = format!("http_requests_{suffix}");
            self.comments(&name, kind, "Total number of requests by method, status and handler.");
            for (path, handler) in handlers() {
                for (class, count) in ["2xx", "4xx", "5xx"].iter().zip(handler.classes) {
                    let value = if kind == "gauge" { self.started } else { count as f64 };
                    self.sample(value, |_| {
                        format!(r#"{name}{{handler="{path}",method="POST",status="{class}"}} "#)
                    });
                }
            }
        }
        for (what, help) in [
            ("request", "Content length of incoming requests by handler."),
            ("response", "Content length of outgoing responses by handler."),
        ] {
            self.comments(&format!("http_{what}_size_bytes"), "summary", help);
            for (path, handler) in handlers() {
                let bytes = if what == "request" { handler.request_bytes } else { handler.response_bytes };
                let (count, sum) = (handler.duration.count() as f64, bytes as f64);
                self.sample(count, |_| format!(r#"http_{what}_size_bytes_count{{handler="{path}"}} "#));
                self.sample(sum, |_| format!(r#"http_{what}_size_bytes_sum{{handler="{path}"}} "#));
            }
        }
        let name = "http_request_duration_highr_seconds";
        self.histogram(name, "Latency with many buckets and no labels.", &http.duration, "", false);
        let name = "http_request_duration_seconds";
        self.comments(name, "histogram", "Latency with few buckets, by handler.");
        for (path, handler) in handlers() {
            let before = format!(r#"handler="{path}","#);
            self.histogram_samples(name, &handler.duration, &before, r#"method="POST""#);
        }
    }

    // Numbers of a Python process that has just started. They don't change: a page
    // costs nothing then.
    fn python(&mut self) {
        for (name, help, values) in [
            (
                "python_gc_objects_collected_total",
                "Objects collected during gc",
                [14_822.0, 3_216.0, 1_180.0],
            ),
            ("python_gc_objects_uncollectable_total", "Uncollectable objects found during GC", [0.0; 3]),
            ("python_gc_collections_total", "Times this generation was collected", [1_404.0, 127.0, 11.0]),
        ] {
            self.comments(name, "counter", help);
            for (generation, value) in values.into_iter().enumerate() {
                self.sample(value, |_| format!(r#"{name}{{generation="{generation}"}} "#));
            }
        }
        self.comments("python_info", "gauge", "Python platform information");
        self.sample(1.0, |_| {
            r#"python_info{implementation="CPython",major="3",minor="12",patchlevel="11",version="3.12.11"} "#
                .to_owned()
        });
        for (name, kind, help, value) in [
            ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", 1.2e10),
            ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", 1.1e9),
            ("process_start_time_seconds", "gauge", "Start time since unix epoch in seconds.", self.started),
            ("process_cpu_seconds_total", "counter", "User and system CPU time in seconds.", 31.5),
            ("process_open_fds", "gauge", "Number of open file descriptors.", 68.0),
            ("process_max_fds", "gauge", "Maximum number of open file descriptors.", 1_048_576.0),
        ] {
            self.comments(name, kind, help);
            self.sample(value, |_| format!("{name} "));
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.comments(name, "gauge", help);
        self.engine_sample(name, value);
    }

    // The Python client adds a series with the time of creation to each counter.
    fn counter(&mut self, name: &str, help: &str, value: u64) {
        for (suffix, kind, value) in [("total", "counter", value as f64), ("created", "gauge", self.started)]
        {
            let name = format!("{name}_{suffix}");
            self.comments(&name, kind, help);
            self.engine_sample(&name, value);
        }
    }

    fn engine_sample(&mut self, name: &str, value: f64) {
        self.sample(value, |page| format!(r#"{name}{{engine="0",model_name="{}"}} "#, page.model));
    }

    // `le` stands between the labels, as the Python client sorts them.
    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram, before: &str, of_model: bool) {
        self.comments(name, "histogram", help);
        let after = if of_model { format!(r#"model_name="{}""#, self.model) } else { String::new() };
        self.histogram_samples(name, histogram, before, &after);
        let created = format!("{name}_created");
        self.comments(&created, "gauge", help);
        self.sample(self.started, |_| format!("{created}{{{before}{after}}} "));
    }

    fn histogram_samples(&mut self, name: &str, histogram: &Histogram, before: &str, after: &str) {
        let comma = if after.is_empty() { "" } else { "," };
        for (bound, count) in histogram.buckets() {
            self.sample(count as f64, |_| {
                format!(r#"{name}_bucket{{{before}le="{bound:?}"{comma}{after}}} "#)
            });
        }
        let count = histogram.count() as f64;
        self.sample(count, |_| format!(r#"{name}_bucket{{{before}le="+Inf"{comma}{after}}} "#));
        self.sample(count, |_| format!("{name}_count{{{before}{after}}} "));
        self.sample(histogram.sum(), |_| format!("{name}_sum{{{before}{after}}} "));
    }

    fn comments(&mut self, name: &str, kind: &str, help: &str) {
        if self.line == self.heads.len() {
            let _ = write!(self.comments, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        }
    }

    fn sample(&mut self, value: f64, head: impl FnOnce(&Self) -> String) {
        if self.line == self.heads.len() {
            let head = std::mem::take(&mut self.comments) + &head(self);
            self.heads.push(head);
        }
        self.out.push_str(&self.heads[self.line]);
        self.line += 1;
        push_value(&mut self.out, value);
    }
}

// Python writes whole numbers with a `.0`, as Rust's `{:?}` does, only slower.
fn push_value(out: &mut String, value: f64) {
    let _ = if value.fract() == 0.0 && (0.0..1e15).contains(&value) {
        writeln!(out, "{}.0", value as u64)
    } else {
        writeln!(out, "{value:?}")
    };
}

fn escape(label: &str) -> String {
    label.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}
