//! `pairing: joint` under load: bursts, links that are busy, prompts that stay where they are
//! decoded, and what is learned of all that.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use usher::endpoints::health::Verdict;
use usher::endpoints::{Clock, EndpointSpec};
use usher::flow::Routed;
use usher::request::usage::Usage;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::data::PrefixMatch;
use usher::schedule::latency::{Model, Reported, TokenCounts};
use usher::schedule::{Key, ScheduleError, Served, State};

use crate::joint::{At, LINKS, Pairing, racks};
use crate::pool::{Pool, labelled};
use crate::support::{NOW, pool};

/// A configuration of pairs, with these plugins before the profiles.
fn config(handler: &str, more: &str, profiles: [&str; 2]) -> String {
    let [prefill, decode] = profiles;
    format!(
        "
plugins:
- {{type: disagg-profile-handler, parameters: {{{handler}}}}}
- type: always-disagg-pd-decider
- type: prefill-filter
- type: decode-filter
{more}
schedulingProfiles:
- {{name: prefill, plugins: [{{pluginRef: prefill-filter}}{prefill}]}}
- {{name: decode, plugins: [{{pluginRef: decode-filter}}{decode}]}}
"
    )
}

/// Prefill endpoints, then decode endpoints. All of them have been scraped, and are idle.
fn fleet(config: &str, prefill: usize, decode: usize) -> (Pool, Clock) {
    let labels: Vec<[(&str, &str); 1]> = (0..prefill + decode)
        .map(|number| [("llm-d.ai/role", if number < prefill { "prefill" } else { "decode" })])
        .collect();
    let labels: Vec<&[(&str, &str)]> = labels.iter().map(|labels| labels.as_slice()).collect();
    let specs: Vec<EndpointSpec> = labelled(&labels);
    let clock = Clock::stopped();
    let pool = Pool::with_state(config, specs, Arc::new(State::new(clock.clone())));
    scrape(&pool, prefill + decode);
    (pool, clock)
}

fn scrape(pool: &Pool, endpoints: usize) {
    for position in 0..endpoints {
        let (load, now) = pool.load(position);
        load.waiting.set(0.0, now);
        load.running.set(0.0, now);
        load.kv_usage.set(0.0, now);
    }
}

/// A prompt of its own.
fn asking(number: usize, tokens: usize) -> Request {
    let headers: Headers = [(":path", "/v1/completions")].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    let prompt = format!("{number:04}").repeat(tokens);
    parser.push(json!({"model": "m", "prompt": prompt, "stream": true}).to_string().into());
    parser.finish().unwrap()
}

/// Requests that were sent to each endpoint, for their prompts and for their responses.
fn counts(routed: &[Routed], endpoints: usize) -> (Vec<usize>, Vec<usize>) {
    let (mut prefill, mut decode) = (vec![0; endpoints], vec![0; endpoints]);
    for routed in routed {
        let decision = routed.decision();
        decode[decision.primary().picks[0] as usize] += 1;
        let named = routed.headers().iter().any(|header| &*header.name == "x-prefiller-host-port");
        assert_eq!(named, decision.prefill().is_some());
        decision.prefill().into_iter().for_each(|run| prefill[run.picks[0] as usize] += 1);
    }
    (prefill, decode)
}

#[test]
fn a_burst_within_one_scrape_interval_spreads_evenly() {
    let always = "pairing: joint, deciders: {prefill: always-disagg-pd-decider}";
    for (handler, decoders) in [(always, 4), ("pairing: joint", 4), (always, 8)] {
        let (pool, _) = fleet(&config(handler, "", ["", ""]), 4, decoders);
        let routed: Vec<Routed> = (0..64).map(|number| pool.route(&asking(number, 500)).unwrap()).collect();
        let (prefill, decode) = counts(&routed, 4 + decoders);
        let even = 64 / decoders;
        let is_even = |count: &usize| count.abs_diff(even) <= 1;
        assert!(decode[4..].iter().all(is_even), "{handler}: {decode:?}");
        if handler == always {
            assert!(prefill[..4].iter().all(|count| count.abs_diff(16) <= 1), "{prefill:?}");
        }
    }
}

#[test]
fn idle_scrapes_do_not_hide_booked_requests() {
    let handler = "pairing: joint, deciders: {prefill: always-disagg-pd-decider}";
    let (pool, _) = fleet(&config(handler, "", ["", ""]), 2, 4);
    let mut routed = Vec::new();
    for number in 0..64 {
        // Prompts are computed elsewhere still, so the decoding endpoints say that they idle.
        for position in 0..6 {
            let (load, _) = pool.load(position);
            load.seen(load.sent());
        }
        scrape(&pool, 6);
        routed.push(pool.route(&asking(number, 500)).unwrap());
    }
    let (_, decode) = counts(&routed, 6);
    assert_eq!(decode[2..], [16; 4]);
}

