//! `GET /latency` on the admin port: what the latency model has learned, and how well it
//! predicts.

use crate::schedule::latency::Model;

/// The page as JSON; `null` where no plugin uses the model.
pub fn page(model: Option<&Model>) -> String {
    // Text and finite numbers always serialise.
    serde_json::to_string_pretty(&model.map(Model::report)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::Clock;

    #[test]
    fn a_model_shows_its_configuration_and_a_missing_one_null() {
        assert_eq!(page(None), "null");
        let model = Model::new(2000.0, Clock::stopped());
        let page: serde_json::Value = serde_json::from_str(&page(Some(&model))).unwrap();
        assert_eq!(page["peak_prefill_throughput"], 2000.0);
        assert_eq!(page["prediction"], serde_json::json!({"ttft": [], "tpot": []}));
    }
}
