use serde_json::{Value, json};

use super::*;

fn sources() -> Sources {
    Sources {
        lease: Box::new(|_| None),
        configured: Vec::new(),
        has_servers: true,
        has_gpus: false,
        has_queue: true,
        has_queries: true,
        can_act: true,
    }
}

fn object(name: &str, generation: i64, spec: impl Into<Value>) -> PolicyObject {
    let spec: Value = spec.into();
    serde_json::from_value(json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": generation, "creationTimestamp": format!("2026-01-0{}T00:00:00Z", if name == "old" { 1 } else { 2 })},
        "spec": spec,
    }))
    .unwrap()
}

fn put(shelf: &mut Shelf, object: PolicyObject) -> Changed {
    shelf.apply(News::Policies(Change::Put(object)))
}

/// Names of the policies in force, with the maximum of their role.
fn in_force(shelf: &mut Shelf) -> Vec<(String, u32)> {
    let groups = shelf.settle(&sources());
    groups.groups.iter().map(|group| (group.policy.name.clone(), group.policy.roles[0].range.max)).collect()
}

fn verdict(shelf: &Shelf, name: &str) -> Verdict {
    shelf.known().into_iter().find(|known| known.name == name).unwrap().verdict
}

fn of(max: i64) -> Value {
    json!({"roles": {"a": {"max": max}}, "total": {"metrics": [{"name": "queue_depth", "target": 4}]}})
}

fn scaling(target: &str) -> Value {
    json!({"roles": {"a": {"max": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}}}})
}

#[test]
fn the_last_good_version_of_each_stays() {
    let mut shelf = Shelf::new("p".to_owned());
    let all = vec![object("one", 1, of(4)), object("two", 1, of(5))];
    assert_eq!(shelf.apply(News::Policies(Change::All(all.clone()))), Changed::Policies);
    assert_eq!(in_force(&mut shelf), [("one".to_owned(), 4), ("two".to_owned(), 5)]);
    assert_eq!(verdict(&shelf, "one").reason, "Accepted");
    assert_eq!(shelf.apply(News::Policies(Change::All(all))), Changed::Nothing);
    // A spec of another shape, one whose parts contradict each other, and one with an unknown number.
    let broken = [
        (json!({"roles": 7}), "spec can't be read"),
        (json!({"roles": {}}), "name at least one role"),
        (
            json!({"roles": {"a": {"max": 9}}, "total": {"metrics": [{"name": "queue_deph", "target": 4}]}}),
            "queue_deph",
        ),
    ];
    for (generation, (spec, words)) in broken.into_iter().enumerate() {
        assert_eq!(put(&mut shelf, object("one", 2 + generation as i64, spec)), Changed::Policies);
        assert_eq!(in_force(&mut shelf), [("one".to_owned(), 4), ("two".to_owned(), 5)], "{words}");
        let Verdict { is_accepted, reason, message } = verdict(&shelf, "one");
        assert!(!is_accepted && reason == "Invalid" && message.contains(words), "{message}");
        assert!(message.ends_with("; generation 1 stays in force"), "{message}");
        assert_eq!(verdict(&shelf, "two").reason, "Accepted");
    }
    put(&mut shelf, object("one", 9, of(6)));
    assert_eq!(in_force(&mut shelf)[0], ("one".to_owned(), 6));
    // Another object of the same name has no version before.
    let mut new = object("one", 1, json!({"roles": {}}));
    new.metadata.uid = "another".to_owned();
    put(&mut shelf, new);
    assert_eq!(in_force(&mut shelf), [("two".to_owned(), 5)]);
    assert!(!verdict(&shelf, "one").message.contains("stays"));
    let mut deleted = object("two", 1, of(5));
    deleted.metadata.deletion_timestamp = Some("2026-01-03T00:00:00Z".to_owned());
    assert_eq!(put(&mut shelf, deleted), Changed::Policies);
    assert!(in_force(&mut shelf).is_empty());
}

#[test]
fn what_got_past_validation_is_replaced_and_told() {
    let mut shelf = Shelf::new("p".to_owned());
    put(&mut shelf, object("one", 1, json!({"roles": {"a": {"min": -3, "max": 9_000_000}}})));
    let groups = shelf.settle(&sources());
    let policy = &groups.groups[0].policy;
    assert_eq!((policy.roles[0].range.min, policy.roles[0].range.max, policy.sanitised), (0, 1_000_000, 2));
    let Verdict { is_accepted, reason, message } = verdict(&shelf, "one");
    assert!(is_accepted && reason == "Sanitised", "{reason}");
    assert!(
        message.contains("2 values could not stand") && message.contains("spec.roles.a.min"),
        "{message}"
    );
}