#[test]
fn booked_kv_cache_counts_as_used() {
    let handler = "pairing: joint, kvCacheLimit: 0.5, deciders: {prefill: always-disagg-pd-decider}";
    let (pool, _) = fleet(&config(handler, "", ["", ""]), 1, 2);
    for (position, running) in [(1, 0.0), (2, 50.0)] {
        let (load, now) = pool.load(position);
        load.block_size.set(16.0, now);
        load.num_blocks.set(100.0, now);
        load.running.set(running, now);
    }
    let routed: Vec<Routed> = (0..4).map(|number| pool.route(&asking(number, 500)).unwrap()).collect();
    let (_, decode) = counts(&routed, 3);
    // 1,600 tokens; two prompts of 500 fit below the half before the next is over it.
    assert_eq!(decode[1..], [2, 2], "the idle one until it is full");
}

#[test]
fn prompt_goes_where_most_of_it_is_cached() {
    let mut pairing = Pairing::decided_by(None, LINKS, &[1.0], &[1.0], racks(&["a", "a"]));
    let cached = |blocks: u32| PrefixMatch { total: 20, block_size: 50, matched: vec![0, blocks] };
    pairing.facts.set(Key::new(1), cached(19));
    assert_eq!(pairing.pair(1), Ok((1, 1)));
    // Others decode there, and would wait for the prompt.
    let load = Arc::clone(pairing.candidates.snapshot().endpoints()[1].load());
    load.running.set(60.0, NOW);
    load.waiting.set(0.0, NOW);
    pairing.facts.set(Key::new(1), cached(0));
    assert_eq!(pairing.pair(1), Ok((0, 1)));
    pairing.facts.set(Key::new(1), cached(20));
    assert_eq!(pairing.pair(1), Ok((0, 1)), "a block is computed again, and 60 requests wait for it");
}

#[test]
fn prompt_cached_at_the_decode_endpoint_is_not_transferred() {
    // Either endpoint decodes; only the second has the prompt, and is far away.
    let mut pairing = Pairing::new(LINKS, &[1.0], &[1.0, 1.0], racks(&["a", "a", "b"]));
    assert_eq!(pairing.pair(1), Ok((0, 1)), "0.1 s instead of 1 s");
    pairing.facts.set(Key::new(1), PrefixMatch { total: 20, block_size: 50, matched: vec![0, 0, 20] });
    assert_eq!(pairing.pair(1), Ok((0, 2)), "nothing instead of 0.1 s");
}

#[test]
fn transfers_under_way_share_the_link_of_their_endpoint() {
    // The prompt is cached where it is computed, so that links are what is short.
    let links = "links: {none: 1000}";
    let mut pairing = Pairing::new(links, &[1.0], &[1.0, 0.9, 0.8], pool(3 + 1, |_, _| {}));
    pairing.facts.set(Key::new(1), PrefixMatch { total: 20, block_size: 50, matched: vec![20, 0, 0, 0] });
    let mut booked = Vec::new();
    for expected in [1, 2, 3, 1, 2, 3] {
        let decision = pairing.decide(1).unwrap();
        assert_eq!(decision.run("decode").unwrap().picks[0], expected);
        booked.push(pairing.book(&decision));
    }
    // They have come.
    pairing.clock.set(Duration::from_secs(10));
    drop(booked);
    assert_eq!(pairing.pair(1), Ok((0, 1)));
}

#[test]
fn the_decider_judges_the_endpoint_that_decodes() {
    // The scores of decode alone are for 1, where the decider says no.
    let sides: (&[f32], &[f32]) = (&[1.0], &[1.0, 0.5]);
    let paired = |yes: &[u32], more: &str| {
        let decider = Some(Arc::new(At(yes.to_vec())) as _);
        Pairing::decided_by(decider, more, sides.0, sides.1, racks(&["a", "b", "a"]))
    };
    let busy = |pairing: &Pairing, position: usize| {
        let load = pairing.candidates.snapshot().endpoints()[position].load();
        load.running.set(60.0, NOW);
        load.waiting.set(0.0, NOW);
    };
    // It costs less to decode at 2, which may be answered from elsewhere.
    let pairing = paired(&[2], LINKS);
    busy(&pairing, 1);
    let load = pairing.candidates.snapshot().endpoints()[2].load();
    load.running.set(20.0, NOW);
    load.waiting.set(0.0, NOW);
    assert_eq!(pairing.pair(1), Ok((0, 2)));
    // With the opposite permissions the one that is chosen computes the prompt itself, although the
    // first choice of decode has another one.
    let pairing = paired(&[1], LINKS);
    busy(&pairing, 1);
    assert_eq!(pairing.pair(1), Ok((2, 2)));
    // Nobody may be paired, and nobody has to.
    let pairing = paired(&[], "constraintMode: Required, constraintLayer: host");
    assert!(matches!(pairing.pair(1), Ok((1, 1))));
    let pairing = paired(&[1, 2], "constraintMode: Required, constraintLayer: host");
    assert_eq!(pairing.pair(1), Err(ScheduleError::NoPair));
}

