//! Load of an endpoint. A scrape stores, a request loads: every number is
//! an atomic, so neither waits for the other and nothing is cloned.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use super::attributes::{AttributeId, Reading};
use super::engine_state::EngineState;
use super::engine_times::EngineTimesReading;
use super::in_flight::{InFlight, InFlightId};
use super::scrapes::ScrapeHealth;

/// Time for which the duration of first tokens says something about the next ones.
pub const FIRST_TOKEN_WINDOW: Duration = Duration::from_secs(60);

/// One number read from a model server, and when.
#[derive(Debug, Default)]
pub struct Gauge {
    bits: AtomicU64,
    at_ms: AtomicU64,
}

impl Gauge {
    /// Stores a reading. `now_ms` is from the [`Clock`](super::Clock), never 0.
    pub fn set(&self, value: f64, now_ms: u64) {
        self.bits.store(value.to_bits(), Relaxed);
        self.at_ms.store(now_ms, Relaxed);
    }

    /// Moves the reading an eighth of the way to a value: a mean to which each value counts for less
    /// as others come after it. A reading older than [`FIRST_TOKEN_WINDOW`] is replaced.
    pub fn blend(&self, value: f64, now_ms: u64) {
        let known = self.fresh(now_ms, FIRST_TOKEN_WINDOW).is_some();
        let next = |bits| {
            let last = f64::from_bits(bits);
            Some((if known { last + (value - last) / 8.0 } else { value }).to_bits())
        };
        // Never refused: there is always a next one.
        let _ = self.bits.fetch_update(Relaxed, Relaxed, next);
        self.at_ms.store(now_ms, Relaxed);
    }

    /// Forgets the reading.
    pub fn clear(&self) {
        self.at_ms.store(0, Relaxed);
        self.bits.store(0, Relaxed);
    }

    /// The last reading, however old; 0 before the first.
    #[inline]
    pub fn last(&self) -> f64 {
        f64::from_bits(self.bits.load(Relaxed))
    }

    /// Time at which it was read; `None` before the first reading.
    #[inline]
    pub fn read_at_ms(&self) -> Option<u64> {
        match self.at_ms.load(Relaxed) {
            0 => None,
            at => Some(at),
        }
    }

    /// The reading if it is no older than `max_age` at `now_ms`.
    #[inline]
    pub fn fresh(&self, now_ms: u64, max_age: Duration) -> Option<f64> {
        let at = self.read_at_ms()?;
        (u128::from(now_ms.saturating_sub(at)) <= max_age.as_millis()).then(|| self.last())
    }
}

/// LoRA adapters of a model server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// Adapters in use.
    pub running: Vec<String>,
    /// Adapters that requests wait for.
    pub waiting: Vec<String>,
    /// Number that can be loaded at once.
    pub max: u32,
}

/// A model that a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name that requests use for it.
    pub id: String,
    /// The model that it derives from, for an adapter.
    pub parent: Option<String>,
}

/// The state of one endpoint.
#[derive(Debug, Default)]
pub struct Load {
    /// Requests waiting in the model server.
    pub waiting: Gauge,
    /// Requests running in the model server.
    pub running: Gauge,
    /// Share of the KV cache in use, 0..=1.
    pub kv_usage: Gauge,
    /// Tokens per KV-cache block.
    pub block_size: Gauge,
    /// KV-cache blocks of the engine.
    pub num_blocks: Gauge,
    /// LoRA adapters, once the server has reported any.
    pub adapters: ArcSwapOption<Adapters>,
    /// Number of adapters in use, and with it when the server last reported them.
    pub adapters_read: Gauge,
    /// Models of the server, once its list has been read.
    pub models: ArcSwapOption<Vec<Model>>,
    /// Number of models, and with it when the list was read last.
    pub models_read: Gauge,
    /// Seconds from a decision to the first token of a streamed response, a mean of the last ones: of
    /// those that it answered, or computed the prompt of.
    pub first_token: Gauge,
    /// Times that it has measured itself, where something learns from them.
    pub engine_times: EngineTimesReading,
    /// Start and sleep of its engine, where KV events are followed.
    pub engine_state: EngineState,
    /// Health of the scrapes of its metrics.
    pub scrapes: ScrapeHealth,
    /// Attributes that the configuration added.
    attributes: [Gauge; AttributeId::MAX],
    /// Time of the last update of any field by a scrape; 0: never.
    scraped_ms: AtomicU64,
    /// Requests that this process sent there and whose response is not complete.
    in_flight: AtomicI64,
    /// Requests that other replicas have in flight there, as they said last.
    others: AtomicI64,
    /// Time of the last sign that other replicas send requests there; 0: none.
    sent_elsewhere_ms: AtomicU64,
    /// Requests that this process ever sent there, and how many of them were under way or
    /// done when the last readings were asked for.
    sent: AtomicU64,
    seen: AtomicU64,
    /// Requests that wait for a first byte, and that nothing else shows.
    unreported: AtomicU64,
    /// Number of these requests that have waited for longer than is usual.
    overdue: AtomicU64,
    /// Blocks of its prefix cache, as a producer counted them last.
    cached_blocks: AtomicU64,
    /// Requests and tokens in flight as the configuration's producers count them.
    tracked: [InFlight; InFlightId::MAX],
}

