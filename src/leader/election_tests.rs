use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

#[path = "election_properties.rs"]
mod properties;

const S: Duration = Duration::from_secs(1);

/// Record as the holder last wrote it, with its last sign of life and the seconds that others are to wait.
fn record(renewed: &str, holder: &str, lease: u32) -> Option<Record> {
    let (renewed, holder) = (renewed.to_owned(), holder.to_owned());
    Some(Record { renewed, holder, lease: S * lease, ..Record::default() })
}

fn revision(hash: &str, created: i64) -> Revision {
    Revision { hash: hash.to_owned(), created: Time(Timestamp::from_second(created).unwrap()) }
}

fn candidate(name: &str, hash: &str, created: i64) -> Option<Candidate> {
    Some(Candidate { identity: name.to_owned(), revision: revision(hash, created) })
}

fn election(name: &str) -> Election {
    Election::new(name.to_owned(), Timing::default())
}

/// A warm replica of a revision.
fn of_revision(name: &str, hash: &str, created: i64) -> Election {
    let mut election = election(name);
    election.set_revision(Some(revision(hash, created)));
    election.set_fitness(Fitness::Warm);
    election
}

/// A leader `a` of the revision `old`, and its record.
fn leader() -> (Election, Record) {
    let mut a = of_revision("a", "old", 10);
    assert_eq!(a.saw(record("0", "", 1), S), Next::Write);
    a.wrote(S);
    let record = Record { leader: a.candidate(), ..record("1", "a", 4).unwrap() };
    (a, record)
}

#[test]
fn free_lease_is_taken_at_once_and_kept() {
    for free in [None, record("1", "", 1)] {
        let mut a = election("a");
        assert_eq!(a.saw(free, S), Next::Write);
        assert!(!a.holds() && !a.is_ready(S), "not before it is written");
        assert_eq!(a.wrote(S), Next::Look(S));
        assert!(a.holds() && a.is_ready(S));
        assert_eq!(a.saw(record("2", "a", 4), S * 2), Next::Write);
    }
}

#[test]
fn unfit_replica_leaves_a_free_lease_to_others() {
    for free in [None, record("1", "", 1)] {
        let mut a = election("a");
        a.set_fitness(Fitness::Unable);
        assert_eq!(a.saw(free.clone(), S), Next::Look(S));
        a.set_fitness(Fitness::Able);
        assert_eq!(a.saw(free, S * 2), Next::Write);
        a.wrote(S * 2);
        // Who leads goes on: that others could do better is nothing that it knows.
        a.set_fitness(Fitness::Unable);
        assert_eq!(a.saw(record("2", "a", 4), S * 3), Next::Write);
        assert!(a.holds());
    }
    let mut b = election("b");
    b.set_fitness(Fitness::Unable);
    b.saw(record("1", "a", 4), S);
    assert_eq!(b.saw(record("1", "a", 4), S * 9), Next::Look(S), "of one that crashed, too");
    b.set_fitness(Fitness::Able);
    assert_eq!(b.saw(record("1", "a", 4), S * 10), Next::Write);
}

#[test]
fn a_deleted_lease_is_left_to_its_holder_for_its_duration() {
    let (mut a, held) = leader();
    let mut b = election("b");
    b.saw(Some(held), S * 2);
    assert_eq!(b.saw(None, S * 3), Next::Look(S));
    assert_eq!(b.saw(None, S * 6 - S / 2), Next::Look(S / 2));
    assert_eq!(b.saw(None, S * 6), Next::Write);
    assert_eq!(a.saw(None, S * 3), Next::Write, "its holder");
}

#[test]
fn follower_waits_a_lease_duration_after_the_last_renewal() {
    let mut b = election("b");
    assert_eq!(b.saw(record("1", "a", 15), S), Next::Look(S));
    assert_eq!(b.saw(record("1", "a", 15), S * 15), Next::Look(S));
    assert_eq!(b.saw(record("2", "a", 15), S * 15), Next::Look(S), "a lives");
    // That somebody asks for it says nothing of the one that holds it.
    let asked = record("2", "a", 15).map(|record| Record { asks: candidate("c", "new", 20), ..record });
    assert_eq!(b.saw(asked.clone(), S * 29 + S / 2), Next::Look(S / 2));
    assert_eq!(b.saw(asked, S * 30), Next::Write);
}

