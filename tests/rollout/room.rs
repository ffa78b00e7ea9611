//! A cluster with room for half of the pods: how many whole groups are usable.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::cluster::Cluster;

const RUNS: u64 = 10_000;

struct Run {
    steps: (u32, u32),
    groups: u32,
    /// Groups that there is room for.
    best: u32,
}

fn usable(ready: (u32, u32), steps: (u32, u32)) -> u32 {
    (ready.0 / steps.0).min(ready.1 / steps.1)
}

impl Run {
    fn of(random: &mut SmallRng) -> Self {
        let steps = (random.random_range(1..6), random.random_range(1..6));
        let groups = random.random_range(2..17);
        Self { steps, groups, best: 0 }.with_best()
    }

    fn with_best(mut self) -> Self {
        self.best = self.room() / (self.steps.0 + self.steps.1);
        self
    }

    /// Half of what all pods need.
    fn room(&self) -> u32 {
        self.groups * (self.steps.0 + self.steps.1) / 2
    }

    fn cluster(&self, paced: bool, seed: u64) -> Cluster {
        let (decode, prefill) = self.steps;
        let goals = (self.groups * decode, self.groups * prefill);
        let by = if paced { self.steps } else { goals };
        let mut cluster = Cluster::new(
            &format!(
                "{{roles: {{decode: {{min: {0}, max: {0}}}, prefill: {{min: {1}, max: {1}}}}}, deploy: {{steps: {{decode: {2}, prefill: {3}}}}}}}",
                goals.0, goals.1, by.0, by.1
            ),
            seed,
        );
        cluster.room = self.room();
        cluster.startup = (1, 60);
        cluster
    }
}

/// Brings a group up in the room that there is, and says how many whole groups are usable in the end. At
/// every instant none that the ready pods could have been is missing by more than a step.
fn bring_up(run: &Run, paced: bool, seed: u64) -> u32 {
    let mut cluster = run.cluster(paced, seed);
    let mut is_still = 0;
    let mut placed = 0;
    while is_still < 6 {
        let plan = cluster.plan();
        cluster.apply(&plan);
        cluster.pass(15);
        let ready = (cluster.ready(0), cluster.ready(1));
        let all = ready.0 + ready.1;
        if paced {
            // With so many pods ready no more groups are possible than this.
            let possible = all / (run.steps.0 + run.steps.1);
            assert!(usable(ready, run.steps) + 1 >= possible, "{ready:?} of {possible}, {:?}", run.steps);
        }
        is_still = if placed == all { is_still + 1 } else { 0 };
        placed = all;
    }
    usable((cluster.ready(0), cluster.ready(1)), run.steps)
}

#[test]
fn usable_groups_are_within_a_step_of_the_best() {
    let mut random = SmallRng::seed_from_u64(75);
    for seed in 0..RUNS {
        let run = Run::of(&mut random);
        let usable = bring_up(&run, true, seed);
        assert!(usable + 1 >= run.best, "run {seed}: {usable} of {}", run.best);
    }
}

/// The figure beside it: what is usable when all pods are admitted at once. docs/guide/rollout.md has it.
#[test]
fn all_at_once_leaves_fewer_usable() {
    let mut random = SmallRng::seed_from_u64(75);
    let (mut paced, mut at_once, mut best) = (0, 0, 0);
    for seed in 0..500 {
        let run = Run::of(&mut random);
        paced += bring_up(&run, true, seed);
        at_once += bring_up(&run, false, seed);
        best += run.best;
    }
    let percent = |groups: u32| groups * 100 / best;
    assert!(at_once < paced && paced <= best);
    let page = include_str!("../../docs/guide/rollout.md").replace('\n', " ");
    for said in
        [format!("leave {} % of the best", percent(paced)), format!("leaves {} % (", percent(at_once))]
    {
        assert!(page.contains(&said), "docs/guide/rollout.md doesn't say '{said}'");
    }
}
