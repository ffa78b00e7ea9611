use std::time::Duration;

use proptest::prelude::*;
use usher_core::endpoints::{Clock, EndpointSpec, EngineTimes, Store, Total};
use usher_core::random::mix;
use usher_plugin::MAX_RECORD;

use super::super::Kind;
use super::super::busy_periods::Observed;
use super::super::group::Steps;
use super::super::link::Transfers;
use super::super::time::millis;
use super::*;

const RATE: f64 = 16_000.0;

fn model() -> Model {
    Model::new(RATE, Clock::stopped())
}

/// A pool of pods of these accelerators.
fn pool(accelerators: &[&str]) -> Arc<Snapshot> {
    pool_of(0, accelerators)
}

/// The same with other pods.
fn pool_of(network: u8, accelerators: &[&str]) -> Arc<Snapshot> {
    let store = Store::default();
    let spec = |(number, accelerator): (u8, &&str)| {
        let name = format!("pod-{network}-{number}");
        let mut spec = EndpointSpec::new(name, ([10, 0, network, number], 80));
        spec.labels.insert("llm-d.ai/accelerator".to_owned(), (*accelerator).to_owned());
        spec
    };
    store.replace((1..).zip(accelerators).map(spec).collect());
    store.snapshot()
}

/// Responses of endpoints that compute so many tokens per second; the first is half as fast.
fn learn(model: &Model, pods: &Snapshot, rates: &[f64], samples: u32) {
    let now = model.clock().elapsed();
    for n in 0..samples {
        for (number, (endpoint, rate)) in pods.endpoints().iter().zip(rates).enumerate() {
            let backlog = model.backlog(endpoint);
            let tokens = f64::from(n % 7 + 1) * 400.0;
            let factor = if number == 0 { 2.0 } else { 1.0 };
            let seconds = factor * (0.02 + tokens / rate);
            backlog.computed((0.0, tokens), tokens as u64, Some((seconds, 0.0)), now);
            let steps = Steps { requests: f64::from(n % 5), cached: 1000.0, computed: 0.0 };
            backlog.group().steps(&steps, 0.01, 1.0, millis(now));
            backlog.group().first_residuals().record(0.3, 1.0, 1.2);
            backlog.finished(Duration::from_secs(3), now);
        }
        model.note_output(model.lengths.kind("m", "short"), 20, now);
        model.note_output(model.lengths.kind("m", "long"), 800, now);
        model.note_times(Duration::from_millis(200), Duration::from_secs(2));
        model.scale().observe(1500, 1000);
        model.hits().observe(700, 2000, 0.9);
    }
}

fn records(model: &Model, snapshot: &Snapshot) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    model.export(snapshot, &mut |record| {
        records.push(record.to_vec());
        true
    });
    assert!(records.iter().all(|record| record.len() <= MAX_RECORD));
    records
}

/// Imports what a process whose clock shows the same time has just written.
fn import(model: &Model, records: &[Vec<u8>], snapshot: &Snapshot) -> u64 {
    let now_ms = model.clock().now_ms();
    import_aged(model, records, &Import::new(snapshot, now_ms, now_ms, 0))
}

fn import_aged(model: &Model, records: &[Vec<u8>], cx: &Import<'_>) -> u64 {
    records.iter().map(|record| model.import(record, cx).unwrap()).sum()
}

fn rates(model: &Model, snapshot: &Snapshot) -> Vec<f64> {
    snapshot.endpoints().iter().map(|endpoint| model.backlog(endpoint).rate().round()).collect()
}

