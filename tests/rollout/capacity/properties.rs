//! Properties that hold whatever happens: groups in a closed loop, at random, with a load that doesn't
//! change.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use usher::capacity::coordinate::{Band, coordinate};
use usher::capacity::policy::Policy;
use usher::capacity::share::Bounds;
use usher::capacity::{Condition, History, Inputs, Plan, Pod, PodState, tick};

use crate::capacity::support::policy;

/// Time between two ticks in seconds, as a policy has it that doesn't say.
const TICK: u64 = 15;
/// Ticks until a pod is ready.
const STARTS: u64 = 3;
/// Ticks that are enough to settle: windows of five minutes, one after the other.
const SETTLES: u64 = 80;

/// A group whose pods come and go as its plans say, and share a load.
struct World {
    policy: Policy,
    history: History,
    /// Time at which each pod of each role was asked for.
    pods: Vec<Vec<u64>>,
    /// Requests that wait at each role, over all of its pods.
    load: Vec<u32>,
    now: u64,
}

/// Part of a tick's numbers that is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lost {
    Nothing,
    /// Each number with this chance, in percent.
    Numbers(u32),
    /// Each pod with this chance, in percent.
    Pods(u32),
    Everything,
}

impl World {
    fn new(spec: &str, sizes: &[u32], load: &[u32]) -> Self {
        let pods = sizes.iter().map(|size| vec![0; *size as usize]).collect();
        Self { policy: policy(spec), history: History::default(), pods, load: load.to_vec(), now: STARTS }
    }

    fn sizes(&self) -> Vec<u32> {
        self.pods.iter().map(|pods| pods.len() as u32).collect()
    }

    fn tick(&mut self, lost: Lost, rng: &mut StdRng) -> Plan {
        let mut pods = Vec::new();
        for (role, (started, load)) in self.pods.iter().zip(&self.load).enumerate() {
            let ready = started.iter().filter(|at| self.now >= *at + STARTS).count() as u32;
            let mut place = 0;
            for at in started {
                let is_ready = self.now >= at + STARTS;
                // Whole requests, so that the sum is the load however many pods share it.
                let queue = if is_ready { load / ready + u32::from(place < load % ready) } else { 0 };
                place += u32::from(is_ready);
                let is_lost = |chance: u32, rng: &mut StdRng| rng.random_range(0..100) < chance;
                if matches!(lost, Lost::Pods(chance) if is_lost(chance, rng)) {
                    continue;
                }
                let mut value = |name: &String| {
                    let gone = match lost {
                        Lost::Nothing | Lost::Pods(_) => false,
                        Lost::Numbers(chance) => is_lost(chance, rng),
                        Lost::Everything => true,
                    };
                    match name.as_str() {
                        _ if gone => f64::NAN,
                        "queue_depth" => f64::from(queue),
                        "kv_cache_utilization" => f64::from(queue.min(10)) / 10.0,
                        other => panic!("no {other} here"),
                    }
                };
                let values = self.policy.signals.iter().map(&mut value).collect();
                pods.push(Pod { role, is_ready, state: PodState::default(), values });
            }
        }
        let inputs = Inputs { replicas: self.sizes(), pods, ..Inputs::default() };
        let now = Duration::from_secs(self.now * TICK);
        let plan = tick(&inputs, &self.policy, &mut self.history, now);
        for (pods, role) in self.pods.iter_mut().zip(&plan.roles) {
            pods.resize(role.desired as usize, self.now);
        }
        self.now += 1;
        plan
    }

    /// The sizes after each of so many ticks with all numbers.
    fn run(&mut self, ticks: u64, rng: &mut StdRng) -> Vec<Vec<u32>> {
        let mut size = || {
            self.tick(Lost::Nothing, rng);
            self.sizes()
        };
        (0..ticks).map(|_| size()).collect()
    }
}

