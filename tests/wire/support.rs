//! A picker on loopback and a client that speaks ext_proc with Envoy's own
//! definitions.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue, Metadata};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Kind;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HeaderMutation, HttpBody, HttpHeaders, HttpTrailers, ImmediateResponse, ProcessingRequest,
    ProcessingResponse, body_mutation,
};
use envoy_types::pb::google::protobuf::value::Kind as ValueKind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use usher::cli::Command;
use usher::extproc::listen::Listeners;
use usher::extproc::stop::{Stop, StopSender, StopSignals};
use usher::settings::Environment;
use usher::{RunError, Setup};

pub const PROMPT: &str = r#"{"model":"m","prompt":"hi"}"#;

/// A running picker. Stopped when dropped.
pub struct Picker {
    pub extproc: SocketAddr,
    pub metrics: SocketAddr,
    pub admin: SocketAddr,
    pub keda: Option<SocketAddr>,
    stopper: StopSender,
    thread: Option<JoinHandle<Result<(), RunError>>>,
    _files: tempfile::TempDir,
}

impl Picker {
    /// A picker over these endpoints (`name address port`), with these flags.
    pub async fn start(endpoints: &[(&str, &str, u16)], flags: &[&str]) -> Self {
        let entries = endpoints.iter().map(|(name, address, port)| {
            format!("- {{name: {name}, address: '{address}', port: '{port}'}}\n")
        });
        Self::start_with(&entries.collect::<String>(), flags).await
    }

    /// A picker over the endpoints that are listed so in a file.
    pub async fn start_with(entries: &str, flags: &[&str]) -> Self {
        Self::start_in(entries, flags, Environment::default()).await
    }

    /// A picker with these flags, which may name these files.
    pub async fn serve(files: tempfile::TempDir, flags: &[&str]) -> Self {
        Self::set_up(files, flags, |setup| setup).await
    }

    /// The same with what `change` makes of it.
    pub async fn set_up(
        files: tempfile::TempDir,
        flags: &[&str],
        change: impl FnOnce(Setup) -> Setup + Send + 'static,
    ) -> Self {
        Self::set_up_in(files, flags, Environment::default(), change).await
    }

    /// A picker over the endpoints that are listed so, with this environment.
    pub async fn start_in(entries: &str, flags: &[&str], environment: Environment) -> Self {
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("endpoints.yaml");
        write_endpoints(&path, entries);
        let file = format!("--endpoints-file={}", path.display());
        Self::set_up_in(files, &[&[file.as_str()], flags].concat(), environment, |setup| setup).await
    }

