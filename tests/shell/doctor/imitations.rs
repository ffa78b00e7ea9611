//! Gateways that only look as if they had a picker, and pages that are others'.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::doctor::program::{doctor, examined};
use crate::doctor::stack::url;
use crate::support::{listener, nobody};

/// Path and body of a request to status, a header and a body.
type Responder = dyn Fn(&str, &[u8]) -> (u16, &'static str, String) + Send + Sync;

/// A web server of few words.
async fn server(
    respond: impl Fn(&str, &[u8]) -> (u16, &'static str, String) + Send + Sync + 'static,
) -> SocketAddr {
    let std = listener();
    std.set_nonblocking(true).unwrap();
    let address = std.local_addr().unwrap();
    let listener = TcpListener::from_std(std).unwrap();
    let respond: Arc<Responder> = Arc::new(respond);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let respond = Arc::clone(&respond);
            let service = service_fn(move |request: Request<Incoming>| {
                let respond = Arc::clone(&respond);
                async move {
                    let path = request.uri().path().to_owned();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let (status, header, text) = respond(&path, &body);
                    let mut response = Response::builder().status(status);
                    if let Some((name, value)) = header.split_once(": ") {
                        response = response.header(name, value);
                    }
                    Ok::<_, Infallible>(response.body(Full::new(Bytes::from(text))).unwrap())
                }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

const REFUSAL: &str = "inference error: BadRequest - request body is no JSON";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_server_is_not_taken_for_a_picker() {
    // What it says, and what is found.
    let always =
        |status: u16, text: &'static str| server(move |_: &str, _: &[u8]| (status, "", text.to_owned()));
    let table = [
        (always(400, REFUSAL).await, "picker-not-in-path"),
        (always(400, "{\"error\": \"no JSON\"}").await, "picker-not-in-path"),
        (always(200, "It works!").await, "picker-not-in-path"),
        (always(404, "").await, "gateway-no-route"),
        (always(503, "no healthy upstream").await, "gateway-fails"),
        (always(401, "who are you").await, "picker-path-unproven"),
        // A server that reads bodies, in its own words.
        (
            server(|_, body| {
                let status =
                    if serde_json::from_slice::<serde_json::Value>(body).is_ok() { 422 } else { 400 };
                (status, "", format!("{{\"object\": \"error\", \"code\": {status}}}"))
            })
            .await,
            "picker-not-in-path",
        ),
        // One that repeats what it got in a picker's words tells nothing apart by itself.
        (
            server(|_, _| (400, "", format!("{REFUSAL} {}", rand::random::<u32>()))).await,
            "picker-not-in-path",
        ),
        (nobody(), "gateway-unreachable"),
    ];
    for (address, code) in table {
        let found = examined(&["--gateway", &url(address)]).await;
        found.finding(code);
        assert_eq!(found.code, i32::from(code != "picker-path-unproven"), "{code}: {:#}", found.report);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_without_an_envoy_admin_are_skipped_with_a_reason() {
    let gateway = url(server(|_, _| (200, "", String::new())).await);
    let fake = url(server(|_, _| (200, "", "{\"version\": \"nothing\"}".to_owned())).await);
    let down = url(nobody());
    for (admin, reason) in [(fake, "not Envoy's"), (down, "refused")] {
        let found = examined(&["--gateway", &gateway, "--envoy-admin", &admin]).await;
        assert_eq!((found.code, found.status("envoy-admin")), (1, "wrong"));
        found.finding("envoy-admin-unreachable");
        for check in ["body-mode", "timeouts", "fail-mode", "circuit-breakers", "destination"] {
            assert_eq!(found.status(check), "skipped", "{check}");
            assert!(found.detail(check).contains(reason), "{check}: {}", found.detail(check));
        }
    }
    let found = examined(&["--gateway", &gateway]).await;
    for check in found.report["checks"].as_array().unwrap() {
        let name = check["check"].as_str().unwrap();
        assert!(
            check["status"] != "skipped" || check["reason"].as_str().is_some_and(|text| text.len() > 10),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_are_named_by_urls_or_addresses() {
    let site = server(|_, _| (200, "text/plain", "up 1\n".to_owned())).await.to_string();
    for flag in ["--metrics", "--admin", "--envoy-admin"] {
        let said = doctor(&[flag, &site]).await;
        assert_ne!(said.code, 2, "{flag}: {said:?}");
        assert_eq!(said.stderr, "", "{flag}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_sent_and_never_shown() {
    let gateway = server(|_, _| (401, "", String::new())).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "Bearer hush-in-a-file\n").unwrap();
    let from_file = format!("x-other: @{}", file.display());
    for output in ["text", "json"] {
        let flags = [
            "--gateway",
            &url(gateway),
            "--header",
            "authorization: Bearer hush",
            "--header",
            &from_file,
            "--output",
            output,
        ];
        let said = doctor(&flags).await;
        assert_eq!(said.code, 0, "{said:?}");
        assert!(!said.stdout.contains("hush") && !said.stderr.contains("hush"), "{said:?}");
    }
    let gateway = url(gateway);
    let wrong: [&[&str]; 4] = [
        &["--gateway", "http://me:hush@127.0.0.1:1"],
        &["--gateway", "http://127.0.0.1:1/?key=hush"],
        &["--gateway", &gateway, "--header", "authorization hush"],
        &["--gateway", &gateway, "--metrics", &gateway, "--metrics-header", "authorization hush"],
    ];
    for flags in wrong {
        let said = doctor(flags).await;
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{said:?}");
        assert!(!said.stderr.contains("hush"), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_usage_is_an_error_that_names_it() {
    let table: [(&[&str], &str); 5] = [
        (&["--gateway", "127.0.0.1:8081"], "http://HOST:PORT"),
        (&["--gateway", "http://127.0.0.1:1", "--timeout", "0s"], "10ms"),
        (&["--picker", "9002"], "HOST:PORT"),
        (&["--endpoints-file", "/nowhere.yaml"], "/nowhere.yaml"),
        (&["--endpoint-selector", "app=m"], "--endpoint-target-ports"),
    ];
    for (flags, part) in table {
        let said = doctor(flags).await;
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{flags:?}: {said:?}");
        assert!(said.stderr.starts_with("usher: ") && said.stderr.contains(part), "{flags:?}: {said:?}");
        let is_of_clap = said.stderr.ends_with("\n\nsee `usher doctor --help`\n");
        assert!(is_of_clap || said.stderr.lines().count() == 1, "{said:?}");
    }
}