#[test]
fn after_a_crash_another_leads_within_six_seconds() {
    let timing = Timing::default();
    // The last renewal was just before, and is seen only after a whole pause.
    let seen = timing.retry;
    let mut b = election("b");
    let mut now = seen;
    while let Next::Look(pause) = b.saw(record("1", "a", 4), now) {
        assert!(!pause.is_zero());
        now += pause;
    }
    assert!(now <= S * 5, "{now:?}");
}

#[test]
fn isolated_leader_stays_ready_until_it_sees_another() {
    let mut a = election("a");
    a.saw(None, S);
    a.wrote(S);
    assert_eq!(a.failed(), Next::Look(S));
    assert_eq!(a.was_late(), Next::Look(Duration::ZERO));
    assert!(a.is_ready(S * 59));
    assert_eq!(a.saw(record("9", "b", 4), S * 60), Next::Look(S));
    assert!(!a.holds() && !a.is_ready(S * 60));
}

#[test]
fn warm_replica_of_a_newer_revision_requests_the_lease() {
    let (_, led) = leader();
    let asked = |by| Record { asks: by, ..led.clone() };
    // Whether it is warm, its revision, what it sees, whether it asks.
    let table = [
        (true, Some(revision("new", 20)), led.clone(), true),
        (false, Some(revision("new", 20)), led.clone(), false),
        (true, None, led.clone(), false),
        (true, Some(revision("old", 20)), led.clone(), false),
        (true, Some(revision("new", 9)), led.clone(), false),
        // The other picker's replicas say nothing, and keep what another wrote.
        (true, Some(revision("new", 20)), Record { leader: None, ..led.clone() }, false),
        (true, Some(revision("new", 20)), Record { holder: "go".to_owned(), ..led.clone() }, false),
        // Somebody else asks already.
        (true, Some(revision("new", 20)), asked(candidate("c", "new", 15)), false),
        (true, Some(revision("new", 20)), asked(candidate("c", "newer", 30)), false),
        (true, Some(revision("new", 20)), asked(candidate("c", "older", 15)), true),
    ];
    for (warm, ours, seen, asks) in table {
        let mut b = election("b");
        b.set_fitness(if warm { Fitness::Warm } else { Fitness::Able });
        b.set_revision(ours.clone());
        let next = b.saw(Some(seen.clone()), S * 2);
        assert_eq!(next, if asks { Next::Ask } else { Next::Look(S) }, "{warm} {ours:?} {seen:?}");
    }
    // Once, and again after a while in which nothing came of it.
    let mut b = of_revision("b", "new", 20);
    assert_eq!(b.saw(Some(led.clone()), S * 2), Next::Ask);
    assert_eq!(b.asked(S * 2), Next::Look(S));
    let renewed = |at: u32| Some(Record { renewed: at.to_string(), ..led.clone() });
    assert_eq!(b.saw(renewed(2), S * 3), Next::Look(S));
    assert_eq!(b.saw(renewed(3), S * 7), Next::Ask);
}

#[test]
fn a_leader_hands_over_and_stays_ready_for_a_while() {
    let (mut a, led) = leader();
    let asked = Record { asks: candidate("b", "new", 20), ..led.clone() };
    assert_eq!(a.saw(Some(asked.clone()), S * 2), Next::Hand("b".to_owned()));
    assert_eq!(a.handed(), Next::Look(S));
    assert!(!a.holds() && a.is_ready(S * 2), "the other may not know yet");
    let handed = Record { holder: "b".to_owned(), renewed: "2".to_owned(), asks: None, ..led };
    assert_eq!(a.saw(Some(handed.clone()), S * 3), Next::Look(S));
    let mut b = of_revision("b", "new", 20);
    assert_eq!(b.saw(Some(handed.clone()), S * 3), Next::Write);
    b.wrote(S * 3);
    assert!(b.is_ready(S * 3));
    let led = Record { renewed: "3".to_owned(), leader: b.candidate(), ..handed };
    assert_eq!(a.saw(Some(led.clone()), S * 3), Next::Look(S));
    assert!(a.is_ready(S * 12) && !a.is_ready(S * 13));
    assert_eq!(a.saw(Some(led), S * 5), Next::Look(S));
    assert!(a.is_ready(S * 12), "looking doesn't end it");
}

