//! Queries to servers that respond as Prometheus does, and to some that don't.

use std::net::SocketAddr;
use std::path::PathBuf;

use usher::scaling::query::{QueryError, ResponseError, Server as Asked};
use usher::settings::PrometheusSettings;

use crate::pages::server::{Server, Step, ok, with};
use crate::pages::tls::Files;

const TWO: &str =
    r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"2.5"]}]}}"#;

fn settings(address: SocketAddr) -> PrometheusSettings {
    PrometheusSettings {
        tls: false,
        host: address.ip().to_string(),
        port: address.port(),
        prefix: String::new(),
        ca_file: None,
        token_file: None,
    }
}

async fn ask(settings: PrometheusSettings) -> Result<f64, QueryError> {
    Asked::new(settings).unwrap().ask("up").await
}

async fn answered(steps: Vec<Step>) -> Result<f64, QueryError> {
    ask(settings(Server::start(move |_| steps.clone()).await.address)).await
}

fn status(line: &str, body: &str) -> Vec<Step> {
    let text = format!("HTTP/1.1 {line}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    vec![Step::Send(text.into_bytes())]
}

#[tokio::test]
async fn query_is_sent_with_the_prefix_and_current_token() {
    let server = Server::start(|head| {
        let token = head.lines().find_map(|line| line.strip_prefix("authorization: Bearer "));
        ok(&TWO.replace("2.5", token.unwrap_or("0")))
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    let with_token = PrometheusSettings {
        prefix: "/prom".to_owned(),
        token_file: Some(token.clone()),
        ..settings(server.address)
    };
    let asked = Asked::new(with_token).unwrap();
    assert!(asked.shows_token_to_all());
    let query = "sum(rate(http_requests_total{code=~\"5..\", path=\"/ä\"}[1m])) > 0 or vector(0) # &x=1";
    for number in [11.0, 12.0] {
        std::fs::write(&token, format!("{number}\n")).unwrap();
        assert_eq!(asked.ask(query).await.unwrap(), number, "it is read again");
    }
    let line = server.requests.borrow()[0].clone();
    let target =
        line.strip_prefix("GET /prom/api/v1/query?query=").unwrap().strip_suffix(" HTTP/1.1").unwrap();
    let mut bytes = Vec::new();
    let mut rest = target.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next().unwrap()).to_digit(16).unwrap() as u8;
        bytes.push(if byte == b'%' { digit() * 16 + digit() } else { byte });
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), query);
}

#[tokio::test]
async fn unusable_token_is_not_quoted() {
    let server = Server::start(|_| ok(TWO)).await;
    let folder = tempfile::tempdir().unwrap();
    let file = |text: &[u8]| -> PathBuf {
        let path = folder.path().join("token");
        std::fs::write(&path, text).unwrap();
        path
    };
    let large = vec![b'x'; 70_000];
    for (text, says) in [
        (&b" \n"[..], "it is empty"),
        (b"secret\nsecond", "characters that no token has"),
        (b"secret\xff", "UTF-8"),
        (&large, "70000 bytes are no token"),
    ] {
        let with_token = PrometheusSettings { token_file: Some(file(text)), ..settings(server.address) };
        let error = ask(with_token).await.unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("--prometheus-token-file"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
    let missing = PrometheusSettings { token_file: Some("/nonexistent".into()), ..settings(server.address) };
    assert!(ask(missing).await.unwrap_err().to_string().contains("/nonexistent"));
    assert_eq!(server.count(), 0, "without its token nothing is asked");
}

#[tokio::test]
async fn invalid_query_responses_are_named_in_the_error() {
    let bad = r#"{"status":"error","errorType":"bad_data","error":"1:5: parse error"}"#;
    let table = [
        (status("500 Internal Server Error", "oops"), "responded with 500 Internal Server Error"),
        (status("503 Service Unavailable", ""), "responded with 503"),
        (status("400 Bad Request", bad), "responded with 400 Bad Request: 1:5: parse error"),
        (status("302 Found", ""), "responded with 302"),
        (ok(bad), "the server says: 1:5: parse error"),
        (ok("<html></html>"), "is that the server's base URL?"),
        (ok(""), "not one of the Prometheus API"),
        (
            ok(r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#),
            "the result has no sample",
        ),
        (with("content-encoding: gzip\r\n", b"\x1f\x8b\x08"), "not one of the Prometheus API"),
        (vec![Step::Close], "the connection broke"),
        (vec![Step::Send(b"220 ftp.example\r\n\r\n".to_vec())], "the connection broke"),
        (
            vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{".to_vec()), Step::Close],
            "the connection broke",
        ),
    ];
    for (steps, says) in table {
        let error = answered(steps).await.unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{says}: {error}");
    }
    let error = answered(ok(&TWO.replace("2.5", "NaN"))).await.unwrap_err();
    assert!(matches!(error, QueryError::Response(ResponseError::NotFinite(_))), "{error}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = ask(settings(closed)).await.unwrap_err();
    assert!(matches!(error, QueryError::Connect(_)), "{error}");
}

#[tokio::test]
async fn endless_query_response_is_aborted() {
    let head = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    let server =
        Server::start(move |_| vec![Step::Send(head.clone()), Step::Repeat(vec![b' '; 1 << 16], 1 << 14)])
            .await;
    let error = ask(settings(server.address)).await.unwrap_err();
    assert!(matches!(error, QueryError::TooLarge), "{error}");
    let taken = server.taken.load(std::sync::atomic::Ordering::Relaxed);
    assert!(taken < 64 << 20, "{taken}");
}

#[tokio::test(start_paused = true)]
async fn hanging_query_server_times_out() {
    let error = answered(vec![Step::Hang]).await.unwrap_err();
    assert!(matches!(error, QueryError::Timeout), "{error}");
}

#[tokio::test]
async fn tls_verifies_against_the_configured_ca() {
    let (files, others) = (Files::make(), Files::make());
    let server = Server::start_tls(files.acceptor("server", false), |_| ok(TWO)).await;
    let over_tls = |host: &str, ca: PathBuf| PrometheusSettings {
        tls: true,
        host: host.to_owned(),
        ca_file: Some(ca),
        ..settings(server.address)
    };
    for host in ["127.0.0.1", "localhost"] {
        assert_eq!(ask(over_tls(host, files.path("ca.crt"))).await.unwrap(), 2.5, "{host}");
    }
    let error = ask(over_tls("localhost", others.path("ca.crt"))).await.unwrap_err();
    assert!(matches!(error, QueryError::Tls(_)), "{error}");
    let elsewhere = Server::start_tls(files.acceptor("elsewhere", false), |_| ok(TWO)).await;
    let of_other_host =
        PrometheusSettings { port: elsewhere.address.port(), ..over_tls("127.0.0.1", files.path("ca.crt")) };
    let error = ask(of_other_host).await.unwrap_err();
    assert!(matches!(error, QueryError::Tls(_)), "{error}");
    let error = Asked::new(over_tls("localhost", files.path("nowhere.crt"))).unwrap_err().to_string();
    assert!(error.contains("nowhere.crt"), "{error}");
}