impl Load {
    /// Notes a scrape that updated at least one field.
    pub fn scraped(&self, now_ms: u64) {
        self.scraped_ms.store(now_ms, Relaxed);
    }

    /// Time of the last update of any field by a scrape.
    pub fn scraped_at_ms(&self) -> Option<u64> {
        match self.scraped_ms.load(Relaxed) {
            0 => None,
            at => Some(at),
        }
    }

    /// Returns `true` if a scrape updated anything within `max_age`.
    pub fn is_fresh(&self, now_ms: u64, max_age: Duration) -> bool {
        self.scraped_at_ms().is_some_and(|at| u128::from(now_ms.saturating_sub(at)) <= max_age.as_millis())
    }

    /// Requests of this process in flight there.
    #[inline]
    pub fn in_flight(&self) -> i64 {
        self.in_flight.load(Relaxed)
    }

    /// Requests that other replicas have in flight there, as they said last; 0 where none share theirs.
    #[inline]
    pub fn others(&self) -> i64 {
        self.others.load(Relaxed)
    }

    /// Stores the requests that the other replicas have in flight there, all together.
    pub fn report_others(&self, requests: i64) {
        self.others.store(requests, Relaxed);
    }

    /// Notes that other replicas sent requests there since the last call, or may have, as they can't be heard.
    pub fn note_sent_elsewhere(&self, now_ms: u64) {
        self.sent_elsewhere_ms.store(now_ms, Relaxed);
    }

    /// Time at which other replicas last sent requests there, or may have, late by some seconds at most: it moves
    /// with every request of theirs. `None` where none share theirs.
    pub fn sent_elsewhere_ms(&self) -> Option<u64> {
        match self.sent_elsewhere_ms.load(Relaxed) {
            0 => None,
            at => Some(at),
        }
    }

    /// Returns `true` if other replicas sent requests there within `max_age` at `now_ms`, or may have.
    pub fn is_sent_elsewhere(&self, now_ms: u64, max_age: Duration) -> bool {
        let at = self.sent_elsewhere_ms();
        at.is_some_and(|at| u128::from(now_ms.saturating_sub(at)) <= max_age.as_millis())
    }

    /// Requests that this process ever sent there. Whoever asks the endpoint for its
    /// numbers notes it before, and says it to [`seen`](Self::seen) with the response.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// The readings were asked for when so many requests had been sent.
    pub fn seen(&self, sent: u64) {
        self.seen.fetch_max(sent, Relaxed);
    }

    /// Requests of this process in flight there that the readings can't show.
    #[inline]
    pub fn unseen(&self) -> u64 {
        let unseen = self.sent().saturating_sub(self.seen.load(Relaxed));
        unseen.min(u64::try_from(self.in_flight()).unwrap_or(0))
    }

    /// Requests of this process that wait there for the first byte of their response, and that
    /// the last readings should show and don't, or that have waited for long: they weigh as
    /// waiting.
    #[inline]
    pub fn unreported(&self) -> u64 {
        self.unreported.load(Relaxed)
    }

    /// Requests of this process that have waited for the first byte of their response for longer
    /// than nearly all like them, with none from the endpoint since.
    #[inline]
    pub fn overdue(&self) -> u64 {
        self.overdue.load(Relaxed)
    }

    /// Notes requests that wait for a first byte and that nothing else shows, and those of them
    /// that have waited for long.
    pub fn set_unreported(&self, (unreported, overdue): (u64, u64)) {
        // Nearly always nothing changes, and readers keep what they have cached.
        if self.unreported() != unreported {
            self.unreported.store(unreported, Relaxed);
        }
        if self.overdue() != overdue {
            self.overdue.store(overdue, Relaxed);
        }
    }

