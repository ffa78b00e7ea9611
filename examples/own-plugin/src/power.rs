//! `example.com/power-scorer`: the more powerful an endpoint is, the better.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::ConfigError;
use usher_core::endpoints::{Endpoint, View};
use usher_plugin::{Build, BuildContext, Context, Kind, PluginParts, PluginType, Scorer, beta};

/// `example.com/power-scorer` in a configuration.
pub static TYPE: PluginType = beta(
    "example.com/power-scorer",
    &[Kind::Scorer],
    "The more powerful an endpoint is, by its label, the better: the most powerful scores 1.",
    Build::Reading(build),
)
.takes::<Params>()
.when("Pools with different GPUs.");

/// Parameters of `example.com/power-scorer`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
struct Params {
    /// The label with the power of an endpoint, a number.
    label: String,
}

impl Default for Params {
    fn default() -> Self {
        Self { label: "example.com/power".to_owned() }
    }
}

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    // Strict: unknown keys are errors, with line and column.
    let params: Params = cx.parameters.decode()?;
    // What `check` shows.
    let parts = PluginParts::with(&params)?;
    Ok(PluginParts { scorer: Some(Arc::new(PowerScorer { label: params.label })), ..parts })
}

/// Scores power / most, where most is the power of the strongest candidate. Endpoints whose power
/// isn't known score 0.
struct PowerScorer {
    label: String,
}

impl PowerScorer {
    fn power(&self, endpoint: &Endpoint) -> Option<f32> {
        let power: f32 = endpoint.label(&self.label)?.parse().ok()?;
        (power.is_finite() && power > 0.0).then_some(power)
    }
}

impl Scorer for PowerScorer {
    fn score(&self, _cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let mut most = 0.0;
        for (score, endpoint) in out.iter_mut().zip(candidates.iter()) {
            *score = self.power(endpoint).unwrap_or(0.0);
            most = f32::max(most, *score);
        }
        if most > 0.0 {
            out.iter_mut().for_each(|score| *score /= most);
        }
    }
}

#[cfg(test)]
mod tests {
    use usher_core::endpoints::EndpointSpec;
    use usher_core::request::Request;
    use usher_plugin::testing::Harness;

    use super::*;

    fn harness(label: &str, powers: &[&str]) -> Harness {
        let spec = |(number, power): (u8, &&str)| {
            let mut spec = EndpointSpec::new(format!("pod-{number}"), ([10, 0, 0, number], 8000));
            spec.labels.insert(label.to_owned(), (*power).to_owned());
            spec
        };
        Harness::new((0..).zip(powers).map(spec).collect())
    }

    #[test]
    fn the_most_powerful_endpoint_scores_one() {
        let table: [(&[&str], &[f32]); 4] = [
            (&["1", "4", "2"], &[0.25, 1.0, 0.5]),
            (&["1", "1"], &[1.0, 1.0]),
            (&["3", "much", "-1", "inf"], &[1.0, 0.0, 0.0, 0.0]),
            (&["", ""], &[0.0, 0.0]),
        ];
        for (powers, expected) in table {
            let mut harness = harness("example.com/power", powers);
            let scorer = harness.build(&TYPE, "{}").unwrap();
            assert_eq!(harness.scores(&scorer, &Request::default()).unwrap(), expected, "{powers:?}");
        }
    }

    #[test]
    fn its_parameters_are_documented() {
        let [label] = &(TYPE.parameters)()[..] else { panic!("one parameter") };
        assert_eq!((label.name.as_str(), label.default.as_str()), ("label", "example.com/power"));
        assert_eq!(label.meaning, "The label with the power of an endpoint, a number.");
    }

    #[test]
    fn the_label_can_be_another() {
        let mut harness = harness("gpu", &["1", "2"]);
        let scorer = harness.build(&TYPE, "{label: gpu}").unwrap();
        assert_eq!(harness.scores(&scorer, &Request::default()).unwrap(), [0.5, 1.0]);
        let error = harness.build(&TYPE, "{lable: gpu}").err().unwrap();
        assert!(error.message().contains("unknown field 'lable'"), "{error}");
    }
}
