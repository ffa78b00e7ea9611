//! Several replicas at one lease: what holds whoever asks, and whatever gets lost.

use proptest::prelude::*;

use super::*;

/// Replicas and a server that refuses a write over a version that is no longer there.
struct World {
    replicas: Vec<Replica>,
    server: Option<Record>,
    version: u32,
    now: Duration,
    handovers: u32,
    /// Fault of hand-overs: the write fails, or its response is lost; `None`: nothing is wrong.
    loses: Option<Loss>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Write,
    Response,
}

struct Replica {
    election: Election,
    alive: bool,
    /// `true` if it writes annotations. The other picker's replicas keep them as they are.
    annotates: bool,
    due: Duration,
    /// Write that is under way, and the version that it is to replace.
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
                        let lost = self.loses == Some(Loss::Response);
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

/// Faults: something is wrong with one step in five or so.
fn losses() -> impl Strategy<Value = Option<Loss>> {
    prop_oneof![8 => Just(None), 1 => Just(Some(Loss::Write)), 1 => Just(Some(Loss::Response))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Replicas that can all reach the server, each at its own pace: never two hold the
    /// lease, and the lease of one that writes in time is never taken.
    #[test]
    fn one_replica_of_a_revision_keeps_the_lease(turns in proptest::collection::vec(1u64..450, 1..200)) {
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

    /// A server that refuses hand-overs, and nothing else, leaves the lease with the leader.
    #[test]
    fn leader_keeps_the_lease_while_handovers_fail(
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
    fn one_replica_is_ready_during_every_handover(
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

    /// Replicas that are cut off or restart now and then, and a Lease that is deleted: never do two act on
    /// the cluster.
    #[test]
    fn two_replicas_never_act_at_once(
        turns in proptest::collection::vec((1u64..300, 0usize..9, 0u64..12_000, 0usize..40), 1..300),
    ) {
        let mut world = World::new(&[(0, 1), (0, 2), (1, 3)]);
        for (late, cut, for_ms, other) in turns {
            world.step(Duration::from_millis(late));
            if let Some(replica) = world.replicas.get_mut(cut) {
                replica.due += Duration::from_millis(for_ms);
            }
            match other {
                0..=2 => {
                    world.version += 1;
                    let election = of_revision(&format!("v{}", world.version), "h0", 1);
                    let due = world.now;
                    world.replicas[other] =
                        Replica { election, alive: true, annotates: true, due, write: None, cached: None };
                }
                3..=6 => {
                    world.version += 1;
                    world.server = None;
                }
                _ => {}
            }
            let now = world.now;
            let acts = |election: &Election| election.acts_until(now).is_some_and(|until| now < until);
            prop_assert!(world.count(acts) <= 1);
        }
    }

    /// Beside replicas whose revision is not known, and those of another picker: one that is ready without
    /// the lease is that for as long as a lease and lingering last, and what it takes to look.
    #[test]
    fn ready_replica_without_the_lease_ends_in_bounded_time(
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