/// One role whose size follows from its load alone: without a tolerance nothing depends on the way there.
fn one(tolerance: u32) -> String {
    format!(
        "roles: {{a: {{min: 1, max: 40}}}}\ntotal: {{metrics: [{{name: queue_depth, target: 4}}], tolerancePercent: {tolerance}}}"
    )
}

/// Prefill and decode, shared by pressure.
fn pair(tolerance: u32, more: &str) -> String {
    format!(
        "roles: {{decode: {{min: 1, max: 24, cost: 60}}, prefill: {{min: 1, max: 16, cost: 100}}}}\n\
         total: {{metrics: [{{name: queue_depth, target: 4}}], tolerancePercent: {tolerance}}}\n\
         coordination: {{mode: Preferred, pressure: {{\
         decode: [{{metric: queue_depth, target: 4}}, {{metric: kv_cache_utilization, target: 0.8}}], \
         prefill: [{{metric: queue_depth, target: 4}}]}}{more}}}"
    )
}

const RATIO: &str = ", ratio: {numerator: prefill, denominator: decode, min: \"1:6\", max: \"2:1\"}";
const BANDS: &str = ", preferredRatio: {prefill: {min: 25, max: 60}, decode: {min: 40, max: 75}}";

fn at_random(lost: &mut StdRng) -> Lost {
    match lost.random_range(0..5) {
        0 => Lost::Nothing,
        1 => Lost::Numbers(100 / lost.random_range(1..=10)),
        2 => Lost::Pods(100 / lost.random_range(1..=10)),
        3 => Lost::Pods(100),
        _ => Lost::Everything,
    }
}

#[test]
fn plan_returns_to_its_sizes_after_lost_inputs() {
    let mut rng = StdRng::seed_from_u64(905);
    for case in 0..60 {
        let (spec, sizes, load) = match case % 3 {
            0 => (one(0), vec![rng.random_range(1..=40)], vec![rng.random_range(0..160)]),
            kind => (
                pair(0, if kind == 1 { "" } else { BANDS }),
                vec![rng.random_range(1..=24), rng.random_range(1..=16)],
                vec![rng.random_range(0..80), rng.random_range(0..60)],
            ),
        };
        let (mut calm, mut hit) = (World::new(&spec, &sizes, &load), World::new(&spec, &sizes, &load));
        let from = rng.random_range(1..40);
        for _ in 0..from {
            calm.tick(Lost::Nothing, &mut rng);
            hit.tick(Lost::Nothing, &mut rng);
        }
        let mut left = rng.random_range(1..80u32);
        let mut what = Vec::new();
        while left > 0 {
            let (lost, span) = (at_random(&mut rng), rng.random_range(1..=left));
            what.push((lost, span));
            for _ in 0..span {
                let plan = hit.tick(lost, &mut rng);
                for (role, own) in plan.roles.iter().zip(&hit.policy.roles) {
                    assert!((own.range.min..=own.range.max).contains(&role.desired), "{case}: {plan:?}");
                }
                calm.tick(Lost::Nothing, &mut rng);
            }
            left -= span;
        }
        let (calm, hit) = (calm.run(SETTLES, &mut rng), hit.run(SETTLES, &mut rng));
        let (calm, hit) = (calm.last().unwrap(), hit.last().unwrap());
        let total = |sizes: &[u32]| sizes.iter().sum::<u32>();
        assert_eq!(total(calm), total(hit), "{case}: {load:?} {what:?} {calm:?} {hit:?}");
        // A move by one pod is left alone, so the way there may show that much.
        let near = calm.iter().zip(hit).all(|(calm, hit)| calm.abs_diff(*hit) <= 1);
        assert!(near, "{case}: {load:?} {what:?} {calm:?} {hit:?}");
    }
}

