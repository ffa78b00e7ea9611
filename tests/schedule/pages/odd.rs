//! Pages and servers that are not as one would like.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use usher::scrape::ScrapeConfig;

use crate::lines::Lines;
use crate::pages::pool::{Pool, hurried};
use crate::pages::server::{Server, Step, ok, page, with};

const EXTRACT_ERRORS: &str = "llm_d_epp_datalayer_extract_errors_total";

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn unrequested_compression_is_decoded() {
    let packed = gzip(page(3).as_bytes());
    let server = Server::start(move |head| {
        assert!(!head.contains("accept-encoding"), "{head}");
        with("content-encoding: gzip\r\n", &packed)
    });
    let pool = Pool::start(&[server.await.address], ScrapeConfig::default());
    pool.until("a page", |pool| pool.waiting(0) == Some(3.0)).await;
    assert_eq!(pool.failures("encoding"), 0);
}

#[tokio::test]
async fn compression_is_requested_when_enabled() {
    let server = Server::start(|head| {
        assert!(head.contains("\r\naccept-encoding: gzip\r\n"), "{head}");
        with("content-encoding: gzip\r\n", &gzip(page(3).as_bytes()))
    });
    let pool = Pool::start(&[server.await.address], ScrapeConfig { gzip: true, ..ScrapeConfig::default() });
    pool.until("a page", |pool| pool.waiting(0) == Some(3.0)).await;
}

/// A server that misbehaves, and then doesn't. The log hears of it once. The most bytes that
/// were taken of what it sends many times.
async fn recovers(what: &str, config: ScrapeConfig, reason: &str, bad: Vec<Step>) -> usize {
    let (lines, _guard) = Lines::start();
    let well = Arc::new(AtomicBool::new(false));
    let is_well = Arc::clone(&well);
    let server = Server::start(move |_| if is_well.load(Relaxed) { ok(&page(3)) } else { bad.clone() }).await;
    let pool = Pool::start(&[server.address], config);
    pool.until(what, |pool| pool.failures(reason) >= 2).await;
    assert_eq!(pool.waiting(0), None, "{what}");
    assert!(pool.load(0).scrapes.failures_in_a_row() >= 2, "{what}");
    assert_eq!(pool.load(0).scrapes.unreachable_in_a_row(), 0, "{what}: somebody is there");
    well.store(true, Relaxed);
    pool.until(what, |pool| pool.waiting(0) == Some(3.0)).await;
    assert_eq!(pool.load(0).scrapes.failures_in_a_row(), 0, "{what}");
    let failing = lines.count(&["WARN", "endpoint can't be scraped", "pod-0"]);
    assert_eq!(failing, 1, "{what}: {}", lines.text());
    server.taken.load(Relaxed)
}

