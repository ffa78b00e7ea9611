//! Requests of conversations at an even pace, and bursts of requests that share nothing.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use usher_core::random::mix;

use crate::cli::demo::client::Client;
use crate::cli::demo::replay::Outcome;
use crate::cli::demo::trace::MODEL;

/// Requests of conversations per second and server.
const RATE: f64 = 5.0;
/// Conversations per server, and tokens that the prompts of one begin with.
const CONVERSATIONS: u64 = 3;
const SHARED: u32 = 2000;
/// Tokens that follow, and of the response.
const OWN: u32 = 40;
const OUTPUT: u32 = 16;

/// Requests of a burst per server, tokens of their prompts and of their responses, which outlast the burst.
const PER_BURST: usize = 4;
const BURST_PROMPT: u32 = 48;
const BURST_OUTPUT: u32 = 64;
/// First burst, and from one to the next, in seconds.
const FIRST_BURST: f64 = 1.0;
const BURST_EVERY: f64 = 1.5;
/// Duration of a burst, in seconds.
const BURST_TIME: f64 = 0.4;

/// Tokens of the prompt and of the response of a request that is watched.
const WATCHED_PROMPT: u32 = 512;
const WATCHED_OUTPUT: u32 = 10_000;

/// Tokens from which on no conversation has any.
const UNSHARED: u32 = 1 << 30;

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Part of a conversation.
    Turn,
    /// Part of the burst of this number.
    Burst(usize),
}

/// A request to send.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Due {
    /// Seconds since the start.
    at: f64,
    pub(super) kind: Kind,
    /// Number among those of its kind.
    number: u64,
}

/// A request that was sent.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) kind: Kind,
    pub(super) outcome: Outcome,
}

/// Requests of a run, by time, for so many servers that are `speed` times as fast as real ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    pub(super) servers: usize,
    pub(super) speed: f64,
}

impl Pace {
    /// Requests of conversations from the number `first` on, with at most so many bursts meanwhile.
    pub(super) fn requests(self, first: u64, turns: usize, bursts: usize) -> Vec<Due> {
        let rate = RATE * self.servers as f64;
        let turn = |number: usize| Due {
            at: number as f64 / rate / self.speed,
            kind: Kind::Turn,
            number: first + number as u64,
        };
        let mut all: Vec<Due> = (0..turns).map(turn).collect();
        let end = turns as f64 / rate;
        let starts = (0..bursts).map(|burst| FIRST_BURST + burst as f64 * BURST_EVERY);
        let size = PER_BURST * self.servers;
        for (burst, start) in starts.take_while(|start| start + BURST_TIME <= end).enumerate() {
            all.extend((0..size).map(|place| Due {
                at: (start + BURST_TIME * place as f64 / size as f64) / self.speed,
                kind: Kind::Burst(burst),
                number: first + (burst * size + place) as u64,
            }));
        }
        all.sort_by(|one, other| one.at.total_cmp(&other.at));
        all
    }

    /// Requests of conversations that a time has.
    pub(super) fn turns_in(self, time: Duration) -> usize {
        (time.as_secs_f64() * RATE * self.servers as f64 * self.speed) as usize
    }

    /// Time from the start to the end of the first burst.
    pub(super) fn first_burst(self) -> Duration {
        Duration::from_secs_f64((FIRST_BURST + BURST_TIME) / self.speed)
    }

    /// The prompt by its tokens, and the length of its response.
    fn body(self, due: Due) -> Bytes {
        let number = (due.number % 1_000_000) as u32;
        let (tokens, output): (Vec<u32>, _) = match due.kind {
            Kind::Turn => {
                let conversations = self.servers as u64 * CONVERSATIONS;
                let conversation = u32::try_from(mix(due.number) % conversations.max(1)).unwrap_or(0);
                let shared = (0..SHARED).map(|at| conversation * SHARED + at);
                (shared.chain((0..OWN).map(|at| UNSHARED + number * OWN + at)).collect(), OUTPUT)
            }
            Kind::Burst(_) => {
                let first = 2 * UNSHARED + number * BURST_PROMPT;
                ((first..first + BURST_PROMPT).collect(), BURST_OUTPUT)
            }
        };
        completion(&tokens, output)
    }
}