/// Pods without the number count as at their target on the way down and as having none on the way up: so
/// lost numbers never move a group that is at rest.
#[test]
fn lost_numbers_do_not_move_a_group_at_rest() {
    let mut rng = StdRng::seed_from_u64(906);
    for case in 0..60 {
        let load = rng.random_range(0..160);
        let mut world =
            World::new(&one(if case % 2 == 0 { 0 } else { 10 }), &[rng.random_range(1..=40)], &[load]);
        let settled = world.run(SETTLES, &mut rng).pop().unwrap();
        for _ in 0..60 {
            let chance = rng.random_range(0..=100);
            world.tick(Lost::Numbers(chance), &mut rng);
            assert_eq!(world.sizes(), settled, "{case}: {load} {chance}");
        }
    }
}

#[test]
fn a_constant_load_settles_and_turns_at_most_once() {
    let mut rng = StdRng::seed_from_u64(907);
    for case in 0..150 {
        let (spec, sizes, load) = match case % 5 {
            0 => (one(10), vec![rng.random_range(1..=40)], vec![rng.random_range(0..160)]),
            kind => (
                pair(10, ["", BANDS, RATIO, ", alpha: 0.75"][kind - 1]),
                vec![rng.random_range(1..=24), rng.random_range(1..=16)],
                vec![rng.random_range(0..80), rng.random_range(0..60)],
            ),
        };
        let mut world = World::new(&spec, &sizes, &load);
        let run = world.run(2 * SETTLES, &mut rng);
        let (rest, settled) = (&run[SETTLES as usize..], run.last().unwrap());
        assert!(rest.iter().all(|sizes| sizes == settled), "{case}: {spec} {sizes:?} {load:?} {run:?}");
        // The group's own size: while a role waits for another one to grow, there are more for a while.
        if case % 5 == 0 {
            let moves: Vec<bool> =
                run.windows(2).filter(|w| w[0] != w[1]).map(|w| w[0][0] < w[1][0]).collect();
            let turns = moves.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert!(turns <= 1, "{case}: {load:?} {run:?}");
        }
    }
}

/// Over whole bands and bounds; what splits below them is a million times at random beside its code.
#[test]
fn shares_keep_sum_bounds_and_feasible_bands() {
    let mut rng = StdRng::seed_from_u64(908);
    let (mut kept, mut unkept) = (0, 0);
    for case in 0..200_000 {
        let roles = rng.random_range(1..=4usize);
        let bounds: Vec<Bounds> = (0..roles)
            .map(|_| {
                let low = rng.random_range(0..10);
                Bounds { low, high: rng.random_range(low..=30) }
            })
            .collect();
        let bands: Vec<Option<Band>> = (0..roles)
            .map(|_| {
                let min = rng.random_range(0..=100 / roles as u32);
                rng.random_bool(0.8).then(|| Band { min, max: rng.random_range(min..=100) })
            })
            .collect();
        let (low, high) = bounds.iter().fold((0, 0), |(low, high), b| (low + b.low, high + b.high));
        let total = rng.random_range(low..=high);
        let weights: Vec<u128> = (0..roles).map(|_| rng.random_range(0..1000)).collect();
        let shares = coordinate(total, &weights, &bounds, &bands);
        let at = || format!("{case}: {total} {weights:?} {bounds:?} {bands:?} {shares:?}");
        assert_eq!(shares.pods.iter().sum::<u32>(), total, "{}", at());
        let within = shares.pods.iter().zip(&bounds).all(|(pods, b)| (b.low..=b.high).contains(pods));
        assert!(within, "{}", at());
        let keeps = |pods: &u32, band: &Band| {
            let percent = u64::from(*pods) * 100;
            (u64::from(band.min) * u64::from(total)..=u64::from(band.max) * u64::from(total))
                .contains(&percent)
        };
        let all =
            shares.pods.iter().zip(&bands).all(|(pods, band)| band.as_ref().is_none_or(|b| keeps(pods, b)));
        assert!(all || shares.is_outside_bands, "{}", at());
        if shares.is_outside_bands { unkept += 1 } else { kept += 1 }
    }
    assert!(kept > 10_000 && unkept > 10_000, "both are looked at: {kept} {unkept}");
}

