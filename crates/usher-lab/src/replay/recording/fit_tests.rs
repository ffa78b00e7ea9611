//! Fits to recordings of simulated servers with known constants.

use std::sync::Arc;
use std::time::Duration;

use usher_core::config::ConfigError;
use usher_core::recording::{Line, Outcome, RequestLine};

use super::tests::{FILE, endpoint, header, of, request, text};
use super::*;
use crate::replay::configured::{Build, BuildError};
use crate::replay::{
    Interconnect, Picker, Policy, Reading, RequestOutcomes, Requests, Server, Workload, World, utilize,
};
use crate::sim::{Dialect, EngineConfig, ModelKind};

/// A recording that these servers, one of two times slower, write under a policy.
fn production(
    engine: &EngineConfig,
    servers: usize,
    share: f64,
    delay: Duration,
) -> (Recording, RequestOutcomes) {
    let mut servers = Server::equal(servers, engine);
    if let Some(last) = servers.last_mut() {
        last.slow_down(2.0);
    }
    let mut arrivals = Workload::HalfShared.arrivals(700, 1, 3);
    utilize(&mut arrivals, &servers, share).unwrap();
    let requests = Arc::new(Requests::new(&arrivals, &servers, true));
    let (interval, max_age) = (Duration::from_millis(50), Duration::from_secs(2));
    let reading = Reading { interval, max_age, dialect: Dialect::default() };
    let no_build: &Build<'_> = &|_, _, _, _| Err(BuildError::Config(ConfigError::new("no")));
    let (picker, _) = Picker::new(&Policy::Random, &servers, reading, 5, no_build).unwrap();
    let world = World::new(picker, &servers, Interconnect::default(), requests).unwrap();
    let outcomes = world.with_gateway_delay(delay).run(|| ());
    let mut written = vec![Line::Header(header("r"))];
    written.extend((0u32..).zip(&servers).map(|(id, _)| endpoint(id)));
    for outcome in &outcomes.requests {
        let us = |time: Option<Duration>| u64::try_from(time.unwrap().as_micros()).unwrap();
        let recorded = Outcome {
            status: Some(200),
            first_token_us: Some(us(outcome.first)),
            total_us: us(outcome.last),
            prompt_tokens: Some(outcome.prompt_tokens.into()),
            cached_tokens: Some(outcome.cached_tokens.into()),
            output_tokens: Some(outcome.output_tokens.into()),
            ..Outcome::default()
        };
        let line = request(
            us(Some(outcome.arrived)),
            outcome.server.unwrap() as u32,
            outcome.prompt_tokens.into(),
            &[],
        );
        written.push(of(RequestLine { outcome: Some(recorded), ..line }));
    }
    (Recording::parse(FILE, text(&written).as_bytes()).unwrap(), outcomes)
}

const GIVEN: Constants =
    Constants { prefill_rate: 15_928.0, decode_step_ms: 8.0, batch_factor: 0.01, delay_ms: 0.0 };

#[test]
fn fit_recovers_the_constants_of_the_engines() {
    let engine = EngineConfig {
        prefill_tokens_per_second: 6000.0,
        decode_step: Duration::from_millis(21),
        batch_factor: 0.04,
        ..EngineConfig::default()
    };
    let (recording, outcomes) = production(&engine, 4, 0.6, Duration::from_millis(15));
    assert_eq!(recording.outcomes().requests.len(), outcomes.requests.len());
    let mut servers = recording.servers(&EngineConfig::default());
    let fit = fit(&recording, &mut servers, &Interconnect::default(), GIVEN, Fixed::default());
    assert_eq!(fit.unfitted, None);
    let Constants { prefill_rate, decode_step_ms, batch_factor, delay_ms } = fit.constants;
    let near = |found: f64, wanted: f64, share: f64| (found / wanted - 1.0).abs() < share;
    assert!(near(prefill_rate, 6000.0, 0.03), "{fit:?}");
    assert!(near(decode_step_ms, 21.0, 0.03), "{fit:?}");
    assert!(near(batch_factor, 0.04, 0.1), "{fit:?}");
    assert!((delay_ms - 15.0).abs() < 10.0, "{fit:?}");
    assert_eq!(fit.slower.len(), 1, "{fit:?}");
    assert!(near(fit.slower[0].slower, 2.0, 0.03) && fit.slower[0].server.ends_with("pod-3"), "{fit:?}");
    assert!(fit.ttft_error.unwrap() < 0.1 && fit.tpot_error.unwrap() < 0.05, "{fit:?}");
}

