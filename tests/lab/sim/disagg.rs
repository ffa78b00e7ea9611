//! Servers that share the work of a request.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use http::{HeaderValue, Request};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use usher::sim::{DisaggConfig, EngineConfig, KV_BYTES_PER_TOKEN, Links, Peer, Role, SimConfig, SimHandle};

use crate::sim::support::*;

const PREFILLER: &str = "x-prefiller-host-port";
const ENCODERS: &str = "x-encoder-hosts-ports";

/// One server that computes prompts and one that decodes, in a rack.
async fn pair(engine: EngineConfig, disagg: DisaggConfig, time_scale: f64) -> SimHandle {
    let disagg = DisaggConfig {
        roles: vec![Role::Prefill, Role::Decode],
        places: [vec![], vec!["rack-1".to_owned()], vec![], vec![]],
        ..disagg
    };
    servers(SimConfig { engine, disagg, time_scale, ..SimConfig::default() }, 2).await
}

/// The addresses of a group, which runs as long as it is kept.
fn addresses<const N: usize>(group: &SimHandle) -> [SocketAddr; N] {
    group.addresses().try_into().unwrap()
}

fn with(header: &'static str, value: &str, body: &Value) -> Request<Body> {
    let mut request = chat(body, "");
    request.headers_mut().insert(header, HeaderValue::try_from(value).unwrap());
    request
}

async fn state(at: SocketAddr) -> Value {
    get_json(at, "/admin/state").await
}

async fn disagg(at: SocketAddr) -> Value {
    state(at).await["disaggregation"].take()
}

#[tokio::test]
async fn prompt_is_computed_at_the_header_endpoint() {
    for protocol in [Http1, Http2] {
        let group = pair(EngineConfig::instant(), DisaggConfig::default(), 1.0).await;
        let [prefiller, decoder] = addresses(&group);
        let named = prefiller.to_string();
        let single = instant().await;
        let alone = ask(single.addresses()[0], &prompt(1000)).await;
        let request = with(PREFILLER, &named, &prompt(1000));
        let (parts, body, _) = exchange(decoder, request, protocol).await;
        assert_eq!(
            (parts.status.as_u16(), &parts.headers["x-inference-pod"]),
            (200, &"sim-1".parse().unwrap())
        );
        assert_eq!(parts.headers["x-sim-prefilled-by"], "sim-0");
        let together: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&together["choices"], &together["usage"]), (&alone["choices"], &alone["usage"]));

        let (one, two) = (disagg(prefiller).await, disagg(decoder).await);
        assert_eq!(
            (&one["prefilled"], &one["remote_prefills"], &one["received"]),
            (&json!(1), &json!(0), &json!(0))
        );
        assert_eq!(
            (&two["prefilled"], &two["remote_prefills"], &two["received"]),
            (&json!(0), &json!(1), &json!(1))
        );
        let bytes = json!({"host": 0, "rack": 1004 * KV_BYTES_PER_TOKEN, "zone": 0, "region": 0, "none": 0});
        assert_eq!(two["received_bytes"], bytes);

        // The same again, as a stream: only the end of the prompt has to move now.
        let request = with(PREFILLER, &named, &streaming(prompt(1000), true));
        let (parts, body, _) = exchange(decoder, request, protocol).await;
        assert_eq!(parts.headers["x-sim-prefilled-by"], "sim-0");
        let events = events(&body);
        assert_eq!(events.len(), 7);
        assert_eq!(events[6]["usage"]["prompt_tokens_details"]["cached_tokens"], 992);
        let bytes = disagg(decoder).await["received_bytes"]["rack"].as_u64().unwrap();
        assert_eq!(bytes, (1004 + 12) * KV_BYTES_PER_TOKEN);
        assert_eq!(state(prefiller).await["cached_tokens"], 992);

        // The other API, and a prompt without the header.
        let body = json!({"prompt": "once", "max_tokens": 2}).to_string();
        let request = Request::post("/v1/completions").header(PREFILLER, &named).body(full(body)).unwrap();
        let (parts, _, _) = exchange(decoder, request, protocol).await;
        assert_eq!((parts.status.as_u16(), disagg(prefiller).await["prefilled"].as_u64()), (200, Some(3)));
        let (parts, _, _) = exchange(decoder, chat(&prompt(9), ""), protocol).await;
        assert!(!parts.headers.contains_key("x-sim-prefilled-by"));
        assert_eq!(disagg(decoder).await["remote_prefills"], 3);
    }
}

