//! Parameters and other plugins without which a plugin type can't be built.

/// Parameters that a type can't do without.
pub(crate) fn required(plugin_type: &str) -> &'static str {
    match plugin_type {
        "file-discovery" | "multicluster-file-discovery" => "{path: a}",
        "endpoint-attribute-filter" => {
            "{attribute: WaitingQueueSize, algorithm: {threshold: {operator: LessThan, value: 9}}}"
        }
        "endpoint-attribute-scorer" => {
            "{attributeKey: WaitingQueueSize, algorithm: {type: linear_lower_is_better}}"
        }
        "header-label-affinity-scorer" => "{headerName: a, labelKey: b}",
        "by-label" => "{label: a}",
        "utilization-filter" => "{conditions: [{metric: waiting-queue, maxValue: 3}]}",
        "request-attribute-reporter" => "{attributes: [{key: {name: a}, expression: usage.total_tokens}]}",
        "disaggregatedset-rollout-screener" => "{scope: {labelSelector: {}}, revisionGating: {}}",
        "session-id-producer" => "{headerName: a}",
        "k8s-notification-source" => "{version: v1, kind: Pod}",
        "k8s-peer-discovery" => "{selector: app=usher, port: '9002', namespace: default}",
        "priority-holdback-policy" => "{minCeiling: 0.5}",
        // The profile that there is without any.
        "disagg-profile-handler" => "{profiles: {decode: default}}",
        "pd-profile-handler" => "{decodeProfile: default}",
        _ => "{}",
    }
}

/// Plugins that a type can't do without: entries of the list, behind a comma.
pub(crate) fn beside(plugin_type: &str) -> &'static str {
    match plugin_type {
        "pd-profile-handler" => ", {type: prefix-based-pd-decider}",
        "multicluster-queue-scorer" | "multicluster-kv-cache-utilization-scorer" => {
            ", {type: core-metrics-extractor, parameters: {engineConfigs: [{name: vllm, customMetrics: [{attributeKey: llm-d.ai/multicluster-queue-size, metricSpec: a}, {attributeKey: llm-d.ai/multicluster-kv-cache-utilization, metricSpec: b}]}]}}"
        }
        _ => "",
    }
}
