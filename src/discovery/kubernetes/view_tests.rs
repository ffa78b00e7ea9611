use super::super::types::{
    LabelSelector, Metadata, ObjectiveSpec, PoolSpec, Port, Rewrite, RewriteSpec, RewriteTarget,
};
use super::*;
use crate::request::Headers;
use proptest::prelude::*;

fn name() -> PoolName {
    let group = super::super::types::POOL_GROUP.to_owned();
    PoolName { group, namespace: "ns".to_owned(), name: "p".to_owned() }
}

fn metadata(name: &str) -> Metadata {
    Metadata { name: name.to_owned(), namespace: "ns".to_owned(), ..Metadata::default() }
}

fn pool(app: &str, ports: &[u16]) -> InferencePool {
    let spec = PoolSpec {
        selector: LabelSelector { match_labels: [("app".to_owned(), app.to_owned())].into() },
        target_ports: ports.iter().map(|number| Port { number: *number }).collect(),
        app_protocol: Some(AppProtocol::Http),
        endpoint_picker_ref: None,
    };
    Object { api_version: String::new(), kind: String::new(), metadata: metadata("p"), spec }
}

fn pod(name: &str, last: u8) -> Pod {
    Pod {
        name: name.to_owned(),
        namespace: "ns".to_owned(),
        ip: Some([10, 0, 0, last].into()),
        ready: true,
        ..Pod::default()
    }
}

fn reference(pool: &str) -> PoolReference {
    let group = super::super::types::POOL_GROUP.to_owned();
    PoolReference { group, kind: "InferencePool".to_owned(), name: pool.to_owned() }
}

fn objective(name: &str, priority: Option<i32>, pool: &str) -> InferenceObjective {
    let spec = ObjectiveSpec { priority, pool_ref: reference(pool) };
    Object { api_version: String::new(), kind: String::new(), metadata: metadata(name), spec }
}

fn rewrite(name: &str, to: &str) -> InferenceModelRewrite {
    let target = RewriteTarget { weight: None, model_rewrite: to.to_owned() };
    let rule = Rewrite { matches: Vec::new(), targets: vec![target] };
    let spec = RewriteSpec { pool_ref: reference("p"), rules: vec![rule] };
    Object { api_version: String::new(), kind: String::new(), metadata: metadata(name), spec }
}

/// A view that only waits for its pool.
fn view() -> PoolView {
    let mut view = PoolView::of_pool(name());
    view.apply(Input::Objectives(Change::All(vec![])));
    view.apply(Input::Rewrites(Change::All(vec![])));
    view
}

fn addresses(view: &PoolView) -> Vec<String> {
    view.endpoints().iter().map(|endpoint| format!("{} {}", endpoint.name, endpoint.address)).collect()
}

/// A pool with the pods `a` and `b`.
fn serving() -> PoolView {
    let mut view = view();
    view.apply(Input::Pool(Change::All(vec![pool("m", &[8000])])));
    assert_eq!(view.wants_pods(), Some((1, "app=m")));
    assert!(!view.is_synced());
    assert!(view.apply(Input::Pods(1, Change::All(vec![pod("b", 2), pod("a", 1)]))).endpoints);
    assert!(view.is_synced());
    view
}

#[test]
fn pool_is_synced_when_pods_and_rules_are_known() {
    let mut view = PoolView::of_pool(name());
    assert_eq!((view.wants_pods(), view.is_synced()), (None, false));
    view.apply(Input::Pool(Change::All(vec![pool("m", &[8000])])));
    view.apply(Input::Pods(1, Change::All(vec![pod("a", 1)])));
    assert!(!view.is_synced());
    assert!(view.apply(Input::Objectives(Change::All(vec![]))).endpoints);
    assert!(!view.is_synced());
    assert!(view.apply(Input::Rewrites(Change::All(vec![]))).endpoints);
    assert!(view.is_synced());
    assert_eq!(view.protocol(), Some(&AppProtocol::Http));
    assert!(!view.apply(Input::Rewrites(Change::All(vec![]))).endpoints, "nothing new");
}

#[test]
fn pods_are_added_changed_and_removed() {
    let mut view = serving();
    assert_eq!(addresses(&view), ["a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000"]);
    assert!(view.apply(Input::Pods(1, Change::Put(pod("c", 3)))).endpoints);
    assert!(view.apply(Input::Pods(1, Change::Put(Pod { ready: false, ..pod("a", 1) }))).endpoints);
    assert!(view.apply(Input::Pods(1, Change::Put(pod("b", 9)))).endpoints);
    assert_eq!(addresses(&view), ["b-rank-0 10.0.0.9:8000", "c-rank-0 10.0.0.3:8000"]);
    let heartbeat = Pod { version: "77".to_owned(), ..pod("b", 9) };
    assert!(!view.apply(Input::Pods(1, Change::Put(heartbeat))).endpoints, "a new version alone");
    assert!(view.apply(Input::Pods(1, Change::Gone(pod("b", 9)))).endpoints);
    assert!(!view.apply(Input::Pods(1, Change::Gone(pod("b", 9)))).endpoints);
    assert!(view.apply(Input::Pods(1, Change::All(vec![pod("d", 4)]))).endpoints);
    assert_eq!(addresses(&view), ["d-rank-0 10.0.0.4:8000"]);
    assert!(view.is_synced());
}

