//! Pickers, profiles, handlers, records and metrics.

use std::num::NonZeroUsize;
use std::sync::Arc;

use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::endpoints::Candidates;
use usher::schedule::{
    Context, Decision, Outcome, Picker, PluginId, Profile, ProfileHandler, ProfileSet, QueueScorer,
    RandomPicker, Record, Runs, ScheduleError, Scheduler, SchedulerMetrics, Scorer, Scratch,
    SingleProfileHandler,
};

use crate::support::{Fixed, Only, candidates, decide, fresh, id, metrics, single, top, with_context};

/// Number of times that each endpoint is picked in `rounds` decisions.
fn first_picks(scheduler: &Scheduler, candidates: &Candidates, rounds: usize) -> Vec<usize> {
    let (mut rng, mut scratch) = (StdRng::seed_from_u64(7), Scratch::default());
    let mut counts = vec![0; candidates.len()];
    with_context(|cx| {
        for _ in 0..rounds {
            let decision = scheduler.decide(cx, candidates, &mut rng, &mut scratch, Record::No).unwrap();
            counts[decision.primary().picks[0] as usize] += 1;
        }
    });
    counts
}

#[test]
fn endpoints_of_equal_score_are_picked_equally_often() {
    let all = candidates(&[(None, None); 5]);
    let fixed = || vec![(Arc::new(Fixed(vec![0.5, 1.0, 1.0, 0.0, 1.0])) as Arc<dyn Scorer>, 2.0)];
    for count in [1, 2] {
        let counts = first_picks(&single(None, fixed(), top(count)), &all, 6000);
        assert_eq!((counts[0], counts[3]), (0, 0));
        // Six standard deviations around 2000.
        assert!([1, 2, 4].iter().all(|best| counts[*best].abs_diff(2000) < 220), "{counts:?}");
    }
}

#[test]
fn random_picker_picks_each_endpoint_equally_often() {
    let all = candidates(&[(None, None); 4]);
    for count in [1, 3] {
        let picker = Arc::new(RandomPicker::new(NonZeroUsize::new(count).unwrap()));
        let scorer: Arc<dyn Scorer> = Arc::new(Fixed(vec![1.0, 0.0, 0.0, 0.0]));
        let counts = first_picks(&single(None, vec![(scorer, 1.0)], picker), &all, 8000);
        assert!(counts.iter().all(|count| count.abs_diff(2000) < 240), "{counts:?}");
    }
}

#[test]
fn more_picks_than_candidates_are_all_candidates() {
    let all = candidates(&[(None, None); 3]);
    let pickers: [Arc<dyn Picker>; 2] = [top(7), Arc::new(RandomPicker::new(NonZeroUsize::new(7).unwrap()))];
    for picker in pickers {
        let decision = decide(&single(None, Vec::new(), picker), &all, 3, Record::No).unwrap();
        let mut picks = decision.primary().picks.to_vec();
        picks.sort_unstable();
        assert_eq!(picks, [0, 1, 2]);
    }
}

#[test]
fn top_k_is_in_order_and_the_first_is_primary() {
    let all = candidates(&[(None, None); 5]);
    let scorer: Arc<dyn Scorer> = Arc::new(Fixed(vec![0.1, 0.9, 0.5, 0.7, 0.3]));
    let decision = decide(&single(None, vec![(scorer, 1.0)], top(3)), &all, 1, Record::No).unwrap();
    assert_eq!(decision.primary().picks.as_slice(), [1, 3, 2]);
    assert_eq!(decision.primary_endpoint().name(), "pod-1");
    let authorities: Vec<_> = decision.endpoints().map(|e| e.authority().to_string()).collect();
    assert_eq!(authorities, ["10.0.0.2:8000", "10.0.0.4:8000", "10.0.0.3:8000"]);
}

