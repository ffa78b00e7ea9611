//! Sources of the numbers that a configuration names: from a metrics page into an
//! endpoint's load, and what is refused of a configuration.

use std::sync::Arc;

use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::{ConfigError, EndpointPickerConfig};
use usher::endpoints::{AttributeId, Candidates, Endpoint, Reading};
use usher::registry::Pipeline;
use usher::schedule::{Record, SchedulerMetrics, Scratch, State};
use usher::scrape::{Engines, Readings};

use crate::support::{MAX_AGE, NOW, candidates, fresh, with_context};

fn id() -> AttributeId {
    AttributeId::new(2).unwrap()
}

#[test]
fn readings_are_found_by_name() {
    let all = candidates(&[(fresh(4.0), fresh(0.5))]);
    all.view().get(0).load().running.set(7.0, NOW);
    all.view().get(0).load().attribute(id()).set(9.0, NOW);
    let table = [("WaitingQueueSize", 4.0), ("RunningRequestsSize", 7.0), ("KVCacheUsagePercent", 0.5)];
    for (name, value) in table {
        let reading = Reading::named(name).unwrap();
        assert_eq!(all.view().get(0).load().reading(reading).fresh(NOW, MAX_AGE), Some(value), "{name}");
    }
    assert_eq!(Reading::named("waitingQueueSize"), None);
    assert_eq!(all.view().get(0).load().reading(Reading::Attribute(id())).last(), 9.0);
}

fn build(text: &str, state: &State) -> Result<Pipeline, ConfigError> {
    let config = EndpointPickerConfig::parse(text)?;
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    Pipeline::build(Some(&config), true, &metrics, state)
}

const CONFIG: &str = "
plugins:
- type: core-metrics-extractor
  parameters:
    engineConfigs:
    - name: vllm
      customMetrics:
      - {attributeKey: hot, metricSpec: 'gpu_temperature{gpu=\"0\"}'}
      - {attributeKey: errors, metricSpec: errors}
    - name: mine
      queuedRequestsSpec: my_queue
      customMetrics: [{attributeKey: hot, metricSpec: degrees}]
- type: endpoint-attribute-filter
  parameters:
    attribute: WaitingQueueSize
    onMissing: Fail
    fallbackOnEmpty: true
    algorithm: {threshold: {operator: LessThan, value: 10}}
- type: endpoint-attribute-scorer
  parameters: {attributeKey: hot, algorithm: {type: linear_lower_is_better}}
";

/// Reads a page into an endpoint's load, as a scrape does.
fn scrape(engines: &Engines, endpoint: &Arc<Endpoint>, page: &str) {
    let engine = engines.of(endpoint);
    let mut readings = Readings::new(Arc::clone(engine));
    engine.wanted().scan(page.as_bytes(), |metric, line| readings.take(metric, line));
    readings.apply(endpoint.load(), NOW);
}

fn pick(pipeline: &Pipeline, candidates: &Candidates) -> String {
    let mut rng = StdRng::seed_from_u64(1);
    with_context(|cx| {
        let decision =
            pipeline.scheduler.decide(cx, candidates, &mut rng, &mut Scratch::default(), Record::No).unwrap();
        decision.primary_endpoint().name().to_owned()
    })
}

#[test]
fn scraped_attribute_decides_and_survives_a_reload() {
    let state = State::default();
    let pipeline = build(CONFIG, &state).unwrap();
    let engines = &pipeline.sources[0].engines[0];
    let all = candidates(&[(fresh(1.0), None), (fresh(1.0), None), (fresh(50.0), None)]);
    let endpoints = all.snapshot().endpoints();
    scrape(engines, &endpoints[0], "gpu_temperature{gpu=\"1\"} 20\ngpu_temperature{gpu=\"0\"} 80\n");
    scrape(engines, &endpoints[1], "gpu_temperature{gpu=\"0\"} 70\nerrors 3\n");
    scrape(engines, &endpoints[2], "gpu_temperature{gpu=\"0\"} 60\n");
    assert_eq!(pick(&pipeline, &all), "pod-1", "the coolest has too long a queue");

    // The attributes in another order, another one first, and no extractor of that type's name.
    let reloaded = "
plugins:
- {type: endpoint-attribute-scorer, parameters: {attributeKey: errors, algorithm: {type: linear_higher_is_better}}}
- type: core-metrics-extractor
  parameters:
    engineConfigs:
    - {name: sglang, customMetrics: [{attributeKey: new, metricSpec: new}, {attributeKey: errors, metricSpec: errors}]}
";
    let reloaded = build(reloaded, &state).unwrap();
    endpoints[0].load().attribute(id()).set(100.0, NOW);
    assert_eq!(pick(&reloaded, &all), "pod-1", "only this one has errors");
}

