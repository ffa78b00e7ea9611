//! An endpoint in a record, packed: records have up to [48](super::DETAILED), and writing them is most of their cost.

/// A number that isn't known: of counts and milliseconds. No engine's are as high.
const UNKNOWN: u32 = u32::MAX;

/// Numbers of an endpoint when a decision was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Signals {
    /// Requests waiting there, as it said last.
    pub waiting: Option<f32>,
    /// Requests running there.
    pub running: Option<f32>,
    /// Share of its KV cache in use, 0..=1.
    pub kv_usage: Option<f32>,
    /// Age of the oldest of these three, in milliseconds.
    pub age_ms: Option<u32>,
    /// Requests of this picker that were in flight there, without this one.
    pub in_flight: u32,
    /// Tokens of the prompt that its prefix cache was expected to have; `None` if unknown.
    pub cached_tokens: Option<u32>,
}

/// Reason why an endpoint was no candidate of the profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenBy {
    /// Outlier ejection.
    Ejection,
    /// A screener, or a choice of few: the request is a probe, or one of many that are spread.
    Narrowing,
}

/// An endpoint in a record.
#[derive(Clone, Debug)]
pub struct Row {
    /// Position in the pool.
    pub(super) position: u32,
    /// Position of its name among the record's.
    pub(super) name: u16,
    /// `None` for candidates of the profiles.
    pub hidden: Option<HiddenBy>,
    // NaN: unknown.
    waiting: f32,
    running: f32,
    kv_usage: f32,
    age_ms: u32,
    in_flight: u32,
    cached_tokens: u32,
}

impl Row {
    /// The endpoint at this position of the pool, with the name at this position of the record's.
    #[inline]
    pub(super) fn new(position: u32, name: u16, signals: Signals) -> Self {
        // A saturated age is an old one, not an unknown one.
        let age_ms = signals.age_ms.map_or(UNKNOWN, |age| age.min(UNKNOWN - 1));
        Self {
            position,
            name,
            hidden: None,
            waiting: signals.waiting.unwrap_or(f32::NAN),
            running: signals.running.unwrap_or(f32::NAN),
            kv_usage: signals.kv_usage.unwrap_or(f32::NAN),
            age_ms,
            in_flight: signals.in_flight,
            cached_tokens: signals.cached_tokens.unwrap_or(UNKNOWN),
        }
    }

    /// Load of the endpoint.
    pub fn signals(&self) -> Signals {
        let number = |number: f32| (!number.is_nan()).then_some(number);
        let count = |count: u32| (count != UNKNOWN).then_some(count);
        Signals {
            waiting: number(self.waiting),
            running: number(self.running),
            kv_usage: number(self.kv_usage),
            age_ms: count(self.age_ms),
            in_flight: self.in_flight,
            cached_tokens: count(self.cached_tokens),
        }
    }

    /// Takes the request that was just booked there out of those in flight.
    pub(super) fn subtract_own(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_numbers_are_what_was_put_in() {
        assert_eq!(size_of::<Row>(), 32);
        let known = Signals {
            waiting: Some(3.0),
            running: Some(0.0),
            kv_usage: Some(0.5),
            age_ms: Some(4),
            in_flight: 7,
            cached_tokens: Some(0),
        };
        for signals in [known, Signals::default()] {
            assert_eq!(Row::new(1, 2, signals).signals(), signals);
        }
        let old = Signals { age_ms: Some(u32::MAX), ..known };
        assert_eq!(Row::new(1, 2, old).signals().age_ms, Some(u32::MAX - 1));
    }
}
