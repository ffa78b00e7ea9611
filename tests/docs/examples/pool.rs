//! Simulated servers, a picker with an example's configuration, and a gateway's part: it
//! asks the picker, sends the request where that says, and shows it the response.

use std::net::SocketAddr;
use std::time::Duration;

use http::Request;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use usher::sim::{EngineConfig, SimConfig, SimHandle, start};

use crate::examples::wire::{Mutation, Picker, Stream, body, headers, response_body, response_headers};
use crate::examples::{needs_experimental, path};
use crate::support::client::{self, HttpResponse, Protocol};
use crate::support::{eventually, listener};

const PATH: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
/// Requests that a server runs at a time.
const MAX_RUNNING: usize = 4;
/// Time of a token.
const STEP: Duration = Duration::from_millis(20);
/// Carries the endpoint that a pod's own router is to take, where the destination is the pod.
const RANK: &str = "x-data-parallel-host-port";

/// A model server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pod {
    pub(crate) labels: &'static [(&'static str, &'static str)],
    pub(crate) loras: &'static [&'static str],
}

/// Model servers and their picker.
pub(crate) struct Pool {
    servers: Vec<Server>,
    picker: Picker,
}

struct Server {
    address: SocketAddr,
    // Stopped when dropped.
    _handle: SimHandle,
    /// Clients that keep it busy until they are dropped.
    busy: JoinSet<()>,
}

/// Outcome of a request.
pub(crate) struct Served {
    /// Server that responded.
    pub(crate) server: usize,
    /// Changes that the picker made to the request's headers.
    pub(crate) request: Mutation,
    /// Changes that it made to the response's headers.
    pub(crate) response: Mutation,
}

/// A request that the picker may let wait.
pub(crate) struct Begun<'a> {
    pool: &'a Pool,
    stream: Stream,
}

/// A request under way until it is dropped.
pub(crate) struct Held {
    /// Server that it was sent to.
    pub(crate) server: usize,
    _stream: Stream,
}

impl Pool {
    /// Servers that are as fast as can be, and a picker that runs the example.
    pub(crate) async fn start(example: &str, pods: &[Pod]) -> Self {
        let mut servers = Vec::new();
        for (first_index, pod) in pods.iter().enumerate() {
            let loras = pod.loras.iter().map(|&name| name.to_owned()).collect();
            // A request for one token ends with its prompt.
            let engine =
                EngineConfig { decode_step: STEP, max_running: MAX_RUNNING, ..EngineConfig::instant() };
            let config = SimConfig { first_index, loras, engine, ..SimConfig::default() };
            let handle = start(config, vec![listener()]).await.unwrap();
            servers.push(Server { address: handle.addresses()[0], _handle: handle, busy: JoinSet::new() });
        }
        let files = tempfile::tempdir().unwrap();
        let entry = |(Server { address, .. }, pod): (&Server, &Pod)| {
            let labels: serde_json::Map<String, Value> =
                pod.labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
            let (ip, port) = (address.ip().to_string(), address.port().to_string());
            json!({"name": format!("server-{port}"), "address": ip, "port": port, "labels": labels})
        };
        let entries: Vec<Value> = servers.iter().zip(pods).map(entry).collect();
        let endpoints = files.path().join("endpoints.yaml");
        std::fs::write(&endpoints, json!({ "endpoints": entries }).to_string()).unwrap();
        let flags = [
            format!("--config-file={}", path(example).display()),
            format!("--endpoints-file={}", endpoints.display()),
            format!("--allow-experimental-plugins={}", needs_experimental(example)),
        ];
        let picker = Picker::serve(files, &flags.each_ref().map(String::as_str)).await;
        Self { servers, picker }
    }

    /// One completion, from the client's headers to the end of the response.
    pub(crate) async fn ask(&self, extra: &[(&str, &str)], model: &str, prompt: &str) -> Served {
        self.send(PATH, extra, &json!({"model": model, "prompt": prompt, "max_tokens": 1})).await
    }

    /// The same with a response of so many tokens.
    pub(crate) async fn ask_for(&self, tokens: u32, prompt: &str) -> Served {
        self.send(PATH, &[], &json!({"model": "m", "prompt": prompt, "max_tokens": tokens})).await
    }

    /// The same for a chat about a text and perhaps an image.
    pub(crate) async fn chat(&self, text: &str, image: Option<&str>) -> Served {
        let mut content = vec![json!({"type": "text", "text": text})];
        content.extend(image.map(|url| json!({"type": "image_url", "image_url": {"url": url}})));
        let messages = json!([{"role": "user", "content": content}]);
        self.send(CHAT, &[], &json!({"model": "m", "messages": messages, "max_tokens": 1})).await
    }

    /// The servers whose addresses are in this list, ascending.
    pub(crate) fn servers_in(&self, list: Option<&str>) -> Vec<usize> {
        let number = |address: &str| {
            let found = self.servers.iter().position(|server| server.address.to_string() == address);
            found.unwrap_or_else(|| panic!("{address} is no server"))
        };
        let mut numbers: Vec<usize> = list.into_iter().flat_map(|list| list.split(',')).map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    async fn send(&self, path: &str, extra: &[(&str, &str)], text: &Value) -> Served {
        let mut stream = self.picker.stream().await;
        let base = [(":method", "POST"), (":path", path), ("content-type", "application/json")];
        stream.send(headers(&[&base, extra].concat(), false));
        stream.send(body(text.to_string(), true));
        let request = stream.request_headers().await;
        let response = self.forward(path, &request, &mut stream).await;
        assert_eq!(response.status, 200, "{response:?}");
        let changes = shown(&mut stream, &response).await;
        Served { server: response.server(), request, response: changes }
    }

    /// A request that is sent somewhere, and whose response does not begin.
    pub(crate) async fn hold(&self, prompt: &str) -> Held {
        self.begin(&[], prompt).await.sent().await
    }

    /// A request whose response from the picker is not awaited yet.
    pub(crate) async fn begin(&self, extra: &[(&str, &str)], prompt: &str) -> Begun<'_> {
        let stream = self.picker.stream().await;
        let base = [(":method", "POST"), (":path", PATH), ("content-type", "application/json")];
        stream.send(headers(&[&base, extra].concat(), false));
        stream.send(body(json!({"model": "m", "prompt": prompt}).to_string(), true));
        Begun { pool: self, stream }
    }

