//! Predictions of the latency model, with configured constants that are wrong.

use std::time::Duration;

use usher::config::EndpointPickerConfig;
use usher::replay::{Case, Cell, Policy, Workload, run};
use usher::schedule::latency::{BandAccuracy, Report};
use usher::sim::{Dialect, ModelKind};

/// Predictions in a load band that say something.
const ENOUGH: u64 = 200;

/// About what a drawn engine of the model `prefill-first` with the seed of the tests computes, in
/// prompt tokens per second.
const RATE: f64 = 18_000.0;

fn config(rate: f64) -> EndpointPickerConfig {
    EndpointPickerConfig::parse(&format!(
        "
plugins:
- type: approx-prefix-cache-producer
- type: expected-latency-scorer
  parameters: {{peakPrefillThroughput: {rate}}}
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: expected-latency-scorer
  - pluginRef: max-score-picker
"
    ))
    .unwrap()
}

/// Report on learning and predictions on servers of the model `prefill-first`, and the median time
/// per output token there, in seconds.
fn replayed(case: Workload, utilization: f64, rate: f64, streams: bool) -> (Report, f64) {
    replayed_on(Dialect::Vllm, case, utilization, rate, streams)
}

/// The same on servers with the histograms of another engine.
fn replayed_on(
    dialect: Dialect,
    case: Workload,
    utilization: f64,
    rate: f64,
    streams: bool,
) -> (Report, f64) {
    let cell = Cell { case: Case::Equal(case), engine: ModelKind::PrefillFirst, utilization, seed: 1 };
    let limits = (Duration::from_secs(2), Duration::from_millis(50));
    let policies = vec![("learning".to_owned(), Policy::Configured(Some(Box::new(config(rate)))))];
    let mut settings = cell.settings(policies, &[], limits);
    (settings.streams, settings.dialect) = (streams, dialect);
    let comparison = run(&settings, |_| {}).unwrap();
    let summary = &comparison.policies[0];
    (summary.latency.clone().unwrap(), summary.tpot.unwrap().p50_s)
}

fn enough(bands: &[BandAccuracy]) -> Vec<BandAccuracy> {
    bands.iter().copied().filter(|band| band.predictions >= ENOUGH).collect()
}

#[test]
fn times_are_predicted_at_every_load() {
    for (utilization, wrong) in [(0.4, 3.0), (0.7, 1.0 / 3.0)] {
        let (report, _) = replayed(Workload::HalfShared, utilization, RATE * wrong, true);
        for (time, bands) in [("ttft", &report.prediction.ttft), ("tpot", &report.prediction.tpot)] {
            let bands = enough(bands);
            assert!(bands.len() >= 3, "{utilization} {time}: {bands:?}");
            for band in bands {
                assert!(band.median_error <= 0.15, "{utilization} {time}: {band:?}");
                // Within 85 to 95 %, and the standard error of a share of so few.
                let error = (0.9 * 0.1 / band.predictions as f64).sqrt();
                let range = 0.85 - error..=0.95 + error;
                assert!(range.contains(&band.p90_coverage), "{utilization} {time}: {band:?}");
            }
        }
        let group = &report.groups[0];
        assert!(group.is_far(), "the configured value is reported as wrong: {group:?}");
    }
}

#[test]
fn unstreamed_responses_lead_to_equal_speeds() {
    let (streams, _) = replayed(Workload::HalfShared, 0.5, RATE, true);
    for (dialect, wrong) in [
        (Dialect::Vllm, 3.0),
        (Dialect::Vllm, 1.0 / 3.0),
        (Dialect::TrtllmServe, 3.0),
        (Dialect::TrtllmServe, 1.0 / 3.0),
    ] {
        let (whole, tpot) = replayed_on(dialect, Workload::HalfShared, 0.5, RATE * wrong, false);
        assert!(whole.prediction.ttft.is_empty(), "no first token was seen: {whole:?}");
        let (whole, streams) = (&whole.groups[0], &streams.groups[0]);
        let ratio = whole.prefill_throughput / streams.prefill_throughput;
        assert!((0.8..1.25).contains(&ratio), "{dialect:?} {wrong}: {whole:?}, not {streams:?}");
        // An endpoint has about 20 requests, with 2,000 tokens each.
        let batch = 20.0 * whole.output_token_per_request_s + 4e4 * whole.output_token_per_cached_token_s;
        let ratio = (whole.output_token_s + batch) / tpot;
        assert!((0.7..1.4).contains(&ratio), "{dialect:?} {wrong}: {whole:?}, not {tpot}");
    }
}
