//! Endpoints that are near to the one that another profile picked.

use std::sync::Arc;

use prometheus::Registry;
use proptest::prelude::*;
use usher::config::{ConfigError, EndpointPickerConfig};
use usher::endpoints::{Candidates, Endpoint, EndpointSpec, Nearness, PLACE_LABELS, Store};
use usher::registry::Pipeline;
use usher::schedule::{
    Context, Filter, MinAffinity, Outcome, Profile, ProfileHandler, ProfileSet, Record, Runs, ScheduleError,
    Scheduler, SchedulerMetrics, Scorer, State, TopologyAffinityFilter, TopologyAffinityScorer,
};

use crate::support::{Fixed, Only, decide, id, metrics, top, with_context};

/// Host, rack, zone and region; `None`: no label.
type Place = [Option<&'static str>; 4];

const UNKNOWN: Place = [None; 4];

/// A place from the words of a line; `-`: no label, `''`: an empty one.
fn place(words: &'static str) -> Place {
    let mut place = UNKNOWN;
    for (level, word) in place.iter_mut().zip(words.split(' ')) {
        *level = Some(word).filter(|word| *word != "-").map(|word| if word == "''" { "" } else { word });
    }
    place
}

fn spec(number: usize, place: &Place) -> EndpointSpec {
    let address = [10, 0, (number / 250) as u8, (number % 250) as u8 + 1];
    let labels = PLACE_LABELS.iter().zip(place).filter_map(|(label, name)| Some((label, (*name)?)));
    EndpointSpec {
        labels: labels.map(|(label, name)| ((*label).to_owned(), name.to_owned())).collect(),
        ..EndpointSpec::new(format!("pod-{number}"), (address, 8000))
    }
}

fn endpoints(places: &[Place]) -> Candidates {
    let store = Store::default();
    store.replace(places.iter().enumerate().map(|(number, place)| spec(number, place)).collect());
    store.snapshot().all()
}

/// The last of the places is the peer's; without places there is none.
fn with_peer<T>(places: &[Place], run: impl FnOnce(&Context<'_>, &Candidates) -> T) -> T {
    let all = endpoints(places);
    with_context(|cx| run(&Context { peer: all.snapshot().endpoints().last(), ..*cx }, &all))
}

fn scores(places: &[Place]) -> Vec<f32> {
    let mut out = vec![0.0; places.len()];
    with_peer(places, |cx, all| TopologyAffinityScorer.score(cx, all.view(), &mut out));
    out
}

fn kept(least: MinAffinity, places: &[Place]) -> Vec<u32> {
    with_peer(places, |cx, all| {
        let mut kept = all.indices().to_vec();
        TopologyAffinityFilter::new(least).filter(cx, all.snapshot(), &mut kept, &mut rand::rng());
        kept
    })
}

const HERE: &str = "h1 r1 z1 g1";

#[test]
fn topology_scores_match_the_table() {
    let table = [
        ("h1 r1 z1 g1", HERE, 1.0),
        ("h2 r1 z1 g1", HERE, 0.20),
        ("h2 r2 z1 g1", HERE, 0.05),
        ("h2 r2 z2 g1", HERE, 0.02),
        ("h2 r2 z2 g2", HERE, 0.0),
        ("- r1 - -", HERE, 0.20),
        ("- - - -", HERE, 0.0),
        // A host says enough, whatever the wider places are.
        ("h1 - - -", HERE, 1.0),
        ("h1 r2 z2 g2", HERE, 1.0),
        // What isn't known is never the same.
        ("- - - -", "- - - -", 0.0),
        ("'' '' '' ''", "'' '' '' ''", 0.0),
        ("'' - z1 ''", "'' - z1 ''", 0.05),
        ("r1 h1 g1 z1", HERE, 0.0),
    ];
    for (one, peer, score) in table {
        assert_eq!(scores(&[place(one), place(peer)])[0], score, "{one} | {peer}");
    }
}

#[test]
fn topology_plugins_do_nothing_without_a_first_pick() {
    let all = endpoints(&[place(HERE), place(HERE), UNKNOWN]);
    let (mut out, mut kept) = (vec![0.0; 3], all.indices().to_vec());
    with_context(|cx| {
        TopologyAffinityScorer.score(cx, all.view(), &mut out);
        TopologyAffinityFilter::new(MinAffinity::Host).filter(
            cx,
            all.snapshot(),
            &mut kept,
            &mut rand::rng(),
        );
    });
    assert_eq!((out, kept), (vec![0.0; 3], vec![0, 1, 2]));
}

#[test]
fn filter_keeps_endpoints_within_the_minimum_affinity() {
    let places = [
        place("h1 r1 z1 g1"),
        place("h2 r1 z1 g1"),
        place("h3 r2 z1 g1"),
        place("h4 r3 z2 g1"),
        place("h5 r4 z3 g2"),
        UNKNOWN,
        place("h1 r1 z1 g1"),
    ];
    let table: [(MinAffinity, &[u32]); 4] = [
        (MinAffinity::Host, &[0, 6]),
        (MinAffinity::Rack, &[0, 1, 6]),
        (MinAffinity::Zone, &[0, 1, 2, 6]),
        (MinAffinity::Region, &[0, 1, 2, 3, 6]),
    ];
    for (least, expected) in table {
        assert_eq!(kept(least, &places), expected, "{least:?}");
    }
    // Nobody is near: not even the peer, about which nothing is known.
    let lonely = [place("h1 r1 z1 g1"), place("h2 r1 z1 g1"), UNKNOWN];
    assert_eq!(kept(MinAffinity::Region, &lonely), [0, 1, 2]);
}

/// The rules once more, by comparing words.
fn reference(one: &Place, other: &Place) -> usize {
    for level in 0..4 {
        if let (Some(ours), Some(theirs)) = (one[level], other[level])
            && !ours.is_empty()
            && ours == theirs
        {
            return level;
        }
    }
    4
}

proptest! {
    #[test]
    fn scorer_and_filter_equal_their_reference(
        places in proptest::collection::vec(
            proptest::array::uniform4(proptest::option::weighted(0.8, proptest::sample::select(vec!["", "a", "b", "c"]))),
            1..30,
        ),
        least in 0usize..4,
    ) {
        let peer = places.last().unwrap();
        let levels: Vec<usize> = places.iter().map(|place| reference(place, peer)).collect();
        let table = [1.0, 0.20, 0.05, 0.02, 0.0];
        let expected: Vec<f32> = levels.iter().map(|level| table[*level]).collect();
        prop_assert_eq!(scores(&places), expected);

        let affinities = [MinAffinity::Host, MinAffinity::Rack, MinAffinity::Zone, MinAffinity::Region];
        let mut near: Vec<u32> = Vec::new();
        for (position, level) in levels.iter().enumerate() {
            if *level <= least {
                near.push(position as u32);
            }
        }
        if near.is_empty() {
            near = (0..places.len() as u32).collect();
        }
        prop_assert_eq!(kept(affinities[least], &places), near);
    }
}

/// Lets `decode` pick, then `prefill` near it.
struct Pairs;

impl ProfileHandler for Pairs {
    fn next(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        let waiting = |name| runs.find(name).filter(|at| matches!(runs.outcome(*at), Outcome::Waiting));
        waiting("decode").or_else(|| waiting("prefill")).into_iter().collect()
    }

    fn finish(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        runs.find("decode").ok_or_else(|| ScheduleError::NoTarget("no decode profile".to_owned()))
    }

    fn peer<'a>(&self, profile: usize, runs: &Runs<'a>) -> Option<&'a Arc<Endpoint>> {
        (runs.name(profile) == "prefill").then(|| runs.picked(runs.find("decode")?))?
    }
}

