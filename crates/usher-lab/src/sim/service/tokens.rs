//! Requests for tokens: who does which part of one, and its response.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::HeaderValue;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{JSON, Service, failure, json_response, response};
use crate::sim::body::{SimBody, Stream, full, half, with_trailers};
use crate::sim::kv::{BYTES_PER_TOKEN, block_hashes};
use crate::sim::kv_events::Expected;
use crate::sim::live::Wake;
use crate::sim::model::{Finish, Kind, Rejected, SimRequest};
use crate::sim::openai::{Api, Call, parse};
use crate::sim::remote::{PLACE, PREFILLED_BY, RemoteError, Stage, Stages, addresses};
use crate::sim::response::{ModelResponse, append_text, text_seed};

/// The longest that images of one request take.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

impl Service {
    /// Answers a request for tokens.
    pub(super) async fn generate(
        &self,
        api: Api,
        body: &Bytes,
        stages: &Stages,
        drop_after: Option<u32>,
        trailers: bool,
    ) -> Response<SimBody> {
        let call = match parse(api, body) {
            Ok(call) => call,
            Err(message) => return failure(StatusCode::BAD_REQUEST, &message),
        };
        let model = call.model.as_deref().unwrap_or(&self.config.model);
        let adapter = self.adapters.iter().find(|adapter| &***adapter == model).cloned();
        if self.config.strict_models && adapter.is_none() && model != self.config.model {
            return failure(StatusCode::NOT_FOUND, &format!("The model `{model}` does not exist."));
        }
        let mut prefilled_by = None;
        let kind = match stages.own {
            Stage::Encode => {
                self.encode(call.images).await;
                return json_response(&json!({"images": call.images}));
            }
            Stage::Prefill => Kind::Prefill,
            Stage::Whole => {
                self.have_encoded(call.images, stages.encoders.as_ref()).await;
                match &stages.prefiller {
                    Some(prefiller) => self.have_prefilled(prefiller, api, body, &mut prefilled_by).await,
                    None => Kind::Whole,
                }
            }
        };
        let stream = call.stream && kind != Kind::Prefill;
        let text_seed = text_seed(self.config.engine.seed, &call.prompt);
        let (request, expected) = self.request(&call, adapter, kind, stages.output_tokens, text_seed);
        let mut model_response = ModelResponse {
            api,
            number: 0,
            created: (self.started + self.live.now()).as_secs(),
            model: Value::from(model).to_string(),
            text_seed,
            finish: request.finish,
            prompt_tokens: request.prompt_tokens,
        };
        let interval = self.config.stream_interval;
        let wake = match (stream, drop_after) {
            (true, None) => Wake::Every(interval),
            (_, Some(_)) => Wake::Every(1),
            (false, None) => Wake::AtEnd,
        };
        let mut ticket = match self.live.submit(request, wake) {
            Ok(ticket) => ticket,
            Err(refusal @ Rejected::QueueFull) => {
                return failure(StatusCode::TOO_MANY_REQUESTS, &refusal.to_string());
            }
            Err(refusal @ Rejected::TooLong { .. }) => {
                return failure(StatusCode::BAD_REQUEST, &refusal.to_string());
            }
        };
        ticket.keep(expected);
        model_response.number = ticket.id();
        let trailers = trailers.then(|| self.trailers());
        let mut response = if stream {
            let include_usage = call.include_usage;
            let stream = Stream {
                ticket,
                response: model_response,
                sent: 0,
                interval,
                include_usage,
                drop_after,
                trailers,
            };
            let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
            response(StatusCode::OK, kind, stream.into_body())
        } else {
            let mut progress = ticket.beyond(0).await;
            while !progress.finished && drop_after.is_none_or(|tokens| progress.generated < tokens) {
                progress = ticket.beyond(progress.generated).await;
            }
            let whole = model_response.whole(progress.generated, progress.cached_tokens);
            let body = match (drop_after, trailers) {
                (Some(tokens), _) if progress.generated >= tokens => half(&whole),
                (_, Some(trailers)) => with_trailers(full(whole), trailers),
                (_, None) => full(whole),
            };
            response(StatusCode::OK, JSON, body)
        };
        let headers = response.headers_mut();
        headers.extend(prefilled_by.map(|name| (PREFILLED_BY, name)));
        if kind == Kind::Prefill {
            // Names of places were checked to be good header values.
            let place = HeaderValue::try_from(self.place.names().join(","));
            headers.extend(place.ok().map(|place| (PLACE, place)));
        }
        response
    }