#[tokio::test]
async fn kv_transfer_time_follows_the_network_layer() {
    let names = |list: [&str; 6]| list.map(str::to_owned).to_vec();
    let config = DisaggConfig {
        places: [
            names(["a", "a", "b", "c", "d", ""]),
            names(["r", "r", "r", "s", "t", ""]),
            names(["z", "z", "z", "z", "y", ""]),
            names(["g", "g", "g", "g", "g", ""]),
        ],
        links: Links::new([10_000, 1000, 100, 10, 1]),
        kv_bytes_per_token: 10,
        ..DisaggConfig::default()
    };
    // Simulated hours pass in milliseconds.
    let scale = 1e6;
    let engine = EngineConfig::instant();
    let group =
        servers(SimConfig { engine, disagg: config, time_scale: scale, ..SimConfig::default() }, 6).await;
    let [decoder, prefillers @ ..] = addresses::<6>(&group);
    let seconds = async || state(decoder).await["now_seconds"].as_f64().unwrap();
    // 1,004 tokens of 10 bytes each time, by a prompt of its own.
    let table = [("host", 1.0), ("rack", 10.0), ("zone", 100.4), ("region", 1004.0), ("none", 10_040.0)];
    for ((layer, least), prefiller) in table.into_iter().zip(prefillers) {
        let mut body = prompt(1000);
        body["messages"][0]["content"] = format!("{layer:-<4}").repeat(1000)[..4000].into();
        let before = seconds().await;
        let (parts, _, _) = exchange(decoder, with(PREFILLER, &prefiller.to_string(), &body), Http1).await;
        assert_eq!(parts.status, 200);
        assert!(seconds().await - before >= least, "{layer}");
        assert_eq!(disagg(decoder).await["received_bytes"][layer], 10_040, "{layer}");
    }
}

#[tokio::test]
async fn forged_header_triggers_no_outgoing_call() {
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    trap.set_nonblocking(true).unwrap();
    let port = trap.local_addr().unwrap().port();
    let other: Peer = "127.0.0.1:1".parse().unwrap();
    // Which peers may be called, and what a header says.
    let strict = [
        format!("127.0.0.1:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("0.0.0.0:{port}"),
        format!("[::]:{port}"),
    ];
    let anyone = [
        format!("localhost:{port}"),
        format!("http://127.0.0.1:{port}"),
        format!("user@127.0.0.1:{port}"),
        format!("127.0.0.1:{port}/admin/fault"),
        format!("127.0.0.1:{port},127.0.0.1:{port}"),
        format!("0.0.0.0:{port}"),
        format!("127.1:{port}"),
        format!("2130706433:{port}"),
        "169.254.169.254:80".to_owned(),
        "127.0.0.1".to_owned(),
        String::new(),
    ];
    for (peers, values) in [(vec![other], &strict[..]), (vec![], &anyone[..])] {
        let config = DisaggConfig { peers, ..DisaggConfig::default() };
        let group = pair(EngineConfig::instant(), config, 1.0).await;
        let [_, decoder] = addresses(&group);
        for value in values {
            let (parts, body, _) = exchange(decoder, with(PREFILLER, value, &prompt(3)), Http1).await;
            assert_eq!(parts.status, 200, "{value}");
            let response: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(response["usage"]["completion_tokens"], 5, "{value}");
            assert_eq!(trap.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "{value}");
        }
        let counted = disagg(decoder).await;
        let all = values.len();
        assert_eq!((&counted["refused_peers"], &counted["failed_prefills"]), (&json!(all), &json!(all)));
        assert_eq!(counted["remote_prefills"], 0);
        // What may not be called for a prompt may not be called for images.
        for value in values.iter().filter(|value| !value.contains(',')) {
            let (parts, _, _) = exchange(decoder, with(ENCODERS, value, &images(2)), Http1).await;
            assert_eq!(parts.status, 200, "{value}");
            assert_eq!(trap.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "{value}");
        }
        assert_eq!(disagg(decoder).await["remote_images"], 0);
    }
}

#[tokio::test]
async fn failed_prefill_is_computed_by_the_decoder() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = DisaggConfig { peer_timeout: Duration::from_millis(50), ..DisaggConfig::default() };
    let group = pair(EngineConfig::instant(), config, 1.0).await;
    let [prefiller, decoder] = addresses(&group);
    let faults = [
        json!({"status": 503}),
        json!({"status": 404}),
        json!({"reset": true}),
        json!({"drop-after": 0}),
        json!({"hang": true}),
        Value::Null,
    ];
    for (number, fault) in (1..).zip(faults) {
        let named = if fault.is_null() { nobody } else { prefiller };
        if !fault.is_null() {
            assert_eq!(set_fault(prefiller, fault.clone()).await, 200);
        }
        let body = streaming(prompt(100 + number), true);
        let (parts, body, _) = exchange(decoder, with(PREFILLER, &named.to_string(), &body), Http1).await;
        assert_eq!(parts.status, 200, "{fault}");
        assert!(!parts.headers.contains_key("x-sim-prefilled-by"), "{fault}");
        assert_eq!(events(&body).last().unwrap()["usage"]["completion_tokens"], 5, "{fault}");
        let counted = disagg(decoder).await;
        assert_eq!(
            (&counted["failed_prefills"], &counted["received"]),
            (&json!(number), &json!(0)),
            "{fault}"
        );
    }
    assert_eq!(disagg(decoder).await["refused_peers"], 0);
    assert_eq!(state(prefiller).await["kv"]["used_blocks"], 0);
    // And then it works again.
    assert_eq!(set_fault(prefiller, json!({})).await, 200);
    let (parts, _, _) = exchange(decoder, with(PREFILLER, &prefiller.to_string(), &prompt(9)), Http1).await;
    assert_eq!(parts.headers["x-sim-prefilled-by"], "sim-0");
}

