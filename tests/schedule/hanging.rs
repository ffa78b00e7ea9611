//! Endpoints that take requests and never respond, and those that are only slow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::endpoints::SubsetHint;
use usher::endpoints::health::{HealthParams, Verdict};
use usher::flow::Routed;
use usher::request::Request;
use usher::request::usage::Usage;
use usher::schedule::Served;

use crate::outliers::{BY_HEADER, BY_REQUESTS, ONLY, Pool, destination, request};

/// A request whose response may be a stream.
fn request_of(stream: bool) -> Request {
    let mut request = request(&[]);
    request.stream = stream;
    request
}

const BY_GAUGES: &str = "
plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 2}, {pluginRef: kv-cache-utilization-scorer, weight: 2}]
";

/// Requests and what becomes of them.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Time that clients wait.
    patience_ms: u64,
    /// From the start of a response to its first token, if it is a stream.
    first_ms: Option<u64>,
    /// From the start of a response to its end.
    service_ms: u64,
}

/// A server that takes some requests at once, and shows how many every 50 ms.
#[derive(Default)]
struct Server {
    /// Time at which they begin to respond.
    begins: VecDeque<(u64, Routed)>,
    /// Time at which they end.
    ends: VecDeque<(u64, Routed)>,
    waiting: VecDeque<Routed>,
}

impl Server {
    fn running(&self) -> usize {
        self.begins.len() + self.ends.len()
    }

    fn work(&mut self, case: Case, ms: u64) {
        const ROOM: usize = 64;
        let is_stream = case.first_ms.is_some();
        let first_ms = case.first_ms.unwrap_or(case.service_ms);
        while let Some((at, mut routed)) = self.begins.pop_front_if(|(at, _)| *at <= ms) {
            routed.response_begins(&Served::Unknown, Verdict::Good, is_stream);
            routed.first_token();
            self.ends.push_back((at + case.service_ms - first_ms, routed));
        }
        while let Some((_, mut routed)) = self.ends.pop_front_if(|(at, _)| *at <= ms) {
            routed.response_ends(&Usage::default(), 0);
        }
        while self.running() < ROOM
            && let Some(routed) = self.waiting.pop_front()
        {
            self.begins.push_back((ms + first_ms, routed));
        }
    }
}

/// 150 requests per second for 20.8 s over eight servers, the first of which answers nothing
/// that it gets from the third second on, for 15 s, and doesn't show it. Returns how many
/// clients wait in vain, and how many ejections there were.
fn hang(config: &str, params: HealthParams, case: Case) -> (usize, f64) {
    hang_with(config, params, case, &request_of(case.first_ms.is_some()), |_| {})
}

/// The same with requests like this one, and what is done with each that was sent.
fn hang_with(
    config: &str,
    params: HealthParams,
    case: Case,
    request: &Request,
    sent: impl Fn(&mut Routed),
) -> (usize, f64) {
    let pool = Pool::with(config, &[None; 8], params);
    let mut rng = StdRng::seed_from_u64(7);
    drop(pool.send(&[]));
    let endpoints = pool.store.snapshot().endpoints().to_vec();
    let mut servers: Vec<Server> = endpoints.iter().map(|_| Server::default()).collect();
    let mut hung: VecDeque<(u64, Routed)> = VecDeque::new();
    let (mut timeouts, mut requests) = (0, 0);
    let (hangs, works, end) = (3_000, 18_000, 20_800);
    for ms in 0..end + case.patience_ms {
        pool.clock.set(Duration::from_millis(ms));
        servers.iter_mut().for_each(|server| server.work(case, ms));
        while hung.pop_front_if(|(until, _)| *until <= ms).is_some() {
            timeouts += 1;
        }
        if ms % 50 == 0 {
            for (server, endpoint) in servers.iter().zip(&endpoints) {
                let (load, now_ms) = (endpoint.load(), pool.clock.now_ms());
                load.waiting.set(server.waiting.len() as f64, now_ms);
                load.running.set(server.running() as f64, now_ms);
                load.kv_usage.set(server.running() as f64 / 128.0, now_ms);
                load.seen(load.sent());
                endpoint.health().page_read(load);
            }
        }
        if ms % 100 == 0 {
            pool.outliers.sweep(&pool.store.snapshot());
        }
        while ms < end && requests * 1000 < ms * 150 {
            requests += 1;
            let routed = pool.dispatcher.decide_now(request, &SubsetHint::Missing, &mut rng);
            let mut routed = routed.unwrap().unwrap();
            sent(&mut routed);
            let server =
                endpoints.iter().position(|e| e.authority().as_bytes() == destination(&routed).as_bytes());
            if server == Some(0) && (hangs..works).contains(&ms) {
                // Its front end lives, and begins streams.
                if case.first_ms.is_some() {
                    routed.response_begins(&Served::Unknown, Verdict::Good, true);
                }
                hung.push_back((ms + case.patience_ms, routed));
            } else {
                servers[server.unwrap()].waiting.push_back(routed);
            }
        }
    }
    (timeouts, pool.ejections())
}

