//! A profile handler that has the last word about what several profiles picked.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use rand::{Rng, RngExt};
use usher::schedule::{
    Context, Decision, Outcome, Profile, ProfileHandler, ProfileSet, Record, Runs, ScheduleError, Scheduler,
    Scorer, Settlement,
};

use crate::support::{Fixed, Only, candidates, decide, id, metrics, top};

/// Runs all profiles at once and returns the first of the configuration.
fn all(runs: &Runs<'_>) -> ProfileSet {
    (0..runs.len()).filter(|profile| matches!(runs.outcome(*profile), Outcome::Waiting)).collect()
}

/// A profile that may pick these, by these scores.
fn profile(name: &str, only: &[u32], scores: &[f32]) -> Profile {
    let metrics = metrics();
    let mut builder = Profile::builder(name, &metrics);
    builder.filter(&id("only"), Arc::new(Only(only.to_vec())));
    builder.scorer(&id("fixed"), Arc::new(Fixed(scores.to_vec())) as Arc<dyn Scorer>, 1.0);
    builder.picker(&id("top"), top(1))
}

fn run(handler: Arc<dyn ProfileHandler>, profiles: Vec<Profile>, record: Record) -> Decision {
    let scheduler = Scheduler::new(profiles, &id("toy"), handler, &metrics());
    decide(&scheduler, &candidates(&[(None, None); 6]), 1, record).unwrap()
}

/// Picks the pair of a decode and a prefill endpoint with the greatest sum of totals, where pairs three
/// positions apart are worth 1 more.
struct Pairs;

impl Pairs {
    fn best(runs: &Settlement<'_>) -> Option<(u32, u32)> {
        let (decode, prefill) = (runs.scores(runs.runs().find("decode")?)?, runs.scores(1)?);
        let mut best: Option<(f64, (u32, u32))> = None;
        for (one, total) in decode.survivors.iter().zip(&decode.totals) {
            for (other, more) in prefill.survivors.iter().zip(&prefill.totals) {
                let worth = total + more + f64::from(u8::from(one.abs_diff(*other) == 3));
                if best.is_none_or(|(most, _)| worth > most) {
                    best = Some((worth, (*one, *other)));
                }
            }
        }
        best.map(|(_, pair)| pair)
    }
}

impl ProfileHandler for Pairs {
    fn next(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        all(runs)
    }

    fn finish(&self, _cx: &Context<'_>, _runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        Ok(0)
    }

    fn keeps_totals(&self, profile: &str) -> bool {
        ["decode", "prefill"].contains(&profile)
    }

    fn settle(
        &self,
        _cx: &Context<'_>,
        runs: &mut Settlement<'_>,
        rng: &mut dyn Rng,
    ) -> Result<(), ScheduleError> {
        let _ = rng.random::<u32>();
        if let Some((decode, prefill)) = Self::best(runs) {
            assert!(runs.replace(0, &[decode]) && runs.replace(1, &[prefill]));
        }
        Ok(())
    }
}

fn picks(decision: &Decision) -> Vec<(&str, Vec<u32>)> {
    decision.runs().iter().map(|run| (decision.profile(run), run.picks.to_vec())).collect()
}

#[test]
fn a_pair_is_chosen_by_the_totals_of_both_profiles() {
    let profiles = || {
        vec![
            profile("decode", &[0, 1, 2], &[1.0, 0.75, 0.0, 1.0, 1.0, 1.0]),
            profile("prefill", &[3, 4, 5], &[1.0, 1.0, 1.0, 0.25, 0.75, 1.0]),
            profile("encode", &[5], &[0.0; 6]),
        ]
    };
    let alone = run(Arc::new(Unsettled), profiles(), Record::No);
    assert_eq!(picks(&alone), [("decode", vec![0]), ("prefill", vec![5]), ("encode", vec![5])]);
    for record in [Record::No, Record::Scores, Record::Columns] {
        let decision = run(Arc::new(Pairs), profiles(), record);
        assert_eq!(picks(&decision), [("decode", vec![1]), ("prefill", vec![4]), ("encode", vec![5])]);
        assert_eq!(decision.primary_endpoint().name(), "pod-1");
        // What was kept to settle goes, unless somebody else wants it.
        let kept: Vec<bool> = decision.runs().iter().map(|run| run.record.is_some()).collect();
        assert_eq!(kept, [record != Record::No; 3], "{record:?}");
        let columns = decision.primary().record.as_deref().map_or(0, |scores| scores.columns.len());
        assert_eq!(columns, usize::from(record == Record::Columns));
    }
    // Nobody to pair with.
    let lonely = vec![profile("decode", &[2], &[0.0; 6]), profile("prefill", &[], &[0.0; 6])];
    assert_eq!(picks(&run(Arc::new(Pairs), lonely, Record::No)), [("decode", vec![2])]);
}