#[test]
fn leader_hands_over_only_to_a_newer_revision() {
    let table = [candidate("a", "new", 20), candidate("b", "old", 20), candidate("b", "new", 5), None];
    for asks in table {
        let (mut a, led) = leader();
        assert_eq!(a.saw(Some(Record { asks: asks.clone(), ..led }), S * 2), Next::Write, "{asks:?}");
    }
    let (mut a, led) = leader();
    a.set_revision(None);
    assert_eq!(a.saw(Some(Record { asks: candidate("b", "new", 20), ..led }), S * 2), Next::Write);
}

#[test]
fn leader_takes_back_a_lease_not_taken_over() {
    let (mut a, led) = leader();
    let asked = Record { asks: candidate("b", "new", 20), ..led.clone() };
    assert_eq!(a.saw(Some(asked.clone()), S * 2), Next::Hand("b".to_owned()));
    a.handed();
    let handed = Record { holder: "b".to_owned(), renewed: "2".to_owned(), asks: None, ..led };
    let mut now = S * 2;
    while let Next::Look(pause) = a.saw(Some(handed.clone()), now) {
        assert!(!pause.is_zero() && a.is_ready(now));
        now += pause;
    }
    assert_eq!(now, S * 6, "after its lease");
    a.wrote(now);
    assert!(a.holds());
    assert_eq!(a.saw(Some(asked.clone()), now + S), Next::Write, "not at once again");
    a.wrote(now + S);
    assert_eq!(a.saw(Some(asked), now + S * 30), Next::Hand("b".to_owned()));
}

#[test]
fn former_leader_takes_over_again_while_still_ready() {
    let (mut a, led) = leader();
    let asked = Record { asks: candidate("b", "new", 20), ..led.clone() };
    a.saw(Some(asked), S * 2);
    a.handed();
    let leader = candidate("b", "new", 20);
    let led = Record { holder: "b".to_owned(), renewed: "3".to_owned(), leader, ..led };
    // It leads, and crashes.
    let mut now = S * 3;
    while let Next::Look(pause) = a.saw(Some(led.clone()), now) {
        assert!(a.is_ready(now));
        now += pause;
    }
    a.wrote(now);
    assert!(a.is_ready(now));
    let asks = candidate("b2", "new", 20);
    let ours = Record { holder: "a".to_owned(), asks, ..led };
    assert_eq!(a.saw(Some(ours), now + S), Next::Write, "a revision that crashes has to wait");
}

#[test]
fn handover_with_a_lost_response_counts_if_written() {
    let (_, led) = leader();
    let asked = |by: &str, hash: &str| Record { asks: candidate(by, hash, 20), ..led.clone() };
    let handed = Record { holder: "b".to_owned(), renewed: "2".to_owned(), ..led.clone() };
    // Where it did not happen, the leader renews its lease before it tries that again.
    let table = [
        (handed, Next::Look(S)),
        (led.clone(), Next::Write),
        (asked("b", "new"), Next::Write),
        (asked("c", "newer"), Next::Write),
    ];
    for (found, next) in table {
        let (mut a, _) = leader();
        assert_eq!(a.saw(Some(asked("b", "new")), S * 2), Next::Hand("b".to_owned()));
        a.failed();
        assert!(a.is_ready(S * 3));
        assert_eq!(a.saw(Some(found.clone()), S * 3), next, "{found:?}");
        assert!(a.is_ready(S * 3));
        if next == Next::Write {
            // Somebody asks meanwhile.
            a.was_late();
            assert_eq!(a.saw(Some(asked("c", "newer")), S * 3), Next::Write, "{found:?}");
            a.wrote(S * 3);
            assert_eq!(a.saw(Some(asked("c", "newer")), S * 7), Next::Write, "{found:?}");
            assert_eq!(a.saw(Some(asked("c", "newer")), S * 8), Next::Hand("c".to_owned()));
        } else {
            // It didn't take what it was handed.
            assert_eq!(a.saw(Some(found), S * 7), Next::Write);
            a.wrote(S * 7);
            assert_eq!(a.saw(Some(asked("c", "newer")), S * 36), Next::Write);
            assert_eq!(a.saw(Some(asked("c", "newer")), S * 37), Next::Hand("c".to_owned()));
        }
    }
}

