//! Probes through the gateway: requests that a picker refuses, and small ones that it routes.

use bytes::Bytes;
use http::Method;
use rand::RngExt;
use serde_json::json;

use super::http::{HttpClient, Response};
use crate::doctor::seen::{Broken, Gateway, Reply};

const CHAT: &str = "/v1/chat/completions";

/// Probes of either kind that a picker refuses; which kind comes when is left to chance.
const REFUSALS: usize = 6;

/// Requests that are routed: so many at least, and at most as many again.
const ROUTED: usize = 3;

/// Largest response that is read, and how much of it is kept.
const MOST: usize = 1 << 20;
const KEPT: usize = 300;

/// The model that probes ask for, unless there is a real one to ask for: model servers refuse
/// it without work.
pub(super) const NO_MODEL: &str = "usher-doctor";

/// Sends requests that a picker refuses, and notes how they were answered.
pub(super) async fn refusals(client: &HttpClient) -> Gateway {
    let mut seen = Gateway { url: client.url(), ..Gateway::default() };
    for broken in order(rand::rng().random()) {
        match client.send(Method::POST, CHAT, body(broken), MOST).await {
            Ok(response) => seen.refusals.push((broken, reply(&response))),
            Err(reason) => {
                seen.unreachable = Some(reason);
                return seen;
            }
        }
    }
    seen
}

/// Sends small requests that a picker routes.
pub(super) async fn routed(client: &HttpClient, model: &str, seen: &mut Gateway) {
    for _ in 0..ROUTED + rand::rng().random_range(0..=ROUTED) {
        let body =
            json!({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "ping"}]});
        match client.send(Method::POST, CHAT, body.to_string().into(), MOST).await {
            Ok(response) => seen.routed.push(reply(&response)),
            Err(reason) => {
                seen.unreachable = Some(reason);
                return;
            }
        }
    }
}

/// Both kinds in an order that follows from `bits`, each at least once.
fn order(bits: u32) -> [Broken; REFUSALS] {
    let kind = |bit: bool| if bit { Broken::Json } else { Broken::Messages };
    let mut all = std::array::from_fn(|at| kind(bits >> at & 1 == 1));
    let last = all[0];
    if all.iter().all(|each| *each == last) {
        all[bits as usize >> REFUSALS & 3] = kind(last != Broken::Json);
    }
    all
}

fn body(broken: Broken) -> Bytes {
    match broken {
        Broken::Json => Bytes::from(format!("{{\"model\": \"{NO_MODEL}\", \"messages\": [")),
        Broken::Messages => json!({"model": NO_MODEL, "messages": []}).to_string().into(),
    }
}

fn reply(response: &Response) -> Reply {
    let text = |name: &str| {
        response.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned()
    };
    let kept = &response.body[..response.body.len().min(KEPT)];
    Reply {
        status: response.status,
        body: String::from_utf8_lossy(kept).into_owned(),
        reason: text("x-llm-d-request-dropped-reason"),
        marked: text("x-went-into-resp-headers") == "true",
        pod: text("x-inference-pod"),
        port: text("x-inference-port"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_has_both_kinds() {
        for bits in 0..1 << 9 {
            let order = order(bits);
            assert!(order.contains(&Broken::Json) && order.contains(&Broken::Messages), "{bits}: {order:?}");
        }
    }
}
