//! Endpoints that take requests and never answer, and those that are only slow.

use std::collections::VecDeque;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::endpoints::SubsetHint;
use usher::endpoints::health::{HealthParams, Verdict};
use usher::flow::Routed;
use usher::request::usage::Usage;
use usher::schedule::Served;

use crate::sick::{BY_REQUESTS, Pool, destination, request};

const BY_GAUGES: &str = "
plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 2}, {pluginRef: kv-cache-utilization-scorer, weight: 2}]
";

/// A server that takes some requests at once, and shows how many every 50 ms.
#[derive(Default)]
struct Server {
    /// When they end, and what they are.
    running: VecDeque<(u64, Routed)>,
    waiting: VecDeque<Routed>,
}

/// 150 requests per second for 20.8 s over eight servers, the first of which answers nothing
/// that it gets from the third second on, for 15 s, and shows empty gauges. Clients wait for
/// `patience_ms`. Returns how many wait in vain, and how many demotions there were.
fn hang(params: HealthParams, patience_ms: u64, service_ms: u64) -> (usize, f64) {
    const ROOM: usize = 16;
    let pool = Pool::with(BY_GAUGES, &[None; 8], params);
    let (request, mut rng) = (request(&[]), StdRng::seed_from_u64(7));
    drop(pool.send(&[]));
    let endpoints = pool.store.snapshot().endpoints().to_vec();
    let mut servers: Vec<Server> = endpoints.iter().map(|_| Server::default()).collect();
    let mut hung: VecDeque<(u64, Routed)> = VecDeque::new();
    let (mut timeouts, mut requests) = (0, 0);
    let (hangs, works, end) = (3_000, 18_000, 20_800);
    for ms in 0..end + patience_ms {
        pool.clock.set(Duration::from_millis(ms));
        for server in &mut servers {
            while let Some((_, mut routed)) = server.running.pop_front_if(|(ends, _)| *ends <= ms) {
                routed.answer_begins(&Served::Unknown, Verdict::Good, false);
                routed.answer_ends(&Usage::default(), 0);
            }
            while server.running.len() < ROOM
                && let Some(routed) = server.waiting.pop_front()
            {
                server.running.push_back((ms + service_ms, routed));
            }
        }
        while hung.pop_front_if(|(until, _)| *until <= ms).is_some() {
            timeouts += 1;
        }
        if ms % 50 == 0 {
            for (server, endpoint) in servers.iter().zip(&endpoints) {
                let (load, now_ms) = (endpoint.load(), pool.clock.now_ms());
                load.waiting.set(server.waiting.len() as f64, now_ms);
                load.running.set(server.running.len() as f64, now_ms);
                load.kv_usage.set(server.running.len() as f64 / 32.0, now_ms);
                load.seen(load.sent());
                endpoint.health().page_read(load);
            }
        }
        if ms % 250 == 0 {
            pool.ward.sweep(&pool.store.snapshot());
        }
        while ms < end && requests * 1000 < ms * 150 {
            requests += 1;
            let routed = pool.dispatcher.try_dispatch_with(&request, &SubsetHint::Missing, &mut rng);
            let routed = routed.unwrap().unwrap();
            let server =
                endpoints.iter().position(|e| e.authority().as_bytes() == destination(&routed).as_bytes());
            if server == Some(0) && (hangs..works).contains(&ms) {
                hung.push_back((ms + patience_ms, routed));
            } else {
                servers[server.unwrap()].waiting.push_back(routed);
            }
        }
    }
    (timeouts, pool.demotions())
}

#[test]
fn one_of_eight_that_hangs_costs_a_handful_of_requests() {
    let unwatched = HealthParams { first_byte: Duration::ZERO, ..HealthParams::default() };
    for (patience_ms, service_ms) in [(5_000, 50), (5_000, 400), (1_000, 400), (15_000, 700)] {
        let (before, _) = hang(unwatched, patience_ms, service_ms);
        let (timeouts, demotions) = hang(HealthParams::default(), patience_ms, service_ms);
        assert!(before > 300, "{before}");
        assert!(timeouts <= 20, "{timeouts} of clients that wait {patience_ms} ms");
        assert_eq!(demotions, 1.0);
    }
}

#[test]
fn a_slow_server_under_overload_is_not_demoted() {
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
                routed.answer_begins(&Served::Unknown, Verdict::Good, false);
                routed.answer_ends(&Usage::default(), 0);
                *free = ms + if number == 0 { 500 } else { 50 };
            }
        }
        if ms % 250 == 0 {
            pool.ward.sweep(&pool.store.snapshot());
        }
        // First as much as they can do, then three times that.
        let gap = if ms < 10_000 { 20 } else { 6 };
        if ms % gap == 0 {
            let routed = pool.dispatcher.try_dispatch_with(&request, &SubsetHint::Missing, &mut rng);
            let routed = routed.unwrap().unwrap();
            let at =
                endpoints.iter().position(|e| e.authority().as_bytes() == destination(&routed).as_bytes());
            servers[at.unwrap()].1.push_back((ms, routed));
        }
    }
    assert!(aborted > 100 && longest > 10_000, "{aborted} {longest}");
    assert_eq!(pool.demotions(), 0.0);
}