    async fn set_up_in(
        files: tempfile::TempDir,
        flags: &[&str],
        environment: Environment,
        change: impl FnOnce(Setup) -> Setup + Send + 'static,
    ) -> Self {
        let quiet = ["usher", "serve", "--secure-serving=false", "--drain-timeout=0", "--worker-threads=1"];
        // Nobody listens at most endpoints of these tests; those that are about it turn it on.
        let quiet = [&quiet[..], &["--outlier-detection=false"]].concat();
        let arguments = quiet.iter().chain(flags).map(|text| (*text).into());
        let Command::Serve(args) = usher::cli::parse(arguments).unwrap() else { panic!("not serve") };
        let settings = args.settings(environment).unwrap();
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let keda = settings.listen.keda.map(|_| bind());
        let listeners =
            Listeners { extproc: bind(), health: bind(), metrics: bind(), admin: Some(bind()), keda };
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        let (extproc, metrics) = (address(&listeners.extproc), address(&listeners.metrics));
        let admin = address(listeners.admin.as_ref().unwrap());
        let keda = listeners.keda.as_ref().map(address);
        let (send, stopper) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (stopper, stops) = StopSignals::channel();
                send.send(stopper).unwrap();
                usher::run(change(Setup::new(settings)?), listeners, stops).await
            })
        });
        let stopper = stopper.await.unwrap();
        Self { extproc, metrics, admin, keda, stopper, thread: Some(thread), _files: files }
    }

    /// A new connection.
    pub async fn connect(&self) -> Connection {
        Connection::to(self.extproc).await
    }

    /// A new stream on a new connection.
    pub async fn stream(&self) -> Stream {
        self.connect().await.stream().await
    }

    /// The text behind `http://<address><path>`.
    pub fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// The value of a metric's line, given everything before the value.
    pub fn metric(&self, series: &str) -> Option<f64> {
        Self::metric_of(self.metrics, series)
    }

    /// The same of whoever shows metrics at this address.
    pub fn metric_of(metrics: SocketAddr, series: &str) -> Option<f64> {
        Self::value_in(&Self::get(metrics, "/metrics"), series)
    }

    /// The same on a page of metrics.
    pub fn value_in(page: &str, series: &str) -> Option<f64> {
        let line =
            page.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// Asks it to finish the open streams and to end.
    pub fn stop(&self) {
        self.stopper.stop(Stop::Now);
    }

    /// Asks it to end after its drain window, as SIGTERM does.
    pub fn drain(&self) {
        self.stopper.stop(Stop::Drain);
    }

    /// Requests in flight at all endpoints.
    pub fn in_flight(&self) -> i64 {
        let page = Self::get(self.admin, "/endpoints");
        let body = page.split("\r\n\r\n").nth(1).unwrap();
        let json: serde_json::Value = serde_json::from_str(body).unwrap();
        json["endpoints"].as_array().unwrap().iter().map(|row| row["in_flight"].as_i64().unwrap()).sum()
    }
}

fn write_endpoints(path: &std::path::Path, entries: &str) {
    let text = format!("endpoints:\n{entries}");
    std::fs::write(path, if entries.is_empty() { "endpoints: []".to_owned() } else { text }).unwrap();
}

impl Drop for Picker {
    fn drop(&mut self) {
        self.stopper.stop(Stop::Now);
        self.stopper.stop(Stop::Now);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            // The second stop closes what a test left open.
            assert!(matches!(ended, Some(Ok(Ok(()) | Err(RunError::Forced)))), "{ended:?}");
        }
    }
}

/// One HTTP/2 connection. It ends with the last of its streams.
///
/// Like a gateway it opens another after so many streams as the picker allows.
pub struct Connection {
    address: SocketAddr,
    last: tokio::sync::Mutex<(ExternalProcessorClient<Channel>, usize)>,
}

/// Streams of a connection that the picker allows.
const STREAMS: usize = 100;

impl Connection {
    /// To whoever serves there.
    pub async fn to(address: SocketAddr) -> Self {
        Self { address, last: (Self::client(address).await, 0).into() }
    }

    async fn client(address: SocketAddr) -> ExternalProcessorClient<Channel> {
        ExternalProcessorClient::connect(format!("http://{address}")).await.unwrap()
    }

    async fn free(&self) -> ExternalProcessorClient<Channel> {
        let mut last = self.last.lock().await;
        if last.1 == STREAMS {
            *last = (Self::client(self.address).await, 0);
        }
        last.1 += 1;
        last.0.clone()
    }

    /// A new stream on this connection.
    pub async fn stream(&self) -> Stream {
        let (send, messages) = mpsc::unbounded_channel();
        let messages = UnboundedReceiverStream::new(messages);
        let replies = self.free().await.process(messages).await.unwrap().into_inner();
        Stream { send, replies }
    }
}

/// One ext_proc stream.
pub struct Stream {
    send: mpsc::UnboundedSender<ProcessingRequest>,
    replies: Streaming<ProcessingResponse>,
}

impl Stream {
    pub fn send(&self, message: ProcessingRequest) {
        self.send.send(message).unwrap();
    }

    /// Sends where the stream may have ended.
    pub fn try_send(&self, message: ProcessingRequest) {
        let _ = self.send.send(message);
    }

