use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

const S: Duration = Duration::from_secs(1);

/// What the holder last wrote, with its name as its sign of life.
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
    assert_eq!(a.saw(None, S), Next::Write);
    a.wrote(S);
    let record = Record { leader: a.candidate(), ..record("1", "a", 4).unwrap() };
    (a, record)
}

#[test]
fn a_lease_that_nobody_holds_is_taken_at_once_and_kept() {
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
fn one_that_could_not_be_ready_leaves_a_free_lease_to_others() {
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
fn another_waits_for_as_long_as_the_lease_says_after_the_last_sign_of_life() {
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
fn a_leader_that_is_cut_off_goes_on_until_it_sees_another() {
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
fn a_warm_replica_of_a_newer_revision_asks_a_leader_that_knows_of_revisions() {
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
fn a_leader_hands_to_nobody_who_is_not_newer() {
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
fn a_leader_takes_back_what_nobody_took_and_hands_over_later() {
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
fn one_that_handed_over_takes_over_while_it_is_still_ready() {
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
fn a_hand_over_whose_answer_is_lost_counts_if_it_happened() {
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
fn a_leader_whose_hand_over_was_late_hands_over_to_who_asks_by_then() {
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
fn one_that_handed_over_is_not_ready_for_good_beside_one_that_knows_nothing_of_that() {
    let (mut a, led) = leader();
    assert_eq!(
        a.saw(Some(Record { asks: candidate("b", "new", 20), ..led.clone() }), S * 2),
        Next::Hand("b".to_owned())
    );
    a.handed();
    // The new one crashes, and another picker takes the lease. It keeps the annotation, and writes none.
    let handed = Record { holder: "b".to_owned(), renewed: "2".to_owned(), asks: None, ..led };
    a.saw(Some(handed.clone()), S * 3);
    for kept in [handed.leader.clone(), None] {
        for at in 7..30 {
            let (holder, renewed) = ("go".to_owned(), at.to_string());
            let taken = Record { holder, renewed, leader: kept.clone(), ..handed.clone() };
            assert_eq!(a.saw(Some(taken), S * at), Next::Look(S));
            assert_eq!(a.is_ready(S * at), at < 17 && kept.is_some(), "{at}");
        }
    }
}

/// Replicas and a server that refuses a write over a version that is no longer there.
struct World {
    replicas: Vec<Replica>,
    server: Option<Record>,
    version: u32,
    now: Duration,
    handovers: u32,
    /// What becomes of hand-overs: nothing, or the answer is lost; `None`: nothing is wrong.
    loses: Option<Loss>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Write,
    Answer,
}

struct Replica {
    election: Election,
    alive: bool,
    /// Whether it writes annotations. The other picker's replicas keep them as they are.
    annotates: bool,
    due: Duration,
    /// What it is about to write, over which version, and when that arrives.
    write: Option<(Next, u32)>,
    /// The version that it wrote itself.
    cached: Option<u32>,
}

impl World {
    fn new(revisions: &[(usize, i64)]) -> Self {
        let (replicas, now) = (Vec::new(), Duration::ZERO);
        let mut world = Self { replicas, server: None, version: 0, now, handovers: 0, loses: None };
        for (number, (hash, created)) in revisions.iter().enumerate() {
            world.add(of_revision(&number.to_string(), &format!("h{hash}"), *created), true);
        }
        world
    }

    /// One more replica.
    fn add(&mut self, election: Election, annotates: bool) {
        let due = self.now;
        self.replicas.push(Replica { election, alive: true, annotates, due, write: None, cached: None });
    }

    /// The next step of whoever is due: it looks, or what it wrote arrives.
    fn step(&mut self, late: Duration) {
        let alive = (0..self.replicas.len()).filter(|which| self.replicas[*which].alive);
        let Some(which) = alive.min_by_key(|which| self.replicas[*which].due) else { return };
        self.now = self.now.max(self.replicas[which].due) + late;
        let (now, version) = (self.now, self.version);
        let replica = &mut self.replicas[which];
        let next = match replica.write.take() {
            None if replica.election.holds() && replica.cached.is_some() => {
                replica.write = Some((Next::Write, replica.cached.unwrap_or_default()));
                Next::Look(Duration::ZERO)
            }
            None => match replica.election.saw(self.server.clone(), now) {
                Next::Look(pause) => Next::Look(pause),
                write => {
                    replica.write = Some((write, version));
                    Next::Look(Duration::ZERO)
                }
            },
            Some((_, over)) if over != version => {
                replica.cached = None;
                replica.election.was_late()
            }
            Some((Next::Hand(_), _)) if self.loses == Some(Loss::Write) => replica.election.failed(),
            Some((write, _)) => {
                self.version += 1;
                replica.cached = Some(self.version);
                let mut record = self.server.take().unwrap_or_default();
                let renewed = self.version.to_string();
                let (next, record) = match write {
                    Next::Write => {
                        record.holder = replica.election.identity().to_owned();
                        if replica.annotates {
                            (record.leader, record.asks) = (replica.election.candidate(), None);
                        }
                        (replica.election.wrote(now), Record { renewed, lease: S * 4, ..record })
                    }
                    Next::Hand(holder) => {
                        self.handovers += 1;
                        let record = Record { holder, renewed, lease: S * 4, asks: None, ..record };
                        let lost = self.loses == Some(Loss::Answer);
                        (if lost { replica.election.failed() } else { replica.election.handed() }, record)
                    }
                    _ => {
                        record.asks = replica.election.candidate();
                        (replica.election.asked(now), record)
                    }
                };
                self.server = Some(record);
                next
            }
        };
        let Next::Look(pause) = next else { unreachable!() };
        self.replicas[which].due = now + pause;
    }

    fn count(&self, of: impl Fn(&Election) -> bool) -> usize {
        self.replicas.iter().filter(|replica| replica.alive && of(&replica.election)).count()
    }
}

/// What may be wrong with one step in five or so.
fn losses() -> impl Strategy<Value = Option<Loss>> {
    prop_oneof![8 => Just(None), 1 => Just(Some(Loss::Write)), 1 => Just(Some(Loss::Answer))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Replicas that can all reach the server, each at its own pace: never two hold the
    /// lease, and the lease of one that writes in time is never taken.
    #[test]
    fn of_replicas_of_one_revision_one_leads(turns in proptest::collection::vec(1u64..450, 1..200)) {
        let mut world = World::new(&[(0, 1), (0, 2), (0, 3)]);
        let mut first = None;
        for late in turns {
            world.step(Duration::from_millis(late));
            let holds = world.replicas.iter().position(|replica| replica.election.holds());
            prop_assert!(world.count(Election::holds) <= 1);
            first = first.or(holds);
            prop_assert_eq!(holds, first);
            prop_assert_eq!(world.handovers, 0);
        }
    }

    /// Of a server that refuses hand-overs, and nothing else, the leader keeps its lease.
    #[test]
    fn while_no_hand_over_succeeds_the_leader_leads_on(
        revisions in proptest::collection::vec((0usize..4, 0i64..3), 2..5),
        turns in proptest::collection::vec(1u64..50, 200..600),
    ) {
        let mut world = World::new(&revisions);
        world.loses = Some(Loss::Write);
        let mut first = None;
        for late in turns {
            world.step(Duration::from_millis(late));
            let holder = world.server.as_ref().map(|record| record.holder.clone());
            first = first.or(holder.clone());
            prop_assert_eq!(&holder, &first);
            let now = world.now;
            prop_assert_eq!(world.count(|election| election.is_ready(now)), usize::from(first.is_some()));
        }
    }

    /// Replicas of several revisions, of which some die that are not ready: from the first
    /// leader on one is ready at any time, one holds the lease at most, and the newest
    /// that lives leads in the end and for good.
    #[test]
    fn while_the_lease_is_handed_over_somebody_is_ready(
        revisions in proptest::collection::vec((0usize..4, 0i64..3), 2..6),
        turns in proptest::collection::vec((1u64..200, 0usize..40, losses()), 50..150),
    ) {
        let mut world = World::new(&revisions);
        let mut begun = false;
        for (late, dies, loses) in turns {
            world.loses = loses;
            world.step(Duration::from_millis(late));
            prop_assert!(world.count(Election::holds) <= 1);
            let now = world.now;
            let ready = world.count(|election| election.is_ready(now));
            begun |= ready > 0;
            prop_assert_eq!(begun, ready > 0, "{:?} {:?}", now, world.server);
            if let Some(replica) = world.replicas.get_mut(dies)
                && !replica.election.is_ready(now)
                && begun
            {
                replica.alive = false;
            }
        }
        world.loses = None;
        for _ in 0..600 {
            world.step(Duration::from_millis(50));
            let now = world.now;
            prop_assert!(world.count(|election| election.is_ready(now)) > 0);
        }
        let handovers = world.handovers;
        let leader = world.replicas.iter().find(|replica| replica.election.holds()).unwrap();
        let leads = leader.election.candidate().unwrap();
        for replica in world.replicas.iter().filter(|replica| replica.alive) {
            let other = replica.election.candidate().unwrap();
            prop_assert!(!other.revision.replaces(&leads.revision), "{:?} waits for {:?}", other, leads);
        }
        for _ in 0..100 {
            world.step(Duration::from_millis(50));
        }
        prop_assert_eq!(world.handovers, handovers);
    }

    /// Beside replicas whose revision is not known, and those of another picker: one that is ready without
    /// the lease is that for as long as a lease and lingering last, and what it takes to look.
    #[test]
    fn nobody_is_ready_for_good_beside_the_holder(
        revisions in proptest::collection::vec((0usize..4, 0i64..3), 2..5),
        others in proptest::collection::vec(any::<bool>(), 1..3),
        turns in proptest::collection::vec((1u64..200, 0usize..20, losses()), 50..150),
    ) {
        let mut world = World::new(&revisions);
        for (number, annotates) in others.iter().enumerate() {
            let mut other = election(&format!("other-{number}"));
            other.set_fitness(Fitness::Warm);
            world.add(other, *annotates);
        }
        let mut begun = false;
        let mut beside = vec![None; world.replicas.len()];
        for (late, dies, loses) in turns.into_iter().chain(std::iter::repeat_n((50, usize::MAX, None), 600)) {
            world.loses = loses;
            world.step(Duration::from_millis(late));
            let (now, timing) = (world.now, Timing::default());
            prop_assert!(world.count(Election::holds) <= 1);
            let ready = world.count(|election| election.is_ready(now));
            begun |= ready > 0;
            prop_assert_eq!(begun, ready > 0, "{:?} {:?}", now, world.server);
            let holder = world.server.as_ref().map(|record| record.holder.clone()).unwrap_or_default();
            for (replica, since) in world.replicas.iter().zip(&mut beside) {
                let is_beside = replica.election.is_ready(now) && replica.election.identity() != holder;
                *since = is_beside.then(|| since.unwrap_or(now));
                let bound = timing.lease + timing.linger + timing.retry * 5;
                prop_assert!(since.is_none_or(|since| now < since + bound), "{:?} {:?}", replica.election, holder);
            }
            if let Some(replica) = world.replicas.get_mut(dies)
                && !replica.election.is_ready(now)
                && begun
            {
                replica.alive = false;
            }
        }
    }
}
