//! Factors of capacities, response by response.

use usher_core::endpoints::{EndpointSpec, Store};

use super::*;

const BLOCK: u32 = 64;

fn endpoint() -> (Store, Arc<Endpoint>) {
    let store = Store::default();
    store.replace(vec![EndpointSpec::new("pod", ([10, 0, 0, 1], 80))]);
    let endpoint = Arc::clone(&store.snapshot().endpoints()[0]);
    (store, endpoint)
}

/// Prompts of ten blocks. Usage has as many tokens as they were estimated to have.
struct Bench {
    capacities: Capacities,
    endpoint: Arc<Endpoint>,
    _store: Store,
}

impl Bench {
    fn new() -> Self {
        let (store, endpoint) = endpoint();
        let bench = Self { capacities: Capacities::default(), endpoint, _store: store };
        bench.capacities.tokens.store(1f64.to_bits(), Relaxed);
        bench
    }

    /// A request of this prompt, of which so many blocks are predicted to be cached.
    fn sent(&self, prompt: u64, matched: u32) -> Forecast {
        self.sent_as(Api::ChatCompletions, prompt, matched)
    }

    fn sent_as(&self, api: Api, prompt: u64, matched: u32) -> Forecast {
        let hashes: Vec<u64> = (0..10).map(|block| prompt << 8 | block).collect();
        let blocks = Blocks::from_prompts([hashes]);
        self.capacities.forecast(&self.endpoint, api, &blocks, (matched, BLOCK)).unwrap()
    }

    fn ends(&self, forecast: &Forecast, cached_blocks: Option<u64>) -> Option<Compared> {
        let cached_tokens = cached_blocks.map(|blocks| blocks * u64::from(BLOCK));
        let usage = Usage { prompt_tokens: Some(640), completion_tokens: Some(1), cached_tokens };
        self.capacities.compare(forecast, &usage)
    }

    /// A window of requests, one after the other.
    fn window(&self, matched: u32, cached: u64) {
        for _ in 0..WINDOW {
            let mut forecast = self.sent(1, matched);
            forecast.first_token();
            self.ends(&forecast, Some(cached));
        }
    }

    fn factor(&self) -> f64 {
        self.capacities.mean_factor()
    }
}

/// A bench whose endpoint is known to report what was cached.
fn reporting() -> Bench {
    let bench = Bench::new();
    bench.window(10, 10);
    assert_eq!(bench.factor(), 1.0);
    bench
}

#[test]
fn misses_cut_the_factor_and_hits_raise_it_slowly() {
    let bench = reporting();
    bench.window(10, 9);
    assert_eq!(bench.factor(), 1.0, "a block is no clear difference");
    bench.window(10, 8);
    assert_eq!(bench.factor(), 1.0, "tokens of a head may be longer");
    bench.window(10, 0);
    let cut = 1.0 - MOST_CUT;
    assert!((bench.factor() - cut).abs() < 1e-9);
    bench.window(10, 10);
    assert!((bench.factor() - cut - STEP).abs() < 1e-9);
    // Hits that nobody predicted say that there is room.
    bench.window(0, 10);
    assert!((bench.factor() - cut - 2.0 * STEP).abs() < 1e-9);
    // One miss of sixteen is a sixteenth.
    for request in 0..WINDOW {
        let forecast = bench.sent(1, 10);
        bench.ends(&forecast, Some(if request == 3 { 0 } else { 10 }));
    }
    let expected = (cut + 2.0 * STEP) * (1.0 - 1.0 / f64::from(WINDOW));
    assert!((bench.factor() - expected).abs() < 1e-9);
}

#[test]
fn the_factor_stays_in_its_range() {
    let bench = reporting();
    (0..100).for_each(|_| bench.window(10, 0));
    assert_eq!(bench.factor(), LEAST);
    assert_eq!(bench.capacities.effective(&bench.endpoint, 1000), 50);
    assert_eq!([0, 1, 5].map(|blocks| bench.capacities.effective(&bench.endpoint, blocks)), [0, 1, 1]);
    (0..200).for_each(|_| bench.window(10, 10));
    assert_eq!(bench.factor(), 1.0);
    assert_eq!(bench.capacities.effective(&bench.endpoint, 1000), 1000);
}

#[test]
fn requests_decided_before_a_cut_do_not_cut_again() {
    let bench = reporting();
    let under_way: Vec<Forecast> = (0..5 * WINDOW).map(|_| bench.sent(1, 10)).collect();
    for forecast in under_way {
        assert_eq!(bench.ends(&forecast, Some(0)), Some(Compared { predicted: 640, cached: 0 }));
    }
    assert!((bench.factor() - (1.0 - MOST_CUT)).abs() < 1e-9, "{}", bench.factor());
}