#[test]
fn pool_without_pods_is_synced() {
    let mut view = view();
    view.apply(Input::Pool(Change::Put(pool("m", &[8000]))));
    assert!(view.apply(Input::Pods(1, Change::All(vec![]))).endpoints);
    assert!(view.is_synced() && view.endpoints().is_empty());
}

#[test]
fn changed_selector_keeps_pods_until_the_next_list() {
    let mut view = serving();
    // The port changes in the same step, and counts with the new pods only.
    assert!(!view.apply(Input::Pool(Change::Put(pool("n", &[9000])))).endpoints);
    assert_eq!((view.wants_pods(), view.serves()), (Some((2, "app=n")), Some(1)));
    assert!(view.apply(Input::Pods(1, Change::Gone(pod("a", 1)))).endpoints, "the old ones still change");
    assert_eq!(addresses(&view), ["b-rank-0 10.0.0.2:8000"]);
    assert!(view.is_synced());
    assert!(!view.apply(Input::Pods(2, Change::Put(pod("x", 7)))).endpoints, "not without a list");
    assert!(view.apply(Input::Pods(2, Change::All(vec![pod("x", 7)]))).endpoints);
    assert_eq!(addresses(&view), ["x-rank-0 10.0.0.7:9000"]);
    assert_eq!(view.serves(), Some(2));
    assert!(!view.apply(Input::Pods(1, Change::All(vec![pod("b", 2)]))).endpoints, "nobody asks any more");
    assert_eq!(addresses(&view), ["x-rank-0 10.0.0.7:9000"]);
}

#[test]
fn changed_ports_apply_at_once() {
    let mut view = serving();
    assert!(view.apply(Input::Pool(Change::Put(pool("m", &[8001, 8000])))).endpoints);
    let expected = [
        "a-rank-0 10.0.0.1:8001",
        "a-rank-1 10.0.0.1:8000",
        "b-rank-0 10.0.0.2:8001",
        "b-rank-1 10.0.0.2:8000",
    ];
    assert_eq!(addresses(&view), expected);
    assert_eq!(view.wants_pods(), Some((1, "app=m")), "the same question");
    assert!(!view.apply(Input::Pool(Change::Put(pool("m", &[8001, 8000])))).endpoints);
}

#[test]
fn recreated_pool_lists_its_pods_again() {
    let deleting = {
        let mut deleting = pool("m", &[8000]);
        deleting.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        deleting
    };
    for gone in [Change::Gone(pool("m", &[8000])), Change::All(vec![]), Change::Put(deleting)] {
        let mut view = serving();
        assert!(view.apply(Input::Pool(gone)).endpoints);
        assert_eq!((view.endpoints().len(), view.is_synced(), view.wants_pods()), (0, false, None));
        assert!(!view.apply(Input::Pods(1, Change::Put(pod("c", 3)))).endpoints);
        view.apply(Input::Pool(Change::Put(pool("m", &[8000]))));
        assert_eq!(view.wants_pods(), Some((2, "app=m")));
        assert!(!view.apply(Input::Pods(1, Change::All(vec![pod("a", 1)]))).endpoints, "an old result");
        view.apply(Input::Pods(2, Change::All(vec![pod("c", 3)])));
        assert!(view.is_synced());
        assert_eq!(addresses(&view), ["c-rank-0 10.0.0.3:8000"]);
    }
}

#[test]
fn pool_of_another_name_is_ignored() {
    let mut view = serving();
    let mut other = pool("x", &[1]);
    other.metadata.name = "q".to_owned();
    assert_eq!(view.apply(Input::Pool(Change::Put(other.clone()))), Changed::default());
    assert_eq!(view.apply(Input::Pool(Change::Gone(other))), Changed::default());
    assert_eq!(addresses(&view).len(), 2);
}

