use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tonic_health::pb::health_check_response::ServingStatus;
use usher::extproc::server::Ended;
use usher::extproc::stop::Stop;
use usher::settings::TlsSettings;

use crate::health::check;
use crate::server::{Call, Running, plain, secure};

/// Waits until nobody listens on `address` any more.
async fn closed(address: SocketAddr) {
    for _ in 0..100_000 {
        if TcpStream::connect(address).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{address} is still open");
}

#[tokio::test]
async fn an_open_stream_is_finished_before_the_server_ends() {
    for tls in [None, Some(TlsSettings::default())] {
        let secured = tls.is_some();
        let mut server = Running::start(tls, Duration::ZERO);
        let channel = if secured { secure(server.extproc).await } else { plain(server.extproc).await };
        let probe = plain(server.health_port).await;
        let mut call = Call::open(&channel).await;
        call.exchange().await.unwrap();

        server.stopper.stop(Stop::Drain);
        closed(server.extproc).await;
        assert_eq!(check(&probe, "").await, ServingStatus::NotServing);
        for _ in 0..100 {
            call.exchange().await.unwrap();
        }
        tokio::select! {
            biased;
            ended = &mut server.ended => panic!("{ended:?} with an open stream"),
            () = std::future::ready(()) => {}
        }
        call.finish().await.unwrap();
        assert_eq!(server.ended.await.unwrap(), Ended::Gracefully);
        closed(server.health_port).await;
    }
}

#[tokio::test]
async fn drain_window_accepts_until_a_second_stop() {
    let server = Running::start(None, Duration::from_secs(600));
    let probe = plain(server.health_port).await;
    assert_eq!(check(&probe, "").await, ServingStatus::Serving);

    let begin = tokio::time::Instant::now();
    server.stopper.stop(Stop::Drain);
    // A gateway may not know yet who takes its place.
    while check(&probe, "").await == ServingStatus::Serving {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(begin.elapsed() >= Duration::from_secs(10));
    let channel = plain(server.extproc).await;
    assert_eq!(check(&channel, "inference-extension").await, ServingStatus::NotServing);
    let mut call = Call::open(&channel).await;
    call.exchange().await.unwrap();

    server.stopper.stop(Stop::Now);
    assert_eq!(server.ended.await.unwrap(), Ended::Forced);
    closed(server.extproc).await;
    assert!(call.finish().await.is_err());
}

#[tokio::test]
async fn a_stop_from_a_terminal_skips_the_window() {
    let server = Running::start(None, Duration::from_secs(3600));
    let mut call = Call::open(&plain(server.extproc).await).await;
    server.stopper.stop(Stop::Now);
    closed(server.extproc).await;
    call.exchange().await.unwrap();
    call.finish().await.unwrap();
    assert_eq!(server.ended.await.unwrap(), Ended::Gracefully);
}

#[tokio::test]
async fn second_stop_closes_open_streams() {
    let server = Running::plain();
    let mut call = Call::open(&plain(server.extproc).await).await;
    server.stopper.stop(Stop::Drain);
    closed(server.extproc).await;
    call.exchange().await.unwrap();
    server.stopper.stop(Stop::Drain);
    assert_eq!(server.ended.await.unwrap(), Ended::Forced);
    assert!(call.finish().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn drain_window_lasts_its_configured_time() {
    let window = Duration::from_secs(30);
    let server = Running::start(None, window);
    let start = tokio::time::Instant::now();
    server.stopper.stop(Stop::Drain);
    assert_eq!(server.ended.await.unwrap(), Ended::Gracefully);
    assert!(start.elapsed() >= window && start.elapsed() < window * 2, "{:?}", start.elapsed());
}