#[tokio::test]
async fn invalid_pages_are_counted_by_reason_and_retried() {
    let small = || ScrapeConfig { max_body_bytes: 100_000, ..hurried() };
    let close = |bytes: &[u8]| vec![Step::Send(bytes.to_vec()), Step::Close];
    let huge = vec![b'#'; 2_000_000];
    let gzipped = |bytes: &[u8]| with("content-encoding: gzip\r\n", bytes);
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunked = [head.as_bytes(), b"1e8480\r\n", &huge].concat();
    let cut = b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nvllm:num_requests_waiting 9\n";
    let table = [
        ("not found", "status", vec![Step::Send(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n".to_vec())]),
        ("a redirect", "status", vec![Step::Send(b"HTTP/1.1 302 No\r\nlocation: /\r\n\r\n".to_vec())]),
        ("another protocol", "malformed", close(b"SSH-2.0-OpenSSH_9.6\r\n")),
        ("an endless head", "malformed", close(&[b"HTTP/1.1 200 OK\r\nx: ", huge.as_slice()].concat())),
        ("a page of 2 MB", "too_large", with("", &huge)),
        ("2 MB in chunks", "too_large", close(&chunked)),
        ("2 MB until closed", "too_large", close(&[b"HTTP/1.1 200 OK\r\n\r\n", huge.as_slice()].concat())),
        ("2 MB, compressed", "too_large", gzipped(&gzip(&huge))),
        ("damaged gzip", "encoding", gzipped(b"\x1f\x8bno")),
        ("brotli", "encoding", with("content-encoding: br\r\n", b"x")),
        ("half a page", "connection", close(cut)),
        ("nothing", "connection", vec![Step::Close]),
    ];
    for (what, reason, bad) in table {
        recovers(what, small(), reason, bad).await;
    }
}

#[tokio::test]
async fn a_hundred_megabytes_are_not_read() {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 100 << 20);
    let response = vec![Step::Send(head.into_bytes()), Step::Hang];
    recovers("100 MB", hurried(), "too_large", response).await;
}

#[tokio::test]
async fn a_hundred_megabytes_in_chunks_are_read_up_to_the_bound() {
    const MI: usize = 1 << 20;
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let chunk = [b"10000\r\n".as_slice(), &vec![b'#'; 1 << 16], b"\r\n"].concat();
    let config = hurried();
    assert_eq!(config.max_body_bytes, 16 * MI);
    let response = vec![Step::Send(head), Step::Repeat(chunk, 1600), Step::Close];
    let taken = recovers("100 MB in chunks", config, "too_large", response).await;
    // The rest is what lay between the sockets.
    assert!((16 * MI..48 * MI).contains(&taken), "{taken} bytes of 100 MB");
}

#[tokio::test(start_paused = true)]
async fn slow_trickle_times_out_and_delays_no_other_endpoint() {
    let (lines, _guard) = Lines::start();
    let slow =
        Server::start(|_| vec![Step::Drip(b"HTTP/1.1 200 OK\r\n\r\nvllm:num_requests_waiting 9\n".to_vec())])
            .await;
    let quick = Server::start(|_| ok(&page(3))).await;
    let pool = Pool::start(&[slow.address, quick.address], ScrapeConfig::default());
    quick.more(100).await;
    let timeouts = pool.failures("timeout");
    assert!((2..=5).contains(&timeouts), "a second each, and as long between: {timeouts}");
    assert_eq!((pool.waiting(0), pool.waiting(1)), (None, Some(3.0)));
    let text = lines.text();
    assert_eq!(lines.count(&["WARN", "endpoint can't be scraped", "pod-0"]), 1, "{text}");
    assert_eq!(lines.count(&["pod-1"]), 0, "{text}");
}

#[tokio::test]
async fn open_metrics_are_read() {
    let text = "# TYPE vllm:num_requests_waiting gauge\n# UNIT vllm:num_requests_waiting requests\n\
        # HELP vllm:num_requests_waiting Waiting \\\"now\\\".\n\
        vllm:num_requests_waiting{engine=\"0\",model_name=\"a \\\"b\\\" \\\\ {c}, d=\\n\"} 3 1755820800.123\n\
        vllm:num_requests_waiting{engine=\"1\",model_name=\"x\"} 4.0 1755820800.123\n\
        # TYPE vllm:num_requests_running counter\n\
        vllm:num_requests_running_total 5.0 # {trace_id=\"7\"} 1.0 1755820800.0\n\
        vllm:num_requests_running_created 1755820800.0\n\
        vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n\
        # TYPE vllm:cache_config info\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1.0\n# EOF\n";
    let server = Server::start(move |_| ok(text)).await;
    let pool = Pool::start(&[server.address], ScrapeConfig::default());
    server.more(3).await;
    let load = pool.load(0);
    let values = [&load.waiting, &load.running, &load.kv_usage, &load.block_size, &load.num_blocks];
    assert_eq!(values.map(|gauge| gauge.last()), [7.0, 5.0, 0.75, 16.0, 100.0]);
    assert_eq!(pool.counted(EXTRACT_ERRORS, "core-metrics-extractor"), 0);
}

#[tokio::test]
async fn a_label_of_a_megabyte_is_refused_alone() {
    let (lines, _guard) = Lines::start();
    let long = "x".repeat(1 << 20);
    let text = format!(
        "other{{a=\"{long}\"}} 1\nvllm:lora_requests_info{{running_lora_adapters=\"{long}\"}} 1\n{}",
        page(3)
    );
    let server = Server::start(move |_| ok(&text)).await;
    let pool = Pool::start(&[server.address], ScrapeConfig::default());
    server.more(3).await;
    assert_eq!(pool.waiting(0), Some(3.0));
    assert!(pool.load(0).adapters.load().is_none());
    assert!(pool.counted(EXTRACT_ERRORS, "core-metrics-extractor") >= 2);
    let text = lines.text();
    let warnings = lines.count(&["WARN", "metrics of the endpoint are incomplete", "pod-0"]);
    assert_eq!(warnings, 1, "{text}");
    assert!(text.len() < 1000, "not the label itself: {} bytes", text.len());
}

#[tokio::test]
async fn invalid_values_are_refused_counted_and_logged_once() {
    let of = |line: &str| format!("{line}\n{}", page(3).replace("vllm:num_requests_waiting", "vllm:other"));
    for line in [
        "vllm:num_requests_waiting",
        "vllm:num_requests_waiting many",
        "vllm:num_requests_waiting{engine=\"0\" 3",
        "vllm:num_requests_waiting{engine=0} 3",
        "vllm:num_requests_waiting 3 soon",
        "vllm:num_requests_waiting NaN",
        "vllm:num_requests_waiting -1",
        "vllm:num_requests_waiting -Inf",
        "vllm:num_requests_waiting +Inf",
        "vllm:num_requests_waiting 1e999",
        "vllm:num_requests_waiting 1e308\nvllm:num_requests_waiting{engine=\"1\"} 1e308",
        "vllm:num_requests_waiting 1\nvllm:num_requests_waiting{engine=\"1\"} -1",
    ] {
        let (lines, _guard) = Lines::start();
        let text = of(line);
        let server = Server::start(move |_| ok(&text)).await;
        let pool = Pool::start(&[server.address], ScrapeConfig::default());
        server.more(4).await;
        assert_eq!(pool.waiting(0), None, "{line}");
        assert!(pool.load(0).running.read_at_ms().is_some(), "{line}: the others are read");
        assert!(pool.counted(EXTRACT_ERRORS, "core-metrics-extractor") >= 3, "{line}");
        let warnings =
            lines.count(&["WARN", "metrics of the endpoint are incomplete", "refused=\"waiting\""]);
        assert_eq!(warnings, 1, "{line}: {}", lines.text());
    }
}

#[tokio::test]
async fn extra_bytes_after_a_response_only_close_the_connection() {
    let server = Server::start(|_| {
        let mut steps = ok(&page(3));
        steps.push(Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec()));
        steps
    });
    let server = server.await;
    let pool = Pool::start(&[server.address], hurried());
    server.more(6).await;
    assert_eq!(pool.waiting(0), Some(3.0));
}

#[tokio::test]
async fn scrape_failures_are_logged_once_per_change() {
    let (lines, _guard) = Lines::start();
    let server =
        Server::start(|_| vec![Step::Send(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n".to_vec())]).await;
    let incomplete = Server::start(|_| ok("vllm:num_requests_running NaN\n")).await;
    let pool = Pool::start(&[server.address, incomplete.address], hurried());
    server.more(10).await;
    incomplete.more(10).await;
    assert!(pool.failures("status") >= 9);
    let text = lines.text();
    assert_eq!(lines.count(&["endpoint can't be scraped", "the server responded with 503"]), 1, "{text}");
    assert_eq!(lines.count(&["metrics of the endpoint are incomplete"]), 1, "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[tokio::test]
async fn consecutive_refused_connections_are_counted() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let pool = Pool::start(&[address], hurried());
    pool.until("failures", |pool| pool.load(0).scrapes.unreachable_in_a_row() >= 3).await;
    let load = pool.load(0);
    assert!(load.scrapes.failures_in_a_row() >= 3 && load.scrapes.failing_since_ms().is_some());
    assert!(pool.failures("connect") >= 3);
    assert_eq!(load.scraped_at_ms(), None);
    let config = ScrapeConfig { keeps_health: false, ..hurried() };
    let other = Pool::start(&[address], config);
    other.until("failures", |pool| pool.failures("connect") >= 2).await;
    assert_eq!(other.load(0).scrapes.failures_in_a_row(), 0, "another source says that");
    assert_eq!(Duration::from_millis(50), hurried().max_backoff);
}