#[test]
fn model_of_another_process_expects_the_same() {
    let (writer, reader, pods) = (model(), model(), pool(&["a", "a", "b"]));
    learn(&writer, &pods, &[8000.0, 8000.0, 2000.0], 100);
    let all = records(&writer, &pods);
    assert_eq!(all, records(&writer, &pods), "as long as nothing is new");
    // The pool, two groups, three endpoints, two flows.
    assert_eq!(import(&reader, &all, &pods), 8);
    assert_eq!(rates(&reader, &pods), rates(&writer, &pods));
    assert!(rates(&reader, &pods)[0] < 0.7 * rates(&reader, &pods)[1], "one is slower");
    let shown = |model: &Model| {
        let backlog = model.backlog(&pods.endpoints()[0]);
        let lengths = ["short", "long", "new"]
            .map(|flow| model.lengths.expected(model.lengths.kind("m", flow), model.mean_output()));
        let times = (model.urgency(), backlog.hold(), model.scale().ratio(), model.hits().likely(700, 2000));
        (lengths, times, backlog.speed(), model.report().groups)
    };
    assert_eq!(shown(&reader), shown(&writer));
    let p90 =
        |model: &Model| model.backlog(&pods.endpoints()[0]).group().first_residuals().quantile(0.3, 0.9);
    assert!((p90(&reader) / p90(&writer) - 1.0).abs() < 1e-3);
    assert_eq!(import(&reader, &all, &pods), 0, "nothing is known better");
    // Both learn on alike.
    for model in [&reader, &writer] {
        learn(model, &pods, &[8000.0, 4000.0, 2000.0], 50);
    }
    assert_eq!(rates(&reader, &pods), rates(&writer, &pods));
}

#[test]
fn most_samples_count_and_among_enough_the_newest() {
    let pods = pool(&["a", "a"]);
    let written = |rate: f64, samples| {
        let writer = model();
        learn(&writer, &pods, &[rate, rate], samples);
        (records(&writer, &pods), rates(&writer, &pods))
    };
    let (few, more) = (written(4000.0, 10), written(6000.0, 20));
    for order in [[&few, &more], [&more, &few]] {
        let reader = model();
        for (records, _) in order {
            import(&reader, records, &pods);
        }
        assert_eq!(rates(&reader, &pods), more.1);
    }
    // From the newest to the oldest.
    let (enough, many, reader) = (written(8000.0, 60), written(1000.0, 500), model());
    for (records, _) in [&few, &enough, &many] {
        import(&reader, records, &pods);
    }
    assert_eq!(rates(&reader, &pods), enough.1);
}

/// A model, and the records of what it learned.
fn written(pods: &Snapshot, rate: f64, samples: u32, idle: Duration) -> (Model, Vec<Vec<u8>>) {
    let writer = model();
    writer.clock().set(Duration::from_secs(3600));
    learn(&writer, pods, &[rate, rate], samples);
    writer.clock().set(writer.clock().elapsed() + idle);
    let records = records(&writer, pods);
    (writer, records)
}

#[test]
fn estimates_of_an_idle_replica_give_way_to_fresh_ones() {
    let pods = pool(&["a", "a"]);
    let (idle, stale) = written(&pods, 1000.0, 500, Duration::from_secs(3 * 3600));
    let (busy, fresh) = written(&pods, 8000.0, 60, Duration::ZERO);
    // Each writer's clock shows another time, and the reader's a third.
    let at = |model: &Model, writer: &Model| {
        Import::new(&pods, model.clock().now_ms(), writer.clock().now_ms(), 2000)
    };
    let flow = |model: &Model| model.lengths.all().samples;
    for order in [[(&idle, &stale), (&busy, &fresh)], [(&busy, &fresh), (&idle, &stale)]] {
        let reader = model();
        for (writer, records) in order {
            import_aged(&reader, records, &at(&reader, writer));
        }
        assert_eq!((rates(&reader, &pods), flow(&reader)), (rates(&busy, &pods), 120));
    }
    // The idle one itself, which has since had one response.
    learn(&idle, &pods, &[1000.0, 1000.0], 1);
    assert!(import_aged(&idle, &fresh, &at(&idle, &busy)) > 0);
    assert_eq!(rates(&idle, &pods), rates(&busy, &pods));
    assert_eq!(import_aged(&busy, &stale, &at(&busy, &idle)), 0);
}