fn completion(tokens: &[u32], output: u32) -> Bytes {
    let usage = json!({"include_usage": true});
    json!({"model": MODEL, "prompt": tokens, "max_tokens": output, "stream": true, "stream_options": usage})
        .to_string()
        .into()
}

/// Body of a request that shares nothing, and lasts until it is dropped.
pub(super) fn watched(number: u32) -> Bytes {
    let first = 3 * UNSHARED + number * WATCHED_PROMPT;
    completion(&(first..first + WATCHED_PROMPT).collect::<Vec<_>>(), WATCHED_OUTPUT)
}

/// Sends requests when they are due, until the last or until `stop`, and waits for all responses.
pub(super) async fn send(
    to: SocketAddr,
    pace: Pace,
    requests: Vec<Due>,
    begun: Instant,
    stop: CancellationToken,
) -> Vec<Exchange> {
    let (client, mut open) = (Client::default(), JoinSet::new());
    for request in requests {
        let due = begun + Duration::from_secs_f64(request.at);
        if stop.run_until_cancelled(tokio::time::sleep_until(due.into())).await.is_none() {
            break;
        }
        let client = client.clone();
        open.spawn(async move {
            // From when it leaves: a client that is late would add to all runs alike, but not the same.
            let sent = Instant::now();
            let response = client.completion(to, pace.body(request)).await;
            let first = response.as_ref().ok().and_then(|response| response.first);
            let outcome = Outcome {
                due: sent.saturating_duration_since(begun),
                first: first.map(|first| first.saturating_duration_since(sent)),
                total: sent.elapsed(),
                response: response.map_err(|error| format!("{error:#}")),
            };
            Exchange { kind: request.kind, outcome }
        });
    }
    open.join_all().await
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { servers: 2, speed: 2.0 };

    fn tokens(kind: Kind, number: u64) -> Vec<u64> {
        let body: serde_json::Value =
            serde_json::from_slice(&PACE.body(Due { at: 0.0, kind, number })).unwrap();
        body["prompt"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect()
    }

    #[test]
    fn turns_share_beginnings_and_bursts_share_nothing() {
        let turns: Vec<_> = (0..100).map(|number| tokens(Kind::Turn, number)).collect();
        let bursts = (0..100).map(|number| tokens(Kind::Burst(0), number));
        let mut shared: Vec<_> = turns.iter().map(|turn| turn[..SHARED as usize].to_vec()).collect();
        let own = turns.iter().map(|turn| turn[SHARED as usize..].to_vec());
        let mut others: Vec<_> = own.chain(bursts).flatten().collect();
        shared.sort();
        shared.dedup();
        assert_eq!(shared.len(), 2 * CONVERSATIONS as usize);
        let count = others.len();
        others.extend(shared.into_iter().flatten());
        others.sort_unstable();
        others.dedup();
        assert_eq!(others.len(), count + 2 * CONVERSATIONS as usize * SHARED as usize);
    }

    #[test]
    fn bursts_come_amid_turns() {
        let requests = PACE.requests(7, 40, 9);
        let of = |kind| requests.iter().filter(move |due| due.kind == kind).collect::<Vec<_>>();
        let (turns, bursts) = (of(Kind::Turn), [of(Kind::Burst(0)), of(Kind::Burst(1))]);
        assert_eq!((turns.len(), requests.len()), (40, 56), "the third burst would not end in time");
        assert_eq!((turns[0].at, turns[0].number, turns[39].at), (0.0, 7, 1.95));
        assert_eq!(bursts.map(|burst| (burst.len(), burst[0].at)), [(8, 0.5), (8, 1.25)]);
        assert!(requests.is_sorted_by(|one, other| one.at <= other.at));
        assert_eq!(PACE.requests(0, 40, 1).len(), 48);
        assert_eq!(
            (PACE.turns_in(Duration::from_secs(3)), PACE.first_burst()),
            (60, Duration::from_millis(700))
        );
    }
}
