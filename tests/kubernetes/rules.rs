//! Effects of objectives and rewrites on requests.

use serde_json::json;

use crate::metrics::page;
use crate::objects::{OBJECTIVES, OLDER_OBJECTIVES, POOLS, REWRITES, least};
use crate::picker::{Picker, Response};
use crate::server::Server;
use crate::support::eventually;

/// Sheds all requests of negative priority: full with nothing in flight.
const FULL: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- {type: utilization-detector, parameters: {queueDepthThreshold: 1, kvCacheUtilThreshold: 0.01}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer}]}
saturationDetector: {pluginRef: utilization-detector}
";

/// Waits until requests of an objective are shed, or served.
async fn shed(picker: &Picker, objective: &str, wanted: bool) {
    let headers = [("x-llm-d-inference-objective", objective)];
    let what = format!("requests of {objective} to be shed: {wanted}");
    eventually(&what, async || {
        let shed = matches!(picker.ask(&headers, "m").await, Response::Refused { status: 429 });
        (shed == wanted).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objectives_order_load_shedding() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    // Nobody responds there, so what is known of it is too old: the pool counts as full.
    space.pod("a", "10.2.0.1", "m").await;
    let spec = |priority: i32, pool: &str| json!({"priority": priority, "poolRef": {"name": pool}});
    space.create(OBJECTIVES, "low", spec(-1, "p")).await;
    space.create(OBJECTIVES, "far", spec(-1, "q")).await;
    let picker = Picker::of_pool(server, &space, &["--config-text", FULL]).await;
    picker.turns(true).await;
    shed(&picker, "low", true).await;
    shed(&picker, "far", false).await;
    shed(&picker, "nobody", false).await;
    space.change(OBJECTIVES, "low", json!({"priority": 1})).await;
    shed(&picker, "low", false).await;
    space.change(OBJECTIVES, "far", json!({"poolRef": {"name": "p"}})).await;
    shed(&picker, "far", true).await;
    space.delete(OBJECTIVES, "far").await;
    shed(&picker, "far", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_objective_has_its_band_before_its_first_request() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    let spec = |priority: i32| json!({"priority": priority, "poolRef": {"name": "p"}});
    space.create(OBJECTIVES, "gold", spec(7)).await;
    space.create(OBJECTIVES, "batch", spec(-1)).await;
    let config = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
";
    let flags = ["--metrics-endpoint-auth=false", "--config-text", config];
    let picker = Picker::of_pool(server, &space, &flags).await;
    let bands = async |priorities: &[i32]| {
        let what = format!("the bands {priorities:?}");
        eventually(&what, async || {
            let page = page(&picker).await;
            let name = "llm_d_epp_flow_control_capacity_utilization_requests{inference_pool=\"p\"";
            let all = |priority| page.contains(&format!("{name},priority=\"{priority}\"}} 0"));
            priorities.iter().all(all).then_some(())
        })
        .await;
    };
    bands(&[7, 0, -1]).await;
    space.create(OBJECTIVES, "silver", spec(3)).await;
    bands(&[7, 3, 0, -1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rewrites_select_the_served_model() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.2.1.1", "m").await;
    let picker = Picker::of_pool(server, &space, &[]).await;
    picker.becomes(&["10.2.1.1:8000"]).await;
    picker.serves("gold", "gold").await;
    let exact = |to: &str| {
        json!({"poolRef": {"name": "p"}, "rules": [
            {"matches": [{"model": {"value": "gold"}}], "targets": [{"modelRewrite": to}]},
        ]})
    };
    space.create(REWRITES, "r", exact("gold-v1")).await;
    picker.serves("gold", "gold-v1").await;
    let any = json!({"poolRef": {"name": "p"}, "rules": [{"targets": [{"modelRewrite": "any"}]}]});
    space.create(REWRITES, "a", any).await;
    picker.serves("tin", "any").await;
    picker.serves("gold", "gold-v1").await;
    space.change(REWRITES, "r", exact("gold-v2")).await;
    picker.serves("gold", "gold-v2").await;
    space.delete(REWRITES, "r").await;
    picker.serves("gold", "any").await;
    // The pool comes back, and the rules were never gone.
    space.delete(POOLS, "p").await;
    picker.turns(false).await;
    space.pool("m", &[8000]).await;
    picker.turns(true).await;
    picker.serves("gold", "any").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_crds_are_followed_and_the_newer_group_wins() {
    let Some(server) = Server::own().await else { return };
    let space = server.space(&least()).await;
    space.pod("a", "10.2.2.1", "m").await;
    let picker = Picker::of_pool(&server, &space, &["--config-text", FULL]).await;
    picker.says(&["does not define InferencePool", "--endpoint-selector"]).await;
    assert!(!picker.is_healthy("").await);
    server.define(&[POOLS]).await;
    space.pool("m", &[8000]).await;
    picker.turns(true).await;
    picker.becomes(&["10.2.2.1:8000"]).await;
    server.define(&[OLDER_OBJECTIVES]).await;
    let spec = |priority: i32| json!({"priority": priority, "poolRef": {"name": "p"}});
    space.create(OLDER_OBJECTIVES, "low", spec(-1)).await;
    shed(&picker, "low", true).await;
    drop(picker);
    server.define(&[OBJECTIVES]).await;
    space.create(OBJECTIVES, "new", spec(-1)).await;
    let picker = Picker::of_pool(&server, &space, &["--config-text", FULL]).await;
    picker.says(&["two API groups define this kind", "inferenceobjectives"]).await;
    shed(&picker, "new", true).await;
    shed(&picker, "low", false).await;
}