fn images(count: usize) -> Value {
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    let mut content = vec![image; count];
    content.push(json!({"type": "text", "text": "what is this?"}));
    json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": content}]})
}

#[tokio::test]
async fn images_are_encoded_at_the_header_endpoint() {
    let disagg_config = DisaggConfig {
        roles: vec![Role::Decode, Role::Encode, Role::Encode, Role::Prefill],
        image_time: Duration::from_secs(100),
        ..DisaggConfig::default()
    };
    let engine = EngineConfig::instant();
    let config = SimConfig { engine, disagg: disagg_config, time_scale: 1e5, ..SimConfig::default() };
    let group = servers(config, 4).await;
    let [decoder, one, two, prefiller] = addresses(&group);
    let encoded = async || {
        let own = [disagg(decoder).await, disagg(one).await, disagg(two).await];
        own.map(|state| state["own_images"].as_u64().unwrap())
    };
    let seconds = async || state(decoder).await["now_seconds"].as_f64().unwrap();
    let before = seconds().await;
    let mut request = with(ENCODERS, &format!("{one}, {two}"), &images(5));
    request.headers_mut().insert(PREFILLER, HeaderValue::try_from(prefiller.to_string()).unwrap());
    let (parts, _, _) = exchange(decoder, request, Http1).await;
    assert_eq!(
        (parts.status.as_u16(), &parts.headers["x-sim-prefilled-by"]),
        (200, &"sim-3".parse().unwrap())
    );
    assert_eq!(encoded().await, [0, 3, 2]);
    // Three images, one after the other.
    assert!(seconds().await - before >= 300.0);
    assert_eq!(disagg(prefiller).await["own_images"], 0);
    // One image needs one of them; without a header, or when one fails, it is done here.
    exchange(decoder, with(ENCODERS, &format!("{one},{two}"), &images(1)), Http1).await;
    assert_eq!(encoded().await, [0, 4, 2]);
    exchange(decoder, chat(&images(2), ""), Http1).await;
    assert_eq!(encoded().await, [2, 4, 2]);
    assert_eq!(set_fault(two, json!({"status": 500})).await, 200);
    exchange(decoder, with(ENCODERS, &format!("{one},{two}"), &images(4)), Http1).await;
    assert_eq!(encoded().await, [4, 6, 2]);
    let counted = disagg(decoder).await;
    assert_eq!((&counted["remote_images"], &counted["failed_images"]), (&json!(8), &json!(2)));
    // A request without images asks nobody.
    let requests = state(one).await["requests"].clone();
    exchange(decoder, with(ENCODERS, &one.to_string(), &prompt(1)), Http1).await;
    assert_eq!(state(one).await["requests"], requests);
}

#[tokio::test]
async fn unknown_stage_is_refused() {
    let group = instant().await;
    let at = group.addresses()[0];
    let (parts, body, _) = exchange(at, with("x-sim-stage", "dream", &prompt(1)), Http1).await;
    assert_eq!(parts.status, 400);
    assert!(String::from_utf8(body.to_vec()).unwrap().contains("dream"));
}

