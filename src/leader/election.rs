//! When to take, keep and give up the lease. No I/O and no clock.

use std::time::Duration;

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait after the last sign of life of a leader; whole seconds.
    pub lease: Duration,
    /// How often a leader shows it lives, and others look whether it does.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { lease: Duration::from_secs(4), retry: Duration::from_secs(1) }
    }
}

/// What a Lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its version: it is another after every write.
    pub version: String,
    /// Who leads; empty: nobody.
    pub holder: String,
    /// How long the holder asks others to wait after a sign of life.
    pub lease: Duration,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Write that we lead, over the record that was seen or where there was none.
    Write,
    /// Look again after this time, or as soon as the record changes.
    Look(Duration),
}

/// A replica's part in an election.
#[derive(Debug)]
pub struct Election {
    identity: String,
    timing: Timing,
    leads: bool,
    /// The record as it last changed, and when that was seen.
    seen: Option<(Record, Duration)>,
}

impl Election {
    /// A replica that doesn't lead. Its identity must be its own alone, also after a
    /// restart.
    pub fn new(identity: String, timing: Timing) -> Self {
        Self { identity, timing, leads: false, seen: None }
    }

    /// Whether this replica leads.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Who this is.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// How long others wait for us.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// The record was read at this time; `None`: there is none.
    pub fn saw(&mut self, record: Option<Record>, now: Duration) -> Next {
        let Some(record) = record else {
            self.seen = None;
            return Next::Write;
        };
        let changed = self.seen.as_ref().is_none_or(|(known, _)| *known != record);
        if changed {
            self.seen = Some((record.clone(), now));
        }
        if record.holder.is_empty() || record.holder == self.identity {
            return Next::Write;
        }
        // Somebody else holds it, whatever we thought.
        self.leads = false;
        let since = self.seen.as_ref().map_or(now, |(_, since)| *since);
        let ends = since + record.lease;
        if now >= ends { Next::Write } else { Next::Look(self.timing.retry.min(ends - now)) }
    }

    /// The write went through, at this version.
    pub fn wrote(&mut self, version: String, now: Duration) -> Next {
        self.leads = true;
        let record = Record { version, holder: self.identity.clone(), lease: self.timing.lease };
        self.seen = Some((record, now));
        Next::Look(self.timing.retry)
    }

    /// Somebody else wrote first.
    pub fn was_late(&self) -> Next {
        Next::Look(Duration::ZERO)
    }

    /// The server could not be asked, or refused. Who leads goes on leading.
    pub fn failed(&self) -> Next {
        Next::Look(self.timing.retry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: Duration = Duration::from_secs(1);

    fn record(version: &str, holder: &str, lease: u64) -> Option<Record> {
        Some(Record { version: version.to_owned(), holder: holder.to_owned(), lease: S * lease as u32 })
    }

    fn election(name: &str) -> Election {
        Election::new(name.to_owned(), Timing::default())
    }

    #[test]
    fn a_lease_that_nobody_holds_is_taken_at_once_and_kept() {
        for free in [None, record("1", "", 1)] {
            let mut a = election("a");
            assert_eq!(a.saw(free, S), Next::Write);
            assert!(!a.leads(), "not before it is written");
            assert_eq!(a.wrote("2".to_owned(), S), Next::Look(S));
            assert!(a.leads());
            assert_eq!(a.saw(record("2", "a", 4), S * 2), Next::Write);
        }
    }

    #[test]
    fn another_waits_for_as_long_as_the_lease_says_after_the_last_change() {
        let mut b = election("b");
        assert_eq!(b.saw(record("1", "a", 15), S), Next::Look(S));
        assert_eq!(b.saw(record("1", "a", 15), S * 15), Next::Look(S));
        assert_eq!(b.saw(record("2", "a", 15), S * 15), Next::Look(S), "a lives");
        assert_eq!(b.saw(record("2", "a", 15), S * 29 + S / 2), Next::Look(S / 2));
        assert_eq!(b.saw(record("2", "a", 15), S * 30), Next::Write);
    }

    #[test]
    fn after_a_crash_another_leads_within_six_seconds() {
        let timing = Timing::default();
        // The last renewal was just before, and is seen only after a whole pause.
        let seen = timing.retry;
        let mut b = election("b");
        let mut now = seen;
        while let Next::Look(pause) = b.saw(record("1", "a", timing.lease.as_secs()), now) {
            assert!(!pause.is_zero());
            now += pause;
        }
        assert!(now <= S * 5, "{now:?}");
    }

    #[test]
    fn a_leader_that_is_cut_off_goes_on_until_it_sees_another() {
        let mut a = election("a");
        a.saw(None, S);
        a.wrote("1".to_owned(), S);
        assert_eq!(a.failed(), Next::Look(S));
        assert_eq!(a.was_late(), Next::Look(Duration::ZERO));
        assert!(a.leads());
        assert_eq!(a.saw(record("9", "b", 4), S * 60), Next::Look(S));
        assert!(!a.leads());
    }

    proptest! {
        /// Replicas that can all reach the server, each at its own pace: never two lead,
        /// and the lease of one that writes in time is never taken.
        #[test]
        fn of_replicas_that_reach_the_server_one_leads(
            turns in proptest::collection::vec((0usize..3, 1u64..900), 1..200),
        ) {
            let names = ["a", "b", "c"];
            let mut replicas = names.map(election);
            let mut due = [Duration::ZERO; 3];
            let (mut server, mut version): (Option<Record>, u32) = (None, 0);
            let mut now = Duration::ZERO;
            for (late, millis) in turns {
                // Whoever is due first, up to 900 ms late: less than the lease allows.
                let which = (0..3).min_by_key(|which| (due[*which], (*which + late) % 3)).unwrap();
                now = now.max(due[which]) + Duration::from_millis(millis);
                let next = match replicas[which].saw(server.clone(), now) {
                    Next::Write => {
                        version += 1;
                        let holder = names[which].to_owned();
                        let lease = Timing::default().lease;
                        server = Some(Record { version: version.to_string(), holder, lease });
                        replicas[which].wrote(version.to_string(), now)
                    }
                    look => look,
                };
                let Next::Look(pause) = next else { unreachable!() };
                due[which] = now + pause;
                let leading = replicas.iter().filter(|replica| replica.leads()).count();
                prop_assert_eq!(leading, 1);
            }
        }
    }
}