#[test]
fn filters_narrow_and_scores_are_of_the_survivors() {
    let all = candidates(&[(None, None); 4]);
    let scorer: Arc<dyn Scorer> = Arc::new(Fixed(vec![1.0, 0.5, 0.25, 0.0]));
    let scheduler = single(Some(Only(vec![3, 1, 2])), vec![(scorer, 4.0)], top(1));
    let decision = decide(&scheduler, &all, 1, Record::Scores).unwrap();
    assert_eq!(decision.primary_endpoint().name(), "pod-1");
    let scores: Vec<_> = decision.scores().map(|(authority, total)| (authority.to_string(), total)).collect();
    let expected = [("10.0.0.2:8000", 2.0), ("10.0.0.3:8000", 1.0), ("10.0.0.4:8000", 0.0)];
    assert_eq!(scores, expected.map(|(authority, total)| (authority.to_owned(), total)));
}

#[test]
fn a_drained_profile_is_answered_with_429_and_its_reason() {
    let all = candidates(&[(None, None); 2]);
    for (candidates, filter) in [(&all, Some(Only(Vec::new()))), (&candidates(&[]), None)] {
        let error = decide(&single(filter, Vec::new(), top(1)), candidates, 1, Record::No).unwrap_err();
        assert_eq!(error, ScheduleError::Drained);
        assert_eq!(error.dropped_reason(), Some("rejected-saturated"));
        assert_eq!(error.to_string(), "no endpoints available for the given request");
    }
}

#[test]
fn invalid_scores_count_as_zero_and_are_counted() {
    let registry = Registry::new();
    let metrics = SchedulerMetrics::register(&registry).unwrap();
    let mut builder = Profile::builder("default", &metrics);
    let wild = Fixed(vec![f32::NAN, 7.0, -3.0, f32::INFINITY, 0.5]);
    builder.scorer(&PluginId::new("fixed", "wild"), Arc::new(wild), 2.0);
    let profile = builder.picker(&id("picker"), top(1));
    let scheduler = Scheduler::new(vec![profile], &id("handler"), Arc::new(SingleProfileHandler), &metrics);
    let decision = decide(&scheduler, &candidates(&[(None, None); 5]), 1, Record::Columns).unwrap();
    let record = decision.primary().record.as_deref().unwrap();
    assert_eq!(record.totals, [0.0, 2.0, 0.0, 0.0, 1.0]);
    assert_eq!(record.columns[0].scores, [0.0, 1.0, 0.0, 0.0, 0.5]);
    assert_eq!((record.columns[0].scorer.as_ref(), record.columns[0].weight), ("wild", 2.0));
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    let series = "usher_scheduler_invalid_scores_total{plugin_name=\"wild\",plugin_type=\"fixed\"} 2";
    assert!(text.contains(series), "{text}");
}

#[test]
fn decision_record_has_the_requested_detail() {
    let all = candidates(&[(fresh(1.0), None), (fresh(3.0), None)]);
    let scheduler = single(None, vec![(Arc::new(QueueScorer), 1.0)], top(1));
    assert!(decide(&scheduler, &all, 1, Record::No).unwrap().primary().record.is_none());
    assert_eq!(decide(&scheduler, &all, 1, Record::No).unwrap().scores().count(), 0);
    let scores = decide(&scheduler, &all, 1, Record::Scores).unwrap();
    assert!(scores.primary().record.as_deref().unwrap().columns.is_empty());
    let columns = decide(&scheduler, &all, 1, Record::Columns).unwrap();
    let record = columns.primary().record.as_deref().unwrap();
    assert_eq!(
        (record.survivors.as_slice(), record.totals.as_slice()),
        ([0, 1].as_slice(), [1.0, 0.0].as_slice())
    );
    assert_eq!(record.columns[0].scores, [1.0, 0.0]);
}

#[test]
fn without_scorers_every_total_is_zero() {
    let decision =
        decide(&single(None, Vec::new(), top(1)), &candidates(&[(None, None); 3]), 1, Record::Scores);
    assert!(decision.unwrap().scores().all(|(_, total)| total == 0.0));
}

/// Runs `second` after `first`, but only where that found something, and
/// returns the profile named in `primary`.
struct Chain {
    primary: &'static str,
}

impl ProfileHandler for Chain {
    fn next(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        let (Some(first), Some(second)) = (runs.find("first"), runs.find("second")) else {
            return ProfileSet::new();
        };
        match runs.outcome(first) {
            Outcome::Waiting => [first].into_iter().collect(),
            Outcome::Failed(_) => ProfileSet::new(),
            // Asks again for what ran already and for what doesn't exist; both end the rounds.
            Outcome::Picked(_) => [second, first, 99].into_iter().collect(),
        }
    }