#[test]
fn resolved_plugins_show_attributes_and_producers() {
    let pipeline = build(CONFIG, &State::default()).unwrap();
    let of = |name: &str| pipeline.resolved.plugins.iter().find(|plugin| plugin.name == name).unwrap();
    let scorer = of("endpoint-attribute-scorer");
    let expected = serde_json::json!({
        "attributeKey": "hot",
        "producer": "core-metrics-extractor",
        "algorithm": {"type": "linear_lower_is_better", "normalization": {"adaptiveRange": {}}},
    });
    assert_eq!(scorer.parameters, expected);
    assert_eq!(scorer.reads[0].producer, "core-metrics-extractor");
    let expected = serde_json::json!({
        "attribute": "WaitingQueueSize",
        "producer": "core-metrics-extractor",
        "onMissing": "Fail",
        "fallbackOnEmpty": true,
        "algorithm": {"type": "threshold", "threshold": {"operator": "LessThan", "value": 10.0}},
    });
    assert_eq!(of("endpoint-attribute-filter").parameters, expected);
    let extractor = &of("core-metrics-extractor");
    let metric = &extractor.parameters["engineConfigs"][0]["customMetrics"][0]["metricSpec"];
    assert_eq!(metric, "gpu_temperature{gpu=\"0\"}");
    assert_eq!(extractor.produces.len(), 1);
}

#[test]
fn attribute_without_a_producer_is_refused() {
    let scorer = |rest: &str| {
        format!(
            "- {{name: s, type: endpoint-attribute-scorer, parameters: {{algorithm: {{type: linear_lower_is_better}}, {rest}}}}}\n"
        )
    };
    let extractor = "- {name: mine, type: core-metrics-extractor, parameters: {engineConfigs: [{name: a, customMetrics: [{attributeKey: hot, metricSpec: m}]}]}}\n";
    let table = [
        (
            format!("plugins:\n{}", scorer("attributeKey: hot")),
            "plugin 's': it reads the attribute 'hot' of the plugin 'core-metrics-extractor', which doesn't have it",
            "it has: WaitingQueueSize, RunningRequestsSize, KVCacheUsagePercent",
        ),
        (
            format!("plugins:\n{}", scorer("attributeKey: WaitingQueueSiz")),
            "which doesn't have it",
            "did you mean `WaitingQueueSize`?",
        ),
        (
            format!("plugins:\n{}{extractor}", scorer("attributeKey: hat, producer: mine")),
            "which doesn't have it",
            "did you mean `hot`?",
        ),
        (
            format!("plugins:\n{}", scorer("attributeKey: hot, producer: mine")),
            "from the plugin 'mine', which is not declared",
            "declare it",
        ),
        (
            format!(
                "plugins:\n- {{name: mine, type: queue-scorer}}\n{}",
                scorer("attributeKey: hot, producer: mine")
            ),
            "of the plugin 'mine', which doesn't have it",
            "name a plugin that has attributes",
        ),
        (
            format!(
                "dataLayer: {{injectDefaults: false}}\nplugins:\n{}",
                scorer("attributeKey: WaitingQueueSize")
            ),
            "from the plugin 'core-metrics-extractor', which is not declared",
            "declare it",
        ),
    ];
    for (text, message, hint) in table {
        let error = build(&text, &State::default()).unwrap_err();
        assert!(error.message().contains(message), "{text}\n{error}");
        assert!(error.hint_text().unwrap().contains(hint), "{text}\n{error}");
    }
    let declared = format!("plugins:\n{}{extractor}", scorer("attributeKey: hot, producer: mine"));
    let pipeline = build(&declared, &State::default()).unwrap();
    let note = "extractor 'mine' has no effect, as no data source lists it";
    assert!(pipeline.notes.iter().any(|text| text == note), "{:?}", pipeline.notes);
}