#[test]
fn a_selector_needs_no_pool_and_has_no_rules() {
    let mut view = PoolView::of_selector(name(), "app in (m,n)".to_owned(), vec![8000, 8001]);
    assert_eq!(view.wants_pods(), Some((1, "app in (m,n)")));
    assert!(!view.is_synced());
    view.apply(Input::Pods(1, Change::All(vec![pod("a", 1)])));
    assert!(view.is_synced());
    assert_eq!(addresses(&view), ["a-rank-0 10.0.0.1:8000", "a-rank-1 10.0.0.1:8001"]);
    assert_eq!(view.protocol(), None);
    assert!(view.rules().rewrites.is_empty());
}

fn priority(view: &PoolView, name: &str) -> i32 {
    let headers: Headers = [("x-llm-d-inference-objective", name)].into_iter().collect();
    view.rules().priority(&headers)
}

#[test]
fn objectives_of_this_pool_count() {
    let mut view = serving();
    let put = |view: &mut PoolView, object| view.apply(Input::Objectives(Change::Put(object))).rules;
    assert!(put(&mut view, objective("low", Some(-5), "p")));
    assert!(!put(&mut view, objective("low", Some(-5), "p")), "nothing new");
    assert!(!put(&mut view, objective("far", Some(-5), "q")), "of another pool");
    assert!(put(&mut view, objective("none", None, "p")));
    assert_eq!((priority(&view, "low"), priority(&view, "far"), priority(&view, "none")), (-5, 0, 0));
    assert!(put(&mut view, objective("low", Some(3), "p")));
    assert_eq!(priority(&view, "low"), 3);
    assert!(put(&mut view, objective("low", Some(3), "q")), "it turned to another pool");
    assert_eq!(priority(&view, "low"), 0);
    let mut odd = objective("odd", Some(-1), "p");
    odd.spec.pool_ref.group = "example.com".to_owned();
    assert!(!put(&mut view, odd));
    let all = vec![objective("a", Some(1), "p"), objective("b", Some(2), "q")];
    assert!(view.apply(Input::Objectives(Change::All(all.clone()))).rules);
    assert!(!view.apply(Input::Objectives(Change::All(all))).rules);
    assert_eq!((priority(&view, "a"), priority(&view, "b")), (1, 0));
    assert!(view.apply(Input::Objectives(Change::Gone(objective("a", None, "p")))).rules);
    assert_eq!(priority(&view, "a"), 0);
}

#[test]
fn rules_outlive_the_pool() {
    let mut view = serving();
    view.apply(Input::Objectives(Change::Put(objective("low", Some(-5), "p"))));
    view.apply(Input::Rewrites(Change::Put(rewrite("r", "v2"))));
    view.apply(Input::Pool(Change::All(vec![])));
    assert_eq!(priority(&view, "low"), -5);
    let served = view.rules().rewrites.draw("m", &mut rand::rng()).unwrap();
    assert_eq!((served.model.as_ref(), served.by.as_ref()), ("v2", "r"));
    assert!(view.apply(Input::Rewrites(Change::Gone(rewrite("r", "v2")))).rules);
    assert!(view.rules().rewrites.is_empty());
}

#[test]
fn changed_creation_time_changes_the_rules() {
    let mut view = serving();
    view.apply(Input::Rewrites(Change::Put(rewrite("r", "v2"))));
    let mut again = rewrite("r", "v2");
    again.metadata.creation_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    assert!(view.apply(Input::Rewrites(Change::All(vec![again]))).rules, "deleted and created again unseen");
}

#[test]
fn a_wrong_annotation_is_named() {
    let mut view = serving();
    let wrong = Pod { active_ports: Some("8000x,8001".to_owned()), ..pod("a", 1) };
    view.apply(Input::Pods(1, Change::Put(wrong)));
    let problems: Vec<_> = view.problems().collect();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("pod a: \"8000x\" in its annotation"), "{problems:?}");
}

/// Change of an object in the API server, or a new list of all.
#[derive(Clone, Debug)]
enum Event {
    Pool(Option<(u8, u16)>),
    Pod(u8, u8, bool),
    NoPod(u8),
    Relist,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        proptest::option::of((0u8..2, 8000u16..8002)).prop_map(Event::Pool),
        (0u8..4, 0u8..2, any::<bool>()).prop_map(|(name, app, ready)| Event::Pod(name, app, ready)),
        (0u8..4).prop_map(Event::NoPod),
        Just(Event::Relist),
    ]
}