    /// Waits until so many requests wait in the picker.
    pub(crate) async fn until_waiting(&self, requests: usize) {
        let series = r#"usher_demand_requests{model_name="m",priority="0",target_model_name="m"}"#;
        eventually("requests to wait", async || {
            (self.picker.metric(series).unwrap_or(0.0) == requests as f64).then_some(())
        })
        .await;
    }

    /// Waits until so many requests are under way.
    pub(crate) async fn until_in_flight(&self, requests: i64) {
        eventually("requests to end", async || (self.picker.in_flight() == requests).then_some(())).await;
    }

    /// Waits until the picker knows where so many blocks are.
    pub(crate) async fn until_learned(&self, blocks: usize) {
        let name = "approx-prefix-cache-producer";
        let size = format!(r#"llm_d_epp_prefix_indexer_size{{plugin_name="{name}",plugin_type="{name}"}}"#);
        eventually("prompts to be learned", async || {
            self.picker.metric(&size).filter(|size| *size >= blocks as f64).map(drop)
        })
        .await;
    }

    /// Sends what the picker let through to where it said.
    async fn forward(&self, path: &str, request: &Mutation, stream: &mut Stream) -> HttpResponse {
        let mut text = Vec::new();
        loop {
            let (chunk, end) = stream.request_body().await;
            text.extend(chunk);
            if end {
                break;
            }
        }
        let destination = request.get(RANK).unwrap_or_else(|| request.destination());
        let destination: SocketAddr = destination.parse().unwrap();
        assert!(
            self.servers.iter().any(|server| server.address == destination),
            "{destination} is no server"
        );
        let request = request.set.iter().fold(Request::post(path), |request, (name, value)| {
            request.header(name.as_str(), value.as_str())
        });
        client::send(destination, Protocol::Http1, request.body(client::full(text)).unwrap()).await
    }

    /// Lets two requests wait at a server for as long as any test, and the picker know it.
    pub(crate) async fn keep_busy(&mut self, server: usize) {
        for _ in 0..MAX_RUNNING + 2 {
            self.occupy(server, "m");
        }
        self.until_known(server, |row| row["waiting"]["value"] == 2.0).await;
    }

    /// Lets a server load an adapter and keep it in use, and the picker know it.
    pub(crate) async fn load(&mut self, server: usize, adapter: &str) {
        self.occupy(server, adapter);
        // The numbers of a page are stored one after the other, adapters last.
        self.until_known(server, |row| row["adapters"]["running"] == json!([adapter])).await;
    }

    /// Sends a server a request that takes as long as any test.
    fn occupy(&mut self, server: usize, model: &str) {
        let Server { address, busy, .. } = &mut self.servers[server];
        let address = *address;
        let text = json!({"model": model, "prompt": "wait", "max_tokens": 100_000}).to_string();
        busy.spawn(async move {
            let mut client = client::Client::connect(address, Protocol::Http1).await.unwrap();
            let request = Request::post(PATH).body(client::full(text)).unwrap();
            let response = client.exchange(request).await;
            panic!("a request that was to keep a server busy has ended: {response:?}");
        });
    }

    /// Ends what keeps a server busy, and waits until the picker knows it.
    pub(crate) async fn release(&mut self, server: usize) {
        self.servers[server].busy.shutdown().await;
        let idle = |row: &Value| row["waiting"]["value"] == 0.0 && row["running"]["value"] == 0.0;
        self.until_known(server, idle).await;
    }

    /// Waits until the picker knows that a server does nothing.
    pub(crate) async fn until_idle(&self, server: usize) {
        let is_idle = |row: &Value| row["waiting"]["value"] == 0.0 && row["running"]["value"] == 0.0;
        self.until_known(server, is_idle).await;
    }

    /// Waits until the picker knows of a server what makes `reached` true.
    async fn until_known(&self, server: usize, reached: impl Fn(&Value) -> bool) {
        let address = self.servers[server].address.to_string();
        eventually("the picker to know it", async || {
            let page = Picker::get(self.picker.admin, "/endpoints");
            let page: Value = serde_json::from_str(page.split("\r\n\r\n").nth(1).unwrap()).unwrap();
            let rows = page["endpoints"].as_array().unwrap();
            rows.iter().any(|row| row["address"] == *address && reached(row)).then_some(())
        })
        .await;
    }
}

impl Begun<'_> {
    /// Address that the picker sends it to, once it does.
    pub(crate) async fn sent(mut self) -> Held {
        let destination = self.stream.request_headers().await.destination().parse().unwrap();
        let server = self.pool.servers.iter().position(|server| server.address == destination).unwrap();
        Held { server, _stream: self.stream }
    }
}

/// Shows the picker a response, as a gateway does.
async fn shown(stream: &mut Stream, response: &HttpResponse) -> Mutation {
    let status = response.status.as_str();
    let pairs = [(":status", status), ("content-type", response.header("content-type"))];
    stream.send(response_headers(&pairs, false));
    let mutation = stream.response_headers().await;
    stream.send(response_body(&response.body, true));
    let (text, end) = stream.response_body().await;
    assert_eq!((text.as_slice(), end), (&response.body[..], true));
    mutation
}
