//! Requests and when they come.

use std::time::Duration;

use super::draw::Draw;
use crate::load::trace::Row;
use usher_core::random::mix;
use usher_core::request::Slo;

/// Stream of random numbers by which classes are drawn: another one than lengths and times have.
const CLASSES: u64 = 64;

/// One request to come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Time since the start of the replay, or since the last of `after` ended.
    pub at: Duration,
    /// Positions of the requests that have to end, answered or refused, before this one
    /// comes: the turns of a conversation, the calls of an agent.
    pub after: Box<[u32]>,
    /// Parts of its prompt, in order.
    pub prompt: Box<[Piece]>,
    /// Tokens of its response, at least 1. Pickers don't see it.
    pub output_tokens: u32,
    /// Seed of the response's text, for later prompts that repeat it; its blocks stay in the
    /// prefix cache then. `None`: nobody repeats it, and it leaves nothing there.
    pub response: Option<u64>,
    /// Latency class; `None`: it is judged by the limits of the replay.
    pub class: Option<LatencyClass>,
}

/// Latency targets of a class of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LatencyClass {
    /// Until then a first token is in time.
    pub ttft: Duration,
    /// Mean time between two tokens of a response up to which it is fast enough.
    pub tpot: Duration,
    /// Requests name the targets in their headers.
    pub is_named: bool,
}

impl LatencyClass {
    /// Headers that name the targets, and their milliseconds.
    pub(super) fn headers(self) -> impl Iterator<Item = (&'static str, String)> {
        let [ttft, tpot] = Slo::HEADERS;
        let all = [(ttft, self.ttft), (tpot, self.tpot)].into_iter().filter(move |_| self.is_named);
        all.map(|(name, target)| (name, (target.as_secs_f64() * 1e3).to_string()))
    }
}

/// Draws the class of each request, all equally probable.
pub fn classify(arrivals: &mut [Arrival], classes: &[LatencyClass], seed: u64) {
    let mut draw = Draw::new(seed, CLASSES);
    for arrival in arrivals {
        arrival.class = classes.get(draw.below(classes.len() as u64) as usize).copied();
    }
}

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Its text follows from this number alone: equal numbers are equal text.
    pub seed: u64,
    /// Length in tokens.
    pub tokens: u32,
}

impl Arrival {
    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt.iter().fold(0, |sum, piece| sum.saturating_add(piece.tokens))
    }

    /// The response as a part of a later prompt.
    pub fn response(&self) -> Option<Piece> {
        self.response.map(|seed| Piece { seed, tokens: self.output_tokens })
    }

    /// Returns `true` if other requests have to end before it comes.
    pub fn follows(&self) -> bool {
        !self.after.is_empty()
    }
}

/// The requests of a trace. With another `salt` all texts are others, and what they share
/// is the same.
pub fn of_trace(rows: &[Row], salt: u64) -> Vec<Arrival> {
    let start = rows.first().map_or(0, |row| row.timestamp);
    let arrival = |row: &Row| Arrival {
        at: Duration::from_millis(row.timestamp.saturating_sub(start)),
        prompt: row.pieces(salt).map(|(seed, tokens)| Piece { seed, tokens: tokens as u32 }).collect(),
        output_tokens: row.output_length.max(1),
        ..Arrival::default()
    };
    rows.iter().map(arrival).collect()
}

/// `count` requests: those of `rows` in rotation, each round with other texts.
pub fn repeat(rows: &[Row], count: usize, salt: u64) -> Vec<Arrival> {
    let once = of_trace(rows, salt);
    let span = once.last().map_or(Duration::ZERO, |last| last.at);
    // As if the mean time passed between the last one and the first one.
    let gaps = u32::try_from(rows.len()).unwrap_or(u32::MAX).saturating_sub(1).max(1);
    let period = span.saturating_add(span / gaps);
    let mut arrivals = Vec::with_capacity(count);
    for round in 0..u32::try_from(count.div_ceil(rows.len().max(1))).unwrap_or(u32::MAX) {
        let again = of_trace(rows, if round == 0 { salt } else { mix(salt).wrapping_add(round.into()) });
        let left = count - arrivals.len();
        let later = |arrival: Arrival| Arrival {
            at: arrival.at.saturating_add(period.saturating_mul(round)),
            ..arrival
        };
        arrivals.extend(again.into_iter().take(left).map(later));
    }
    arrivals
}

/// Lets all requests come `factor` times as fast; above 0. Those that follow others keep
/// their pauses.
pub fn speed_up(arrivals: &mut [Arrival], factor: f64) {
    for arrival in arrivals.iter_mut().filter(|arrival| !arrival.follows()) {
        // Beyond centuries it makes no difference when.
        let at = Duration::try_from_secs_f64(arrival.at.as_secs_f64() / factor);
        arrival.at = at.unwrap_or(Duration::from_secs(u32::MAX.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(timestamp: u64, input_length: usize, hash_ids: &[u64]) -> Row {
        Row { timestamp, input_length, output_length: 0, hash_ids: hash_ids.to_vec() }
    }

    #[test]
    fn a_trace_begins_at_its_first_request() {
        let rows = [row(5_000, 700, &[1, 2]), row(6_500, 1024, &[1, 3])];
        let arrivals = of_trace(&rows, 9);
        assert_eq!([arrivals[0].at, arrivals[1].at], [0, 1500].map(Duration::from_millis));
        assert_eq!((arrivals[0].prompt_tokens(), arrivals[0].output_tokens), (700, 1));
    }

    #[test]
    fn classes_are_equally_probable_and_name_their_targets() {
        let mut arrivals = vec![Arrival::default(); 4000];
        let ms = Duration::from_millis;
        let tight = LatencyClass { ttft: ms(500), tpot: Duration::from_micros(20_500), is_named: true };
        let loose = LatencyClass { ttft: ms(9000), tpot: ms(90), is_named: false };
        classify(&mut arrivals, &[tight, loose], 3);
        let count = |class| arrivals.iter().filter(|arrival| arrival.class == Some(class)).count();
        assert_eq!(count(tight) + count(loose), 4000);
        // Six standard deviations.
        assert!(count(tight).abs_diff(2000) < 190, "{}", count(tight));
        let named: Vec<_> = tight.headers().collect();
        let expected = [("x-llm-d-slo-ttft-ms", "500"), ("x-llm-d-slo-tpot-ms", "20.5")];
        assert_eq!(named, expected.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(loose.headers().count(), 0);
        classify(&mut arrivals, &[], 3);
        assert!(arrivals.iter().all(|arrival| arrival.class.is_none()));
    }
}