#[test]
fn restarted_engine_starts_with_its_groups_times() {
    let (writer, reader, pods) = (model(), model(), pool(&["a", "a"]));
    let started = |started| {
        let times = EngineTimes { started: Some(started), ..EngineTimes::default() };
        pods.endpoints()[0].load().engine_times.set(times);
    };
    learn(&writer, &pods, &[8000.0, 8000.0], 1);
    started(1000.0);
    writer.follow(&pods);
    learn(&writer, &pods, &[8000.0, 8000.0], 100);
    let all = records(&writer, &pods);
    assert!(rates(&writer, &pods)[0] < 0.7 * rates(&writer, &pods)[1]);
    // The reader has not seen the engine yet.
    let unread = pool(&["a", "a"]);
    import(&reader, &all, &unread);
    assert_eq!(rates(&reader, &unread), rates(&writer, &pods));
    let times = EngineTimes { started: Some(2000.0), ..EngineTimes::default() };
    unread.endpoints()[0].load().engine_times.set(times);
    reader.follow(&unread);
    let is_as_its_group = |model: &Model| {
        let backlog = model.backlog(&unread.endpoints()[0]);
        backlog.rate() == 1.0 / backlog.group().speed().per_token
    };
    assert!(is_as_its_group(&reader), "it has no speed of its own any more");
    // It has seen it before.
    let reader = model();
    import(&reader, &all, &unread);
    assert!(is_as_its_group(&reader));
    assert_eq!(rates(&reader, &unread)[1], rates(&writer, &pods)[1]);
}

/// Page of a first endpoint whose engine doesn't say when it started, with so many first tokens.
fn show(pods: &Snapshot, first_tokens: f64) {
    let total = Total { sum: first_tokens, count: first_tokens };
    let times = EngineTimes { first_token: Some(total), ..EngineTimes::default() };
    pods.endpoints()[0].load().engine_times.set(times);
}

/// Times as long as the others of its group that the first endpoint takes.
fn factor(model: &Model, pods: &Snapshot) -> f64 {
    let backlog = model.backlog(&pods.endpoints()[0]);
    let factor = backlog.speed().per_token / backlog.group().speed().per_token;
    (factor * 1e6).round() / 1e6
}

#[test]
fn restart_that_one_replica_saw_is_not_undone_by_another() {
    let pods = pool(&["a", "a"]);
    // Both see the engine, and one the restart, as its count falls.
    let (saw, missed) = (model(), model());
    show(&pods, 100.0);
    for model in [&saw, &missed] {
        model.clock().set(Duration::from_secs(3600));
        learn(model, &pods, &[8000.0, 8000.0], 60);
        model.follow(&pods);
    }
    let before = records(&missed, &pods);
    show(&pods, 3.0);
    saw.clock().set(Duration::from_secs(3605));
    saw.follow(&pods);
    assert_eq!(factor(&saw, &pods), 1.0);
    let after = records(&saw, &pods);
    // Whatever comes first, of what was written before the restart, or since by the other.
    learn(&missed, &pods, &[8000.0, 8000.0], 5);
    for records in [&before, &records(&missed, &pods)] {
        import(&saw, records, &pods);
        assert_eq!(factor(&saw, &pods), 1.0);
        for order in [[records, &after], [&after, records]] {
            let started = model();
            started.clock().set(Duration::from_secs(3610));
            order.iter().for_each(|records| _ = import(&started, records, &pods));
            assert_eq!(factor(&started, &pods), 1.0);
        }
    }
    // The other hears of it, and both exchange what they learn from then on.
    assert!(factor(&missed, &pods) > 1.5);
    import(&missed, &after, &pods);
    assert_eq!(factor(&missed, &pods), 1.0);
    learn(&missed, &pods, &[8000.0, 8000.0], 60);
    // Its own page says so last, of the process that it knows already.
    missed.follow(&pods);
    assert!(factor(&missed, &pods) > 1.1, "it starts anew once");
    import(&saw, &records(&missed, &pods), &pods);
    assert_eq!(factor(&saw, &pods), factor(&missed, &pods));
    assert!(factor(&saw, &pods) > 1.1);
}