proptest! {
    /// Any changes in the cluster, and results about pods however late: at the end there are exactly the
    /// endpoints of the cluster; in between never an endpoint that belongs to neither the pool before nor
    /// the pool now.
    #[test]
    fn endpoints_converge_to_the_cluster(events in proptest::collection::vec((event(), any::<bool>()), 1..60)) {
        let mut view = view();
        let mut pool_now: Option<(u8, u16)> = None;
        let mut pods: BTreeMap<u8, (u8, bool)> = BTreeMap::new();
        // The questions that tasks follow, each with its selector.
        let mut following: BTreeMap<Asked, String> = BTreeMap::new();
        let app = |app: u8| format!("app={app}");
        let make = |name: u8, ready: bool| Pod { ready, ..pod(&format!("pod-{name}"), name) };
        let of = |pods: &BTreeMap<u8, (u8, bool)>, selector: &str| -> Vec<Pod> {
            pods.iter().filter(|(_, (label, _))| app(*label) == selector)
                .map(|(name, (_, ready))| make(*name, *ready)).collect()
        };
        let respond = |view: &mut PoolView, following: &mut BTreeMap<Asked, String>, pods: &BTreeMap<u8, (u8, bool)>| {
            if let Some((asked, selector)) = view.wants_pods() {
                let selector = selector.to_owned();
                view.apply(Input::Pods(asked, Change::All(of(pods, &selector))));
                following.insert(asked, selector);
            }
        };
        for (event, responds) in events {
            match event {
                Event::Pool(None) => {
                    pool_now = None;
                    view.apply(Input::Pool(Change::All(vec![])));
                }
                Event::Pool(Some((label, port))) => {
                    pool_now = Some((label, port));
                    view.apply(Input::Pool(Change::Put(pool(&label.to_string(), &[port]))));
                }
                Event::Pod(name, label, ready) => {
                    let before = pods.insert(name, (label, ready)).map(|(label, _)| app(label));
                    for (asked, selector) in &following {
                        if app(label) == *selector {
                            view.apply(Input::Pods(*asked, Change::Put(make(name, ready))));
                        } else if before.as_ref() == Some(selector) {
                            view.apply(Input::Pods(*asked, Change::Gone(make(name, ready))));
                        }
                    }
                }
                Event::NoPod(name) => {
                    if let Some((label, ready)) = pods.remove(&name) {
                        for (asked, selector) in following.iter().filter(|(_, s)| **s == app(label)) {
                            let _ = selector;
                            view.apply(Input::Pods(*asked, Change::Gone(make(name, ready))));
                        }
                    }
                }
                Event::Relist => {
                    for (asked, selector) in &following {
                        view.apply(Input::Pods(*asked, Change::All(of(&pods, selector))));
                    }
                }
            }
            if responds {
                respond(&mut view, &mut following, &pods);
            }
            if pool_now.is_none() {
                prop_assert!(view.endpoints().is_empty() && !view.is_synced());
            }
            // A pod that is not ready is no endpoint, in whichever pool.
            for endpoint in view.endpoints() {
                let name: u8 = endpoint.pod.trim_start_matches("pod-").parse().unwrap();
                prop_assert!(pods.get(&name).is_some_and(|(_, ready)| *ready), "{}", endpoint.pod);
            }
            let (wanted, serves) = (view.wants_pods().map(|(asked, _)| asked), view.serves());
            following.retain(|asked, _| Some(*asked) == wanted || Some(*asked) == serves);
        }
        respond(&mut view, &mut following, &pods);
        let expected: Vec<String> = pool_now.iter().flat_map(|(label, port)| {
            pods.iter().filter(move |(_, (l, ready))| l == label && *ready)
                .map(move |(name, _)| format!("pod-{name}-rank-0 10.0.0.{name}:{port}"))
        }).collect();
        prop_assert_eq!(addresses(&view), expected);
        prop_assert_eq!(view.is_synced(), pool_now.is_some());
    }
}

#[test]
fn starting_pods_are_known_but_not_endpoints() {
    let mut view = serving();
    let endpoints = addresses(&view);
    let names = |view: &PoolView| view.starting().iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
    assert!(names(&view).is_empty());
    let new = Pod { ready: false, ip: None, ..pod("c", 3) };
    assert!(
        view.apply(Input::Pods(1, Change::Put(new.clone()))).endpoints,
        "those who count pods are notified"
    );
    assert_eq!((names(&view), addresses(&view)), (vec!["c".to_owned()], endpoints.clone()));
    let leaves = Pod { leaves: true, ..new.clone() };
    assert!(view.apply(Input::Pods(1, Change::Put(leaves))).endpoints);
    assert_eq!((names(&view), addresses(&view)), (vec![], endpoints));
    view.apply(Input::Pods(1, Change::Put(new)));
    view.apply(Input::Pods(1, Change::Put(pod("c", 3))));
    assert_eq!((names(&view).len(), addresses(&view).len()), (0, 3));
    view.apply(Input::Pods(1, Change::Put(Pod { ready: false, ..pod("a", 1) })));
    assert_eq!((names(&view), addresses(&view).len()), (vec!["a".to_owned()], 2));
    view.apply(Input::Pool(Change::All(vec![])));
    assert!(names(&view).is_empty());
}