/// Keeps no totals, and so is never asked to settle.
struct Unsettled;

impl ProfileHandler for Unsettled {
    fn next(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        all(runs)
    }

    fn finish(&self, _cx: &Context<'_>, _runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        Ok(0)
    }

    fn settle(
        &self,
        _cx: &Context<'_>,
        _runs: &mut Settlement<'_>,
        _rng: &mut dyn Rng,
    ) -> Result<(), ScheduleError> {
        // There is nothing to settle by.
        Err(ScheduleError::NoPair)
    }
}

/// Tries these replacements of the first three profiles, and notes what came of them.
struct Tries {
    replacements: Vec<(usize, Vec<u32>)>,
    replaced: Mutex<Vec<bool>>,
    settled: AtomicUsize,
}

impl ProfileHandler for Tries {
    fn next(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        assert_eq!(self.settled.load(Relaxed), 0, "behind the last round");
        all(runs)
    }

    fn finish(&self, _cx: &Context<'_>, _runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        assert_eq!(self.settled.load(Relaxed), 1, "once, and before");
        Ok(0)
    }

    fn keeps_totals(&self, profile: &str) -> bool {
        profile != "free"
    }

    fn settle(
        &self,
        _cx: &Context<'_>,
        runs: &mut Settlement<'_>,
        _rng: &mut dyn Rng,
    ) -> Result<(), ScheduleError> {
        self.settled.fetch_add(1, Relaxed);
        let kept = (0..4).map(|profile| runs.scores(profile).is_some()).collect::<Vec<_>>();
        assert_eq!(kept, [true, false, false, false]);
        for (profile, picks) in &self.replacements {
            self.replaced.lock().unwrap().push(runs.replace(*profile, picks));
        }
        Ok(())
    }
}

#[test]
fn picks_are_replaced_only_by_unfiltered_candidates() {
    let table: [(usize, &[u32], bool); 9] = [
        (0, &[2], true),
        (0, &[3, 1], true),
        (0, &[], false),
        // Removed by a filter, with or without another one that was not, and nowhere at all.
        (0, &[0], false),
        (0, &[1, 0], false),
        (0, &[99], false),
        // Its totals are not kept; it failed; it isn't there.
        (1, &[1], false),
        (2, &[1], false),
        (3, &[1], false),
    ];
    for (profile_index, wanted, replaced) in table {
        let profiles = vec![
            profile("decode", &[1, 2, 3], &[0.0, 1.0, 0.0, 0.0]),
            profile("free", &[1, 2], &[0.0, 0.0, 1.0, 0.0]),
            profile("drained", &[], &[0.0; 4]),
        ];
        let handler = Arc::new(Tries {
            replacements: vec![(profile_index, wanted.to_vec())],
            replaced: Mutex::default(),
            settled: AtomicUsize::new(0),
        });
        let decision = run(Arc::clone(&handler) as _, profiles, Record::No);
        assert_eq!(*handler.replaced.lock().unwrap(), [replaced], "{profile_index} {wanted:?}");
        let decode = if replaced { wanted.to_vec() } else { vec![1] };
        assert_eq!(picks(&decision), [("decode", decode), ("free", vec![2])]);
    }
}
