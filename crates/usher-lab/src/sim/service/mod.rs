//! One server's responses.

mod tokenize;
mod tokens;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TRAILER};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::body::{Received, SimBody, full, receive, with_trailers};
use super::faults::{Fault, KvEventsFault, MetricsFault, ServerFault};
use super::io::Connection;
use super::kv_events::{Publisher, tokens as token_ids};
use super::link::{Layer, Place};
use super::live::Live;
use super::metrics::MetricsPage;
use super::openai::{Api, parse};
use super::record::{Record, text};
use super::remote::{POD, Remote, Stages};
use super::response::error;
use super::{Engine, Role, SimConfig};

const PORT: HeaderName = HeaderName::from_static("x-inference-port");
const BODY_BYTES: HeaderName = HeaderName::from_static("x-sim-body-bytes");
const BODY_HASH: HeaderName = HeaderName::from_static("x-sim-body-xxh64");
const REQUEST_TRAILERS: HeaderName = HeaderName::from_static("x-sim-request-trailers");
const RESPONSE_TRAILER: HeaderName = HeaderName::from_static("x-sim-trailer");

// Paths that return the tokens of a prompt.
const CHAT_RENDER: &str = "/v1/chat/completions/render";
const COMPLETIONS_RENDER: &str = "/v1/completions/render";
const TOKENIZE: &str = "/tokenize";

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A server without its sockets.
#[derive(Debug)]
pub(crate) struct Service {
    config: Arc<SimConfig>,
    name: String,
    name_header: HeaderValue,
    port: u16,
    adapters: Vec<Arc<str>>,
    role: Option<Role>,
    place: Place,
    remote: Remote,
    // One image is encoded at a time.
    encoder: Semaphore,
    live: Arc<Live>,
    publisher: Option<Arc<Publisher>>,
    fault: ServerFault,
    // Guards what is counted around the engine; held for single steps.
    record: Mutex<Record>,
    // Unix time of the start.
    started: Duration,
}

impl Service {
    pub(crate) fn new(
        config: Arc<SimConfig>,
        (index, name, port): (usize, String, u16),
        live: Arc<Live>,
        publisher: Option<Arc<Publisher>>,
        started: Duration,
    ) -> Self {
        let record = Record::new(MetricsPage::new(&config, started.as_secs_f64()));
        Self {
            // The prefix was checked to be printable ASCII.
            name_header: HeaderValue::from_str(&name).unwrap_or(HeaderValue::from_static("sim")),
            adapters: config.loras.iter().map(|name| name.as_str().into()).collect(),
            role: config.disagg.role(index),
            place: config.disagg.place(index),
            remote: Remote::new(),
            encoder: Semaphore::new(1),
            config,
            name,
            port,
            live,
            publisher,
            fault: ServerFault::default(),
            record: Mutex::new(record),
            started,
        }
    }

