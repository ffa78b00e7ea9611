//! The store's clock, which stamps entries. No I/O.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use usher_core::prefix::share::EntryId;

use super::super::resp::Value;

/// Time of the store's clock when it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreClock {
    unix: Duration,
    read: Instant,
}

impl StoreClock {
    /// The clock that the reply to `TIME` shows. Another reply says that the user may not ask: then that of this machine.
    pub(super) fn of(reply: &Value, read: Instant) -> Self {
        let here = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { unix: time(reply).unwrap_or_else(here), read }
    }

    /// Milliseconds since an entry was added.
    pub(super) fn age_ms(self, entry: EntryId, now: Instant) -> u64 {
        let now = self.unix.saturating_add(now.saturating_duration_since(self.read));
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_sub(entry.ms)
    }
}

/// Seconds and microseconds, as texts.
fn time(reply: &Value) -> Option<Duration> {
    let Value::List(parts) = reply else { return None };
    let number = |value: &Value| std::str::from_utf8(value.text()?).ok()?.parse().ok();
    match &parts[..] {
        [seconds, micros] => {
            Some(Duration::from_secs(number(seconds)?).saturating_add(Duration::from_micros(number(micros)?)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }

    #[test]
    fn ages_are_of_the_clock_that_stamped_the_entry() {
        let read = Instant::now();
        // Years ahead of this machine's.
        let clock = StoreClock::of(&Value::List(vec![text("9000000000"), text("250000")]), read);
        let age = |ms| clock.age_ms(EntryId { ms, seq: 3 }, read + Duration::from_secs(2));
        assert_eq!(age(9_000_000_000_000), 2250);
        assert_eq!((age(9_000_000_002_250), age(u64::MAX)), (0, 0), "it came since");
    }

    #[test]
    fn other_replies_leave_the_clock_of_this_machine() {
        let refused = Value::Error(b"NOPERM this user has no permissions to run the 'time' command".to_vec());
        let odd = [vec![], vec![text("1")], vec![text("x"), text("1")], vec![Value::Null, Value::Null]];
        for reply in [refused, Value::Null].into_iter().chain(odd.map(Value::List)) {
            let (now, read) = (SystemTime::now(), Instant::now());
            let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
            let clock = StoreClock::of(&reply, read);
            let age = clock.age_ms(EntryId { ms: now - 60_000, seq: 0 }, read);
            assert!((50_000..600_000).contains(&age), "{reply:?}: {age}");
        }
    }
}
