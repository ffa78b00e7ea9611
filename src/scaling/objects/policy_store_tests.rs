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
        is_only: true,
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

fn put(policy_store: &mut PolicyStore, object: PolicyObject) -> Changed {
    policy_store.apply(ObjectUpdate::Policies(Change::Put(object)))
}

/// Names of the policies in force, with the maximum of their role.
fn in_force(policy_store: &mut PolicyStore) -> Vec<(String, u32)> {
    let groups = policy_store.settle(&sources());
    groups.groups.iter().map(|group| (group.policy.name.clone(), group.policy.roles[0].range.max)).collect()
}

fn verdict(policy_store: &PolicyStore, name: &str) -> Verdict {
    policy_store.known().into_iter().find(|known| known.name == name).unwrap().verdict
}

fn of(max: i64) -> Value {
    json!({"roles": {"a": {"max": max}}, "total": {"metrics": [{"name": "queue_depth", "target": 4}]}})
}

fn scaling(target: &str) -> Value {
    json!({"poolRef": {"name": "p"}, "roles": {"a": {"max": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}}}})
}

#[test]
fn last_valid_version_of_each_policy_stays_in_force() {
    let mut policy_store = PolicyStore::new("p".to_owned());
    let all = vec![object("one", 1, of(4)), object("two", 1, of(5))];
    assert_eq!(policy_store.apply(ObjectUpdate::Policies(Change::All(all.clone()))), Changed::Policies);
    assert_eq!(in_force(&mut policy_store), [("one".to_owned(), 4), ("two".to_owned(), 5)]);
    assert_eq!(verdict(&policy_store, "one").reason, "Accepted");
    assert_eq!(policy_store.apply(ObjectUpdate::Policies(Change::All(all))), Changed::Nothing);
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
        assert_eq!(put(&mut policy_store, object("one", 2 + generation as i64, spec)), Changed::Policies);
        assert_eq!(in_force(&mut policy_store), [("one".to_owned(), 4), ("two".to_owned(), 5)], "{words}");
        let Verdict { is_accepted, reason, message } = verdict(&policy_store, "one");
        assert!(!is_accepted && reason == "Invalid" && message.contains(words), "{message}");
        assert!(message.ends_with("; generation 1 stays in force"), "{message}");
        assert_eq!(verdict(&policy_store, "two").reason, "Accepted");
    }
    put(&mut policy_store, object("one", 9, of(6)));
    assert_eq!(in_force(&mut policy_store)[0], ("one".to_owned(), 6));
    // Another object of the same name has no version before.
    let mut new = object("one", 1, json!({"roles": {}}));
    new.metadata.uid = "another".to_owned();
    put(&mut policy_store, new);
    assert_eq!(in_force(&mut policy_store), [("two".to_owned(), 5)]);
    assert!(!verdict(&policy_store, "one").message.contains("stays"));
    let mut deleted = object("two", 1, of(5));
    deleted.metadata.deletion_timestamp = Some("2026-01-03T00:00:00Z".to_owned());
    assert_eq!(put(&mut policy_store, deleted), Changed::Policies);
    assert!(in_force(&mut policy_store).is_empty());
}

#[test]
fn refused_version_still_pauses_the_one_before() {
    let with = |more: Value| {
        let all = [of(4), json!({"mode": "Apply"}), more];
        all.into_iter().flat_map(|part| part.as_object().cloned().unwrap()).collect::<Value>()
    };
    for (more, mode, frozen) in [
        (json!({"roles": {}}), Mode::Apply, None),
        (json!({"roles": {}, "paused": true}), Mode::Apply, Some(Condition::Suspended)),
        (json!({"roles": 7, "paused": true}), Mode::Apply, Some(Condition::Suspended)),
        (json!({"roles": {}, "mode": "Recommend"}), Mode::Recommend, None),
        (json!({"roles": {}, "mode": null}), Mode::Recommend, None),
        (json!({"mode": "aply"}), Mode::Recommend, None),
    ] {
        let mut policy_store = PolicyStore::new("p".to_owned());
        put(&mut policy_store, object("one", 1, with(json!({}))));
        policy_store.settle(&sources());
        put(&mut policy_store, object("one", 2, with(more.clone())));
        let group = policy_store.settle(&sources()).groups.remove(0);
        assert_eq!(verdict(&policy_store, "one").reason, "Invalid", "{more}");
        assert_eq!((group.policy.mode, group.frozen), (mode, frozen), "{more}");
    }
}

