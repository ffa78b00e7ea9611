//! Prefill and decode on servers of their own, chosen together, under many requests at once.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use serde_json::Value;

use crate::support::client::{self, Protocol};
use crate::support::envoy::Envoy;
use crate::support::servers::Servers;
use crate::support::usher::Usher;
use crate::traffic::{chat, post_chat};
use crate::{ORIGINAL_DST, Stack};

/// Two compute prompts, two decode.
const ROLES: [&str; 4] = ["prefill", "prefill", "decode", "decode"];
const REQUESTS: usize = 500;

const JOINT: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: always-disagg-pd-decider
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}, pairing: joint}}
- type: prefill-filter
- type: decode-filter
- type: active-request-scorer
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: active-request-scorer}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_requests_at_once_are_split() {
    let servers = Servers::start().await;
    let usher = Usher::start_with_roles(&servers.addresses, &ROLES, &["--config-text", JOINT, "--v=3"]).await;
    let envoy = Envoy::start(ORIGINAL_DST, usher.address, &servers.addresses, &[]).await;
    let stack = Stack { servers, usher, envoy };

    let ask = |number: usize| {
        let protocol = if number.is_multiple_of(2) { Protocol::Http1 } else { Protocol::Http2 };
        // Each begins with another text, so that nobody has it cached.
        let body = chat(2000).replacen("All work", &format!("Work {number}"), 1);
        client::send(stack.envoy.address, protocol, post_chat(body))
    };
    let responses = join_all((0..REQUESTS).map(ask)).await;

    let mut split: BTreeMap<(usize, String), usize> = BTreeMap::new();
    for response in &responses {
        assert_eq!(response.status, 200, "{response:?}");
        let prefiller = response.header("x-sim-prefilled-by").to_owned();
        *split.entry((response.server(), prefiller)).or_default() += 1;
    }
    assert!(split.keys().all(|(decode, _)| *decode >= 2), "{split:?}");
    let by = |name: &str| split.iter().filter(|((_, by), _)| by == name).map(|(_, count)| *count).sum();
    let computed: [usize; 2] = ["sim-0", "sim-1"].map(by);
    assert_eq!(computed.iter().sum::<usize>(), REQUESTS, "{split:?}");
    assert!(computed[0] > REQUESTS / 5 && computed[1] > REQUESTS / 5, "both had their part: {computed:?}");
    for server in [2, 3] {
        let state: Value = stack.servers.state(server).await;
        assert_eq!(state["disaggregation"]["failed_prefills"], 0, "{state}");
    }
}