#[test]
fn late_sight_of_a_restart_keeps_estimates_of_that_process() {
    let pods = pool(&["a", "a"]);
    let start = |started| {
        let times = EngineTimes { started: Some(started), ..EngineTimes::default() };
        pods.endpoints()[0].load().engine_times.set(times);
    };
    let (soon, late) = (model(), model());
    start(1000.0);
    for model in [&soon, &late] {
        model.clock().set(Duration::from_secs(3600));
        learn(model, &pods, &[8000.0, 8000.0], 1);
        model.follow(&pods);
    }
    start(2000.0);
    soon.follow(&pods);
    learn(&soon, &pods, &[8000.0, 8000.0], 60);
    let learned = factor(&soon, &pods);
    assert!(learned > 1.1);
    for model in [&soon, &late] {
        model.clock().set(Duration::from_secs(3660));
    }
    late.follow(&pods);
    import(&soon, &records(&late, &pods), &pods);
    assert_eq!(factor(&soon, &pods), learned);
    import(&late, &records(&soon, &pods), &pods);
    assert_eq!(factor(&late, &pods), factor(&soon, &pods));
}

/// First tokens behind transfers that take four times as long as configured. Returns how many times as long they then
/// seem to take, by the link and by the group.
fn move_caches(model: &Model, pods: &Snapshot, samples: u32) -> [f64; 2] {
    let backlog = model.backlog(&pods.endpoints()[1]);
    for n in 0..samples {
        let (computed, alone) = (0.1 + 0.01 * f64::from(n % 7), 0.1 * f64::from(n % 5));
        let seconds = computed + 4.0 * alone;
        let observed = Observed { began: computed, alone, seconds };
        backlog.link().observe(&observed, millis(model.clock().elapsed()));
        backlog.group().first_token(0.0, 0.0, alone, 0.03 + 4.0 * alone, 1.0, 0);
    }
    seem(model, pods)
}

fn seem(model: &Model, pods: &Snapshot) -> [f64; 2] {
    let backlog = model.backlog(&pods.endpoints()[1]);
    let group = Group::new(RATE);
    let mut record = RecordWriter::default();
    backlog.group().write(&mut record);
    let read = group.read(&mut RecordReader(&record.0), &Import::new(pods, 0, 0, 0)).unwrap();
    group.replace(read, 0);
    // Of ten seconds as configured, nearly all of the time.
    [backlog.link().factor(), 1000.0 / group.first_token(0.0, 0.0, 10.0, 10_000.0, 1.0, 0)]
}

#[test]
fn factors_of_transfers_count_where_the_same_is_configured() {
    let pods = pool(&["a", "a"]);
    let speed = |bytes: f64| Transfers::new(move |_| bytes, 1000.0);
    let writer = model();
    writer.moves_at(&speed(1e6));
    learn(&writer, &pods, &[8000.0, 8000.0], 60);
    let slow = move_caches(&writer, &pods, 1000);
    assert!(slow.iter().all(|factor| (factor / 4.0 - 1.0).abs() < 0.2), "{slow:?}");
    let links = writer.report().links;
    let [link] = &links[..] else { panic!("{links:?}") };
    assert_eq!((&*link.endpoint, link.factor), (&**pods.endpoints()[1].id(), slow[0]), "as the report says");
    assert!(link.is_far(), "{link:?}");
    let all = records(&writer, &pods);
    let reader = |transfers: Option<&Transfers>| {
        let reader = model();
        transfers.into_iter().for_each(|transfers| reader.moves_at(transfers));
        import(&reader, &all, &pods);
        assert_eq!(rates(&reader, &pods), rates(&writer, &pods));
        reader
    };
    let is_close = |some: [f64; 2], other: [f64; 2]| {
        some.iter().zip(other).all(|(one, other)| (one / other - 1.0).abs() < 0.02)
    };
    let expected = [1.0, 1.0];
    assert!(is_close(seem(&reader(Some(&speed(1e6))), &pods), slow));
    assert!(is_close(seem(&reader(Some(&speed(4e6))), &pods), expected), "it was configured wrongly");
    // At a start, records come before the first decision, which knows what is configured.
    let started = reader(None);
    started.moves_at(&speed(1e6));
    assert!(is_close(seem(&started, &pods), slow));
    started.moves_at(&speed(4e6));
    assert!(is_close(seem(&started, &pods), expected), "a configuration that is read again");
    assert_eq!(rates(&started, &pods), rates(&writer, &pods));
    // With another configuration, a replica that has learned its own factor keeps it.
    let other = model();
    other.moves_at(&speed(4e6));
    let own = move_caches(&other, &pods, 30);
    assert!(own[1] > 1.1, "{own:?}");
    import(&other, &all, &pods);
    assert!(is_close(seem(&other, &pods), own));
}