#[test]
fn other_engine_models_are_fitted_from_another_seed() {
    for kind in [ModelKind::ChunkedPrefill, ModelKind::PrefillFirst] {
        let mut engine = EngineConfig::drawn(kind, 3);
        engine.slow_down(2.5);
        let (mut recording, _) = production(&engine, 4, 0.6, Duration::from_millis(15));
        recording.requests.truncate(300);
        let fit = fitted(&recording, &EngineConfig::drawn(kind, 8));
        assert_eq!(fit.unfitted, None, "{fit:?}");
        assert!(fit.ttft_error.unwrap() < 0.15 && fit.tpot_error.unwrap() < 0.1, "{kind}: {fit:?}");
    }
}

#[test]
fn given_constants_stay_and_few_requests_are_not_fitted() {
    let engine = EngineConfig { prefill_tokens_per_second: 6000.0, ..EngineConfig::default() };
    let (mut recording, _) = production(&engine, 2, 0.5, Duration::ZERO);
    let mut servers = recording.servers(&EngineConfig::default());
    let fixed = Fixed { decode_step: true, ..Fixed::default() };
    let given = Constants { decode_step_ms: 50.0, ..GIVEN };
    let fitted = fit(&recording, &mut servers, &Interconnect::default(), given, fixed);
    assert_eq!(fitted.constants.decode_step_ms, 50.0);
    assert!(fitted.tpot_error.unwrap() > 0.2, "a wrong constant shows: {fitted:?}");
    recording.requests.truncate(40);
    let few = fit(&recording, &mut servers, &Interconnect::default(), GIVEN, Fixed::default());
    assert_eq!((few.constants, few.measured, few.slower.len()), (GIVEN, 40, 0));
    assert!(few.unfitted.unwrap().starts_with("40 streamed responses have measured times"));
}

/// Sixty requests to one server with this outcome, an hour apart.
fn recorded(prompt_tokens: u64, outcome: &Outcome) -> Recording {
    let line = |n: u64| RequestLine {
        outcome: Some(outcome.clone()),
        ..request(n * 3_600_000_000, 0, prompt_tokens, &[])
    };
    let lines: Vec<Line> =
        [Line::Header(header("r")), endpoint(0)].into_iter().chain((0..60).map(|n| of(line(n)))).collect();
    Recording::parse(FILE, text(&lines).as_bytes()).unwrap()
}

fn fitted(recording: &Recording, engine: &EngineConfig) -> Fit {
    let mut servers = recording.servers(engine);
    fit(recording, &mut servers, &Interconnect::default(), GIVEN, Fixed::default())
}

#[test]
fn picks_that_engines_refuse_are_not_fitted() {
    let outcome = Outcome {
        first_token_us: Some(100_000),
        total_us: 300_000,
        output_tokens: Some(21),
        ..Outcome::default()
    };
    let mut recording = recorded(1000, &outcome);
    let good = fitted(&recording, &EngineConfig::default());
    assert_eq!(
        (good.unfitted.as_deref(), good.replayed, good.refused, good.is_poor),
        (None, 60, 0, false),
        "{good:?}"
    );
    // Its caches hold 800 tokens.
    recording.members[0].num_blocks = Some(50);
    let none = fitted(&recording, &EngineConfig::default());
    assert!(
        none.unfitted.as_ref().unwrap().starts_with("the engines refuse 60 of 60 recorded picks"),
        "{none:?}"
    );
    assert_eq!((none.constants, none.replayed, none.refused), (GIVEN, 60, 60));
    assert_eq!((none.ttft_error, none.tpot_error, none.is_poor), (None, None, true));
    // A third of them count as errors.
    for request in &mut recording.requests[..40] {
        request.prompt_tokens = 100;
    }
    let some = fitted(&recording, &EngineConfig::default());
    assert_eq!((some.unfitted.as_deref(), some.replayed, some.refused), (None, 60, 20), "{some:?}");
    assert!(some.ttft_error.is_some() && !some.is_poor, "{some:?}");
}

#[test]
fn impossible_times_are_a_poor_fit() {
    // Slower with every request, by nothing that the model knows, up to days.
    let outcome = Outcome { output_tokens: Some(200), ..Outcome::default() };
    let mut recording = recorded(2, &outcome);
    for (n, request) in (0u32..).zip(&mut recording.requests) {
        let outcome = request.outcome.as_mut().unwrap();
        outcome.first_token_us = Some(10 * 3u64.pow(n / 3));
        outcome.total_us = 20 * 3u64.pow(n / 3);
    }
    let fit = fitted(&recording, &EngineConfig::default());
    let Constants { prefill_rate, decode_step_ms, batch_factor, delay_ms } = fit.constants;
    assert!((1.0..=1e7).contains(&prefill_rate) && (0.01..=10_000.0).contains(&decode_step_ms), "{fit:?}");
    assert!((0.0..=1.0).contains(&batch_factor) && (0.0..=60_000.0).contains(&delay_ms), "{fit:?}");
    assert!(fit.is_poor && fit.unfitted.is_none(), "{fit:?}");
}
