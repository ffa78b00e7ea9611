//! Times that an engine has measured itself, as observations of the pool's models.
//!
//! An endpoint whose responses don't stream shows no first token. Its histograms do: what their
//! sums and counts grew by, between two pages, is the mean time of some requests. The models
//! are linear, so a mean time belongs to the means of the inputs. These are of the requests
//! that were sent there, in order, or where others send, too, of what the engine counted.

use std::collections::VecDeque;

use usher_core::endpoints::{EngineTimes, Total};

use super::group::Steps;

/// Requests whose inputs are kept at most.
const MOST_SENT: usize = 1024;

/// First tokens and ended requests of which a mean is taken at least.
const FEWEST: f64 = 4.0;

/// Steps likewise.
const FEWEST_STEPS: f64 = 16.0;

/// Share of an endpoint's first tokens, or of requests sent there, from which on streams teach enough.
const STREAMS: f64 = 0.5;

/// Share of an endpoint's first tokens whose inputs have to be known.
const KNOWN: f64 = 0.7;

/// Later start, in seconds, that is another process. Some engines compute it anew each time.
const RESTART: f64 = 5.0;

/// State of an endpoint when a request was sent there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Met {
    /// Requests there, and their tokens in the cache.
    pub(super) requests: f64,
    pub(super) cached: f64,
    /// Tokens to compute with its own; `None`: something else made it wait.
    pub(super) tokens: Option<f64>,
    /// Tokens of the request itself.
    pub(super) own: f64,
}

/// Last histograms of an endpoint, and requests that were sent there since.
#[derive(Debug, Default)]
pub(super) struct Histograms {
    version: u64,
    last: EngineTimes,
    /// Requests whose first token isn't observed, in sending order.
    sent: VecDeque<Met>,
    /// First tokens of streams since the histogram of first tokens was used.
    streams: f64,
    /// Sums over the requests sent since that of steps was used, their number, and that of streams among them.
    met: Met,
    count: f64,
    sent_streams: f64,
}

/// Mean times of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Means {
    /// Requests there, tokens to compute, and seconds to the first token.
    pub(super) first: Option<(f64, f64, f64)>,
    /// Conditions of steps, and the seconds of one with all that came between.
    pub(super) step: Option<(Steps, f64)>,
}

impl Histograms {
    /// Start of the engine whose pages were read, in seconds of Unix time, if it said so.
    pub(super) fn started(&self) -> Option<f64> {
        self.last.started
    }

    /// Notes when the engine started of which the endpoint's times are known; the first page shows whether it still runs.
    pub(super) fn expect(&mut self, started: f64) {
        self.last.started.get_or_insert(started);
    }

    /// Returns `true` if the start of an engine says that it is the process whose pages were read.
    pub(super) fn is_of(&self, started: Option<f64>) -> bool {
        self.last.started.zip(started).is_some_and(|(ours, theirs)| (ours - theirs).abs() <= RESTART)
    }

    /// A request was sent. `is_stream`: its first token should be seen.
    pub(super) fn sent(&mut self, met: Met, is_stream: bool) {
        self.count += 1.0;
        self.met.requests += met.requests;
        self.met.cached += met.cached;
        self.met.own += met.own;
        if is_stream {
            self.sent_streams += 1.0;
        } else {
            self.push(met);
        }
    }

    /// The first token of a request that was sent as a stream won't be seen.
    pub(super) fn hidden(&mut self, met: Met) {
        // Below 0 if that of steps was used since; then it makes up for one that is hidden, too, and not known to be.
        self.sent_streams -= 1.0;
        self.push(met);
    }

    fn push(&mut self, met: Met) {
        if self.sent.len() == MOST_SENT {
            self.sent.pop_front();
        }
        self.sent.push_back(met);
    }

    /// The first token of a stream came.
    pub(super) fn streamed(&mut self) {
        self.streams += 1.0;
    }

