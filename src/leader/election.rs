//! Decisions to take, keep, hand over and give up the lease. No I/O and no clock.

use std::time::Duration;

use super::revision::{Candidate, Revision};

/// Pause before the lease is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Pause of handovers after a replica did not take the lease, or did not
/// keep it. A revision that crashes whenever it leads gets to do so twice a minute at most.
const HAND_AGAIN: Duration = Duration::from_secs(30);

/// Time for which nobody is handed the lease after the server could not be asked, or refused:
/// nobody has done anything wrong, and the lease is renewed meanwhile.
const HAND_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Durations of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time that others wait after the last renewal of a leader; whole seconds.
    pub lease: Duration,
    /// Time after its last renewal in which a leader acts on the cluster; less than `lease`.
    pub renew: Duration,
    /// Interval at which a leader shows that it lives, and others look whether it does; less than `renew`.
    pub retry: Duration,
    /// Time for which a leader stays ready after it has handed over: until everybody knows
    /// of the new one (a probe every 2 s, and what its result has to pass through), and
    /// long enough to take over again if the new one ends at once.
    pub linger: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { lease: s(4), renew: s(3), retry: s(1), linger: s(10) }
    }
}

/// Content of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Identity of the holder; empty: none.
    pub holder: String,
    /// Time that the holder asks others to wait after a renewal.
    pub lease: Duration,
    /// Time of the holder's last renewal. Only a change of it counts.
    pub renewed: String,
    /// Candidate that led last and said of which revision it is.
    pub leader: Option<Candidate>,
    /// Candidate that asks to be handed the lease.
    pub asks: Option<Candidate>,
}

/// Fitness of a replica to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fitness {
    /// Could not become ready, and leaves the lease to those that could.
    Unable,
    /// Could become ready.
    Able,
    /// Could serve as well as the leader.
    Warm,
}

/// Next step of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Write that we lead, over the record that was seen or where there was none. Nobody
    /// asks any more then.
    Write,
    /// Write that this replica, which asked for it, holds the lease. It must say itself
    /// that it leads.
    Hand(String),
    /// Write that we ask for the lease, and nothing else, into the record that was seen.
    Ask,
    /// Look again after this time, or as soon as the record changes.
    Look(Duration),
}

/// Current activity of a replica in an election.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// Knows the endpoints, and waits.
    Waits,
    /// Holds the lease.
    Leads,
    /// Has handed the lease to this one, which has not said yet that it leads; or was about
    /// to, and may have `failed`.
    Hands { to: String, failed: bool },
    /// Handed over, and stays ready until this time, for gateways that have not noticed.
    Lingers(Duration),
}

/// A replica's part in an election.
#[derive(Debug)]
pub struct Election {
    identity: String,
    timing: Timing,
    part: Part,
    revision: Option<Revision>,
    fitness: Fitness,
    /// The record with its last renewal, and when that was first seen.
    seen: Option<(Record, Duration)>,
    /// Time at which we last asked for the lease.
    asked: Option<Duration>,
    /// Time from which the lease may be handed over again.
    hands_from: Duration,
    /// Time at which the last renewal that went through began.
    renewed: Duration,
    /// Time at which the terms of all that held a Lease which was deleted are over.
    acts_from: Duration,
}

impl Election {
    /// A replica that doesn't lead. Its identity must be its own alone, also after a
    /// restart.
    pub fn new(identity: String, timing: Timing) -> Self {
        Self {
            identity,
            timing,
            part: Part::Waits,
            revision: None,
            fitness: Fitness::Able,
            seen: None,
            asked: None,
            hands_from: Duration::ZERO,
            renewed: Duration::ZERO,
            acts_from: Duration::ZERO,
        }
    }

    /// Returns `true` if this replica holds the lease, as far as it knows.
    pub fn holds(&self) -> bool {
        self.part == Part::Leads
    }

    /// Until when this replica may act on the cluster; `None`: it may not. One that hands over
    /// does so no more, and one that created the Lease not yet.
    pub fn acts_until(&self, now: Duration) -> Option<Duration> {
        (self.holds() && now >= self.acts_from).then(|| self.renewed + self.timing.renew)
    }

    /// Returns `true` if this replica is one for a gateway to send requests to: it leads,
    /// or has handed over only just now.
    pub fn is_ready(&self, now: Duration) -> bool {
        match self.part {
            Part::Leads | Part::Hands { .. } => true,
            Part::Lingers(until) => now < until,
            Part::Waits => false,
        }
    }

    /// Identity of this replica.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// This replica as a candidate: its identity and revision; `None`: its revision is not known.
    pub fn candidate(&self) -> Option<Candidate> {
        let revision = self.revision.clone()?;
        Some(Candidate { identity: self.identity.clone(), revision })
    }

    /// Time that others wait for us.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// The revision that this replica belongs to. Until it is known, the lease is neither
    /// asked for nor handed over.
    pub fn set_revision(&mut self, revision: Option<Revision>) {
        self.revision = revision;
    }

    /// Sets how well this replica could lead. One that is unable takes no lease, and one
    /// that is not warm asks for none. Who leads goes on leading.
    pub fn set_fitness(&mut self, fitness: Fitness) {
        self.fitness = fitness;
    }

