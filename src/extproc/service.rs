//! The gRPC service: drives one [`Exchange`] per stream.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_core::Stream;
use prometheus::IntGauge;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::flow::{Dispatcher, Rejection, Routed};

use super::envoy::{self, pb};
use super::exchange::{Exchange, Question, Shared, Step};

/// The ext_proc service. Clones share everything.
#[derive(Clone, Debug)]
pub struct ExtProcService {
    shared: Arc<Shared>,
    dispatcher: Arc<Dispatcher>,
}

impl ExtProcService {
    /// A service over these parts.
    pub fn new(shared: Arc<Shared>, dispatcher: Arc<Dispatcher>) -> Self {
        Self { shared, dispatcher }
    }
}

#[tonic::async_trait]
impl pb::external_processor_server::ExternalProcessor for ExtProcService {
    type ProcessStream = ProcessStream;

    async fn process(
        &self,
        request: Request<Streaming<pb::ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        Ok(Response::new(ProcessStream::new(request.into_inner(), self)))
    }
}

type Decision = Pin<Box<dyn Future<Output = Result<Routed, Rejection>> + Send>>;

/// The replies of one stream. It is polled by the connection and polls what the
/// gateway sends: no task and no channel stand in between. Dropping it, which is
/// what happens when the gateway goes away, gives everything back.
pub struct ProcessStream {
    incoming: Streaming<pb::ProcessingRequest>,
    exchange: Exchange,
    dispatcher: Arc<Dispatcher>,
    shared: Arc<Shared>,
    deciding: Option<Decision>,
    /// No more messages are read; what is left to send is sent.
    ending: Option<Result<(), Status>>,
    counted: Option<Counted>,
    /// Seconds that the request's messages took so far.
    parsing: f64,
}

/// A stream in the metrics, from its start to its end.
struct Counted {
    started: Instant,
    inflight: IntGauge,
    shared: Arc<Shared>,
    code: Code,
}

impl ProcessStream {
    fn new(incoming: Streaming<pb::ProcessingRequest>, service: &ExtProcService) -> Self {
        let shared = Arc::clone(&service.shared);
        let counted = shared.metrics.streams.as_ref().map(|streams| {
            streams.inflight.inc();
            Counted {
                started: Instant::now(),
                inflight: streams.inflight.clone(),
                shared: Arc::clone(&shared),
                // Until it ends otherwise: the gateway went away.
                code: Code::Cancelled,
            }
        });
        Self {
            incoming,
            exchange: Exchange::new(Arc::clone(&shared)),
            dispatcher: Arc::clone(&service.dispatcher),
            shared,
            deciding: None,
            ending: None,
            counted,
            parsing: 0.0,
        }
    }

    fn on_message(&mut self, message: pb::ProcessingRequest) {
        let now = Instant::now();
        let is_answer = matches!(
            message.request,
            Some(
                pb::processing_request::Request::ResponseHeaders(_)
                    | pb::processing_request::Request::ResponseBody(_)
            )
        );
        let answer_parser = self.exchange.answer_parser();
        let step = envoy::read(message).and_then(|message| {
            self.exchange
                .on_message(message, now)
                .map_err(|error| Status::failed_precondition(error.to_string()))
        });
        let taken = now.elapsed().as_secs_f64();
        if is_answer {
            self.shared.metrics.response_processing.observe(taken);
            if let Some(parser) = answer_parser {
                self.shared.parsing.answer(parser, taken);
            }
        } else {
            self.parsing += taken;
        }
        match step {
            Ok(Step::Decide(question)) => {
                self.shared.parsing.request(question.request.api.parser(), self.parsing);
                self.decide(question);
            }
            Ok(step) => self.after(&step),
            Err(status) => self.ending = Some(Err(status)),
        }
        if !self.exchange.is_deciding() {
            self.deciding = None;
        }
    }

    fn decide(&mut self, question: Question) {
        if let Some(result) = self.dispatcher.try_dispatch(&question.request, &question.subset) {
            let step = self.exchange.decided(result, Instant::now());
            return self.after(&step);
        }
        let dispatcher = Arc::clone(&self.dispatcher);
        self.deciding =
            Some(Box::pin(async move { dispatcher.dispatch(&question.request, &question.subset).await }));
    }

    fn after(&mut self, step: &Step) {
        if matches!(step, Step::End) {
            self.ending = Some(Ok(()));
        }
    }

    /// The stream's last item, if it has to be an error.
    fn end(&mut self) -> Option<Result<pb::ProcessingResponse, Status>> {
        let end = self.ending.as_mut().map(|end| std::mem::replace(end, Ok(())));
        let error = end.and_then(Result::err);
        if let Some(counted) = &mut self.counted {
            counted.code = error.as_ref().map_or(Code::Ok, Status::code);
        }
        // Counted once, also when the stream is polled again.
        self.counted = None;
        error.map(Err)
    }
}

impl Stream for ProcessStream {
    type Item = Result<pb::ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(reply) = this.exchange.next_reply() {
                return Poll::Ready(Some(Ok(envoy::write(reply))));
            }
            if this.ending.is_some() {
                return Poll::Ready(this.end());
            }
            if let Some(deciding) = &mut this.deciding
                && let Poll::Ready(result) = deciding.as_mut().poll(cx)
            {
                this.deciding = None;
                let step = this.exchange.decided(result, Instant::now());
                this.after(&step);
                continue;
            }
            match ready!(Pin::new(&mut this.incoming).poll_next(cx)) {
                Some(Ok(message)) => this.on_message(message),
                // The gateway is done with us: with its request, or with waiting.
                None => this.ending = Some(Ok(())),
                Some(Err(status)) if status.code() == Code::Cancelled => this.ending = Some(Ok(())),
                Some(Err(status)) => {
                    let text = format!("cannot read from the stream: {}", status.message());
                    this.ending = Some(Err(Status::unknown(text)));
                }
            }
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.inflight.dec();
        if let Some(streams) = &self.shared.metrics.streams {
            streams.duration.observe(self.started.elapsed().as_secs_f64());
            streams.total.with_label_values(&[code_name(self.code)]).inc();
        }
    }
}

/// A code as Go's gRPC writes it.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
