//! Constants of a fit, as each model of an engine has them.
//!
//! Models but linear have more constants than times of requests tell apart, so those that were drawn keep their ratios:
//!
//! - costs of prompts (a token, its attention, the launch of a prefill) follow the prefill rate;
//! - costs of a step that don't depend on its requests follow the decode step;
//! - costs of each request in a step, one of them the keys and values of a context of mean length, follow the batch
//!   factor.

use std::time::Duration;

use super::constants::Constants;
use crate::replay::servers::Server;
use crate::sim::{ChunkedPrefill, EngineConfig, EngineModel, PrefillFirst};

/// Constants of an engine whose requests have so many tokens of context on average.
pub(super) fn constants_of(engine: &EngineConfig, context: f64, delay_ms: f64) -> Constants {
    let of = |seconds_per_token: f64, fixed: f64, each: f64| {
        let step = fixed + each;
        Constants {
            prefill_rate: 1.0 / seconds_per_token,
            decode_step_ms: step * 1e3,
            batch_factor: each / step,
            delay_ms,
        }
    };
    match &engine.model {
        EngineModel::Linear => Constants {
            prefill_rate: engine.prefill_tokens_per_second,
            decode_step_ms: engine.decode_step.as_secs_f64() * 1e3,
            batch_factor: engine.batch_factor,
            delay_ms,
        },
        EngineModel::ChunkedPrefill(model) => of(
            model.seconds_per_token,
            model.overhead + model.weight_read,
            model.request_overhead + context * model.kv_read,
        ),
        EngineModel::PrefillFirst(model) => {
            of(model.seconds_per_token, model.base, model.per_sequence + context * model.kv_read)
        }
    }
}

/// Gives a server, whose requests have so many tokens of context on average, these constants.
pub(super) fn apply(server: &mut Server, constants: &Constants, slower: f64, context: f64) {
    let engine = &mut server.engine;
    let rate = constants.prefill_rate.clamp(0.001, 1e12);
    let now = constants_of(engine, context, 0.0);
    let step = constants.decode_step_ms.max(0.0);
    // Shares of a step with one request: what it costs anyway, and what each request adds.
    let parts =
        |of: &Constants| (of.decode_step_ms * (1.0 - of.batch_factor), of.decode_step_ms * of.batch_factor);
    let wanted = Constants {
        decode_step_ms: step,
        batch_factor: constants.batch_factor.clamp(0.0, 1.0),
        ..*constants
    };
    let ((fixed, each), (fixed_now, each_now)) = (parts(&wanted), parts(&now));
    let times = |wanted: f64, now: f64| if now > 0.0 { wanted / now } else { 1.0 };
    let (prompts, fixed, each) = (now.prefill_rate / rate, times(fixed, fixed_now), times(each, each_now));
    match &mut engine.model {
        EngineModel::Linear => {
            let step = Duration::try_from_secs_f64(step / 1e3).unwrap_or(Duration::ZERO);
            // 0 is free.
            engine.prefill_tokens_per_second = if constants.prefill_rate == 0.0 { 0.0 } else { rate };
            engine.decode_step = step.min(Duration::from_secs(3600));
            engine.batch_factor = constants.batch_factor.clamp(0.0, 1000.0);
        }
        EngineModel::ChunkedPrefill(model) => {
            let ChunkedPrefill {
                overhead,
                request_overhead,
                seconds_per_token,
                attention_seconds,
                weight_read,
                kv_read,
            } = model;
            scale([seconds_per_token, attention_seconds], prompts);
            scale([overhead, weight_read], fixed);
            scale([request_overhead, kv_read], each);
        }
        EngineModel::PrefillFirst(model) => {
            let PrefillFirst {
                launch,
                seconds_per_token,
                attention_seconds,
                base,
                per_sequence,
                kv_read,
                ..
            } = model;
            scale([launch, seconds_per_token, attention_seconds], prompts);
            scale([base], fixed);
            scale([per_sequence, kv_read], each);
        }
    }
    if slower != 1.0 {
        server.slow_down(slower);
    }
}

/// Multiplies constants, up to an hour.
fn scale<const N: usize>(constants: [&mut f64; N], times: f64) {
    constants.into_iter().for_each(|constant| *constant = (*constant * times).min(3600.0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::ModelKind;

    #[test]
    fn engines_have_the_constants_that_they_were_given() {
        let wanted =
            Constants { prefill_rate: 5000.0, decode_step_ms: 20.0, batch_factor: 0.03, delay_ms: 4.0 };
        for kind in ModelKind::ALL {
            let [mut server] = Server::equal(1, &EngineConfig::drawn(kind, 3)).try_into().ok().unwrap();
            let unchanged = server.engine.clone();
            apply(&mut server, &constants_of(&unchanged, 900.0, 0.0), 1.0, 900.0);
            let near = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-6;
            let is_near = |one: &Constants, other: &Constants| {
                near(one.prefill_rate, other.prefill_rate)
                    && near(one.decode_step_ms, other.decode_step_ms)
                    && near(one.batch_factor, other.batch_factor)
            };
            let now = |server: &Server| constants_of(&server.engine, 900.0, 4.0);
            assert!(is_near(&now(&server), &constants_of(&unchanged, 900.0, 0.0)), "{kind}");
            apply(&mut server, &wanted, 1.0, 900.0);
            assert!(is_near(&now(&server), &wanted), "{kind}: {:?}", now(&server));
            apply(&mut server, &wanted, 2.0, 900.0);
            assert!(near(now(&server).decode_step_ms, 40.0), "{kind}");
            server.engine.validate().unwrap();
        }
    }

    #[test]
    fn free_prefill_stays_free() {
        let [mut server] = Server::equal(1, &EngineConfig::default()).try_into().ok().unwrap();
        let free = Constants { prefill_rate: 0.0, decode_step_ms: 8.0, batch_factor: 0.01, delay_ms: 0.0 };
        apply(&mut server, &free, 1.0, 900.0);
        assert_eq!(server.engine.prefill_tokens_per_second, 0.0);
        server.engine.validate().unwrap();
    }

    #[test]
    fn constants_at_range_ends_make_valid_engines() {
        let least =
            Constants { prefill_rate: 1.0, decode_step_ms: 10_000.0, batch_factor: 1.0, delay_ms: 0.0 };
        let most = Constants { prefill_rate: 1e7, decode_step_ms: 0.01, batch_factor: 0.0, delay_ms: 0.0 };
        for kind in ModelKind::ALL {
            for constants in [least, most] {
                let [mut server] = Server::equal(1, &EngineConfig::drawn(kind, 3)).try_into().ok().unwrap();
                apply(&mut server, &constants, 100.0, 1.0);
                server.engine.validate().unwrap();
                // What was 0 stays 0, and doesn't become infinite.
                apply(&mut server, &least, 1.0, 1.0);
                server.engine.validate().unwrap();
            }
        }
    }
}
