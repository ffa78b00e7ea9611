//! How much servers can do, and how much is asked of them: an estimate that no policy
//! has a part in.
//!
//! A server that has always enough to do answers a request of mean length in
//!
//! ```text
//! prompt / prefill_rate + output * decode_step * (1 + batch_factor * (batch - 1)) / batch
//! ```
//!
//! seconds of its time, where `batch` is the largest that `max_running` and the KV cache
//! allow, and no prefix is found in a cache. That is exact for a full server of the
//! simulator; one that finds prefixes does more. Where servers share the work of requests
//! it is as if each did whole ones.

use super::servers::Server;
use super::workload::Arrival;
use crate::sim::EngineConfig;

/// Mean lengths of requests, in tokens.
#[derive(Clone, Copy, Debug)]
struct Mean {
    prompt: f64,
    output: f64,
}

/// The share of the servers' capacity that the arrivals ask for; above 1 they are
/// overloaded, whatever a policy does, unless prefixes are cached. `None` when all
/// requests come at once, or there is none.
pub fn utilization(arrivals: &[Arrival], servers: &[Server]) -> Option<f64> {
    let rate = offered_rate(arrivals)?;
    let count = arrivals.len() as f64;
    let sum = |tokens: fn(&Arrival) -> u32| arrivals.iter().map(|a| f64::from(tokens(a))).sum::<f64>();
    let mean = Mean {
        prompt: sum(Arrival::prompt_tokens) / count,
        output: sum(|arrival| arrival.output_tokens) / count,
    };
    let capacity: f64 = servers.iter().map(|server| 1.0 / work(&server.engine, mean)).sum();
    Some(rate / capacity)
}

/// Requests per second: those before the last moment, by the time that they took to come.
pub(super) fn offered_rate(arrivals: &[Arrival]) -> Option<f64> {
    let (first, last) = (arrivals.first()?.at, arrivals.last()?.at);
    let before = arrivals.partition_point(|arrival| arrival.at < last);
    (before > 0).then(|| before as f64 / (last - first).as_secs_f64())
}

/// Seconds that a full server takes for a request.
fn work(engine: &EngineConfig, mean: Mean) -> f64 {
    let fits = (f64::from(engine.num_blocks) * f64::from(engine.block_size)) / (mean.prompt + mean.output);
    let batch = fits.min(engine.max_running as f64).max(1.0);
    let step = engine.decode_step.as_secs_f64() * (1.0 + engine.batch_factor * (batch - 1.0));
    let rate = engine.prefill_tokens_per_second;
    let prefill = if rate > 0.0 { mean.prompt / rate } else { 0.0 };
    prefill + mean.output * step / batch
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::replay::workload::Piece;
    use crate::sim::{Engine, Finish, SimRequest};

    const PROMPT: u32 = 1000;
    const OUTPUT: u32 = 50;

    fn arrivals(gap_ms: u64, together: u64) -> Vec<Arrival> {
        let at = |n: u64| Duration::from_millis(n / together * gap_ms);
        let prompt = |seed| Box::from([Piece { seed, tokens: PROMPT }]);
        (0..200).map(|n| Arrival { at: at(n), prompt: prompt(n), output_tokens: OUTPUT }).collect()
    }

    #[test]
    fn a_full_engine_takes_as_long_as_estimated() {
        let engine = EngineConfig { jitter: 0.0, max_running: 64, ..EngineConfig::default() };
        let mut full = Engine::new(EngineConfig { max_waiting: 5000, ..engine.clone() }).unwrap();
        let count = 4000;
        for id in 0..count {
            let request = SimRequest {
                id,
                prompt_tokens: PROMPT,
                blocks: Vec::new(),
                output_tokens: OUTPUT,
                finish: Finish::Stop,
                adapter: None,
                kind: crate::sim::Kind::Whole,
            };
            full.arrive(request, Duration::ZERO).unwrap();
        }
        let mut outputs = Vec::new();
        while let Some(at) = full.next_event_at() {
            full.advance(at, &mut outputs);
        }
        let took = outputs.last().unwrap().at.as_secs_f64() / count as f64;
        let estimate = work(&engine, Mean { prompt: PROMPT.into(), output: OUTPUT.into() });
        assert!((took / estimate - 1.0).abs() < 0.03, "{took} s, estimated {estimate}");
    }

    #[test]
    fn utilization_is_work_by_time_of_all_servers() {
        let engine = EngineConfig {
            prefill_tokens_per_second: 1000.0,
            decode_step: Duration::ZERO,
            ..EngineConfig::default()
        };
        let slow = EngineConfig { prefill_tokens_per_second: 500.0, ..engine.clone() };
        let one = Server::new("one".to_owned(), engine);
        let two = Server::new("two".to_owned(), slow);
        // A second of work comes every two.
        assert_eq!(utilization(&arrivals(2000, 1), std::slice::from_ref(&one)), Some(0.5));
        // Four at a time, every eight seconds.
        assert_eq!(utilization(&arrivals(8000, 4), std::slice::from_ref(&one)), Some(0.5));
        let both = utilization(&arrivals(2000, 1), &[one, two]).unwrap();
        assert!((both - 0.5 / 1.5).abs() < 1e-9, "{both}");
        assert_eq!(utilization(&arrivals(0, 1), &[]), None, "all at once");
    }
}
