//! Pages of a replica: requests under way, and the responses that passed through it.

use serde_json::Value;

/// Requests under way, over all servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Requests that this replica sent.
    pub(super) own: i64,
    /// Requests that it believes the others to have.
    pub(super) others: i64,
}

impl Load {
    /// Reads the page of endpoints.
    pub(super) fn read(page: &Value) -> Self {
        let rows = page.get("endpoints").and_then(Value::as_array);
        let sum = |field| {
            let numbers = rows.into_iter().flatten().filter_map(|row| row.get(field)?.as_i64());
            numbers.sum()
        };
        Self { own: sum("in_flight"), others: sum("in_flight_of_others") }
    }
}

/// Requests of a third replica that two count: what each believes the others to have, without the other of the two.
pub(super) fn of_third(one: Load, other: Load) -> f64 {
    ((one.others - other.own) + (other.others - one.own)) as f64 / 2.0
}

/// Responses that passed through a replica since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Served {
    pub(super) responses: f64,
    /// Tokens of the prompts, and those of them that were in caches.
    prompt: f64,
    cached: f64,
}

impl Served {
    /// Reads the page of metrics. A family that is not there is 0.
    pub(super) fn read(text: &str) -> Self {
        let sum = |family: &str| {
            let of = text.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{'));
            of.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        Self {
            responses: sum("llm_d_epp_request_input_tokens_count"),
            prompt: sum("llm_d_epp_request_input_tokens_sum"),
            cached: sum("llm_d_epp_request_cached_tokens_sum"),
        }
    }

    /// Responses since others were read.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            responses: self.responses - before.responses,
            prompt: self.prompt - before.prompt,
            cached: self.cached - before.cached,
        }
    }

    /// Responses of two replicas.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            responses: self.responses + other.responses,
            prompt: self.prompt + other.prompt,
            cached: self.cached + other.cached,
        }
    }

    /// Part of the prompts that was cached, in percent.
    pub(super) fn hit_percent(self) -> f64 {
        if self.prompt > 0.0 { self.cached / self.prompt * 100.0 } else { 0.0 }
    }
}

/// Blocks of prefixes that a replica has from others, by its page of metrics.
pub(super) fn imported(text: &str) -> f64 {
    let series = "usher_replicas_prefix_blocks_total{result=\"imported\"} ";
    text.lines().find_map(|line| line.strip_prefix(series)?.parse().ok()).unwrap_or(0.0)
}

/// Returns `true` if a replica shares load and prefixes, by its page of metrics.
pub(super) fn is_connected(text: &str) -> bool {
    let families = ["usher_state_store_connected 1", "usher_replicas_prefix_connected 1"];
    families.iter().all(|family| text.lines().any(|line| line == *family))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn load_is_the_sum_over_endpoints() {
        let row = |own, others| json!({"in_flight": own, "in_flight_of_others": others});
        let page = json!({"endpoints": [row(1, 4), row(2, 5)]});
        assert_eq!(Load::read(&page), Load { own: 3, others: 9 });
        assert_eq!(Load::read(&json!({})), Load::default());
        // 7 of the third replica.
        let (one, other) = (Load { own: 3, others: 9 }, Load { own: 2, others: 10 });
        assert!((of_third(one, other) - 7.0).abs() < f64::EPSILON);
    }

    #[test]
    fn responses_are_counted_over_flows() {
        let page = "llm_d_epp_request_input_tokens_sum{a=\"x y\"} 300\n\
                    llm_d_epp_request_input_tokens_sum{a=\"z\"} 100\n\
                    llm_d_epp_request_input_tokens_count{a=\"z\"} 4\n\
                    llm_d_epp_request_cached_tokens_sum{a=\"z\"} 100\n\
                    llm_d_epp_request_cached_tokens_count{a=\"z\"} 99\n";
        let served = Served::read(page);
        assert_eq!(served, Served { responses: 4.0, prompt: 400.0, cached: 100.0 });
        assert!((served.hit_percent() - 25.0).abs() < f64::EPSILON);
        assert_eq!(served.since(served), Served::default());
        assert_eq!(served.and(Served::default()), served);
        assert!(Served::read("").hit_percent().abs() < f64::EPSILON);
    }

    #[test]
    fn blocks_of_others_are_those_imported() {
        let page = |result| format!("usher_replicas_prefix_blocks_total{{result=\"{result}\"}} 7\n");
        let found = ["sent", "imported"].map(|result| imported(&page(result)));
        assert!((found[0].abs(), (found[1] - 7.0).abs()) < (f64::EPSILON, f64::EPSILON), "{found:?}");
    }

    #[test]
    fn replica_is_connected_with_load_and_prefixes() {
        let both = "usher_state_store_connected 1\nusher_replicas_prefix_connected 1\n";
        assert!(is_connected(both));
        assert!(!is_connected(&both.replace("prefix_connected 1", "prefix_connected 0")));
        assert!(!is_connected(""));
    }
}