    fn finish(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        let primary = runs.find(self.primary).filter(|profile| runs.picked(*profile).is_some());
        primary.ok_or_else(|| ScheduleError::NoTarget(format!("nothing from {}", self.primary)))
    }
}

fn chain(primary: &'static str, first: Vec<u32>, second: Vec<u32>) -> Result<Decision, ScheduleError> {
    let metrics = metrics();
    let profile = |name: &str, only: Vec<u32>| {
        let mut builder = Profile::builder(name, &metrics);
        builder.filter(&id("only"), Arc::new(Only(only)));
        builder.picker(&id("picker"), top(1))
    };
    let profiles = vec![profile("second", second), profile("first", first)];
    let scheduler = Scheduler::new(profiles, &id("chain"), Arc::new(Chain { primary }), &metrics);
    decide(&scheduler, &candidates(&[(None, None); 3]), 1, Record::No)
}

#[test]
fn a_handler_runs_profiles_in_rounds() {
    let decision = chain("first", vec![2], vec![0]).unwrap();
    let runs: Vec<_> = decision.runs().iter().map(|run| (decision.profile(run), run.picks[0])).collect();
    assert_eq!(runs, [("second", 0), ("first", 2)], "in the order of the configuration");
    assert_eq!(decision.primary_endpoint().name(), "pod-2");
    let second = decision.run("second").unwrap();
    assert_eq!(decision.endpoints_of(second).next().unwrap().name(), "pod-0");
}

#[test]
fn handler_may_ignore_a_failed_profile() {
    let decision = chain("first", vec![2], vec![]).unwrap();
    assert_eq!(decision.runs().len(), 1);
    assert!(decision.run("second").is_none());
}

#[test]
fn profile_error_takes_precedence_over_the_handler_error() {
    assert_eq!(chain("first", vec![], vec![1]).unwrap_err(), ScheduleError::Drained);
    // Nothing failed, but the handler wants what isn't there.
    let error = chain("third", vec![1], vec![1]).unwrap_err();
    assert_eq!(error.to_string(), "failed to find target endpoint: nothing from third");
    assert_eq!(error.dropped_reason(), None);
}

#[test]
fn durations_are_counted_per_plugin_under_both_names() {
    let registry = Registry::new();
    let metrics = SchedulerMetrics::register(&registry).unwrap();
    let mut builder = Profile::builder("default", &metrics);
    builder.filter(&PluginId::new("only", "f"), Arc::new(Only(vec![0, 1])));
    builder.scorer(&PluginId::new("queue-scorer", "q"), Arc::new(QueueScorer), 1.0);
    let profile = builder.picker(&PluginId::new("max-score-picker", "top"), top(1));
    let handler = PluginId::new("single-profile-handler", "h");
    let scheduler = Scheduler::new(vec![profile], &handler, Arc::new(SingleProfileHandler), &metrics);
    let all = candidates(&[(None, None); 2]);
    for _ in 0..3 {
        decide(&scheduler, &all, 1, Record::No).unwrap();
    }
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    for prefix in ["llm_d_epp", "inference_extension"] {
        assert!(text.contains(&format!("{prefix}_scheduler_e2e_duration_seconds_count 3")), "{text}");
        // The handler is asked once before and once after the profile ran.
        let table = [
            ("Filter", "f", "only", 3),
            ("Scorer", "q", "queue-scorer", 3),
            ("Picker", "top", "max-score-picker", 3),
            ("ProfilePicker", "h", "single-profile-handler", 6),
            ("ProcessProfilesResults", "h", "single-profile-handler", 3),
        ];
        for (point, name, plugin_type, count) in table {
            let start = format!("{prefix}_plugin_duration_seconds_count{{");
            let labels = [
                format!("extension_point=\"{point}\""),
                format!("plugin_name=\"{name}\""),
                format!("plugin_type=\"{plugin_type}\""),
            ];
            let found = text.lines().any(|line| {
                line.starts_with(&start)
                    && labels.iter().all(|label| line.contains(label))
                    && line.ends_with(&format!(" {count}"))
            });
            assert!(found, "{prefix} {point}\n{text}");
        }
    }
}