#[test]
fn pods_that_are_gone_leave_the_times_of_their_group() {
    let (writer, reader, pods) = (model(), model(), pool(&["a", "b"]));
    learn(&writer, &pods, &[8000.0, 2000.0], 100);
    let others = pool_of(1, &["c", "c", "b"]);
    assert_eq!(import(&reader, &records(&writer, &pods), &others), 5, "the pool, two groups, two flows");
    let ours = rates(&reader, &others);
    let group = writer.backlog(&pods.endpoints()[1]).group().speed();
    assert_eq!(ours[2], (1.0 / group.per_token).round(), "a new pod of the same accelerator");
    assert!(ours[2] < 0.5 * RATE);
    assert_eq!(ours[..2], [RATE; 2]);
}

#[test]
fn records_of_large_pools_are_bounded() {
    let accelerators: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let accelerators: Vec<&str> = accelerators.iter().map(String::as_str).collect();
    let (writer, pods) = (model(), pool(&accelerators));
    learn(&writer, &pods, &[8000.0; 200], 2);
    for flow in 0..5000 {
        writer.note_output(writer.lengths.kind("m", &flow.to_string()), 100, Duration::ZERO);
    }
    let all = records(&writer, &pods);
    assert!(all.iter().map(Vec::len).sum::<usize>() < 4 << 20);
    assert_ne!(writer.lengths.kind("m", "1"), Kind::default());
    let mut passed = 0;
    writer.export(&pods, &mut |_| {
        passed += 1;
        passed < 3
    });
    assert_eq!(passed, 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a record says, it is read or refused, and the model goes on with finite numbers.
    #[test]
    fn damaged_records_do_no_harm(seed: u64, cut: prop::sample::Index) {
        let (writer, pods) = (model(), pool(&["a", "b"]));
        learn(&writer, &pods, &[8000.0, 2000.0], 3);
        let reader = model();
        let cx = Import::new(&pods, 1000, 1000, 0);
        for (n, record) in (0..).zip(records(&writer, &pods)) {
            for round in 0..20 {
                let mut damaged = record.clone();
                for byte in 0..1 + round % 4 {
                    let number = mix(seed ^ (n << 32 | round << 8 | byte));
                    // The beginning of a record says the most.
                    let within = if round % 2 == 0 { damaged.len() } else { damaged.len().min(200) };
                    damaged[number as usize % within] = mix(number) as u8;
                }
                if round == 19 {
                    damaged.truncate(cut.index(damaged.len()));
                }
                let _ = reader.import(&damaged, &cx);
            }
        }
        learn(&reader, &pods, &[8000.0, 2000.0], 3);
        let (all, report) = (rates(&reader, &pods), reader.report());
        prop_assert!(all.iter().all(|rate| rate.is_finite() && *rate >= 0.0), "{:?}", all);
        prop_assert!(report.groups.iter().all(|group| group.first_token_s.is_finite()));
        prop_assert!(reader.urgency().is_finite() && reader.scale().ratio().is_finite());
        let expected = reader.lengths.expected(reader.lengths.kind("m", "short"), reader.mean_output());
        prop_assert!(expected.mean.is_finite() && expected.high.is_finite());
    }
}
