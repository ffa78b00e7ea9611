//! Number of times that plugins are timed which follow a response.

use std::sync::Arc;

use futures_util::FutureExt;
use prometheus::Registry;
use usher::endpoints::health::Verdict;
use usher::endpoints::{EndpointSpec, Store, SubsetHint};
use usher::metrics::render;
use usher::request::usage::Usage;
use usher::schedule::{Served, State};

use super::{dispatcher_in, with_headers};

const CONFIG: &str = "
plugins:
- name: rollout
  type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: {matchLabels: {app: llm}}}
    headerSelectors: [{name: revision, headerName: x-revision, labelKey: revision, mode: strict}]
    revisionGating: {revisionLabelKey: revision, roleLabelKey: role, mode: sum, requireRoles: {values: []}}
- {name: counts, type: inflight-load-producer}
- {type: active-request-scorer, parameters: {inFlightLoadProducerName: counts}}
";

#[test]
fn follower_durations_are_recorded_for_every_middleware() {
    let store = Arc::new(Store::default());
    let labels = [("app", "llm"), ("revision", "a")];
    let spec = |number: u8| EndpointSpec {
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..EndpointSpec::new(format!("pod-{number}"), ([10, 0, 0, number], 8000))
    };
    store.replace(vec![spec(1), spec(2)]);
    let registry = Registry::new();
    let dispatcher = dispatcher_in(CONFIG, &store, &State::default(), &registry);
    let request = with_headers(&[]);
    // The first is served by the first choice, the second by the other one.
    for moves in [false, true] {
        let mut routed = dispatcher
            .enter(&Arc::new(request.clone()), &SubsetHint::Missing)
            .decided()
            .now_or_never()
            .unwrap()
            .unwrap();
        let first = routed.decision().primary_endpoint().clone();
        let served = store.snapshot().endpoints().iter().find(|e| (e.id() != first.id()) == moves).cloned();
        routed.response_begins(&Served::By(served.unwrap().authority().to_string()), Verdict::Good, true);
        routed.first_token();
        routed.response_ends(&Usage::default(), 0);
    }
    let text = render(&registry);
    let types = [("rollout", "disaggregatedset-rollout-screener"), ("counts", "inflight-load-producer")];
    for (name, plugin_type) in types {
        for (point, count) in [("ResponseReceived", 2), ("ResponseStreaming", 4)] {
            let line = format!(
                r#"llm_d_epp_plugin_duration_seconds_count{{extension_point="{point}",plugin_name="{name}",plugin_type="{plugin_type}"}} {count}"#
            );
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