    /// Takes another page. `None`: the engine has started anew, and is another one.
    /// `in_flight`: requests of which the first token may be yet to come. `output`: mean tokens of a response.
    pub(super) fn read(
        &mut self,
        version: u64,
        now: EngineTimes,
        in_flight: usize,
        output: f64,
    ) -> Option<Means> {
        let (is_first, last) = (self.version == 0, self.last);
        self.version = version;
        let fell = |last: Option<Total>, now: Option<Total>| {
            last.zip(now).is_some_and(|(last, now)| now.count < last.count)
        };
        let started = last.started.zip(now.started).is_some_and(|(last, now)| now > last + RESTART);
        let fell = fell(last.first_token, now.first_token)
            || fell(last.inter_token, now.inter_token)
            || fell(last.per_request, now.per_request);
        if started || fell {
            *self = Self { version, last: now, ..Self::default() };
            return None;
        }
        if is_first {
            *self = Self { version, last: now, ..Self::default() };
            return Some(Means::default());
        }
        self.last.started = now.started.or(last.started);
        let requests = self.met.requests / self.count.max(1.0);
        let means = Means { step: self.step(&now, output), first: self.first(&now, requests) };
        // Those that ended had a first token, whether the histogram shows it or not.
        while self.sent.len() > in_flight.max(1) * 2 {
            self.sent.pop_front();
        }
        Some(means)
    }

    /// `requests`: their mean at the endpoint.
    fn first(&mut self, now: &EngineTimes, requests: f64) -> Option<(f64, f64, f64)> {
        let grown = grown(self.last.first_token, now.first_token, FEWEST)?;
        let computed =
            grown_by(self.last.prefill, now.prefill).zip(grown_by(self.last.computed, now.computed));
        (self.last.first_token, self.last.prefill, self.last.computed) =
            (now.first_token, now.prefill, now.computed);
        let streams = std::mem::take(&mut self.streams);
        let unseen = (grown.count - streams).max(0.0);
        // Casts from floats saturate.
        let known = self.sent.len().min(unseen.round() as usize);
        let sent: Vec<Met> = self.sent.drain(..known).collect();
        if streams >= grown.count * STREAMS {
            return None;
        }
        if known as f64 >= unseen * KNOWN {
            let count = known as f64;
            let requests = sent.iter().map(|met| met.requests).sum::<f64>() / count;
            let tokens = sent.iter().map(|met| met.tokens).sum::<Option<f64>>()? / count;
            return Some((requests, tokens, grown.sum / grown.count));
        }
        // Others send most of it. The engine says what it computed, and how long without waiting.
        let (prefill, computed) = computed.filter(|(prefill, _)| prefill.count >= FEWEST)?;
        Some((requests, computed.sum / computed.count.max(1.0), prefill.sum / prefill.count))
    }

    fn step(&mut self, now: &EngineTimes, output: f64) -> Option<(Steps, f64)> {
        // Of one that has a value per request, each stands for the tokens after the first.
        let (grown, tokens) = if now.inter_token.is_some() {
            let grown = grown(self.last.inter_token, now.inter_token, FEWEST_STEPS)?;
            self.last.inter_token = now.inter_token;
            (grown, grown.count)
        } else {
            let grown = grown(self.last.per_request, now.per_request, FEWEST)?;
            self.last.per_request = now.per_request;
            (grown, grown.count * (output - 1.0).max(1.0))
        };
        let (met, count) = (std::mem::take(&mut self.met), std::mem::take(&mut self.count));
        let streams = std::mem::take(&mut self.sent_streams);
        if count == 0.0 || streams >= count * STREAMS {
            return None;
        }
        let requests = met.requests / count;
        // Each step makes a token for every request that decodes.
        let steps = tokens / requests.max(1.0);
        let conditions = Steps { requests, cached: met.cached / count, computed: met.own / steps };
        Some((conditions, grown.sum / grown.count))
    }
}

/// Growth of a histogram, if by at least so many values.
fn grown(last: Option<Total>, now: Option<Total>, fewest: f64) -> Option<Total> {
    match (last, now) {
        (_, None) => None,
        (None, Some(now)) => Some(now).filter(|now| now.count >= fewest),
        _ => grown_by(last, now).filter(|grown| grown.count >= fewest),
    }
}