/// Endpoint 0 decodes, in the place `HERE`; the others prefill, and like each other less
/// from left to right.
fn prefill_at(places: &[&'static str], filter: Option<MinAffinity>, weight: f64) -> String {
    let metrics = metrics();
    let mut decode = Profile::builder("decode", &metrics);
    decode.filter(&id("decodes"), Arc::new(Only(vec![0])));
    let mut prefill = Profile::builder("prefill", &metrics);
    prefill.filter(&id("prefills"), Arc::new(Only((1..=places.len() as u32).collect())));
    if let Some(least) = filter {
        prefill.filter(&id("near"), Arc::new(TopologyAffinityFilter::new(least)));
    }
    prefill.scorer(&id("nearness"), Arc::new(TopologyAffinityScorer), weight);
    let liking = (0..=places.len()).map(|position| 0.1 - position as f32 / 100.0).collect();
    prefill.scorer(&id("liking"), Arc::new(Fixed(liking)), 1.0);
    // The one that needs the other's pick is configured first.
    let profiles = vec![prefill.picker(&id("top"), top(1)), decode.picker(&id("top"), top(1))];
    let scheduler = Scheduler::new(profiles, &id("pairs"), Arc::new(Pairs), &metrics);
    let all: Vec<Place> = std::iter::once(HERE).chain(places.iter().copied()).map(place).collect();
    let decision = decide(&scheduler, &endpoints(&all), 1, Record::No).unwrap();
    assert_eq!(decision.primary_endpoint().name(), "pod-0");
    let run = decision.run("prefill").unwrap();
    decision.endpoints_of(run).next().unwrap().name().to_owned()
}

#[test]
fn profile_picks_near_the_pick_of_another() {
    let places = ["h2 r2 z2 g1", "h2 r2 z1 g1", "h1 r1 z1 g1", "h3 r1 z1 g1"];
    assert_eq!(prefill_at(&places, None, 1.0), "pod-3", "the same host");
    assert_eq!(prefill_at(&places, None, 0.0), "pod-1");
    assert_eq!(prefill_at(&places, Some(MinAffinity::Host), 0.0), "pod-3");
    assert_eq!(prefill_at(&places, Some(MinAffinity::Rack), 0.0), "pod-3", "liked more than pod-4");
    assert_eq!(prefill_at(&places, Some(MinAffinity::Zone), 0.0), "pod-2");
    let far = ["h2 r2 z2 g2", "- - - -"];
    assert_eq!(prefill_at(&far, Some(MinAffinity::Region), 1.0), "pod-1", "there is nobody nearer");
}

#[test]
fn topology_places_do_not_depend_on_membership_order() {
    let store = Store::default();
    let (here, there) = (place("h1 r1 z1 g1"), place("h2 r1 z1 g1"));
    store.replace(vec![spec(0, &here), spec(1, &there)]);
    store.replace(vec![spec(0, &here)]);
    store.replace(vec![spec(0, &here), spec(1, &there), spec(2, &here)]);
    store.replace(vec![spec(3, &there), spec(1, &here), spec(0, &here)]);
    let snapshot = store.snapshot();
    let nearness = |one: usize, other: usize| {
        let endpoints = snapshot.endpoints();
        endpoints[one].topology().nearness(endpoints[other].topology())
    };
    assert_eq!(
        [nearness(0, 1), nearness(1, 2), nearness(0, 2)],
        [Nearness::Rack, Nearness::Host, Nearness::Rack]
    );
}

fn build(plugins: &str) -> Result<Pipeline, ConfigError> {
    let config = EndpointPickerConfig::parse(&format!("plugins:\n{plugins}"))?;
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    Pipeline::build(Some(&config), true, &metrics, &State::default())
}

#[test]
fn required_extractor_is_added() {
    let pipeline = build("- type: topology-affinity-scorer\n- type: topology-affinity-filter\n").unwrap();
    let of = |name: &str| pipeline.resolved.plugins.iter().find(|plugin| plugin.name == name);
    assert!(of("topology-extractor").is_some());
    let filter = of("topology-affinity-filter").unwrap();
    let expected = serde_json::json!({"minAffinity": "host", "topologyProducerName": "topology-extractor"});
    assert_eq!(filter.parameters, expected);
    assert_eq!(filter.reads[0].producer, "topology-extractor");
    let profile = &pipeline.resolved.profiles[0];
    assert_eq!(profile.filters, ["topology-affinity-filter"]);
    assert_eq!(profile.scorers[0].plugin, "topology-affinity-scorer");

    let named = "- {name: mine, type: topology-extractor}\n- {type: topology-affinity-scorer, parameters: {topologyProducerName: mine}}\n";
    let pipeline = build(named).unwrap();
    assert!(pipeline.resolved.plugins.iter().all(|plugin| plugin.name != "topology-extractor"));
}

#[test]
fn parameters_are_strict() {
    let table = [
        (
            "topology-affinity-filter",
            "{minAffinity: cell}",
            "minAffinity: unknown value 'cell'",
            "host, rack, zone, region",
        ),
        ("topology-affinity-filter", "{minAffinity: Host}", "unknown value 'Host'", "did you mean `host`?"),
        ("topology-affinity-filter", "{min: host}", "unknown field 'min'", "minAffinity"),
        (
            "topology-affinity-scorer",
            "{minAffinity: host}",
            "unknown field 'minAffinity'",
            "topologyProducerName",
        ),
        (
            "topology-affinity-scorer",
            "{topologyProducerName: mine}",
            "it reads Topology from the plugin 'mine', which is not declared",
            "declare it",
        ),
        (
            "topology-affinity-filter",
            "{topologyProducerName: max-score-picker}",
            "which does not produce it",
            "name a plugin that does",
        ),
        ("topology-extractor", "{rackLabel: rack}", "unknown field 'rackLabel'", "nothing can be set"),
    ];
    for (plugin_type, parameters, message, hint) in table {
        let error = build(&format!("- {{type: {plugin_type}, parameters: {parameters}}}\n")).unwrap_err();
        assert!(error.message().contains(message), "{error}");
        assert!(error.hint_text().unwrap().contains(hint), "{error}");
    }
}