#[test]
fn out_of_range_values_are_replaced_and_reported() {
    let mut policy_store = PolicyStore::new("p".to_owned());
    put(&mut policy_store, object("one", 1, json!({"roles": {"a": {"min": -3, "max": 9_000_000}}})));
    let groups = policy_store.settle(&sources());
    let policy = &groups.groups[0].policy;
    assert_eq!((policy.roles[0].range.min, policy.roles[0].range.max, policy.sanitised), (0, 1_000_000, 2));
    let Verdict { is_accepted, reason, message } = verdict(&policy_store, "one");
    assert!(is_accepted && reason == "Sanitised", "{reason}");
    assert!(
        message.contains("replaced 2 invalid values") && message.contains("spec.roles.a.min"),
        "{message}"
    );
}

/// Condition that forbids writes, for each policy in force.
fn frozen(policy_store: &mut PolicyStore) -> Vec<(String, Option<Condition>)> {
    let groups = policy_store.settle(&sources());
    groups.groups.iter().map(|group| (group.policy.name.clone(), group.frozen)).collect()
}

#[test]
fn policies_of_any_pool_that_share_a_target_are_frozen() {
    let mut policy_store = PolicyStore::new("p".to_owned());
    let conflict = Some(Condition::TargetConflict);
    put(&mut policy_store, object("new", 1, scaling("x")));
    put(&mut policy_store, object("old", 1, scaling("y")));
    assert_eq!(frozen(&mut policy_store), [("old".to_owned(), None), ("new".to_owned(), None)]);
    put(&mut policy_store, object("old", 2, scaling("x")));
    assert_eq!(frozen(&mut policy_store), [("old".to_owned(), conflict), ("new".to_owned(), conflict)]);
    for (name, other) in [("new", "'old'"), ("old", "'new'")] {
        let Verdict { is_accepted, reason, message } = verdict(&policy_store, name);
        assert!(!is_accepted && reason == "TargetConflict" && message.contains(other), "{message}");
    }
    // One of another pool, which nobody here could read.
    let mut theirs = scaling("z");
    theirs["poolRef"] = json!({"name": "q"});
    theirs["interval"] = json!([]);
    put(&mut policy_store, object("theirs", 1, theirs));
    put(&mut policy_store, object("old", 3, scaling("z")));
    assert_eq!(frozen(&mut policy_store), [("old".to_owned(), conflict), ("new".to_owned(), None)]);
    assert!(verdict(&policy_store, "old").message.contains("'theirs'"));
    assert_eq!(policy_store.known().len(), 2);
    // What can't be used leaves the version before in force, which scales what it did.
    let mut broken = scaling("w");
    broken["roles"]["a"]["max"] = json!(true);
    put(&mut policy_store, object("new", 2, broken));
    put(&mut policy_store, object("old", 4, scaling("x")));
    assert_eq!(frozen(&mut policy_store), [("old".to_owned(), conflict), ("new".to_owned(), conflict)]);
    let mut both = scaling("v");
    both["roles"]["b"] = both["roles"]["a"].clone();
    put(&mut policy_store, object("other", 1, both));
    frozen(&mut policy_store);
    let message = verdict(&policy_store, "other").message;
    assert!(message.contains("by role 'b' and by role 'a'"), "{message}");
}

#[test]
fn a_policy_without_pool_follows_its_targets_pods() {
    let mut policy_store = PolicyStore::new("p".to_owned());
    let mut spec = scaling("x");
    spec.as_object_mut().unwrap().remove("poolRef");
    spec["roles"]["b"] = spec["roles"]["a"].clone();
    spec["roles"]["b"]["scaleTargetRef"]["name"] = json!("y");
    put(&mut policy_store, object("one", 1, spec));
    let targets = policy_store.targets_of_any_pool();
    assert_eq!(targets.iter().map(|target| target.name.as_str()).collect::<Vec<_>>(), ["x", "y"]);
    assert_eq!(
        (in_force(&mut policy_store).len(), policy_store.known().len()),
        (0, 0),
        "nobody was asked yet"
    );
    let mut note = |owners: [Owner; 2]| {
        let is_changed = policy_store.note_owners(targets.iter().cloned().zip(owners).collect());
        let in_force = in_force(&mut policy_store).len();
        (is_changed, in_force, policy_store.known().first().map(|known| known.verdict.reason))
    };
    let unknown = || Owner::Unknown("y: no pods".to_owned());
    assert_eq!(note([Owner::Ours, unknown()]), (true, 0, Some("TargetUnknown")));
    assert_eq!(note([Owner::Ours, Owner::Other]), (true, 0, Some("TargetUnknown")));
    assert_eq!(note([Owner::Other, Owner::Other]), (true, 0, None));
    assert_eq!(note([Owner::Other, unknown()]), (false, 0, None), "what was known stands");
    assert_eq!(note([Owner::Ours, Owner::Ours]), (true, 1, Some("Accepted")));
    assert_eq!(note([unknown(), Owner::Ours]), (false, 1, Some("Accepted")), "what was known stands");
    assert_eq!(note([Owner::Other, unknown()]), (true, 0, Some("TargetUnknown")));
    // One that scales nothing is for everybody, as is one that was never asked about.
    put(&mut policy_store, object("two", 1, of(3)));
    assert_eq!(in_force(&mut policy_store), [("two".to_owned(), 3)]);
}

