//! An ext_proc server as the target.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request};
use tokio::time::timeout;

use super::decision::{self, Decided};
use super::error::LoadError;
use super::exchange::{self, Open, checked};
use super::failure::Failure;
use super::link::{Carrier, Dialer, Link};
use super::prompt::Messages;
use super::record::{Numbers, Started};
use super::settings::TlsMode;

const PATH: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// A request that takes longer than this, besides the time between its chunks, has
/// failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// For the response to the first call.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);

/// Connections to a server, and what is asked over them. Like a gateway it opens another where all
/// have as many requests as the server takes.
pub(super) struct Direct {
    dialer: Dialer,
    links: RefCell<Vec<Rc<Link>>>,
    next: Cell<usize>,
    call: Request<()>,
    interval: Duration,
}

impl Direct {
    /// Connects, and finds out whether the other end is an ext_proc server.
    ///
    /// # Errors
    /// `LoadError` if nothing listens there, or no ext_proc server.
    pub(super) async fn connect(
        address: &str,
        tls: TlsMode,
        connections: usize,
        interval: Duration,
    ) -> Result<Self, LoadError> {
        let dialer = Dialer::new(address, tls).await?;
        let scheme = if dialer.has_tls() { "https" } else { "http" };
        let mut call = Request::post(format!("{scheme}://{address}{PATH}")).body(()).map_err(|error| {
            LoadError::Unreachable { target: address.to_owned(), reason: error.to_string() }
        })?;
        for (name, value) in
            [("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "usher-load")]
        {
            call.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        let links: Vec<_> = (0..connections).map(|_| Rc::new(Link::new(dialer.clone()))).collect();
        let direct = Self { dialer, links: RefCell::new(links.clone()), next: Cell::new(0), call, interval };
        for link in links {
            let first = timeout(FIRST_PATIENCE, direct.first(&link)).await.unwrap_or_else(|_| {
                Err(Failure::new("timeout", format!("no response within {} s", FIRST_PATIENCE.as_secs())))
            });
            first.map_err(|failure| {
                let target = address.to_owned();
                match &*failure.kind {
                    "connection-refused" => LoadError::Unreachable { target, reason: failure.detail },
                    kind => {
                        let reason = format!("{} ({kind})", failure.detail);
                        LoadError::NotExtProc { target, reason }
                    }
                }
            })?;
        }
        Ok(direct)
    }

    /// A call without a message: any ext_proc server ends it.
    async fn first(&self, link: &Link) -> Result<(), Failure> {
        let mut requests = link.ready().await?;
        let (response, _stream) = requests.send_request(self.call.clone(), true)?;
        let mut body = checked(response.await?)?;
        while let Some(data) = body.data().await {
            let _: Bytes = data?;
        }
        Ok(())
    }

    fn link(&self) -> Carrier {
        let mut links = self.links.borrow_mut();
        let (count, next) = (links.len(), self.next.get());
        let free = (0..count).map(|place| (next + place) % count).find(|at| !links[*at].is_full());
        let at = free.unwrap_or_else(|| {
            links.push(Rc::new(Link::new(self.dialer.clone())));
            count
        });
        self.next.set((at + 1) % links.len());
        Carrier::new(&links[at])
    }

    /// A whole request with its response.
    ///
    /// # Errors
    /// `Failure` of the exchange.
    pub(super) async fn exchange(
        &self,
        messages: &Messages,
        numbers: &RefCell<Numbers>,
        started: Started,
    ) -> Result<(), Failure> {
        let chunks = u32::try_from(messages.response.count()).unwrap_or(u32::MAX);
        let patience = PATIENCE.saturating_add(self.interval.saturating_mul(chunks));
        let exchange = async {
            let open = exchange::open(self.link(), &self.call, messages, numbers, started).await?;
            open.respond(&messages.response, self.interval).await
        };
        timeout(patience, exchange).await.unwrap_or_else(|_| Err(late(patience)))
    }

    /// A request with its response, and what the server made of both.
    ///
    /// # Errors
    /// `Failure` if the server breaks the protocol or the connection is lost. A refused request counts as
    /// decided.
    pub(super) async fn decide(&self, messages: &Messages, number: u64) -> Result<Decided, Failure> {
        let link = self.link();
        let decide = decision::decide(&link, &self.call, messages, number);
        timeout(PATIENCE, decide).await.unwrap_or_else(|_| Err(late(PATIENCE)))
    }

    /// A request up to its decision, held open after that.
    ///
    /// # Errors
    /// `Failure` of the exchange.
    pub(super) async fn open<'a>(
        &self,
        messages: &Messages,
        numbers: &'a RefCell<Numbers>,
        started: Started,
    ) -> Result<Open<'a>, Failure> {
        let open = exchange::open(self.link(), &self.call, messages, numbers, started);
        timeout(PATIENCE, open).await.unwrap_or_else(|_| Err(late(PATIENCE)))
    }
}

fn late(patience: Duration) -> Failure {
    Failure::new("timeout", format!("not over within {} s", patience.as_secs()))
}
