//! Can the metrics of every model server be read, and are they those of its engine?

use crate::doctor::finding::{Finding, Outcome, count};
use crate::doctor::rules::{self, Rule};
use crate::doctor::seen::{Observations, PodPage};
use crate::scrape::EngineSpec;
use crate::scrape::exposition::{MetricSpec, Wanted};

/// Names that were renamed: the old one, the new one, and since when.
const RENAMED: [(&str, &str, &str); 1] =
    [("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", "vLLM before 0.10")];

pub(super) fn check(seen: &Observations) -> Outcome {
    let pods = match &seen.pods {
        Ok(pods) => pods,
        Err(reason) => return Outcome::skipped(reason),
    };
    if pods.is_empty() {
        return Outcome::skipped("there is no model server; see pool and endpoints");
    }
    let findings = pods.iter().flat_map(of_pod).collect();
    let at = format!("{} of {}", count(pods.len(), "model server", "model servers"), engines(pods));
    Outcome::looked(at, findings)
}

fn engines(pods: &[PodPage]) -> String {
    let mut names: Vec<&str> = pods.iter().map(|pod| pod.engine.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

fn of_pod(pod: &PodPage) -> Option<Finding> {
    let place = format!("{} at {}", pod.name, pod.url);
    let say = |rule: &'static Rule, colon: &str, problem: String| {
        Finding::new(rule, format!("{place}{colon} {problem}")).on(&pod.name, problem)
    };
    let page = match &pod.page {
        Ok(page) => page,
        Err(reason) => {
            let what = format!("{place}: {reason}");
            // The reason begins with the address, which differs.
            let problem =
                reason.strip_prefix(&pod.url).map_or(&**reason, |rest| rest.trim_start_matches([':', ' ']));
            return Some(Finding::new(&rules::POD_METRICS_UNREACHABLE, what).on(&pod.name, problem));
        }
    };
    let engines = EngineSpec::built_in();
    let Some(engine) = engines.iter().find(|engine| engine.name == pod.engine) else {
        let problem = format!(
            "the engine {:?} is not known here; the doctor can't say what it should report",
            pod.engine
        );
        return Some(say(&rules::POD_METRICS_NAMES, ":", problem));
    };
    let missing = missing(page, &load(engine));
    if missing.is_empty() {
        let cache = [&engine.cache_info, &engine.block_size, &engine.num_blocks];
        let cache: Vec<MetricSpec> = cache.into_iter().flatten().cloned().collect();
        let missing = self::missing(page, &cache);
        let problem = || format!("has no {}", missing.join(", "));
        return (!missing.is_empty()).then(|| say(&rules::POD_METRICS_CACHE, "", problem()));
    }
    let other = engines
        .iter()
        .find(|other| other.name != engine.name && self::missing(page, &load(other)).is_empty());
    if let Some(other) = other {
        let problem = format!("reports as {}, and is taken for {}", other.name, engine.name);
        let fix = format!(
            "Put the label llm-d.ai/engine-type: {} on the pod, or set defaultEngine of core-metrics-extractor to it.",
            other.name
        );
        return Some(say(&rules::POD_METRICS_ENGINE, "", problem).fix(fix));
    }
    let renamed = RENAMED.iter().find(|(old, new, _)| {
        missing.iter().any(|name| name == new) && self::missing(page, &[MetricSpec::named(old)]).is_empty()
    });
    let reason = match renamed {
        Some((old, _, version)) => format!("; it has {old}, as {version}"),
        None if page.is_empty() => "; the page is empty".to_owned(),
        None => String::new(),
    };
    Some(say(&rules::POD_METRICS_NAMES, "", format!("has no {}{reason}", missing.join(", "))))
}

/// Metrics that scorers read. Adapters are left out: a server without LoRA does not report them.
fn load(engine: &EngineSpec) -> Vec<MetricSpec> {
    [&engine.waiting, &engine.running, &engine.kv_usage].into_iter().flatten().cloned().collect()
}

/// Metrics that a page does not have.
fn missing(page: &[u8], specs: &[MetricSpec]) -> Vec<String> {
    let mut found = vec![false; specs.len()];
    Wanted::new(specs.to_vec()).scan(page, |at, _| found[at] = true);
    let missing = specs.iter().zip(found).filter(|(_, found)| !found);
    missing.map(|(spec, _)| shown(spec)).collect()
}

fn shown(spec: &MetricSpec) -> String {
    let labels: Vec<String> = spec.labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    if labels.is_empty() { spec.name.clone() } else { format!("{}{{{}}}", spec.name, labels.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(engine: &str, page: &str) -> PodPage {
        PodPage {
            name: "a".to_owned(),
            url: "http://10.0.0.1:8000/metrics".to_owned(),
            address: ([10, 0, 0, 1], 8000).into(),
            engine: engine.to_owned(),
            page: Ok(page.as_bytes().to_vec()),
        }
    }

    fn found(engine: &str, page: &str) -> Vec<(&'static str, String)> {
        of_pod(&pod(engine, page)).into_iter().map(|finding| (finding.rule.code, finding.what)).collect()
    }

    const VLLM: &str = "vllm:num_requests_waiting{model_name=\"m\"} 0\nvllm:num_requests_running 1\n";

    #[test]
    fn missing_metrics_are_named_with_a_reason() {
        let whole =
            format!("{VLLM}vllm:kv_cache_usage_perc 0.1\nvllm:cache_config_info{{block_size=\"16\"}} 1\n");
        assert_eq!(found("vllm", &whole), []);
        // engine, page, code, words
        let table = [
            (
                "vllm",
                format!("{VLLM}vllm:kv_cache_usage_perc 0\n"),
                "pod-metrics-cache",
                "vllm:cache_config_info",
            ),
            ("vllm", VLLM.to_owned(), "pod-metrics-names", "no vllm:kv_cache_usage_perc"),
            ("vllm", format!("{VLLM}vllm:gpu_cache_usage_perc 0\n"), "pod-metrics-names", "before 0.10"),
            ("vllm", String::new(), "pod-metrics-names", "empty"),
            ("sglang", whole, "pod-metrics-engine", "reports as vllm"),
            ("mine", VLLM.to_owned(), "pod-metrics-names", "\"mine\""),
            ("triton", String::new(), "pod-metrics-names", "no nv_inference_pending_request_count;"),
        ];
        for (engine, page, code, words) in table {
            let found = found(engine, &page);
            assert!(
                found.len() == 1 && found[0].0 == code && found[0].1.contains(words),
                "{engine} {page}: {found:?}"
            );
        }
    }
}
