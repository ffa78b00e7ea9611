//! Numbers about waiting requests on Usher's page of metrics.

/// Requests that wait.
const WAITING: &str = "usher_demand_requests{";

/// Endpoints that requests may go to.
const SERVERS: &str = "inference_pool_ready_pods{";

/// Seconds that requests were queued, by outcome.
const WAITED: &str = "llm_d_epp_flow_control_request_queue_duration_seconds";

/// Requests that waited no longer than this many seconds passed.
const PASSED: &str = "le=\"0.001\"";

/// Numbers read from the page.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Page {
    /// Requests that wait.
    pub(super) waiting: f64,
    /// Endpoints of the pool.
    pub(super) servers: f64,
    /// Requests that waited and then went, since Usher started.
    pub(super) waited: Waited,
}

/// Requests that waited and then went.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Waited {
    /// Number of those that waited for longer than a millisecond.
    pub(super) requests: f64,
    /// Seconds, of all.
    pub(super) seconds: f64,
}

impl Page {
    /// Reads the page. Missing series are 0: no request has waited yet.
    pub(super) fn read(text: &str) -> Self {
        let sum = |is_of: &dyn Fn(&str) -> bool| {
            text.lines().filter(|line| is_of(line)).filter_map(value).sum::<f64>()
        };
        let waited = |suffix: &str, label: &str| {
            let start = format!("{WAITED}{suffix}{{");
            sum(&|line| {
                line.starts_with(&start) && line.contains("outcome=\"Dispatched\"") && line.contains(label)
            })
        };
        Self {
            waiting: sum(&|line| line.starts_with(WAITING)),
            servers: sum(&|line| line.starts_with(SERVERS)),
            waited: Waited {
                requests: waited("_count", "") - waited("_bucket", PASSED),
                seconds: waited("_sum", ""),
            },
        }
    }
}

/// The value at the end of a line.
fn value(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_all_flows_are_added_up() {
        let text = r#"
# HELP usher_demand_requests Requests that wait.
usher_demand_requests{model_name="m",priority="0",target_model_name="m"} 3
usher_demand_requests{model_name="n",priority="0",target_model_name="n"} 4
usher_demand_bytes{model_name="n",priority="0",target_model_name="n"} 400
inference_pool_ready_pods{name="epp"} 8
llm_d_epp_flow_control_request_queue_duration_seconds_bucket{fairness_id="a",outcome="Dispatched",le="0.001"} 2
llm_d_epp_flow_control_request_queue_duration_seconds_bucket{fairness_id="a",outcome="Dispatched",le="0.01"} 5
llm_d_epp_flow_control_request_queue_duration_seconds_sum{fairness_id="a",outcome="Dispatched"} 7.5
llm_d_epp_flow_control_request_queue_duration_seconds_count{fairness_id="a",outcome="Dispatched"} 6
llm_d_epp_flow_control_request_queue_duration_seconds_sum{fairness_id="a",outcome="EvictedTTL"} 60
llm_d_epp_flow_control_request_queue_duration_seconds_count{fairness_id="a",outcome="EvictedTTL"} 1
"#;
        let waited = Waited { requests: 4.0, seconds: 7.5 };
        assert_eq!(Page::read(text), Page { waiting: 7.0, servers: 8.0, waited });
        assert_eq!(Page::read(""), Page::default());
    }
}