#[test]
fn decode_endpoints_prefill_without_a_prefill_endpoint() {
    let always = "pairing: joint, deciders: {prefill: always-disagg-pd-decider}";
    for handler in [always, "pairing: joint"] {
        let (pool, _) = fleet(&config(handler, "", ["", ""]), 0, 3);
        let routed: Vec<Routed> = (0..30).map(|number| pool.route(&asking(number, 500)).unwrap()).collect();
        let (prefill, decode) = counts(&routed, 3);
        assert_eq!((prefill, decode), (vec![0; 3], vec![10; 3]), "{handler}");
    }
}

/// Lets a stream begin and its first token come.
fn first_token(routed: &mut Routed) {
    routed.response_begins(&Served::Unknown, Verdict::Good, true);
    routed.first_token();
}

#[test]
fn slow_links_and_steps_of_decoding_endpoints_are_learned() {
    let handler = "pairing: joint, kvBytesPerToken: 1, links: {none: 100000}, peakPrefillThroughput: 8000, \
                   deciders: {prefill: always-disagg-pd-decider}";
    let (pool, clock) = fleet(&config(handler, "", ["", ""]), 1, 2);
    // A link is measured by two transfers or more, and what isn't known to be its share is put down to prompts at first.
    for round in 0..1000 {
        // Prompts are computed one after the other at 8,000 tokens/s. Links are ten times slower
        // than configured.
        let lengths: Vec<usize> = [1 + round % 7, 1 + round % 7 + round % 3][..1 + round % 2].to_vec();
        scrape(&pool, 3);
        let route = |(n, tokens): (usize, &usize)| pool.route(&asking(2 * round + n, 500 * tokens)).unwrap();
        let mut streams: Vec<Routed> = lengths.iter().enumerate().map(route).collect();
        let (start, mut computed) = (clock.elapsed(), 0.0);
        for (stream, tokens) in streams.iter_mut().zip(&lengths) {
            let tokens = 500.0 * *tokens as f64;
            computed += tokens / 8000.0;
            clock.set(start + Duration::from_secs_f64(0.03 + computed + tokens / 10_000.0));
            first_token(stream);
        }
        // Steps take 40 ms.
        clock.set(clock.elapsed() + Duration::from_secs(4));
        let usage = Usage { completion_tokens: Some(101), ..Usage::default() };
        for stream in &mut streams {
            stream.response_ends(&usage, 0);
        }
    }
    let model = Model::of(&pool.state);
    let table = model.read();
    let endpoints = pool.store.snapshot().endpoints().to_vec();
    let at = Reported::default();
    let counts = TokenCounts { uncached: 2000.0, prompt: 2000.0, output: 100.0 };
    let prefill = table.prefill_part(&endpoints[0], &counts, 1.0, &at);
    for decode in endpoints[1..].iter().map(|endpoint| table.decode_part(endpoint, &counts, 1.0, &at)) {
        let first = prefill.computed + decode.factor * 2000.0 / 100_000.0;
        // Transfers are as long as prompts here, so some of what links lack is put down to these, too.
        assert!((first / 0.48 - 1.0).abs() < 0.3, "{first} {prefill:?} {decode:?}");
        assert!((5.0..20.0).contains(&decode.factor), "{decode:?}");
        let step = decode.cost.response / 100.0;
        assert!((step / 0.04 - 1.0).abs() < 0.15, "{step}");
    }
}

#[test]
fn separate_profiles_weigh_only_their_own_stage() {
    let scorer = "- type: expected-latency-scorer";
    let with = ", {pluginRef: expected-latency-scorer}";
    let always = "deciders: {prefill: always-disagg-pd-decider}";
    let (pool, _) = fleet(&config(always, scorer, [with, with]), 2, 2);
    let set = |position: u32, running: f64| {
        let (load, now) = pool.load(position as usize);
        load.running.set(running, now);
    };
    let picks = |routed: &Routed| {
        let decision = routed.decision();
        (decision.prefill().unwrap().picks[0], decision.primary().picks[0])
    };
    set(2, 5.0);
    let routed = pool.route(&asking(0, 2000)).unwrap();
    assert_eq!(picks(&routed).1, 3, "fewer decode there");
    drop(routed);
    set(2, 0.0);
    let routed = pool.route(&asking(1, 2000)).unwrap();
    let (prefill, decode) = picks(&routed);
    drop(routed);
    pool.state.settle();
    // The prompt is cached at both. Decode doesn't count that, as another one computes the
    // prompt, and prefill counts no cache that makes decoding slow.
    set(decode, 1.0);
    let (load, now) = pool.load(prefill as usize);
    load.block_size.set(16.0, now);
    load.num_blocks.set(62_500.0, now);
    load.kv_usage.set(0.9, now);
    let again = pool.route(&asking(1, 2000)).unwrap();
    assert_eq!(picks(&again), (prefill, 5 - decode));
}