#[test]
fn paused_policy_is_accepted_and_frozen() {
    let mut policy_store = PolicyStore::new("p".to_owned());
    let mut spec = scaling("x");
    spec["paused"] = json!(true);
    put(&mut policy_store, object("one", 1, spec));
    assert_eq!(frozen(&mut policy_store), [("one".to_owned(), Some(Condition::Suspended))]);
    assert!(verdict(&policy_store, "one").is_accepted);
}

#[test]
fn nothing_is_written_without_leader_election() {
    let mut policy_store = PolicyStore::new("p".to_owned());
    let mut spec = scaling("x");
    spec["mode"] = json!("Apply");
    put(&mut policy_store, object("one", 1, spec));
    put(&mut policy_store, object("two", 1, scaling("y")));
    let groups = policy_store.settle(&Sources { is_only: false, ..sources() });
    let frozen: Vec<_> = groups.groups.iter().map(|group| group.frozen).collect();
    assert_eq!(frozen, [Some(Condition::NoLeaderElection), None], "plans that are only shown are harmless");
    let Verdict { is_accepted, reason, message } = verdict(&policy_store, "one");
    assert!(!is_accepted && reason == "NoLeaderElection" && message.contains("--ha-enable"), "{message}");
}

#[test]
fn policies_of_other_pools_are_ignored() {
    let mut policy_store = PolicyStore::new("p".to_owned());
    let with = |pool: &str| {
        let mut spec = of(4);
        spec["poolRef"] = json!({"name": pool});
        spec
    };
    put(&mut policy_store, object("ours", 1, with("p")));
    put(&mut policy_store, object("theirs", 1, with("q")));
    assert_eq!(in_force(&mut policy_store), [("ours".to_owned(), 4)]);
    assert_eq!(policy_store.known().len(), 1);
    put(&mut policy_store, object("ours", 2, with("q")));
    assert!(in_force(&mut policy_store).is_empty() && policy_store.known().is_empty());
}

#[test]
fn topology_sets_the_layers_of_its_policies() {
    let mut policy_store = PolicyStore::new("p".to_owned());
    let spec = json!({"roles": {"a": {"max": 4}}, "deploy": {"steps": {"a": 1}, "topology": {"clusterTopology": "racks", "layer": "rack"}}});
    put(&mut policy_store, object("one", 1, spec));
    assert_eq!(policy_store.wanted_topologies().into_iter().collect::<Vec<_>>(), ["racks"]);
    assert!(in_force(&mut policy_store).is_empty());
    assert_eq!(verdict(&policy_store, "one").reason, "TopologyUnknown");
    let racks = |layers: Value| -> TopologyObject {
        serde_json::from_value(json!({"metadata": {"name": "racks"}, "spec": {"layers": layers}})).unwrap()
    };
    let all = ObjectUpdate::Topologies(Change::All(vec![racks(json!(["host", "rack"]))]));
    assert_eq!(policy_store.apply(all.clone()), Changed::Policies);
    assert_eq!(policy_store.apply(all), Changed::Nothing);
    let layers = |policy_store: &mut PolicyStore| {
        let groups = policy_store.settle(&sources());
        let topology = groups.groups[0].policy.rollout.as_ref().unwrap().topology.clone().unwrap();
        (topology.layers, topology.layer)
    };
    assert_eq!(layers(&mut policy_store), (vec!["host".to_owned(), "rack".to_owned()], 1));
    // Without the layer that the policy wants, and gone: what was known stays in force.
    for change in [Change::Put(racks(json!(["host"]))), Change::Gone(racks(json!(["host"])))] {
        policy_store.apply(ObjectUpdate::Topologies(change));
        assert_eq!(layers(&mut policy_store).1, 1);
        assert!(!verdict(&policy_store, "one").is_accepted);
    }
}

#[test]
fn status_update_is_no_policy_change() {
    let mut policy_store = PolicyStore::new("p".to_owned());
    put(&mut policy_store, object("one", 1, of(4)));
    in_force(&mut policy_store);
    let mut idle = object("one", 1, of(4));
    idle.status.state = Some("Idle".to_owned());
    assert_eq!(put(&mut policy_store, idle.clone()), Changed::Status);
    assert_eq!(put(&mut policy_store, idle), Changed::Nothing);
    let known = policy_store.known();
    assert_eq!((known[0].status.state.as_deref(), known[0].verdict.reason), (Some("Idle"), "Accepted"));
    // A status of another shape is as good as none.
    let odd: PolicyObject =
        serde_json::from_value(json!({"metadata": {"name": "x"}, "status": {"roles": "many"}})).unwrap();
    assert_eq!(odd.status, PolicyStatus::default());
}