#[tokio::test]
async fn disconnected_client_frees_both_servers() {
    let slow = Duration::from_secs(3600);
    // What takes an hour, and by which number of the decoder a test sees that it has begun.
    let prefill = EngineConfig { prefill_tokens_per_second: 0.01, ..EngineConfig::instant() };
    let decode = EngineConfig { decode_step: slow, ..EngineConfig::instant() };
    let link = Links::new([1; 5]);
    let free = Links::new([0; 5]);
    let table = [
        ("prompt", prefill, free.clone(), 0, "running"),
        ("transfer", EngineConfig::instant(), link, 1, "receiving"),
        ("decode", decode, free, 1, "running"),
    ];
    for (what, engine, links, busy, number) in table {
        let config = DisaggConfig { links, ..DisaggConfig::default() };
        let group = pair(engine, config, 1.0).await;
        let both @ [prefiller, decoder] = addresses(&group);
        let mut body = streaming(prompt(100), false);
        // The prefiller is done with its first token, in no time or in an hour.
        body["max_tokens"] = 50.into();
        if what == "decode" {
            // Its first token costs a step of prefill, which is free; the next an hour.
            let (parts, _, _) = exchange(prefiller, with("x-sim-stage", "prefill", &body), Http1).await;
            assert_eq!(parts.status, 200);
        }
        let request = with(PREFILLER, &prefiller.to_string(), &body);
        let client = tokio::spawn(async move {
            let response = send(decoder, request, Http1).await.unwrap();
            response.into_body().collect().await.map(drop)
        });
        until(both[busy], |state| state[number] == 1).await;
        client.abort();
        assert!(client.await.unwrap_err().is_cancelled());
        until(both[busy], |state| state["aborted"] == 1).await;
        for at in both {
            let state = until(at, |state| state["kv"]["used_blocks"] == 0).await;
            assert_eq!((&state["running"], &state["waiting"]), (&json!(0), &json!(0)), "{what}");
        }
    }
}

#[tokio::test]
async fn five_hundred_concurrent_requests_are_disaggregated() {
    const REQUESTS: usize = 500;
    let names = |list: &str| list.split(',').map(str::to_owned).collect();
    let config = SimConfig {
        disagg: DisaggConfig {
            roles: vec![Role::Prefill, Role::Decode],
            places: [names("a,a,b,b,c,c,d,d"), names("r,r,r,r,s,s,s,s"), names("z"), names("g")],
            ..DisaggConfig::default()
        },
        time_scale: 500.0,
        ..SimConfig::default()
    };
    let group = servers(config, 8).await;
    let all: Vec<SocketAddr> = group.addresses().to_vec();
    let (prefillers, decoders): (Vec<_>, Vec<_>) = all.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
    // One connection to each decoder, as a gateway's worker has.
    let mut connections = Vec::new();
    for decoder in &decoders {
        let io = TokioIo::new(TcpStream::connect(decoder).await.unwrap());
        let (sender, connection) =
            hyper::client::conn::http2::handshake::<_, _, Body>(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        connections.push(sender);
    }
    let mut requests = JoinSet::new();
    for number in 0..REQUESTS {
        let mut sender = connections[number % 4].clone();
        let words = 100 + number * 7 % 900;
        let mut body = streaming(prompt(words), true);
        // Every tenth has the start of another.
        let text =
            body["messages"][0]["content"].as_str().unwrap().replace("word", &format!("{:04}", number / 10));
        body["messages"][0]["content"] = text.into();
        let mut request = with(PREFILLER, &prefillers[number / 4 % 4].to_string(), &body);
        *request.uri_mut() = "http://sim/v1/chat/completions".parse().unwrap();
        requests.spawn(async move {
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status(), 200);
            assert!(response.headers().contains_key("x-sim-prefilled-by"));
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let usage = events(&body).pop().unwrap()["usage"].take();
            // 13 bytes of roles.
            assert_eq!(usage["prompt_tokens"], words + 4);
            assert_eq!(usage["completion_tokens"], 5);
            words as u64 + 4 - usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
        });
    }
    let moved: u64 = requests.join_all().await.into_iter().sum();
    let mut sums = [0; 4];
    for (number, at) in all.iter().enumerate() {
        let state = state(*at).await;
        assert_eq!((&state["running"], &state["waiting"]), (&json!(0), &json!(0)));
        assert_eq!(state["kv"]["used_blocks"], 0);
        let disagg = &state["disaggregation"];
        assert_eq!(disagg["failed_prefills"], 0);
        let role = if number % 2 == 0 { "prefill" } else { "decode" };
        assert_eq!(state["role"], role);
        for (sum, name) in sums.iter_mut().zip(["prefilled", "remote_prefills", "received"]) {
            *sum += disagg[name].as_u64().unwrap();
        }
        let layers = ["host", "rack", "zone"].map(|layer| disagg["received_bytes"][layer].as_u64().unwrap());
        // Each decoder had prompts from its own host, its rack and beyond.
        assert_eq!(layers.iter().all(|bytes| *bytes > 0), role == "decode", "{layers:?}");
        sums[3] += layers.iter().sum::<u64>();
    }
    let requests = REQUESTS as u64;
    assert_eq!(sums, [requests, requests, requests, moved * KV_BYTES_PER_TOKEN]);
}
