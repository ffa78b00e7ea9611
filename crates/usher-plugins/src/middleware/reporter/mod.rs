//! `request-attribute-reporter`: sends the gateway numbers about a request once its
//! response is complete, computed from the tokens that it used.

mod check;
mod expression;
mod params;

use std::sync::Arc;

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use usher_core::config::ConfigError;
use usher_core::metrics::register;
use usher_core::request::usage::Usage;
use usher_plugin::{
    Attribute, Build, BuildContext, Context, Decision, Effects, Kind, PluginParts, PluginType, PreRequest,
    ResponseObserver, beta,
};

use expression::{Expression, Failure, Variables};
pub use params::ReporterParams;
use params::{AttributeParams, Written};

/// `request-attribute-reporter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("request-attribute-reporter", &[Kind::Response],
    "Sends the gateway attributes that are computed from a request's token usage.",
    Build::Reading(build)).takes::<Written>()
    .when("The gateway bills or limits by what a request cost.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = ReporterParams::decode(cx.parameters)?;
    let metrics = cx.family(ReporterMetrics::register)?;
    let plugin = Arc::new(RequestAttributeReporter::new(&params, cx.name, &metrics));
    Ok(PluginParts { pre_request: Some(plugin), ..PluginParts::with(&params)? })
}

/// Computes attributes from the usage of every response that says what it used.
#[derive(Debug)]
pub struct RequestAttributeReporter {
    attributes: Arc<[Reported]>,
}

/// One attribute.
#[derive(Debug)]
struct Reported {
    namespace: Arc<str>,
    name: Arc<str>,
    expression: Expression,
    condition: Option<Expression>,
    failures: IntCounter,
}

impl RequestAttributeReporter {
    /// A reporter of these attributes, counted under the plugin's name.
    pub fn new(params: &ReporterParams, plugin: &str, metrics: &ReporterMetrics) -> Self {
        let reported = params.attributes.iter().map(|AttributeParams { key, expression, condition }| {
            let label = format!("{}/{}", key.namespace, key.name);
            Reported {
                namespace: key.namespace.as_str().into(),
                name: key.name.as_str().into(),
                expression: expression.clone(),
                condition: condition.clone(),
                failures: metrics.failures.with_label_values(&[plugin, &label]),
            }
        });
        Self { attributes: reported.collect() }
    }
}

impl PreRequest for RequestAttributeReporter {
    fn decided(&self, cx: &Context<'_>, _decision: &Decision, effects: &mut Effects) {
        let request_id = tracing::enabled!(tracing::Level::DEBUG).then(|| cx.request.id().into_owned());
        effects.observe(Reporting { attributes: Arc::clone(&self.attributes), request_id });
    }
}

/// Waits for the end of one response.
struct Reporting {
    attributes: Arc<[Reported]>,
    /// Id of the request, where failures are logged.
    request_id: Option<String>,
}

impl ResponseObserver for Reporting {
    fn response_complete(&mut self, usage: &Usage, out: &mut Vec<Attribute>) {
        if *usage == Usage::default() {
            // The response doesn't say what it used, so there is nothing to compute with.
            return;
        }
        let variables = Variables::of(usage);
        for reported in self.attributes.iter() {
            match reported.value(&variables) {
                // Nothing to report: as llm-d-router, which leaves out what is 0.
                Ok(None | Some(0)) => {}
                Ok(Some(value)) => out.push(Attribute {
                    namespace: Arc::clone(&reported.namespace),
                    name: Arc::clone(&reported.name),
                    value: value as f64,
                }),
                Err(failure) => {
                    reported.failures.inc();
                    let request_id = self.request_id.as_deref();
                    tracing::debug!(request_id, attribute = %reported.name, %failure, "attribute not computed");
                }
            }
        }
    }
}

impl Reported {
    /// The value; `None` where the condition does not hold.
    fn value(&self, variables: &Variables) -> Result<Option<i64>, Failure> {
        if let Some(condition) = &self.condition
            && !condition.holds(variables)?
        {
            return Ok(None);
        }
        self.expression.number(variables).map(Some)
    }
}

/// Metrics of the reporters.
#[derive(Debug)]
pub struct ReporterMetrics {
    failures: IntCounterVec,
}

impl ReporterMetrics {
    /// Registers the family.
    ///
    /// # Errors
    /// `prometheus::Error` if the metric's name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let failures = Opts::new(
            "usher_reporter_failures_total",
            "Responses for which an attribute could not be computed, by plugin and attribute.",
        );
        let failures = IntCounterVec::new(failures, &["plugin_name", "attribute"])?;
        Ok(Self { failures: register(registry, failures, None)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::config::Node;

    /// The attributes that are reported for a usage, and how many failed.
    fn reported(params: &str, usage: &Usage) -> (Vec<(String, f64)>, u64) {
        let params = ReporterParams::decode(&Node::parse(params).unwrap()).unwrap();
        let metrics = ReporterMetrics::register(&Registry::new()).unwrap();
        let reporter = RequestAttributeReporter::new(&params, "cost", &metrics);
        let mut out = Vec::new();
        Reporting { attributes: Arc::clone(&reporter.attributes), request_id: None }
            .response_complete(usage, &mut out);
        let failures = reporter.attributes.iter().map(|reported| reported.failures.get()).sum();
        (out.into_iter().map(|a| (format!("{}/{}", a.namespace, a.name), a.value)).collect(), failures)
    }

    fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> Usage {
        Usage { prompt_tokens: Some(prompt), completion_tokens: Some(completion), cached_tokens: cached }
    }

    #[test]
    fn attributes_follow_their_expressions_and_conditions() {
        let params = "
attributes:
- key: {name: cost}
  expression: usage.prompt_tokens + usage.completion_tokens * 4.0
  condition: usage.completion_tokens > 3.0
- key: {namespace: my.ns, name: cached}
  expression: usage.prompt_tokens_details.cached_tokens
";
        let table = [
            (usage(3, 5, None), vec![("envoy.lb/cost", 23.0)], 1),
            (usage(3, 5, Some(2)), vec![("envoy.lb/cost", 23.0), ("my.ns/cached", 2.0)], 0),
            (usage(3, 2, Some(2)), vec![("my.ns/cached", 2.0)], 0),
            (usage(3, 2, Some(0)), vec![], 0),
            // Nothing was used that anybody knows of, and so nothing failed.
            (Usage::default(), vec![], 0),
        ];
        for (usage, expected, failures) in table {
            let expected: Vec<_> =
                expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            assert_eq!(reported(params, &usage), (expected, failures), "{usage:?}");
        }
    }
}