    /// Answers a request. An error ends the connection (HTTP/2: the stream).
    pub(crate) async fn respond(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> io::Result<Response<SimBody>> {
        let began = self.live.now();
        let (parts, body) = request.into_parts();
        let mut received = receive(body, self.config.max_body_bytes).await?;
        let trailers = parts.headers.get("x-sim-trailers").is_some_and(|value| value == "1");
        let api =
            Api::ALL.into_iter().find(|api| parts.method == Method::POST && parts.uri.path() == api.path());
        let fault = self.fault_of(&parts.headers, api.is_some());
        let stages = Stages::of(&parts.headers);
        let (method, path, version) = (parts.method.clone(), parts.uri.path().to_owned(), parts.version);
        let echo = echo(&received);
        if !path.starts_with("/admin") && path != "/metrics" && path != "/health" {
            self.record().arrived(parts, &mut received);
        }

        let mut response = match (fault, stages) {
            (Err(message), _) | (_, Err(message)) => failure(StatusCode::BAD_REQUEST, &message),
            (Ok(fault), Ok(stages)) => {
                if let Some(early) = self.fail(&fault, version, connection).await? {
                    early
                } else if received.too_long {
                    failure(StatusCode::PAYLOAD_TOO_LARGE, "the request body is too long for this server")
                } else if !path.starts_with("/admin") && path != "/metrics" && began < self.config.startup {
                    failure(StatusCode::SERVICE_UNAVAILABLE, "the server is starting")
                } else if let Some(api) = api {
                    self.generate(api, &received.body, &stages, fault.drop_after, trailers).await
                } else {
                    self.other(&method, &path, &received.body).await
                }
            }
        };
        self.count(api, &response, received.bytes, self.live.now().saturating_sub(began));
        if trailers {
            response.headers_mut().insert(TRAILER, HeaderValue::from_name(RESPONSE_TRAILER));
            if api.is_none() || !response.status().is_success() {
                response = response.map(|body| with_trailers(body, self.trailers()));
            }
        }
        let headers = response.headers_mut();
        headers.insert(POD, self.name_header.clone());
        headers.insert(PORT, HeaderValue::from(self.port));
        headers.extend(echo);
        Ok(response)
    }

    fn fault_of(&self, headers: &HeaderMap, for_tokens: bool) -> Result<Fault, String> {
        let set = if for_tokens { self.fault.for_request() } else { Fault::default() };
        match headers.get("x-sim-fault") {
            None => Ok(set),
            Some(value) => {
                let text = value.to_str().map_err(|_| "x-sim-fault is not ASCII text".to_owned())?;
                Fault::parse(text).map_err(|error| format!("x-sim-fault: {error}"))
            }
        }
    }

    // The faults that come before a response.
    async fn fail(
        &self,
        fault: &Fault,
        version: Version,
        connection: &Connection,
    ) -> io::Result<Option<Response<SimBody>>> {
        if let Some(slow) = fault.slow {
            self.live.sleep(slow).await;
        }
        if fault.hang {
            std::future::pending::<()>().await;
        }
        if fault.reset {
            if version < Version::HTTP_2 {
                connection.reset();
                std::future::pending::<()>().await;
            }
            return Err(io::Error::from(io::ErrorKind::ConnectionReset));
        }
        let status = fault.status.and_then(|status| StatusCode::from_u16(status).ok());
        Ok(status.map(|status| failure(status, "a fault was asked for")))
    }

    async fn other(&self, method: &Method, path: &str, body: &[u8]) -> Response<SimBody> {
        let allowed = match path {
            CHAT_RENDER | COMPLETIONS_RENDER if !self.config.has_render => "",
            "/health" | "/v1/models" | "/metrics" | "/admin/state" => "GET",
            "/admin/fault" => "GET, POST, DELETE",
            "/v1/chat/completions" | "/v1/completions" | CHAT_RENDER | COMPLETIONS_RENDER | TOKENIZE => {
                "POST"
            }
            _ => "",
        };
        if allowed.is_empty() {
            return response(StatusCode::NOT_FOUND, JSON, full(r#"{"detail":"Not Found"}"#));
        }
        if !allowed.split(", ").any(|allowed| allowed == method.as_str()) {
            let body = full(r#"{"detail":"Method Not Allowed"}"#);
            let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, JSON, body);
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            return refusal;
        }
        match path {
            "/health" => {
                let status = self.fault.get().health.and_then(|status| StatusCode::from_u16(status).ok());
                response(status.unwrap_or(StatusCode::OK), JSON, full(Bytes::new()))
            }
            "/v1/models" => json_response(&self.models()),
            "/metrics" => self.metrics().await,
            "/admin/state" => json_response(&self.state()),
            CHAT_RENDER => render(Api::Chat, body),
            COMPLETIONS_RENDER => render(Api::Completions, body),
            TOKENIZE => self.tokenize(body),
            _ => self.admin_fault(method, body),
        }
    }

    fn models(&self) -> Value {
        let SimConfig { model, loras, engine, .. } = &*self.config;
        let entry = |id: &str, parent: Option<&str>| {
            json!({"id": id, "object": "model", "created": self.started.as_secs(), "owned_by": "vllm",
                "root": id, "parent": parent, "max_model_len": engine.max_model_len, "permission": []})
        };
        let adapters = loras.iter().map(|lora| entry(lora, Some(model)));
        let data: Vec<Value> = std::iter::once(entry(model, None)).chain(adapters).collect();
        json!({"object": "list", "data": data})
    }

    async fn metrics(&self) -> Response<SimBody> {
        let fault = self.fault.get().metrics;
        if fault == Some(MetricsFault::Hang) {
            std::future::pending::<()>().await;
        }
        let page = self.live.inspect(|engine: &Engine| {
            let mut record = self.record();
            let Record { page, http, stale, .. } = &mut *record;
            let page = page.render(engine, http);
            match fault {
                Some(MetricsFault::Stale) => stale.get_or_insert(page).clone(),
                _ => page,
            }
        });
        let page = match fault {
            Some(MetricsFault::Error) => {
                return failure(StatusCode::INTERNAL_SERVER_ERROR, "a fault was asked for");
            }
            Some(MetricsFault::Empty) => Bytes::new(),
            Some(MetricsFault::Broken) => {
                let mut broken = page[..page.len() / 2].to_vec();
                broken.extend_from_slice(
                    b"\nvllm:num_requests_waiting{engine=\"0 lots\nvllm:kv_cache_usage_perc\n\xff\xfe",
                );
                broken.into()
            }
            _ => page,
        };
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response(StatusCode::OK, kind, full(page))
    }

    fn admin_fault(&self, method: &Method, body: &[u8]) -> Response<SimBody> {
        let fault = match *method {
            Method::GET => None,
            Method::DELETE => Some(Fault::default()),
            _ => match serde_json::from_slice(body) {
                Ok(fault) => Some(fault),
                Err(error) => return failure(StatusCode::BAD_REQUEST, &format!("not a fault: {error}")),
            },
        };
        if let Some(mut fault) = fault {
            if fault.kv_events.is_some() && self.publisher.is_none() {
                let message =
                    "kv-events: this server has none; start it with --kv-events-port or --kv-events-to";
                return failure(StatusCode::BAD_REQUEST, message);
            }
            // That has happened then.
            if fault.kv_events.take_if(|fault| *fault == KvEventsFault::Restart).is_some() {
                self.live.restart_kv();
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                self.record().page.restarted(now.as_secs_f64());
            }
            if fault.sleep.is_some() {
                self.live.sleeps();
            }
            self.record().page.sleeps(fault.sleep);
            if let Some(publisher) = &self.publisher {
                publisher.set_fault(fault.kv_events);
            }
            self.fault.set(fault);
            self.record().stale = None;
        }
        json_response(&json!(self.fault.get()))
    }

    fn state(&self) -> Value {
        self.live.inspect(|engine| {
            let mut state = self.record().state(engine);
            state["name"] = json!(self.name);
            state["port"] = json!(self.port);
            state["role"] = json!(self.role.map(Role::name));
            let places = Layer::ALL.into_iter().map(Layer::name).zip(self.place.names());
            state["place"] = places.collect();
            state["kv_events"] = json!(self.publisher.as_ref().map(|publisher| publisher.state()));
            state
        })
    }

    fn count(&self, api: Option<Api>, response: &Response<SimBody>, request_bytes: u64, took: Duration) {
        let Some(api) = api else { return };
        let bytes = response.body().size_hint().exact().unwrap_or(0);
        self.record().responded(api, response.status().as_u16(), request_bytes, bytes, took.as_secs_f64());
    }

    fn trailers(&self) -> HeaderMap {
        HeaderMap::from_iter([(RESPONSE_TRAILER, self.name_header.clone())])
    }

    // Nothing panics while it holds this lock, and counters are good at any moment.
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tokens of a prompt.
fn render(api: Api, body: &[u8]) -> Response<SimBody> {
    match parse(api, body) {
        Ok(call) => {
            let rendered = json!({"token_ids": token_ids(&call.prompt).collect::<Vec<u32>>()});
            json_response(&if api == Api::Chat { rendered } else { json!([rendered]) })
        }
        Err(message) => failure(StatusCode::BAD_REQUEST, &message),
    }
}

fn response(status: StatusCode, kind: HeaderValue, body: SimBody) -> Response<SimBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn json_response(value: &Value) -> Response<SimBody> {
    response(StatusCode::OK, JSON, full(value.to_string()))
}

fn failure(status: StatusCode, message: &str) -> Response<SimBody> {
    response(status, JSON, full(error(status.as_u16(), message)))
}

// The headers that say what was received.
fn echo(received: &Received) -> HeaderMap {
    let mut echo = HeaderMap::new();
    echo.insert(BODY_BYTES, HeaderValue::from(received.bytes));
    // Hexadecimal digits and what HTTP let through as headers are good header values.
    if let Ok(hash) = HeaderValue::try_from(format!("{:016x}", received.hash)) {
        echo.insert(BODY_HASH, hash);
    }
    if let Some(trailers) = &received.trailers {
        let list: Vec<String> =
            trailers.iter().map(|(name, value)| format!("{name}={}", text(value))).collect();
        if let Ok(list) = HeaderValue::try_from(list.join(",")) {
            echo.insert(REQUEST_TRAILERS, list);
        }
    }
    echo
}