    /// Blocks that its prefix cache is taken to hold; 0 while nothing counts them.
    pub fn cached_blocks(&self) -> u64 {
        self.cached_blocks.load(Relaxed)
    }

    /// Notes how many blocks its prefix cache is taken to hold.
    pub fn set_cached_blocks(&self, blocks: u64) {
        self.cached_blocks.store(blocks, Relaxed);
    }

    /// Tokens that its KV cache holds, as it said last; 0 while it hasn't.
    #[inline]
    pub fn kv_capacity(&self) -> f64 {
        self.num_blocks.last() * self.block_size.last()
    }

    /// Requests and tokens in flight there, as a producer counts them.
    pub fn in_flight_of(&self, producer: InFlightId) -> &InFlight {
        &self.tracked[producer.index()]
    }

    /// A number that the configuration added.
    pub fn attribute(&self, id: AttributeId) -> &Gauge {
        &self.attributes[id.index()]
    }

    /// A number that the configuration names.
    pub fn reading(&self, reading: Reading) -> &Gauge {
        match reading {
            Reading::Waiting => &self.waiting,
            Reading::Running => &self.running,
            Reading::KvUsage => &self.kv_usage,
            Reading::Attribute(id) => self.attribute(id),
        }
    }

    /// Books one request. Dropping the guard gives it back, however the stream ends.
    pub fn book(self: &Arc<Self>) -> Booking {
        self.in_flight.fetch_add(1, Relaxed);
        self.sent.fetch_add(1, Relaxed);
        Booking { load: Arc::clone(self) }
    }
}

/// One request in flight at an endpoint.
#[derive(Debug)]
pub struct Booking {
    load: Arc<Load>,
}

impl Booking {
    /// The gateway was served by another endpoint than the first pick: the booking moves there.
    pub fn move_to(&mut self, load: &Arc<Load>) {
        if !Arc::ptr_eq(&self.load, load) {
            *self = load.book();
        }
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.load.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_is_fresh_up_to_its_age() {
        let gauge = Gauge::default();
        assert_eq!(gauge.fresh(1_000, Duration::from_secs(2)), None);
        gauge.set(3.5, 1_000);
        assert_eq!(gauge.fresh(3_000, Duration::from_secs(2)), Some(3.5));
        assert_eq!(gauge.fresh(3_001, Duration::from_secs(2)), None);
        assert_eq!(gauge.last(), 3.5);
        gauge.clear();
        assert_eq!((gauge.last(), gauge.read_at_ms()), (0.0, None));
    }

    #[test]
    fn moving_average_restarts_after_a_gap() {
        let gauge = Gauge::default();
        gauge.blend(0.8, 1_000);
        gauge.blend(1.6, 2_000);
        assert!((gauge.last() - 0.9).abs() < 1e-12);
        gauge.blend(0.2, 62_001);
        assert_eq!((gauge.last(), gauge.read_at_ms()), (0.2, Some(62_001)));
    }

    #[test]
    fn requests_sent_after_a_scrape_began_are_unseen() {
        let load = Arc::new(Load::default());
        let first = load.book();
        let asked = load.sent();
        let (second, third) = (load.book(), load.book());
        assert_eq!(load.unseen(), 3, "nothing was read yet");
        load.seen(asked);
        assert_eq!(load.unseen(), 2);
        drop(first);
        drop(second);
        assert_eq!(load.unseen(), 1, "no more than is in flight");
        load.seen(load.sent());
        assert_eq!((load.unseen(), load.in_flight()), (0, 1));
        load.seen(asked);
        assert_eq!(load.unseen(), 0, "an older page changes nothing");
        drop(third);
    }

    #[test]
    fn booking_moves_and_is_released_on_drop() {
        let (a, b) = (Arc::new(Load::default()), Arc::new(Load::default()));
        let mut booking = a.book();
        assert_eq!((a.in_flight(), b.in_flight()), (1, 0));
        booking.move_to(&b);
        assert_eq!((a.in_flight(), b.in_flight()), (0, 1));
        booking.move_to(&b);
        assert_eq!((a.in_flight(), b.in_flight()), (0, 1));
        drop(booking);
        assert_eq!((a.in_flight(), b.in_flight()), (0, 0));
    }
}
