//! Capacity of servers, and demand on them: an estimate that no policy has a part in.
//!
//! The work of a request is that of the mean lengths on a server that has always enough to
//! do, as [`EngineConfig::work`](crate::sim::EngineConfig::work) estimates it for the model
//! of its engine, with no prefix in a cache: a server that finds prefixes does more. Where
//! servers share the work of requests it is as if each did whole ones.

use super::servers::Server;
use super::workload::{Arrival, speed_up};

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
    let capacity: f64 =
        servers.iter().map(|server| 1.0 / server.engine.work(mean.prompt, mean.prompt, mean.output)).sum();
    Some(rate / capacity)
}

/// Requests per second: those before the last moment, by the time that they took to come.
pub(super) fn offered_rate(arrivals: &[Arrival]) -> Option<f64> {
    let (first, last) = (arrivals.first()?.at, arrivals.last()?.at);
    let before = arrivals.partition_point(|arrival| arrival.at < last);
    (before > 0).then(|| before as f64 / (last - first).as_secs_f64())
}

/// Lets the requests come so fast that they ask for this share of what the servers can
/// do; see [`utilization`]. Returns how much faster that is; `None`, and nothing
/// changed, when it can't be done: all come at once, or work costs the servers nothing.
pub fn utilize(arrivals: &mut [Arrival], servers: &[Server], share: f64) -> Option<f64> {
    let now = utilization(arrivals, servers)?;
    let factor = share / now;
    if !factor.is_finite() || factor <= 0.0 {
        return None;
    }
    speed_up(arrivals, factor);
    Some(factor)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::trace::Row;
    use crate::replay::workload::{Piece, of_trace};
    use crate::sim::EngineConfig;

    const PROMPT: u32 = 1000;
    const OUTPUT: u32 = 50;

    fn arrivals(gap_ms: u64, together: u64) -> Vec<Arrival> {
        let at = |n: u64| Duration::from_millis(n / together * gap_ms);
        let prompt = |seed| Box::from([Piece { seed, tokens: PROMPT }]);
        (0..200)
            .map(|n| Arrival { at: at(n), prompt: prompt(n), output_tokens: OUTPUT, ..Arrival::default() })
            .collect()
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

    #[test]
    fn arrivals_are_scaled_to_a_share_of_the_capacity() {
        let row = |n: u64| Row {
            timestamp: n * 1000,
            input_length: 1000,
            output_length: 0,
            hash_ids: vec![n, n + 1000],
        };
        let rows: Vec<Row> = (0..101).map(row).collect();
        let mut arrivals = of_trace(&rows, 0);
        let servers = Server::equal(2, &EngineConfig::default());
        let factor = utilize(&mut arrivals, &servers, 0.7).unwrap();
        assert!((utilization(&arrivals, &servers).unwrap() - 0.7).abs() < 1e-6);
        assert!((arrivals[100].at.as_secs_f64() - 100.0 / factor).abs() < 1e-6);
        let mut together = arrivals[..1].to_vec();
        assert_eq!(utilize(&mut together, &servers, 0.7), None);
        let free = vec![Server::new("free".to_owned(), EngineConfig::instant())];
        assert_eq!(utilize(&mut arrivals, &free, 0.7), None);
    }
}