#[test]
fn late_handover_is_retried_with_the_current_candidate() {
    let (mut a, led) = leader();
    let asked = |by: &str, hash: &str| Record { asks: candidate(by, hash, 20), ..led.clone() };
    assert_eq!(a.saw(Some(asked("b", "new")), S * 2), Next::Hand("b".to_owned()));
    assert_eq!(a.was_late(), Next::Look(Duration::ZERO));
    assert_eq!(a.saw(Some(asked("c", "newer")), S * 2), Next::Hand("c".to_owned()));
    // The first one happened after all, whatever the server said: it is ready for a while.
    assert_eq!(a.was_late(), Next::Look(Duration::ZERO));
    let handed = Record { holder: "b".to_owned(), renewed: "2".to_owned(), ..led.clone() };
    assert_eq!(a.saw(Some(handed.clone()), S * 3), Next::Look(S));
    assert!(a.is_ready(S * 6));
    a.saw(Some(Record { renewed: "3".to_owned(), leader: candidate("b", "new", 20), ..handed }), S * 6);
    assert!(a.is_ready(S * 6) && !a.is_ready(S * 600));
}

#[test]
fn former_leader_loses_readiness_beside_another_picker() {
    // Another picker keeps the annotation or drops it, and writes none of its own.
    for keeps in [true, false] {
        let (mut a, led) = leader();
        let asked = Record { asks: candidate("b", "new", 20), ..led.clone() };
        assert_eq!(a.saw(Some(asked), S * 2), Next::Hand("b".to_owned()));
        a.handed();
        let handed = Record { holder: "b".to_owned(), renewed: "2".to_owned(), asks: None, ..led };
        a.saw(Some(handed.clone()), S * 3);
        // The new one crashes, and the other picker takes the lease.
        for at in 7..30 {
            let (holder, renewed) = ("go".to_owned(), at.to_string());
            let leader = handed.leader.clone().filter(|_| keeps);
            let taken = Record { holder, renewed, leader, ..handed.clone() };
            assert_eq!(a.saw(Some(taken), S * at), Next::Look(S));
            assert_eq!(a.is_ready(S * at), at < 17, "{at} s, keeps it: {keeps}");
        }
    }
}

#[test]
fn a_leader_stops_acting_before_its_lease_ends() {
    let (mut a, _) = leader();
    assert_eq!(a.acts_until(S), Some(S * 4), "3 s after the write began");
    a.failed();
    assert_eq!(a.acts_until(S * 2), Some(S * 4));
    assert!(a.holds() && a.is_ready(S * 9), "it serves on");
    a.wrote(S * 5);
    assert_eq!(a.acts_until(S * 5), Some(S * 8));
}

#[test]
fn a_leader_stops_acting_before_it_hands_over() {
    let (mut a, record) = leader();
    let asked = Record { asks: candidate("b", "new", 20), ..record };
    assert_eq!(a.saw(Some(asked), S * 2), Next::Hand("b".to_owned()));
    assert_eq!((a.acts_until(S * 2), a.is_ready(S * 2)), (None, true));
    a.handed();
    assert_eq!(a.acts_until(S * 2), None);
    // Another leads by its own word.
    let b = of_revision("b", "new", 20);
    let taken = Record { leader: b.candidate(), ..self::record("2", "b", 4).unwrap() };
    a.saw(Some(taken), S * 3);
    assert_eq!((a.acts_until(S * 3), a.is_ready(S * 4)), (None, true));
    assert_eq!(b.acts_until(S * 3), None, "before it has written");
}

#[test]
fn creator_of_the_lease_acts_after_one_lease_duration() {
    let mut a = of_revision("a", "old", 10);
    assert_eq!(a.saw(None, S), Next::Write);
    // The response is lost, and the Lease is there.
    a.failed();
    assert_eq!(a.saw(record("1", "a", 4), S * 2), Next::Write);
    a.wrote(S * 2);
    assert_eq!(a.acts_until(S * 5 - S / 2), None);
    let asked = record("1", "a", 4).map(|record| Record { asks: candidate("b", "new", 20), ..record });
    assert_eq!(a.saw(asked, S * 3), Next::Write, "nor hands it to one that would act at once");
    assert_eq!(a.acts_until(S * 5), Some(S * 5));
}
