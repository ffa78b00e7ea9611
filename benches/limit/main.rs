//! The limit: what ext_proc itself costs on our stack. It receives every message,
//! echoes every body and picks a constant, on the same threads, HTTP/2 and gRPC
//! as `usher serve`, with the same settings. It parses nothing, keeps nothing,
//! counts nothing and scrapes nothing, so no picker on this stack can be cheaper.
//!
//! ```text
//! limit --grpc-port 9002 --grpc-health-port 9003 --destination 127.0.0.1:8000
//! ```

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use usher::extproc::call::{Call, Calls, End, MessageLimits};
use usher::extproc::health::HealthState;
use usher::extproc::server::{Server, ServerOptions};
use usher::extproc::stop::StopSignals;
use usher_wire::envoy;
use usher_wire::event::Event;
use usher_wire::inbox::Payload;
use usher_wire::outbox::Outbox;
use usher_wire::reply::Reply;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Receive, echo, pick a constant.
#[derive(Parser)]
struct Arguments {
    /// Port of the ext_proc service.
    #[arg(long)]
    grpc_port: u16,
    /// Port of the health service.
    #[arg(long)]
    grpc_health_port: u16,
    /// The endpoint that every request is sent to.
    #[arg(long)]
    destination: SocketAddr,
    /// Threads that serve connections; as many as cores, as `usher serve` has.
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let bind = |port| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("cannot listen on port {port}"))
    };
    let (extproc, health) = (bind(arguments.grpc_port)?, bind(arguments.grpc_health_port)?);
    let threads =
        arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let route = Arc::new(route(arguments.destination));
        let call = move || Limit { route: Arc::clone(&route) };
        let service = Calls::new(call, MessageLimits { receive: 4 << 20, send: usize::MAX });
        let state = Arc::new(HealthState::new(false));
        state.set_synced(true);
        state.set_plugins_ready(true);
        let options =
            ServerOptions { threads, tls: None, drain_timeout: Duration::ZERO, budget: Default::default() };
        let server = Server::start(extproc, health, service, state, options)?;
        server.run(&mut StopSignals::from_signals()?).await;
        Ok(())
    })
}

/// `ProcessingResponse.request_headers.response.header_mutation`: one header to set, with
/// nothing else around it than what has to be.
fn route(destination: SocketAddr) -> Vec<u8> {
    let field = |number: u8, content: &[u8]| {
        assert!(content.len() < 0x80, "lengths of one byte are enough here");
        [&[number << 3 | 2, content.len() as u8], content].concat()
    };
    let value = field(3, destination.to_string().as_bytes());
    let header = [field(1, b"x-gateway-destination-endpoint"), value].concat();
    field(1, &field(1, &field(2, &field(1, &field(1, &header)))))
}

/// The reply to the headers of a response: `ProcessingResponse.response_headers`, empty.
fn go_on(out: &mut Outbox) {
    out.message(2, |out| out.extend_from_slice(&[2 << 3 | 2, 0]), [], &[]);
}

/// Echoes a stream.
struct Limit {
    route: Arc<Vec<u8>>,
}

impl Limit {
    fn route(&self, out: &mut Outbox) {
        out.message(self.route.len(), |out| out.extend_from_slice(&self.route), [], &[]);
    }
}

impl Call for Limit {
    fn on_message(&mut self, message: Payload, out: &mut Outbox) -> ControlFlow<End> {
        // Headers are not even walked: the first byte says what they are.
        if let Payload::One(bytes) = &message {
            match bytes.first() {
                Some(0x12) => {
                    self.route(out);
                    return ControlFlow::Continue(());
                }
                Some(0x1a) => {
                    go_on(out);
                    return ControlFlow::Continue(());
                }
                _ => {}
            }
        }
        let message = match envoy::read(message) {
            Ok(message) => message,
            Err(status) => return ControlFlow::Break(Err(status)),
        };
        let reply = match message.event {
            Event::RequestHeaders { .. } => {
                self.route(out);
                return ControlFlow::Continue(());
            }
            Event::RequestBody { data, end_of_stream } => Reply::RequestBody { data, end_of_stream },
            Event::RequestTrailers => Reply::RequestTrailers,
            Event::ResponseHeaders { .. } => {
                go_on(out);
                return ControlFlow::Continue(());
            }
            Event::ResponseBody { data, end_of_stream } => {
                Reply::ResponseBody { data, end_of_stream, attributes: Vec::new() }
            }
            Event::ResponseTrailers => Reply::ResponseTrailers { attributes: Vec::new() },
        };
        envoy::write(reply, out);
        ControlFlow::Continue(())
    }

    fn poll(&mut self, _context: &mut Context<'_>, _out: &mut Outbox) -> ControlFlow<End> {
        ControlFlow::Continue(())
    }

    fn on_end(&mut self, received: End) -> End {
        received
    }
}