fn grown_by(last: Option<Total>, now: Option<Total>) -> Option<Total> {
    let (last, now) = (last.unwrap_or_default(), now?);
    let grown = Total { sum: now.sum - last.sum, count: now.count - last.count };
    (grown.sum >= 0.0 && grown.count > 0.0).then_some(grown)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean tokens of a response.
    const OUTPUT: f64 = 101.0;

    fn total(sum: f64, count: f64) -> Option<Total> {
        Some(Total { sum, count })
    }

    fn met(tokens: f64) -> Met {
        Met { requests: 2.0, cached: 4000.0, tokens: Some(tokens), own: tokens }
    }

    fn page(first: Option<Total>, inter_token: Option<Total>) -> EngineTimes {
        EngineTimes { first_token: first, inter_token, started: Some(100.0), ..EngineTimes::default() }
    }

    #[test]
    fn mean_times_pair_with_means_of_sent_requests() {
        let mut histograms = Histograms::default();
        assert_eq!(
            histograms.read(1, page(total(50.0, 10.0), total(9.0, 900.0)), 0, OUTPUT),
            Some(Means::default())
        );
        for tokens in [1000.0, 2000.0, 3000.0, 4000.0, 9000.0] {
            histograms.sent(met(tokens), false);
        }
        let means = histograms.read(2, page(total(51.0, 14.0), total(10.0, 940.0)), 5, OUTPUT).unwrap();
        assert_eq!(means.first, Some((2.0, 2500.0, 0.25)));
        let (steps, seconds) = means.step.unwrap();
        assert_eq!((steps.requests, steps.cached, seconds), (2.0, 4000.0, 1.0 / 40.0));
        assert_eq!(steps.computed, 19_000.0 / 20.0, "of 20 steps with two requests each");
        // The fifth is yet to come, and too few came since.
        histograms.sent(met(11_000.0), false);
        assert_eq!(
            histograms.read(3, page(total(52.0, 15.0), total(10.0, 941.0)), 2, OUTPUT),
            Some(Means::default())
        );
        (0..3).for_each(|_| histograms.sent(met(5000.0), false));
        let means = histograms.read(4, page(total(53.0, 18.0), None), 5, OUTPUT).unwrap();
        assert_eq!(means.first, Some((2.0, 7500.0, 0.5)));
    }

    #[test]
    fn mostly_streamed_requests_give_no_means() {
        let mut histograms = Histograms::default();
        histograms.read(1, page(total(0.0, 0.0), total(0.0, 0.0)), 0, OUTPUT);
        for _ in 0..8 {
            histograms.sent(met(100.0), true);
            histograms.streamed();
        }
        let means = histograms.read(2, page(total(1.0, 8.0), total(1.0, 100.0)), 8, OUTPUT);
        assert_eq!(means, Some(Means::default()));
        (0..8).for_each(|_| histograms.sent(met(100.0), false));
        histograms.streamed();
        let means = histograms.read(3, page(total(2.0, 17.0), total(2.0, 200.0)), 8, OUTPUT).unwrap();
        assert!(means.first.is_some() && means.step.is_some(), "most weren't streams: {means:?}");
    }

    #[test]
    fn steps_of_streams_without_a_first_token_give_no_means() {
        let mut histograms = Histograms::default();
        histograms.read(1, page(total(0.0, 0.0), total(0.0, 0.0)), 0, OUTPUT);
        histograms.sent(met(100_000.0), true);
        let means = histograms.read(2, page(total(0.0, 0.0), total(1.0, 100.0)), 1, OUTPUT);
        assert_eq!(means, Some(Means::default()), "they teach by themselves");
        histograms.sent(met(100.0), false);
        let means = histograms.read(3, page(total(0.0, 0.0), total(2.0, 200.0)), 1, OUTPUT).unwrap();
        assert!(means.step.is_some(), "it was no stream");
    }

    #[test]
    fn hidden_streams_give_means() {
        let mut histograms = Histograms::default();
        histograms.read(1, page(total(0.0, 0.0), total(0.0, 0.0)), 0, OUTPUT);
        let send = |histograms: &mut Histograms| (0..4).for_each(|_| histograms.sent(met(1000.0), true));
        send(&mut histograms);
        (0..4).for_each(|_| histograms.hidden(met(1000.0)));
        let means = histograms.read(2, page(total(1.0, 4.0), total(1.0, 100.0)), 4, OUTPUT).unwrap();
        assert_eq!(means.first, Some((2.0, 1000.0, 0.25)));
        assert_eq!(means.step.map(|(_, seconds)| seconds), Some(0.01));
        // A page between sending and the head of the response.
        send(&mut histograms);
        let means = histograms.read(3, page(total(1.0, 4.0), total(2.0, 200.0)), 4, OUTPUT).unwrap();
        assert_eq!(means.step, None, "they may be shown");
        (0..4).for_each(|_| histograms.hidden(met(1000.0)));
        let means = histograms.read(4, page(total(1.0, 4.0), total(3.0, 300.0)), 4, OUTPUT).unwrap();
        assert_eq!(means.step, None, "nothing was sent");
        send(&mut histograms);
        (0..3).for_each(|_| histograms.hidden(met(1000.0)));
        let means = histograms.read(5, page(total(2.0, 8.0), total(4.0, 400.0)), 4, OUTPUT).unwrap();
        assert!(means.first.is_some() && means.step.is_some(), "{means:?}");
    }

    #[test]
    fn values_per_request_stand_for_their_tokens() {
        let steps = |page: &dyn Fn(f64, f64) -> EngineTimes, requests: f64, tokens: f64| {
            let mut histograms = Histograms::default();
            histograms.read(1, page(0.0, 0.0), 0, OUTPUT);
            (0..16).for_each(|_| histograms.sent(met(1000.0), false));
            assert_eq!(histograms.read(2, page(0.02, 1.0), 16, OUTPUT).unwrap().step, None, "too few");
            histograms.read(3, page(0.02 * tokens, tokens), requests as usize, OUTPUT).unwrap().step
        };
        let per_token = steps(&|sum, count| page(None, total(sum, count)), 16.0, 1600.0);
        let per_request = |sum, count| EngineTimes { per_request: total(sum, count), ..page(None, None) };
        assert_eq!(steps(&per_request, 16.0, 16.0), per_token);
    }

    #[test]
    fn computed_tokens_come_from_the_engine_with_other_senders() {
        let mut histograms = Histograms::default();
        let page = |first, prefill, computed| EngineTimes { prefill, computed, ..page(first, None) };
        histograms.read(1, page(total(0.0, 0.0), total(0.0, 0.0), total(0.0, 0.0)), 0, OUTPUT);
        histograms.sent(met(50.0), false);
        let means =
            histograms.read(2, page(total(9.0, 10.0), total(2.0, 10.0), total(8000.0, 10.0)), 1, OUTPUT);
        assert_eq!(means.unwrap().first, Some((2.0, 800.0, 0.2)));
        histograms.sent(met(50.0), false);
        assert_eq!(histograms.read(3, page(total(19.0, 20.0), None, None), 1, OUTPUT).unwrap().first, None);
    }

    #[test]
    fn new_start_time_or_lower_count_resets_the_histograms() {
        let later = |started| EngineTimes { started: Some(started), ..page(total(5.0, 50.0), None) };
        let mut histograms = Histograms::default();
        histograms.read(1, later(100.0), 0, OUTPUT);
        histograms.sent(met(5.0), false);
        assert!(histograms.read(2, later(100.4), 9, OUTPUT).is_some(), "the same start, rounded");
        assert_eq!(histograms.read(3, later(190.0), 9, OUTPUT), None);
        assert!(histograms.sent.is_empty());
        assert!(histograms.read(4, later(190.0), 9, OUTPUT).is_some());
        assert_eq!(histograms.read(5, page(total(1.0, 3.0), None), 9, OUTPUT), None, "a lower count");
    }

    #[test]
    fn sent_requests_kept_are_bounded() {
        let mut histograms = Histograms::default();
        histograms.read(1, page(total(0.0, 0.0), None), 0, OUTPUT);
        (0..2 * MOST_SENT).for_each(|_| histograms.sent(met(5.0), false));
        assert_eq!(histograms.sent.len(), MOST_SENT);
        histograms.read(2, page(total(0.0, 0.0), None), 3, OUTPUT);
        assert_eq!(histograms.sent.len(), 6, "all others have ended");
    }
}
