//! The requests of a replay for a client that sends them to servers in real time, and its
//! measurements as a replay's: whether a replay is true can be seen then.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use super::requests::{API, MODEL, Requests};
use super::settings::Settings;
use super::summary::{Measure, Summary};
use super::workload::{Arrival, Piece};
use super::world::{Chain, RequestOutcome, RequestOutcomes};

/// Requests to send, and the order in which they come.
#[derive(Debug)]
pub struct Script {
    requests: Requests,
    chain: Chain,
    /// Responses as the servers gave them.
    said: HashMap<Piece, String>,
}

impl Script {
    /// Model that the requests ask for.
    pub const MODEL: &str = MODEL;

    /// The requests of these settings.
    pub fn new(settings: &Settings) -> Self {
        Self {
            requests: Requests::new(&settings.arrivals, &settings.servers, settings.streams),
            chain: Chain::new(&settings.arrivals),
            said: HashMap::new(),
        }
    }

    /// Path of the API that the requests are for.
    pub fn path() -> &'static str {
        API.path()
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.requests.arrivals().len()
    }

    /// Returns `true` if there is no request.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The requests that wait for no other: when each comes, and its position.
    pub fn roots(&self) -> Vec<(Duration, usize)> {
        let roots = self.requests.arrivals().iter().enumerate().filter(|(_, arrival)| !arrival.follows());
        roots.map(|(position, arrival)| (arrival.at, position)).collect()
    }

    /// The body of the request at this position, with the responses that were given before it.
    /// `None`: there is no such request.
    pub fn body(&self, position: usize) -> Option<Bytes> {
        let said = |piece: &Piece| self.said.get(piece).map(String::as_str);
        self.arrival(position).map(|arrival| self.requests.body(arrival, said))
    }

    /// Tokens of the response of the request at this position, for the server.
    pub fn output_tokens(&self, position: usize) -> u32 {
        self.arrival(position).map_or(1, |arrival| arrival.output_tokens.max(1))
    }

    /// The request at this position has ended at this time since the start, with this text as
    /// its response, or `None` if it failed. Returns when those come that waited for no other,
    /// and their positions.
    pub fn ended(&mut self, position: usize, text: Option<String>, now: Duration) -> Vec<(Duration, usize)> {
        if let Some((piece, text)) = self.arrival(position).and_then(Arrival::response).zip(text) {
            self.said.insert(piece, text);
        }
        self.chain.ended(position, self.requests.arrivals(), now)
    }

    fn arrival(&self, position: usize) -> Option<&Arrival> {
        self.requests.arrivals().get(position)
    }
}

/// A request as a client saw it. Times are since the start of the script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Time at which it was sent.
    pub sent: Duration,
    /// Number of the server that responded.
    pub server: Option<usize>,
    /// Time at which the first token came.
    pub first: Option<Duration>,
    /// Time at which the last token came; `None`: it was not answered to the end.
    pub last: Option<Duration>,
    /// Tokens of the prompt, as the server counted them.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that its prefix cache had.
    pub cached_tokens: u32,
    /// Tokens of the response.
    pub output_tokens: u32,
}

impl Seen {
    fn outcome(&self) -> RequestOutcome {
        let since = |at: Option<Duration>| at.map(|at| at.saturating_sub(self.sent));
        RequestOutcome {
            arrived: self.sent,
            server: self.server,
            computed_by: self.server,
            first: since(self.first),
            last: since(self.last),
            refused: self.last.is_none(),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            ..RequestOutcome::default()
        }
    }
}

/// The numbers of a script's requests, by the limits of the settings and as a replay counts
/// them. Requests that were not answered to the end count as refused.
pub fn summarize(policy: &str, settings: &Settings, seen: &[Seen]) -> Summary {
    let outcomes =
        RequestOutcomes { requests: seen.iter().map(Seen::outcome).collect(), ..RequestOutcomes::default() };
    let by = Measure { ttft_limit: settings.ttft_limit, tpot_limit: settings.tpot_limit };
    Summary::new(policy.to_owned(), &settings.servers, &outcomes, &outcomes, by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{Interconnect, Server, Workload};
    use crate::sim::{Dialect, EngineConfig};

    const MS: Duration = Duration::from_millis(1);

    fn settings(arrivals: Vec<Arrival>) -> Settings {
        Settings {
            streams: true,
            dialect: Dialect::default(),
            servers: Server::equal(2, &EngineConfig::default()),
            interconnect: Interconnect::default(),
            arrivals,
            policies: Vec::new(),
            seed: 0,
            scrape_interval: 50 * MS,
            metrics_staleness: 2000 * MS,
            gateway_delay: Duration::ZERO,
            ttft_limit: 100 * MS,
            tpot_limit: 10 * MS,
        }
    }

    #[test]
    fn next_turn_repeats_the_actual_response() {
        let mut script = Script::new(&settings(Workload::Conversations.arrivals(20, 2, 1)));
        let roots = script.roots();
        assert_eq!(roots.len(), 2, "a request of each user");
        let body = |script: &Script, position| -> serde_json::Value {
            serde_json::from_slice(&script.body(position).unwrap()).unwrap()
        };
        assert_eq!(body(&script, 1)["messages"].as_array().unwrap().len(), 3, "as the seed has it");
        let next = script.ended(0, Some("Yes.".to_owned()), 5 * MS);
        let [(at, 1)] = next[..] else { panic!("{next:?}") };
        assert!(at > 5 * MS);
        assert_eq!(
            body(&script, 1)["messages"][1],
            serde_json::json!({"role": "assistant", "content": "Yes."})
        );
        assert!(script.body(20).is_none());
    }

    #[test]
    fn client_side_results_are_summarized_like_a_replay() {
        let seen = |first: u32, last: u32| Seen {
            sent: 1000 * MS,
            server: Some(1),
            first: Some((1000 + first) * MS),
            last: Some((1000 + last) * MS),
            prompt_tokens: 100,
            cached_tokens: 40,
            output_tokens: 11,
        };
        let failed = Seen { last: None, ..seen(10, 0) };
        let settings = settings(Vec::new());
        let summary = summarize("x", &settings, &[seen(50, 150), seen(150, 250), seen(50, 350), failed]);
        assert_eq!((summary.answered, summary.refused, summary.goodput.requests), (3, 1, 1));
        assert_eq!(summary.ttft.map(|ttft| ttft.p90_s), Some(0.150));
        assert_eq!(summary.tpot.map(|tpot| (tpot.p50_s, tpot.p90_s)), Some((0.010, 0.030)));
        assert_eq!(summary.e2e.map(|e2e| e2e.p50_s), Some(0.250));
        assert_eq!((summary.token_hits, summary.servers[1].requests), (0.4, 3));
    }
}