    fn request(
        &self,
        call: &Call,
        adapter: Option<Arc<str>>,
        kind: Kind,
        ends_after: Option<u32>,
        text_seed: u64,
    ) -> (SimRequest, Option<Expected>) {
        let config = &self.config;
        let prompt_tokens = call.prompt.len().div_ceil(BYTES_PER_TOKEN).clamp(1, u32::MAX as usize) as u32;
        let room = config.engine.context_limit().saturating_sub(prompt_tokens);
        let limit = call.max_tokens.unwrap_or(u32::MAX);
        let (output_tokens, finish) = match (kind, ends_after, call.max_tokens) {
            (Kind::Prefill, ..) => (1, Finish::Length),
            (_, Some(tokens), _) if tokens < limit => (tokens, Finish::Stop),
            (_, _, Some(limit)) => (limit, Finish::Length),
            (_, _, None) => (config.default_output_tokens.min(room), Finish::Stop),
        };
        let scope = adapter.as_deref().unwrap_or(&config.model);
        // The next prompt may repeat the response. What doesn't fit is refused.
        let mut text = call.prompt.clone();
        append_text(text_seed, output_tokens.min(room), &mut text);
        let blocks = block_hashes(scope, &text, config.engine.block_size);
        let publisher = self.publisher.as_ref();
        let expected = publisher.map(|publisher| publisher.expect(&blocks, &text, adapter.as_ref()));
        (SimRequest { id: 0, prompt_tokens, blocks, output_tokens, finish, adapter, kind }, expected)
    }

    // Has the prompt computed elsewhere. If that fails it is computed here, as sidecars
    // have it.
    async fn have_prefilled(
        &self,
        prefiller: &HeaderValue,
        api: Api,
        body: &Bytes,
        name: &mut Option<HeaderValue>,
    ) -> Kind {
        let disagg = &self.config.disagg;
        let mut named = addresses(prefiller);
        let asked = match (named.next().flatten(), named.next()) {
            (Some(at), None) if disagg.may_call(at) => {
                let asked = timeout(disagg.peer_timeout, self.remote.prefill(at, api, body.clone())).await;
                asked.unwrap_or(Err(RemoteError::Late))
            }
            _ => Err(RemoteError::Refused),
        };
        let stats = &mut self.record().remote;
        match asked {
            Ok(prefiller) => {
                stats.prefills += 1;
                *name = prefiller.name;
                Kind::Decode(disagg.links.between(&prefiller.place, &self.place, disagg.kv_bytes_per_token))
            }
            Err(error) => {
                tracing::debug!(%error, "a prompt is computed by the server that decodes");
                stats.refused += u64::from(matches!(error, RemoteError::Refused));
                stats.failed_prefills += 1;
                Kind::Whole
            }
        }
    }

    // Has images encoded elsewhere, evenly by all that the header names. Those that were
    // not are encoded here.
    async fn have_encoded(&self, images: u32, encoders: Option<&HeaderValue>) {
        if images == 0 {
            return;
        }
        let Some(encoders) = encoders else { return self.encode(images).await };
        let disagg = &self.config.disagg;
        let named: Vec<Option<SocketAddr>> = addresses(encoders).take(images as usize).collect();
        let count = u32::try_from(named.len()).unwrap_or(u32::MAX).max(1);
        let parts = named.into_iter().zip(0..).map(async |(at, number): (Option<SocketAddr>, u32)| {
            let part = images / count + u32::from(number < images % count);
            let asked = match at {
                Some(at) if disagg.may_call(at) => {
                    let asked = timeout(disagg.peer_timeout, self.remote.encode(at, part)).await;
                    asked.unwrap_or(Err(RemoteError::Late))
                }
                _ => Err(RemoteError::Refused),
            };
            let stats = &mut self.record().remote;
            match asked {
                Ok(()) => {
                    stats.images += u64::from(part);
                    0
                }
                Err(error) => {
                    tracing::debug!(%error, "images are encoded by the server that decodes");
                    stats.refused += u64::from(matches!(error, RemoteError::Refused));
                    stats.failed_images += u64::from(part);
                    part
                }
            }
        });
        let left = join_all(parts).await.into_iter().sum();
        self.encode(left).await;
    }

    // Encodes images here, one after the other.
    async fn encode(&self, images: u32) {
        if images == 0 {
            return;
        }
        let time = self.config.disagg.image_time.saturating_mul(images).min(LONGEST);
        if !time.is_zero() {
            // The semaphore is never closed. Whoever leaves gives the place back.
            let _turn = self.encoder.acquire().await;
            self.live.sleep(time).await;
        }
        self.record().remote.own_images += u64::from(images);
    }
}