    /// The next reply.
    pub async fn reply(&mut self) -> ProcessingResponse {
        self.replies.message().await.unwrap().expect("the stream ended")
    }

    /// The next reply, or why there is none.
    pub async fn next(&mut self) -> Result<ProcessingResponse, Status> {
        Ok(self.replies.message().await?.expect("the stream ended"))
    }

    /// The next reply, if it is there.
    pub fn ready_reply(&mut self) -> Option<ProcessingResponse> {
        Some(self.replies.message().now_or_never()?.unwrap().expect("the stream ended"))
    }

    /// Status at the end of the stream, when no reply is left.
    pub async fn end(&mut self) -> Result<(), Status> {
        match self.replies.message().await {
            Ok(None) => Ok(()),
            Ok(Some(reply)) => panic!("one more reply: {reply:?}"),
            Err(status) => Err(status),
        }
    }

    pub async fn request_headers(&mut self) -> Mutation {
        let reply = self.reply().await;
        let metadata = reply.dynamic_metadata;
        match reply.response {
            Some(Reply::RequestHeaders(headers)) => {
                let common = headers.response.unwrap();
                assert!(common.clear_route_cache);
                Mutation::new(common.header_mutation.unwrap(), metadata)
            }
            other => panic!("no request headers: {other:?}"),
        }
    }

    /// A chunk of the request's body, and whether it is the last.
    pub async fn request_body(&mut self) -> (Vec<u8>, bool) {
        match self.reply().await.response {
            Some(Reply::RequestBody(body)) => {
                streamed(body.response.unwrap().body_mutation.unwrap().mutation)
            }
            other => panic!("no request body: {other:?}"),
        }
    }

    pub async fn response_headers(&mut self) -> Mutation {
        match self.reply().await.response {
            Some(Reply::ResponseHeaders(headers)) => {
                Mutation::new(headers.response.unwrap().header_mutation.unwrap(), None)
            }
            other => panic!("no response headers: {other:?}"),
        }
    }

    pub async fn response_body(&mut self) -> (Vec<u8>, bool) {
        match self.reply().await.response {
            Some(Reply::ResponseBody(body)) => {
                streamed(body.response.unwrap().body_mutation.unwrap().mutation)
            }
            other => panic!("no response body: {other:?}"),
        }
    }

    pub async fn immediate(&mut self) -> ImmediateResponse {
        match self.reply().await.response {
            Some(Reply::ImmediateResponse(immediate)) => immediate,
            other => panic!("no immediate response: {other:?}"),
        }
    }

    /// Goes away without a word.
    pub fn disconnect(self) {}

    /// Ends our side of the stream.
    pub fn half_close(self) -> Streaming<ProcessingResponse> {
        self.replies
    }
}

/// A chunk of a body, and whether it is the last.
pub fn streamed(mutation: Option<body_mutation::Mutation>) -> (Vec<u8>, bool) {
    match mutation {
        Some(body_mutation::Mutation::StreamedResponse(chunk)) => (chunk.body, chunk.end_of_stream),
        other => panic!("not a streamed body: {other:?}"),
    }
}

/// Changes that a reply makes to headers, and its metadata.
#[derive(Debug)]
pub struct Mutation {
    pub set: Vec<(String, String)>,
    pub removed: Vec<String>,
    pub metadata: Option<Struct>,
}