/// However its roles get to their shares, a group whose size nothing sets is as large as it was all the way:
/// with sizes that are written late, pods that come up late or not at all, other leaders, and outages of the
/// numbers that share it.
#[test]
fn group_size_stays_constant_while_shares_change() {
    let mut rng = StdRng::seed_from_u64(909);
    let mut moved = 0;
    for case in 0..400 {
        let share = rng.random_range(10..=90u32);
        let (low, high) = (share.saturating_sub(5), share + 5);
        let steps =
            ["", "\ndeploy: {steps: {a: 1, b: 1, c: 1}}", "\nscaling: {maxSkewPercent: 10}"][case % 3];
        let is_pressed = case % 2 == 1;
        let queue = "[{metric: queue_depth, target: 4}]";
        let pressure = format!(", pressure: {{a: {queue}, b: {queue}, c: {queue}}}");
        let pressure = if is_pressed { pressure.as_str() } else { "" };
        let spec = format!(
            "roles: {{a: {{max: 40}}, b: {{max: 40}}, c: {{max: 40}}}}\n\
             coordination: {{mode: Preferred, preferredRatio: {{a: {{min: {low}, max: {high}}}}}{pressure}}}{steps}"
        );
        let policy = policy(&spec);
        let mut sizes: Vec<u32> = (0..3).map(|_| rng.random_range(1..=13)).collect();
        let (total, begin) = (sizes.iter().sum::<u32>(), sizes.clone());
        // Whether each pod is ready, by role.
        let mut pods: Vec<Vec<bool>> = sizes.iter().map(|size| vec![true; *size as usize]).collect();
        let comes_up = [1.0, 0.5, 0.1, 0.0][case % 4];
        let mut history = History::default();
        let mut changes = Vec::new();
        for t in 0..60 {
            if rng.random_bool(0.05) {
                // Another replica leads.
                history = History::default();
                history.resume_changes(changes.clone());
            }
            let is_out = is_pressed && rng.random_bool(0.3);
            let queue =
                [0, 1, 2].map(|_| if is_out { f64::NAN } else { f64::from(rng.random_range(0..9u8)) });
            let all = pods.iter().enumerate().flat_map(|(role, pods)| {
                let values: &[f64] = if is_pressed { &queue[role..=role] } else { &[] };
                let pod = move |is_ready: &bool| Pod {
                    role,
                    is_ready: *is_ready,
                    state: PodState {
                        is_scheduled: true,
                        is_running: *is_ready,
                        is_serving: *is_ready,
                        ..PodState::default()
                    },
                    values: values.into(),
                };
                pods.iter().map(pod)
            });
            let inputs = Inputs { replicas: sizes.clone(), pods: all.collect(), ..Inputs::default() };
            let plan = tick(&inputs, &policy, &mut history, Duration::from_secs(t * TICK));
            let size = plan.roles.iter().map(|role| role.counts_as.unwrap()).sum::<u32>();
            assert_eq!(size, total, "{case} at {t}: {spec} {begin:?} {plan:?}");
            let goals = plan.roles.iter().map(|role| role.goal).sum::<u32>();
            // Also where no pod of a role is ready that could say how pressed it is.
            let is_unknown = is_out || plan.conditions.contains(&Condition::StaleData);
            assert!(goals == total || is_unknown, "{case} at {t}: {spec} {begin:?} {plan:?}");
            changes = history.changes().to_vec();
            if rng.random_bool(0.7) {
                sizes = plan.roles.iter().map(|role| role.write).collect();
            }
            for (pods, size) in pods.iter_mut().zip(&sizes) {
                pods.resize(*size as usize, false);
                pods.iter_mut().for_each(|ready| *ready |= rng.random_bool(comes_up));
            }
        }
        moved += usize::from(sizes != begin);
    }
    assert!(moved > 200, "{moved}");
}
