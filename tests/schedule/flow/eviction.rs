//! Running requests that are given up for others.

use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::time::advance;
use usher::endpoints::health::ResponseStatus;
use usher::extproc::exchange::{Exchange, Step};
use usher::flow::Routed;
use usher::schedule::Served;
use usher_wire::event::{Event, Message};
use usher_wire::reply::Reply;

use crate::flow::pool::{Pool, config, of, settle};

fn is_revoked(routed: &Routed) -> bool {
    routed.poll_revoked(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[tokio::test(start_paused = true)]
async fn negative_priority_request_is_evicted_for_another() {
    let pool = Pool::new(&config(1, "enableEviction: true"), 3);
    let (old, new) = (pool.pass(of("a", -1)).await, pool.pass(of("a", -1)).await);
    let important = pool.pass(of("a", 0)).await;
    assert!(!is_revoked(&old) && !is_revoked(&new) && !is_revoked(&important));
    let (next, after) = (pool.send(of("a", 0)), pool.send(of("a", 0)));
    settle().await;
    assert!(is_revoked(&new) && !is_revoked(&old) && !is_revoked(&important));
    let pending = "llm_d_epp_flow_control_pending_reclaim{inference_pool=\"pool\"}";
    assert_eq!(pool.metric(pending), Some(1.0));
    drop(new);
    let next = next.now().await.unwrap();
    assert_eq!(pool.metric(pending), Some(0.0));
    assert!(!is_revoked(&old), "what was freed has time to show");
    advance(Duration::from_millis(10)).await;
    settle().await;
    assert!(is_revoked(&old) && !is_revoked(&next));
    drop(old);
    assert!(after.now().await.is_ok());
    for (series, count) in [
        ("revocations_issued_total{inference_pool=\"pool\",priority=\"-1\"}", 2.0),
        ("revocations_total{inference_pool=\"pool\",outcome=\"confirmed\"}", 2.0),
        ("revocation_confirmation_seconds_count{inference_pool=\"pool\"}", 2.0),
    ] {
        assert_eq!(pool.metric(&format!("llm_d_epp_flow_control_{series}")), Some(count), "{series}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_is_evicted_when_eviction_is_disabled() {
    let pool = Pool::new(&config(1, ""), 1);
    let running = pool.pass(of("a", -1)).await;
    let waits = pool.send(of("a", 0));
    assert!(!waits.is_answered().await);
    assert!(!is_revoked(&running));
}

fn message(event: Event) -> Message {
    Message { event, modes: None, subset: None, served: Served::Unknown }
}

/// An exchange whose request, of priority -1, is on its way.
async fn running(pool: &Pool) -> Exchange {
    running_with(pool, -1).await
}

/// An exchange of which so many bytes of the response have passed.
pub async fn streamed(pool: &Pool, bytes: usize) -> Exchange {
    let mut exchange = running_with(pool, 0).await;
    let status = ResponseStatus::default();
    let begins = Event::ResponseHeaders { status, event_stream: true, encoded: false, end_of_stream: false };
    let data = bytes::Bytes::from(vec![b'x'; bytes]).into();
    for event in [begins, Event::ResponseBody { data, end_of_stream: false }] {
        exchange.on_message(message(event), Instant::now()).unwrap();
    }
    exchange
}

async fn running_with(pool: &Pool, priority: i32) -> Exchange {
    let mut exchange = pool.exchange();
    let headers = [(":path", "/v1/completions")].into_iter().collect();
    let event = Event::RequestHeaders { headers, end_of_stream: false };
    exchange.on_message(message(event), Instant::now()).unwrap();
    let data = bytes::Bytes::from_static(br#"{"model":"m","prompt":"x"}"#).into();
    let event = Event::RequestBody { data, end_of_stream: true };
    let step = exchange.on_message(message(event), Instant::now()).unwrap();
    let Step::Decide(question) = step else { panic!("{step:?}") };
    let mut request = (*question.request).clone();
    request.priority = priority;
    let routed = pool.pass(request).await;
    exchange.decided(Ok(routed), Instant::now());
    while exchange.next_reply().is_some() {}
    exchange
}

#[tokio::test(start_paused = true)]
async fn client_of_an_evicted_request_gets_an_error() {
    let pool = Pool::new(&config(1, "enableEviction: true"), 1);
    let mut exchange = running(&pool).await;
    let context = &mut Context::from_waker(Waker::noop());
    assert!(!exchange.is_revoked(context));
    let next = pool.send(of("a", 0));
    settle().await;
    assert!(exchange.is_revoked(context));
    // The response has begun: it is cut off.
    let event = Event::ResponseHeaders {
        status: ResponseStatus::default(),
        event_stream: true,
        encoded: false,
        end_of_stream: false,
    };
    exchange.on_message(message(event), Instant::now()).unwrap();
    assert!(matches!(exchange.revoke(), Step::End));
    let Some(Reply::Immediate(rejection)) = exchange.next_reply() else { panic!("no reply") };
    assert_eq!(exchange.next_reply(), None);
    assert_eq!((rejection.code.status(), rejection.reason), (429, Some("evicted")));
    assert_eq!(rejection.body(), "request evicted by flow control");
    assert!(next.now().await.is_ok());
    let errors = r#"llm_d_epp_request_error_total{error_code="ResourceExhausted",fairness_id="default-flow",model_name="m",priority="0",target_model_name="m"}"#;
    assert_eq!(pool.metric(errors), Some(1.0));
    drop(exchange);
    let gauge = r#"llm_d_epp_request_running{fairness_id="default-flow",model_name="m",priority="0",target_model_name="m"}"#;
    assert_eq!(pool.metric(gauge), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn completed_response_is_not_evicted() {
    let pool = Pool::new(&config(1, "enableEviction: true"), 1);
    let mut exchange = running(&pool).await;
    let next = pool.send(of("a", 0));
    settle().await;
    let event = Event::ResponseHeaders {
        status: ResponseStatus::default(),
        event_stream: false,
        encoded: false,
        end_of_stream: true,
    };
    exchange.on_message(message(event), Instant::now()).unwrap();
    assert!(!exchange.is_revoked(&mut Context::from_waker(Waker::noop())));
    assert!(next.now().await.is_ok());
}