#[test]
fn burst_of_one_new_prompt_does_not_change_the_factor() {
    let bench = reporting();
    let burst = |prompt| -> Vec<Forecast> {
        std::iter::once(bench.sent(prompt, 0))
            .chain((1..4 * WINDOW).map(|_| bench.sent(prompt, 10)))
            .collect()
    };
    for forecast in burst(2) {
        bench.ends(&forecast, Some(0));
    }
    assert_eq!(bench.factor(), 1.0);
    // What was answered before is there, whoever brings more of it.
    let mut forecasts: Vec<Forecast> = vec![bench.sent(3, 0)];
    forecasts[0].first_token();
    forecasts.extend((0..WINDOW).map(|_| bench.sent(3, 10)));
    for forecast in forecasts {
        bench.ends(&forecast, Some(0));
    }
    assert!(bench.factor() < 1.0);
}

#[test]
fn dropped_request_is_not_awaited() {
    let bench = reporting();
    drop(bench.sent(2, 3));
    let capacity = bench.capacities.of(bench.endpoint.slot());
    assert_eq!(capacity.learning().unanswered.len(), 0);
    let many: Vec<Forecast> = (0..1000).map(|prompt| bench.sent(prompt, 0)).collect();
    assert_eq!(capacity.learning().unanswered.len(), MOST_UNANSWERED);
    drop(many);
    assert_eq!(capacity.learning().unanswered.len(), 0);
}

#[test]
fn api_counts_after_its_first_cached_tokens() {
    let bench = Bench::new();
    for _ in 0..3 * WINDOW {
        let forecast = bench.sent(1, 10);
        assert_eq!(bench.ends(&forecast, None), None);
        let forecast = bench.sent(1, 10);
        assert_eq!(bench.ends(&forecast, Some(0)), None);
    }
    assert_eq!(bench.factor(), 1.0);
    let forecast = bench.sent(1, 10);
    assert_eq!(bench.ends(&forecast, Some(10)), Some(Compared { predicted: 640, cached: 640 }));
    // From now on a missing number is 0.
    let forecast = bench.sent(1, 10);
    assert_eq!(bench.ends(&forecast, None), Some(Compared { predicted: 640, cached: 0 }));
    let forecast = bench.sent_as(Api::Responses, 1, 10);
    assert_eq!(bench.ends(&forecast, None), None, "another API of the same server may not say it");
}

#[test]
fn only_single_prompts_with_usage_are_compared() {
    let bench = reporting();
    for prompt_tokens in [None, Some(0)] {
        let usage = Usage { prompt_tokens, completion_tokens: Some(1), cached_tokens: None };
        let forecast = bench.sent(1, 10);
        assert_eq!(bench.capacities.compare(&forecast, &usage), None);
    }
    for prompts in [vec![], vec![vec![1u64, 2], vec![3]]] {
        let blocks = Blocks::from_prompts(prompts);
        let forecast = bench.capacities.forecast(&bench.endpoint, Api::Completions, &blocks, (1, BLOCK));
        assert!(forecast.is_none());
    }
}

#[test]
fn predictions_are_in_tokens_as_the_engine_counts() {
    let bench = reporting();
    let usage = |prompt, cached| Usage {
        prompt_tokens: Some(prompt),
        completion_tokens: None,
        cached_tokens: Some(cached),
    };
    let ends = |api, tokens, usage: &Usage| {
        let forecast = Forecast { tokens, ..bench.sent_as(api, 1, 5) };
        bench.capacities.compare(&forecast, usage).map(|compared| compared.predicted)
    };
    // Half of a prompt of 640 estimated tokens that are 800.
    assert_eq!(ends(Api::ChatCompletions, Some(640), &usage(800, 400)), Some(400));
    let mean = bench.capacities.tokens_per_estimate().unwrap();
    assert!((mean - (KEEP + (1.0 - KEEP) * 1.25)).abs() < 1e-9);
    // A prompt that was not read to its end has the mean.
    assert_eq!(ends(Api::ChatCompletions, None, &usage(4000, 400)), Some((320.0 * mean) as u64));
    assert_eq!(ends(Api::ChatCompletions, None, &usage(100, 90)), Some(100), "no more than the prompt has");
    // Input tokens are those that were not cached, or all.
    for input in [400, 800] {
        let predicted = ends(Api::Messages, Some(640), &usage(input, 400)).unwrap();
        assert_eq!(predicted, input / 2, "{input}");
    }
    assert_eq!(bench.capacities.tokens_per_estimate(), Some(mean));
}

#[test]
fn removed_endpoint_frees_its_slot_and_factor() {
    let bench = reporting();
    bench.window(10, 0);
    let slot = Arc::clone(bench.endpoint.slot());
    let before = Arc::strong_count(&slot);
    bench.capacities.sweep(&Store::default().snapshot(), 0);
    assert_eq!((bench.factor(), Arc::strong_count(&slot)), (1.0, before - 1));
    assert_eq!(bench.capacities.effective(&bench.endpoint, 1000), 1000);
}