#[test]
fn one_hanging_server_of_eight_costs_few_requests() {
    let unwatched = HealthParams { first_byte: Duration::ZERO, ..HealthParams::default() };
    let whole = |patience_ms, service_ms| Case { patience_ms, first_ms: None, service_ms };
    let stream =
        |patience_ms, first_ms, service_ms| Case { patience_ms, first_ms: Some(first_ms), service_ms };
    for case in [
        whole(5_000, 50),
        whole(5_000, 400),
        whole(1_000, 400),
        whole(15_000, 700),
        whole(10_000, 2_500),
        stream(5_000, 50, 400),
        stream(5_000, 100, 2_500),
        stream(15_000, 500, 2_500),
    ] {
        let (before, _) = hang(BY_GAUGES, unwatched, case);
        let (timeouts, ejections) = hang(BY_GAUGES, HealthParams::default(), case);
        assert!(before > 300, "{before} of {case:?}");
        assert!(timeouts <= 20, "{timeouts} instead of {before} of {case:?}");
        assert_eq!(ejections, 1.0, "{case:?}");
    }
}

#[test]
fn first_byte_timeout_starts_at_the_end_of_the_upload() {
    let case = Case { patience_ms: 5_000, first_ms: None, service_ms: 400 };
    let mut request = request_of(false);
    request.is_uploading = true;
    let params = HealthParams::default;
    let (timeouts, ejections) =
        hang_with(BY_GAUGES, params(), case, &request, |routed| routed.body_sent(100));
    assert!(timeouts <= 20, "{timeouts}");
    assert_eq!(ejections, 1.0);
    let (_, ejections) = hang_with(BY_GAUGES, params(), case, &request, |_| {});
    assert_eq!(ejections, 0.0, "none has ended");
}

#[test]
fn hanging_server_costs_few_requests_with_latency_scores() {
    let config = "
plugins: [{type: expected-latency-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: expected-latency-scorer}]}]
";
    for first_ms in [None, Some(100)] {
        let case = Case { patience_ms: 5_000, first_ms, service_ms: 1_000 };
        let (timeouts, _) = hang(config, HealthParams::default(), case);
        assert!(timeouts <= 20, "{timeouts} of {case:?}");
    }
}

#[test]
fn a_slow_server_under_overload_is_not_ejected() {
    const SECONDS: u64 = 60;
    let pool = Pool::new(BY_REQUESTS, &[None; 4]);
    let (request, mut rng) = (request(&[]), StdRng::seed_from_u64(7));
    drop(pool.send(&[]));
    let endpoints = pool.store.snapshot().endpoints().to_vec();
    let mut servers: Vec<(u64, VecDeque<(u64, Routed)>)> = (0..4).map(|_| Default::default()).collect();
    let (mut aborted, mut longest) = (0, 0);
    for ms in 0..SECONDS * 1000 {
        pool.clock.set(Duration::from_millis(ms));
        for (number, (free, queue)) in servers.iter_mut().enumerate() {
            // One at a time; the first takes ten times as long. Their clients leave after 20 s.
            while queue.pop_front_if(|(sent, _)| sent.saturating_add(20_000) <= ms).is_some() {
                aborted += 1;
            }
            if *free <= ms
                && let Some((sent, mut routed)) = queue.pop_front()
            {
                longest = longest.max(ms - sent);
                routed.response_begins(&Served::Unknown, Verdict::Good, false);
                routed.response_ends(&Usage::default(), 0);
                *free = ms + if number == 0 { 500 } else { 50 };
            }
        }
        if ms % 100 == 0 {
            pool.outliers.sweep(&pool.store.snapshot());
        }
        // First as much as they can do, then three times that.
        let gap = if ms < 10_000 { 20 } else { 6 };
        if ms % gap == 0 {
            let routed = pool.dispatcher.decide_now(&request, &SubsetHint::Missing, &mut rng);
            let routed = routed.unwrap().unwrap();
            let at =
                endpoints.iter().position(|e| e.authority().as_bytes() == destination(&routed).as_bytes());
            servers[at.unwrap()].1.push_back((ms, routed));
        }
    }
    assert!(aborted > 100 && longest > 10_000, "{aborted} {longest}");
    assert_eq!(pool.ejections(), 0.0);
}

/// A server that runs as many requests as it may: others wait, and its gauges stand still.
#[test]
fn full_server_is_not_ejected_while_it_streams() {
    let pool = Pool::new(BY_HEADER, &[None; 2]);
    let full = Arc::clone(&pool.store.snapshot().endpoints()[0]);
    let begin = |address| {
        let mut routed = pool.send(&[(ONLY, address)]);
        routed.response_begins(&Served::Unknown, Verdict::Good, true);
        routed
    };
    // The other one responds within a tenth of a second.
    let pass = || {
        let mut routed = begin("10.0.0.2");
        pool.clock.set(pool.clock.elapsed() + Duration::from_millis(100));
        routed.first_token();
        routed.response_ends(&Usage::default(), 0);
        full.health().page_read(full.load());
        pool.outliers.sweep(&pool.store.snapshot());
    };
    (0..20).for_each(|_| pass());
    let mut streams: Vec<_> = (0..4).map(|_| begin("10.0.0.1")).collect();
    streams.iter_mut().for_each(Routed::first_token);
    let _waiting: Vec<_> = (0..9).map(|_| pool.send(&[(ONLY, "10.0.0.1")])).collect();
    full.load().running.set(4.0, pool.clock.now_ms());
    full.load().waiting.set(9.0, pool.clock.now_ms());
    full.load().seen(full.load().sent());
    for _ in 0..600 {
        streams.iter().for_each(Routed::goes_on);
        pass();
    }
    assert_eq!(pool.ejections(), 0.0);
    (0..600).for_each(|_| pass());
    assert_eq!(pool.ejections(), 1.0, "its streams stand still, too");
}
