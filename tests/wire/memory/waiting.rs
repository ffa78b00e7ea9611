//! More requests that wait than there is room for.

use super::*;

const FLOW_CONTROL: &str = "--config-text={featureGates: [flowControl], \
    plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 100000}}, {type: queue-scorer}], \
    flowControl: {saturationDetector: {pluginRef: concurrency-detector}, noEndpointRequestTTL: 0s}}";

/// 200 MiB wait for an endpoint of a process with a small budget.
#[tokio::test]
async fn memory_stays_below_the_budget_for_queued_requests() {
    let process = Process::start(small_budget(), 0, &[FLOW_CONTROL]);
    let limit = process.limit();
    let connections = process.connections(4).await;
    let text = format!(r#"{{"model":"m","prompt":"{}"}}"#, "z".repeat(MI / 4));
    let mut readers = Vec::new();
    for turn in 0..800 {
        let stream = connections[turn % 4].stream().await;
        stream.try_send(headers(&COMPLETION, false));
        stream.try_send(body(text.as_bytes(), true));
        readers.push(reader(stream));
    }
    let gone = || {
        let waited = "llm_d_epp_flow_control_requests_total{inference_pool=\"epp\",outcome=\"EvictedQueuePressure\",priority=\"0\"}";
        process.metric(waited) + process.metric("usher_memory_refused_total")
    };
    let waits = || {
        let demand = "usher_demand_requests{model_name=\"m\",priority=\"0\",target_model_name=\"m\"}";
        process.metric(demand)
    };
    settle(|| gone() + waits() == 800.0).await;
    assert!(waits() > 10.0 && process.metric("usher_memory_shed_bytes_total") > 0.0, "{} wait", waits());
    let waiting = waits() as usize;
    process.scale(1);
    let responses = responses(readers).await;
    assert!(responses.shed > 0 && responses.served == waiting, "{waiting} waited, {responses:?}");
    stayed_within(&process, small_budget(), limit).await;
}
