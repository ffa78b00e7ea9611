//! A client that sends a script's requests when they are due, and reads their responses.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use usher::replay::{Script, Seen};

use super::events::Reader;

/// A request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(300);

/// The server that responded.
const POD: &str = "x-inference-pod";

/// Header that sets how long a server's response is; no picker reads it.
const OUTPUT_TOKENS: &str = "x-sim-output-tokens";

/// Connections that are kept.
#[derive(Clone, Debug)]
pub struct Client(Pool<HttpConnector, Full<Bytes>>);

impl Default for Client {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self(Pool::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector))
    }
}

/// Observations of the client.
#[derive(Debug, Default)]
pub struct Played {
    /// By position.
    pub seen: Vec<Seen>,
    /// Delay of each request from due to sent, in ascending order.
    pub late: Vec<Duration>,
    /// Number of failures, and the first one.
    pub failures: (usize, Option<String>),
}

struct Response {
    seen: Seen,
    text: Option<String>,
    failure: Option<String>,
}

impl Client {
    /// The body of a page, and its status.
    ///
    /// # Errors
    /// Returns an error if no response comes within the client's timeout.
    pub async fn get(&self, at: SocketAddr, path: &str) -> anyhow::Result<(u16, Bytes)> {
        let request = Request::builder().uri(format!("http://{at}{path}")).body(Full::default())?;
        let response = async {
            let response = self.0.request(request).await?;
            let status = response.status().as_u16();
            anyhow::Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        timeout(PATIENCE, response).await.context("no response")?
    }

    /// Sends the requests of a script to a gateway, each when it is due. `name`: of the
    /// servers, which are called by it and their number.
    ///
    /// # Errors
    /// Returns an error if a request can't be made.
    pub async fn play(&self, script: &mut Script, gateway: SocketAddr, name: &str) -> anyhow::Result<Played> {
        let start = Instant::now();
        let mut due: BinaryHeap<_> = script.roots().into_iter().map(Reverse).collect();
        let mut played = Played { seen: vec![Seen::default(); script.len()], ..Played::default() };
        let mut under_way = JoinSet::new();
        loop {
            let next = due.peek().map(|Reverse((at, _))| *at);
            tokio::select! {
                () = sleep_until(start + next.unwrap_or_default()), if next.is_some() => {
                    let Some(Reverse((at, position))) = due.pop() else { continue };
                    let body = script.body(position).context("a request that the script doesn't have")?;
                    let request = Request::builder()
                        .method(Method::POST)
                        .uri(format!("http://{gateway}{}", Script::path()))
                        .header(CONTENT_TYPE, "application/json")
                        .header(OUTPUT_TOKENS, script.output_tokens(position))
                        .body(Full::new(body))?;
                    let (client, prefix) = (self.clone(), format!("{name}-"));
                    let sent = start.elapsed();
                    played.late.push(sent.saturating_sub(at));
                    under_way.spawn(async move { (position, client.ask(request, start, sent, &prefix).await) });
                }
                Some(ended) = under_way.join_next() => {
                    let (position, Response { seen, text, failure }) = ended?;
                    if let Some(failure) = failure {
                        played.failures.0 += 1;
                        played.failures.1.get_or_insert(failure);
                    }
                    let now = seen.last.unwrap_or_else(|| start.elapsed());
                    due.extend(script.ended(position, text, now).into_iter().map(Reverse));
                    played.seen[position] = seen;
                }
                else => break,
            }
        }
        played.late.sort_unstable();
        Ok(played)
    }

    async fn ask(
        &self,
        request: Request<Full<Bytes>>,
        start: Instant,
        sent: Duration,
        name: &str,
    ) -> Response {
        let mut seen = Seen { sent, ..Seen::default() };
        let (mut reader, mut last) = (Reader::default(), None);
        let response = async {
            let response = self.0.request(request).await.context("no response")?;
            let pod = response.headers().get(POD).and_then(|pod| pod.to_str().ok());
            seen.server = pod.and_then(|pod| pod.strip_prefix(name)?.parse().ok());
            let status = response.status();
            let mut body = response.into_body();
            while let Some(frame) = body.frame().await {
                let frame = frame.context("the response broke off")?;
                if frame.data_ref().is_some_and(|data| reader.feed(data)) {
                    let now = start.elapsed();
                    seen.first.get_or_insert(now);
                    last = Some(now);
                }
            }
            match (status.is_success(), reader.done) {
                (true, true) => Ok(()),
                (true, false) => bail!("the response has no end"),
                (false, _) => bail!("status {status}"),
            }
        };
        let ended = timeout(PATIENCE, response).await.unwrap_or_else(|_| bail!("no whole response"));
        let usage = reader.usage.unwrap_or_default();
        (seen.prompt_tokens, seen.cached_tokens) = (usage.prompt_tokens, usage.cached_tokens());
        seen.output_tokens = usage.completion_tokens;
        let failure = ended.err().map(|error| format!("{error:#}"));
        if failure.is_none() {
            seen.last = last;
        }
        let text = seen.last.is_some().then_some(reader.text);
        Response { seen, text, failure }
    }
}
