//! Predicted and actual hits on Usher's page of metrics.

use serde::Serialize;

/// Families of the producers, by what they count. The first that is there counts: by KV events Usher decides if it has some.
const PREDICTED: [&str; 2] =
    ["usher_precise_prefix_predicted_tokens_total{", "usher_prefix_index_predicted_tokens_total{"];
const CACHED: [&str; 2] =
    ["usher_precise_prefix_cached_tokens_total{", "usher_prefix_index_cached_tokens_total{"];

/// Tokens of prompts, over all requests so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Hits {
    /// Tokens that were predicted to be in the chosen server's cache.
    pub(super) predicted: f64,
    /// Tokens that were.
    pub(super) cached: f64,
}

impl Hits {
    /// Reads the page. What is not there is 0.
    pub(super) fn read(text: &str) -> Self {
        let sum = |families: &[&str]| {
            let of = |family: &&str| text.lines().filter(|line| line.starts_with(family)).collect();
            let lines: Vec<&str> =
                families.iter().map(of).find(|of: &Vec<&str>| !of.is_empty()).unwrap_or_default();
            lines.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        Self { predicted: sum(&PREDICTED), cached: sum(&CACHED) }
    }

    /// Hits since others were read.
    pub(super) fn since(self, before: Self) -> Self {
        Self { predicted: self.predicted - before.predicted, cached: self.cached - before.cached }
    }
}

/// Returns `true` if the page says that the KV events of a server are heard.
pub(super) fn hears(text: &str, server: &str) -> bool {
    let endpoint = format!("endpoint=\"default/{server}\"");
    let of_server =
        text.lines().find(|line| line.starts_with("usher_kv_events_known{") && line.contains(&endpoint));
    of_server.is_some_and(|line| !line.ends_with(" 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_heard_or_not() {
        let known = |server: u8, value: u8| {
            format!("usher_kv_events_known{{endpoint=\"default/sim-{server}\",plugin_name=\"p\"}} {value}\n")
        };
        let page = [known(1, 0), known(10, 2), known(2, 1)].concat();
        let heard = ["sim-1", "sim-10", "sim-2", "sim-3"].map(|server| hears(&page, server));
        assert_eq!(heard, [false, true, true, false]);
    }

    #[test]
    fn either_producer_counts() {
        let approximate = "usher_prefix_index_predicted_tokens_total{plugin_name=\"a\"} 7\n\
                           usher_prefix_index_cached_tokens_total{plugin_name=\"a\"} 5\n\
                           usher_prefix_index_bytes{plugin_name=\"a\"} 99\n";
        let precise = approximate.replace("prefix_index", "precise_prefix");
        for page in [approximate, &precise] {
            assert_eq!(Hits::read(page), Hits { predicted: 7.0, cached: 5.0 });
        }
        let both = approximate.replace(" 7", " 9") + &precise;
        assert_eq!(Hits::read(&both), Hits { predicted: 7.0, cached: 5.0 });
        assert_eq!(Hits::read(""), Hits::default());
        let before = Hits { predicted: 3.0, cached: 1.0 };
        assert_eq!(Hits::read(approximate).since(before), Hits { predicted: 4.0, cached: 4.0 });
    }
}