    /// The record was read at this time; `None`: there is none.
    pub fn saw(&mut self, record: Option<Record>, now: Duration) -> Next {
        let Some(record) = record else { return self.saw_none(now) };
        let lives = |known: &Record| {
            (&known.holder, &known.renewed, known.lease) != (&record.holder, &record.renewed, record.lease)
        };
        // Who asks writes into the record, too; that is no sign of life of the holder.
        let since = match &self.seen {
            Some((known, since)) if !lives(known) => *since,
            _ => now,
        };
        self.seen = Some((record.clone(), since));
        if record.holder.is_empty() {
            return self.take();
        }
        if record.holder == self.identity {
            return match self.successor(&record, now) {
                Some(to) => {
                    // Before it is written: if the response to that gets lost, it may be so.
                    self.part = Part::Hands { to: to.clone(), failed: false };
                    Next::Hand(to)
                }
                None => Next::Write,
            };
        }
        let ends = since + record.lease;
        let left = ends.saturating_sub(now);
        self.part = match std::mem::replace(&mut self.part, Part::Waits) {
            // Nobody else: whoever took it from that one may never say that it leads.
            Part::Hands { to, .. } if to == record.holder && !leads_by_its_word(&record) => {
                self.part = Part::Hands { to, failed: false };
                return if left.is_zero() { Next::Write } else { Next::Look(self.timing.retry.min(left)) };
            }
            Part::Hands { .. } => Part::Lingers(now + self.timing.linger),
            Part::Lingers(until) if now < until => Part::Lingers(until),
            // Somebody else holds it, whatever we thought.
            _ => Part::Waits,
        };
        if left.is_zero() {
            self.take()
        } else if self.would_ask(&record, now) {
            Next::Ask
        } else {
            Next::Look(self.timing.retry.min(left))
        }
    }

    /// Handles a missing Lease: not created yet, or deleted.
    fn saw_none(&mut self, now: Duration) -> Next {
        let mut lease = self.timing.lease;
        if let Some((record, since)) = &self.seen
            && !record.holder.is_empty()
            && record.holder != self.identity
        {
            // Its holder is the one to create it again.
            let left = (*since + record.lease).saturating_sub(now);
            if !left.is_zero() {
                return Next::Look(self.timing.retry.min(left));
            }
            lease = lease.max(record.lease);
        }
        // Whoever held one that was deleted may still act, also if it was deleted more than once.
        self.acts_from = now + lease;
        self.take()
    }

    /// Next step for a lease that is free.
    fn take(&self) -> Next {
        match self.fitness {
            Fitness::Unable => Next::Look(self.timing.retry),
            Fitness::Able | Fitness::Warm => Next::Write,
        }
    }

    /// Identity of the replica that is to lead in our place, if any.
    fn successor(&self, record: &Record, now: Duration) -> Option<String> {
        // One that was about to hand over and was late may do so now, to whoever asks by then.
        // One that failed shows first that it lives: should the server refuse that write only,
        // the lease would end while it is tried again.
        let may = matches!(self.part, Part::Leads | Part::Hands { failed: false, .. });
        // The next one would act at once.
        let from = self.hands_from.max(self.acts_from);
        let asks = record.asks.as_ref().filter(|_| may && now >= from)?;
        let newer = asks.identity != self.identity && asks.revision.replaces(self.revision.as_ref()?);
        newer.then(|| asks.identity.clone())
    }

    /// Returns `true` if it should ask for the lease that somebody else holds. Who doesn't
    /// say its revision would not understand us.
    fn would_ask(&self, record: &Record, now: Duration) -> bool {
        let (Fitness::Warm, Some(ours), Some(leader)) = (self.fitness, &self.revision, &record.leader) else {
            return false;
        };
        leads_by_its_word(record)
            && ours.replaces(&leader.revision)
            && record.asks.as_ref().is_none_or(|other| ours.replaces(&other.revision))
            && self.asked.is_none_or(|asked| now >= asked + ASK_AGAIN)
    }

    /// The write that we lead, which began at this time, went through.
    pub fn wrote(&mut self, now: Duration) -> Next {
        self.renewed = now;
        match self.part {
            Part::Hands { failed: true, .. } => self.hands_from = now + HAND_AFTER_FAILURE,
            Part::Hands { .. } | Part::Lingers(_) => self.hands_from = now + HAND_AGAIN,
            Part::Leads | Part::Waits => {}
        }
        self.part = Part::Leads;
        self.seen = None;
        Next::Look(self.timing.retry)
    }

    /// The write that another holds the lease went through.
    pub fn handed(&mut self) -> Next {
        self.seen = None;
        Next::Look(self.timing.retry)
    }

    /// The write that we ask for the lease went through.
    pub fn asked(&mut self, now: Duration) -> Next {
        self.asked = Some(now);
        Next::Look(self.timing.retry)
    }

    /// Next step after another replica wrote first.
    pub fn was_late(&self) -> Next {
        Next::Look(Duration::ZERO)
    }

    /// The server could not be asked, or refused. Who leads goes on leading.
    pub fn failed(&mut self) -> Next {
        if let Part::Hands { failed, .. } = &mut self.part {
            *failed = true;
        }
        Next::Look(self.timing.retry)
    }
}

/// Returns `true` if the holder has said itself that it leads, which one that was only
/// handed the lease has not, and one that knows nothing of revisions never does.
fn leads_by_its_word(record: &Record) -> bool {
    record.leader.as_ref().is_some_and(|leader| leader.identity == record.holder)
}

#[cfg(test)]
#[path = "election_tests.rs"]
mod tests;