impl Mutation {
    fn new(mutation: HeaderMutation, metadata: Option<Struct>) -> Self {
        let set = mutation.set_headers.into_iter().map(|option| {
            let header = option.header.unwrap();
            assert!(header.value.is_empty(), "Envoy reads raw_value");
            (header.key, String::from_utf8(header.raw_value).unwrap())
        });
        Self { set: set.collect(), removed: mutation.remove_headers, metadata }
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.set.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn destination(&self) -> &str {
        self.get("x-gateway-destination-endpoint").unwrap()
    }

    /// `metadata["envoy.lb"][key]`
    pub fn lb(&self, key: &str) -> Option<&Value> {
        match self.metadata.as_ref()?.fields.get("envoy.lb")?.kind.as_ref()? {
            ValueKind::StructValue(inner) => inner.fields.get(key),
            _ => None,
        }
    }
}

/// Way in which a client writes header values.
#[derive(Clone, Copy, Debug)]
pub enum Encoding {
    Raw,
    Value,
    /// Both, and `value` is wrong.
    Both,
}

pub fn header_map(pairs: &[(&str, &str)], encoding: Encoding) -> Option<HeaderMap> {
    let header = |(key, value): &(&str, &str)| {
        let (key, text, raw) = ((*key).to_owned(), (*value).to_owned(), value.as_bytes().to_vec());
        match encoding {
            Encoding::Raw => HeaderValue { key, raw_value: raw, ..HeaderValue::default() },
            Encoding::Value => HeaderValue { key, value: text, ..HeaderValue::default() },
            Encoding::Both => HeaderValue { key, value: "decoy".into(), raw_value: raw },
        }
    };
    Some(HeaderMap { headers: pairs.iter().map(header).collect() })
}

pub fn message(kind: Kind) -> ProcessingRequest {
    ProcessingRequest { request: Some(kind), ..ProcessingRequest::default() }
}

pub fn headers(pairs: &[(&str, &str)], end_of_stream: bool) -> ProcessingRequest {
    let headers = header_map(pairs, Encoding::Raw);
    message(Kind::RequestHeaders(HttpHeaders { headers, end_of_stream, ..HttpHeaders::default() }))
}

pub fn body(text: impl AsRef<[u8]>, end_of_stream: bool) -> ProcessingRequest {
    let body = text.as_ref().to_vec();
    message(Kind::RequestBody(HttpBody { body, end_of_stream, ..HttpBody::default() }))
}

pub fn trailers() -> ProcessingRequest {
    message(Kind::RequestTrailers(HttpTrailers { trailers: header_map(&[("x", "y")], Encoding::Raw) }))
}

pub fn response_headers(pairs: &[(&str, &str)], end_of_stream: bool) -> ProcessingRequest {
    let headers = header_map(pairs, Encoding::Raw);
    message(Kind::ResponseHeaders(HttpHeaders { headers, end_of_stream, ..HttpHeaders::default() }))
}

pub fn response_body(text: impl AsRef<[u8]>, end_of_stream: bool) -> ProcessingRequest {
    let body = text.as_ref().to_vec();
    message(Kind::ResponseBody(HttpBody { body, end_of_stream, ..HttpBody::default() }))
}

pub fn response_trailers() -> ProcessingRequest {
    message(Kind::ResponseTrailers(HttpTrailers {
        trailers: header_map(&[("grpc-status", "0")], Encoding::Raw),
    }))
}

/// A message with `metadata[namespace][key] = value`.
pub fn with_metadata(
    mut message: ProcessingRequest,
    namespace: &str,
    key: &str,
    value: Value,
) -> ProcessingRequest {
    let fields = Struct { fields: [(key.to_owned(), value)].into_iter().collect() };
    let filter_metadata = [(namespace.to_owned(), fields)].into_iter().collect();
    message.metadata_context = Some(Metadata { filter_metadata, ..Metadata::default() });
    message
}

pub fn string(text: &str) -> Value {
    Value { kind: Some(ValueKind::StringValue(text.to_owned())) }
}

pub fn list(items: Vec<Value>) -> Value {
    Value { kind: Some(ValueKind::ListValue(ListValue { values: items })) }
}

pub fn number(value: f64) -> Value {
    Value { kind: Some(ValueKind::NumberValue(value)) }
}

/// A message with a subset hint.
pub fn with_subset(message: ProcessingRequest, value: Value) -> ProcessingRequest {
    with_metadata(message, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", value)
}