#[test]
fn attributes_are_bounded() {
    let metrics: Vec<String> =
        (0..=AttributeId::MAX).map(|number| format!("{{attributeKey: a{number}, metricSpec: m}}")).collect();
    let text = |count: usize| {
        let list = metrics[..count].join(", ");
        format!(
            "plugins:\n- {{type: core-metrics-extractor, parameters: {{engineConfigs: [{{name: a, customMetrics: [{list}]}}]}}}}\n"
        )
    };
    let state = State::default();
    assert!(build(&text(AttributeId::MAX), &state).is_ok());
    assert!(build(&text(AttributeId::MAX), &state).is_ok(), "the same ones again");
    let error = build(&text(AttributeId::MAX + 1), &state).unwrap_err();
    assert!(error.message().contains("16 attributes at most"), "{error}");
    assert!(error.hint_text().unwrap().contains("use fewer"), "{error}");
}

#[test]
fn parameters_are_strict() {
    let scorer = "endpoint-attribute-scorer";
    let filter = "endpoint-attribute-filter";
    let linear = "type: linear_lower_is_better";
    let range =
        |range: &str| format!("{{attributeKey: a, algorithm: {{{linear}, normalization: {{{range}}}}}}}");
    let threshold = |rest: &str| format!("{{attribute: a, algorithm: {{{rest}}}}}");
    // type, parameters, column within them, message, hint
    let table = [
        (scorer, "{}".to_owned(), 1, "'attributeKey' is missing", "name the number"),
        (scorer, "{attributeKey: ''}".to_owned(), 1, "'attributeKey' is missing", "name the number"),
        (
            scorer,
            "{attributeKey: a}".to_owned(),
            1,
            "'algorithm.type' is missing",
            "linear_lower_is_better or",
        ),
        (scorer, "{attributeKey: a, algorithm: {}}".to_owned(), 1, "'algorithm.type' is missing", "linear"),
        (scorer, "{attribute: a}".to_owned(), 2, "unknown field 'attribute'", "attributeKey"),
        (
            scorer,
            "{attributeKey: a, algorithm: {type: linear}}".to_owned(),
            37,
            "type: unknown value 'linear'",
            "known here: linear_lower_is_better, linear_higher_is_better",
        ),
        (
            scorer,
            range("fixedRange: {min: 2, max: 2}"),
            89,
            "fixedRange can't be from 2 to 2",
            "larger than min",
        ),
        (scorer, range("fixedRange: {max: -1}"), 89, "fixedRange can't be from 0 to -1", "larger than min"),
        (scorer, range("fixedRange: {max: .inf}"), 89, "fixedRange can't be from 0 to inf", "larger"),
        (scorer, range("fixedRange: {min: 2}"), 89, "'max' is missing", ""),
        (scorer, range("fixedRange: {max: 1}, adaptiveRange: {}"), 76, "both fixed and adaptive", "keep one"),
        (scorer, range("range: {}"), 77, "unknown field 'range'", "fixedRange, adaptiveRange"),
        (scorer, range("adaptiveRange: {min: 1}"), 93, "unknown field 'min'", "nothing can be set"),
        (filter, "{}".to_owned(), 1, "'attribute' is missing", "name the number"),
        (filter, "{attribute: a}".to_owned(), 1, "'algorithm.threshold' is missing", "{operator: LessThan"),
        (
            filter,
            "{attribute: a, onMissing: pass}".to_owned(),
            27,
            "onMissing: unknown value 'pass'",
            "`Pass`",
        ),
        (filter, threshold("type: ceiling"), 34, "type: unknown value 'ceiling'", "known here: threshold"),
        (filter, threshold("threshold: {value: 1}"), 39, "'operator' is missing", ""),
        (filter, threshold("threshold: {operator: LessThan}"), 39, "'value' is missing", ""),
        (
            filter,
            threshold("threshold: {operator: '<', value: 1}"),
            50,
            "operator: unknown value '<'",
            "known here: LessThan, LessThanOrEqual",
        ),
        (
            filter,
            threshold("threshold: {operator: Equal, value: .nan}"),
            64,
            "the threshold can't be NaN",
            "",
        ),
    ];
    for (plugin_type, parameters, column, message, hint) in table {
        let text = format!("plugins:\n- {{type: {plugin_type}, parameters: {parameters}}}\n");
        let error = build(&text, &State::default()).expect_err(&text);
        assert!(error.message().contains(message), "{text}\n{error}");
        assert!(error.hint_text().unwrap_or_default().contains(hint), "{text}\n{error}");
        let before = text.lines().nth(1).unwrap().find(&parameters).unwrap() as u32;
        let place = error.position().map(|place| (place.line, place.column));
        assert_eq!(place, Some((2, before + column)), "{text}\n{error}");
    }
}
