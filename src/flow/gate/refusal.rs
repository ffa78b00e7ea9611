//! Responses to clients whose requests are not dispatched.

use crate::flow::queue::Outcome;
use usher_core::request::{Code, NO_ENDPOINTS, Rejection, SATURATED};

/// Value of the reason header for requests that waited as long as they may.
const TTL_EXPIRED: &str = "rejected-ttl-expired";
/// Value of it for requests whose client has disconnected.
const CANCELLED: &str = "rejected-context-cancelled";
/// Value of it for requests that memory was short for.
const QUEUE_PRESSURE: &str = "evicted-queue-pressure";
/// Value of it while the picker stops.
const SHUTTING_DOWN: &str = "rejected-shutting-down";

/// The response for a request whose waiting ended like this, in llm-d-router's words.
pub(super) fn of(outcome: Outcome) -> Rejection {
    let busy = |reason, message| Rejection {
        reason: Some(reason),
        // There may be room soon, as anywhere where a pool is only full.
        retry_after: Some(1),
        ..Rejection::new(Code::ResourceExhausted, message)
    };
    let unavailable = |reason, message| Rejection {
        reason: Some(reason),
        ..Rejection::new(Code::ServiceUnavailable, message)
    };
    match outcome {
        // A dispatched request is not refused; this is for whoever asks all the same.
        Outcome::RejectedCapacity | Outcome::Dispatched => {
            busy(SATURATED, "request rejected pre-queue: queue at capacity")
        }
        Outcome::RejectedNoEndpoints => unavailable(
            NO_ENDPOINTS,
            "no endpoints available: request rejected pre-queue: no endpoints available",
        ),
        Outcome::EvictedTtl => {
            busy(TTL_EXPIRED, "request timed out in queue: request evicted from queue: request TTL expired")
        }
        Outcome::EvictedQueuePressure => busy(
            QUEUE_PRESSURE,
            "request evicted from queue: memory is short, and it was the least important",
        ),
        Outcome::EvictedNoEndpoints => unavailable(
            NO_ENDPOINTS,
            "request timed out in queue and no endpoints are available: request evicted from queue: no endpoints available",
        ),
        Outcome::EvictedContextCancelled => unavailable(
            CANCELLED,
            "client disconnected: request evicted from queue: request context cancelled",
        ),
        Outcome::RejectedOther | Outcome::EvictedOther => {
            unavailable(SHUTTING_DOWN, "flow controller shutting down: flow controller is not running")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_status_and_reason() {
        let table = [
            (Outcome::RejectedCapacity, 429, "rejected-saturated", Some(1)),
            (Outcome::RejectedNoEndpoints, 503, "rejected-no-endpoints", None),
            (Outcome::EvictedTtl, 429, "rejected-ttl-expired", Some(1)),
            (Outcome::EvictedQueuePressure, 429, "evicted-queue-pressure", Some(1)),
            (Outcome::EvictedNoEndpoints, 503, "rejected-no-endpoints", None),
            (Outcome::EvictedContextCancelled, 503, "rejected-context-cancelled", None),
            (Outcome::RejectedOther, 503, "rejected-shutting-down", None),
            (Outcome::EvictedOther, 503, "rejected-shutting-down", None),
        ];
        for (outcome, status, reason, retry_after) in table {
            let rejection = of(outcome);
            let got = (rejection.code.status(), rejection.reason, rejection.retry_after);
            assert_eq!(got, (status, Some(reason), retry_after), "{outcome:?}");
        }
        let body = of(Outcome::EvictedTtl).body();
        assert!(
            body.starts_with("inference error: ResourceExhausted - request timed out in queue: "),
            "{body}"
        );
    }
}