#[test]
fn the_older_of_two_that_scale_the_same_wins() {
    let mut shelf = Shelf::new("p".to_owned());
    put(&mut shelf, object("new", 1, scaling("x")));
    put(&mut shelf, object("old", 1, scaling("y")));
    assert_eq!(in_force(&mut shelf).len(), 2);
    put(&mut shelf, object("old", 2, scaling("x")));
    assert_eq!(in_force(&mut shelf), [("old".to_owned(), 3)]);
    let Verdict { is_accepted, reason, message } = verdict(&shelf, "new");
    assert!(
        !is_accepted && reason == "TargetConflict" && message.contains("'a' of policy 'old', which is older"),
        "{message}"
    );
    // The version before has no conflict, and stays.
    put(&mut shelf, object("old", 3, scaling("y")));
    assert_eq!(in_force(&mut shelf).len(), 2);
    put(&mut shelf, object("new", 2, scaling("y")));
    assert_eq!(in_force(&mut shelf).len(), 2);
    assert!(verdict(&shelf, "new").message.ends_with("generation 1 stays in force"));
    let mut both = scaling("z");
    both["roles"]["b"] = both["roles"]["a"].clone();
    put(&mut shelf, object("new", 3, both));
    in_force(&mut shelf);
    let message = verdict(&shelf, "new").message;
    assert!(message.contains("by '") && !message.contains("older"), "{message}");
}

#[test]
fn policies_of_other_pools_are_others_business() {
    let mut shelf = Shelf::new("p".to_owned());
    let with = |pool: &str| {
        let mut spec = of(4);
        spec["poolRef"] = json!({"name": pool});
        spec
    };
    put(&mut shelf, object("ours", 1, with("p")));
    put(&mut shelf, object("theirs", 1, with("q")));
    assert_eq!(in_force(&mut shelf), [("ours".to_owned(), 4)]);
    assert_eq!(shelf.known().len(), 1);
    put(&mut shelf, object("ours", 2, with("q")));
    assert!(in_force(&mut shelf).is_empty() && shelf.known().is_empty());
}

#[test]
fn a_topology_gives_its_layers_to_those_that_name_it() {
    let mut shelf = Shelf::new("p".to_owned());
    let spec = json!({"roles": {"a": {"max": 4}}, "deploy": {"steps": {"a": 1}, "topology": {"clusterTopology": "racks", "layer": "rack"}}});
    put(&mut shelf, object("one", 1, spec));
    assert_eq!(shelf.wanted_topologies().into_iter().collect::<Vec<_>>(), ["racks"]);
    assert!(in_force(&mut shelf).is_empty());
    assert_eq!(verdict(&shelf, "one").reason, "TopologyUnknown");
    let racks = |layers: Value| -> TopologyObject {
        serde_json::from_value(json!({"metadata": {"name": "racks"}, "spec": {"layers": layers}})).unwrap()
    };
    let all = News::Topologies(Change::All(vec![racks(json!(["host", "rack"]))]));
    assert_eq!(shelf.apply(all.clone()), Changed::Policies);
    assert_eq!(shelf.apply(all), Changed::Nothing);
    let layers = |shelf: &mut Shelf| {
        let groups = shelf.settle(&sources());
        let topology = groups.groups[0].policy.rollout.as_ref().unwrap().topology.clone().unwrap();
        (topology.layers, topology.layer)
    };
    assert_eq!(layers(&mut shelf), (vec!["host".to_owned(), "rack".to_owned()], 1));
    // Without the layer that the policy wants, and gone: what was known stays in force.
    for news in [Change::Put(racks(json!(["host"]))), Change::Gone(racks(json!(["host"])))] {
        shelf.apply(News::Topologies(news));
        assert_eq!(layers(&mut shelf).1, 1);
        assert!(!verdict(&shelf, "one").is_accepted);
    }
}

#[test]
fn what_is_said_of_a_policy_is_no_change_of_it() {
    let mut shelf = Shelf::new("p".to_owned());
    put(&mut shelf, object("one", 1, of(4)));
    in_force(&mut shelf);
    let mut told = object("one", 1, of(4));
    told.status.state = Some("Idle".to_owned());
    assert_eq!(put(&mut shelf, told.clone()), Changed::Status);
    assert_eq!(put(&mut shelf, told), Changed::Nothing);
    let known = shelf.known();
    assert_eq!((known[0].status.state.as_deref(), known[0].verdict.reason), (Some("Idle"), "Accepted"));
    // A status of another shape is as good as none.
    let odd: PolicyObject =
        serde_json::from_value(json!({"metadata": {"name": "x"}, "status": {"roles": "many"}})).unwrap();
    assert_eq!(odd.status, PolicyStatus::default());
}
