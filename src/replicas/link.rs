//! Connection to the store: made again and again, it brings messages and takes the newest of ours.

use std::io;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::failure::{Failure, News, SETTLED};
use super::metrics::ReplicasMetrics;
use super::resp::{self, Decoder, Value};
use crate::cluster::Backoff;
use crate::scrape::{TlsClient, TlsSettings};
use crate::settings::{StateStoreSettings, StoreAddress, StorePassword};

/// Time for a connection, its TLS and its first commands.
const CONNECT: Duration = Duration::from_secs(5);

/// Pauses after a failure that may end by itself: a store that is back is found within half a second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// Pauses after a failure that only a change of the configuration or the store ends.
const LONG_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Interval at which the server is asked whether it still is the primary.
const CHECK: Duration = Duration::from_secs(5);

/// Bytes of a password file at most.
const MOST_PASSWORD: u64 = 64 << 10;

/// Events of the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A connection hears the channel.
    Up,
    /// The connection is gone.
    Down,
    /// A message came.
    Message(Vec<u8>),
}

/// Maker of connections.
pub(super) struct Link {
    pub(super) store: StateStoreSettings,
    /// Name of this replica in the server's list of clients.
    pub(super) name: String,
    /// Channel of the pool.
    pub(super) channel: String,
    /// Time in which a message is confirmed.
    pub(super) timeout: Duration,
    /// Newest message of ours; those that it replaces before they are sent are never sent.
    pub(super) outgoing: watch::Receiver<Vec<u8>>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) metrics: ReplicasMetrics,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection with its bytes.
struct Connection {
    stream: Box<dyn Stream>,
    decoder: Decoder,
    out: Vec<u8>,
}

impl Link {
    /// Connects, serves the connection, and begins again when it ends; never returns while events are heard.
    pub(super) async fn run(mut self) {
        let (mut short, mut long) = (backoff(PAUSES), backoff(LONG_PAUSES));
        let (mut news, mut is_first) = (News::default(), true);
        while !self.events.is_closed() {
            let connected = timeout(CONNECT, self.connect()).await.unwrap_or(Err(Failure::Timeout(CONNECT)));
            let failure = match connected {
                Err(failure) => failure,
                Ok(connection) => {
                    if news.connected(std::mem::take(&mut is_first)) {
                        tracing::info!(store = %self.store.address, "state store connected");
                    }
                    let began = Instant::now();
                    self.metrics.connected.set(1);
                    // What was not sent before is old: this event brings a new message.
                    self.outgoing.mark_unchanged();
                    let _ = self.events.send(Event::Up).await;
                    let failure = self.serve(connection).await;
                    self.metrics.connected.set(0);
                    let _ = self.events.send(Event::Down).await;
                    if began.elapsed() >= SETTLED {
                        news.settled();
                        (short, long) = (backoff(PAUSES), backoff(LONG_PAUSES));
                    }
                    failure
                }
            };
            self.metrics.failures.with_label_values(&[failure.reason()]).inc();
            if news.failed(failure.reason(), Instant::now()) {
                tracing::warn!(
                    store = %self.store.address,
                    reason = failure.reason(),
                    error = %failure,
                    "state store is away; requests go on, by the load that this replica knows itself"
                );
            }
            let pauses = if failure.needs_somebody() { &mut long } else { &mut short };
            let pause = pauses.next(&mut rand::rng());
            tokio::time::sleep(pause).await;
        }
    }

    /// A connection that hears the channel.
    async fn connect(&self) -> Result<Connection, Failure> {
        let password = self.password().await?;
        let stream = self.open().await?;
        let mut connection = Connection { stream, decoder: Decoder::default(), out: Vec::new() };
        let mut hello: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if let Some(password) = &password {
            let user = self.store.user.as_deref().unwrap_or("default");
            hello.extend([&b"AUTH"[..], user.as_bytes(), password.as_bytes()]);
        }
        let client = format!("usher-{}", self.name);
        hello.extend([&b"SETNAME"[..], client.as_bytes()]);
        match self.ask(&mut connection, &hello).await? {
            Value::Error(words) => return Err(Failure::refused(&words, true)),
            reply => is_primary(&reply)?,
        }
        if self.store.db > 0 {
            self.ask_plainly(&mut connection, &[b"SELECT", self.store.db.to_string().as_bytes()]).await?;
        }
        self.ask_plainly(&mut connection, &[b"SUBSCRIBE", self.channel.as_bytes()]).await?;
        Ok(connection)
    }

    async fn open(&self) -> Result<Box<dyn Stream>, Failure> {
        let (tls, host, port) = match &self.store.address {
            StoreAddress::Unix(path) => {
                return Ok(Box::new(UnixStream::connect(path).await.map_err(Failure::Connect)?));
            }
            StoreAddress::Tcp { tls, host, port } => (*tls, host, *port),
        };
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(Failure::Connect)?;
        stream.set_nodelay(true).map_err(Failure::Connect)?;
        if !tls {
            return Ok(Box::new(stream));
        }
        let ca_cert = self.store.ca_file.clone();
        let settings = TlsSettings { insecure_skip_verify: false, ca_cert, client_cert: None };
        // Read again for every connection: authorities are replaced, too.
        let client = tokio::task::spawn_blocking(move || TlsClient::load_for(&settings, b"")).await;
        let client = client.map_err(|error| Failure::Tls(error.to_string()))?;
        let client = client.map_err(|error| Failure::Tls(error.to_string()))?;
        let name = ServerName::try_from(host.clone()).map_err(|error| Failure::Tls(error.to_string()))?;
        let stream = client.connect_to(name, stream).await;
        Ok(Box::new(stream.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => Failure::Tls(error.to_string()),
            _ => Failure::Connect(error),
        })?))
    }

    async fn password(&self) -> Result<Option<String>, Failure> {
        Ok(match &self.store.password {
            None => None,
            Some(StorePassword::Text(secret)) => Some(secret.0.clone()),
            Some(StorePassword::Variable(name)) => {
                Some(std::env::var(name).map_err(|_| Failure::PasswordVariable(name.clone()))?)
            }
            Some(StorePassword::File(path)) => {
                let failed = |error| Failure::PasswordFile(path.clone(), error);
                let length = tokio::fs::metadata(path).await.map_err(failed)?.len();
                if length > MOST_PASSWORD {
                    return Err(failed(io::Error::other("it is too long")));
                }
                let text = tokio::fs::read_to_string(path).await.map_err(failed)?;
                match text.trim_end_matches(['\r', '\n']) {
                    "" => return Err(failed(io::Error::other("it is empty"))),
                    text => Some(text.to_owned()),
                }
            }
        })
    }

    /// Sends a command and waits for its reply, which a subscription confirms by a push.
    async fn ask(&self, connection: &mut Connection, command: &[&[u8]]) -> Result<Value, Failure> {
        self.send(connection, command).await?;
        loop {
            if let Some(value) = connection.decoder.next()? {
                return Ok(value);
            }
            self.read(connection).await?;
        }
    }

    /// The same for a command whose refusal has nothing secret.
    async fn ask_plainly(&self, connection: &mut Connection, command: &[&[u8]]) -> Result<(), Failure> {
        match self.ask(connection, command).await? {
            Value::Error(words) => Err(Failure::refused(&words, false)),
            _ => Ok(()),
        }
    }

    async fn send(&self, connection: &mut Connection, command: &[&[u8]]) -> Result<(), Failure> {
        connection.out.clear();
        resp::command(command, &mut connection.out);
        connection.stream.write_all(&connection.out).await.map_err(Failure::ended)?;
        connection.stream.flush().await.map_err(Failure::ended)?;
        self.metrics.sent.inc_by(connection.out.len() as u64);
        Ok(())
    }

    /// Reads what is there. May be dropped while it waits.
    async fn read(&self, connection: &mut Connection) -> Result<(), Failure> {
        let read = connection.stream.read_buf(&mut connection.decoder.bytes).await.map_err(Failure::ended)?;
        if read == 0 {
            return Err(Failure::Closed(io::ErrorKind::UnexpectedEof.into()));
        }
        self.metrics.received.inc_by(read as u64);
        Ok(())
    }

    /// Passes messages on both ways until the connection fails.
    async fn serve(&mut self, mut connection: Connection) -> Failure {
        let mut served = Served { due: None, last: None, check: Instant::now() + CHECK };
        loop {
            if let Err(failure) = self.step(&mut connection, &mut served).await {
                return failure;
            }
        }
    }

    async fn step(&mut self, connection: &mut Connection, served: &mut Served) -> Result<(), Failure> {
        while let Some(value) = connection.decoder.next()? {
            self.take(value, served).await?;
        }
        // One command at a time: while the store is slow, newer messages take the place of older ones.
        let is_free = served.due.is_none();
        // Here, as messages of either side may be there whenever the select looks.
        let now = Instant::now();
        if is_free && served.check <= now {
            served.check = now + CHECK;
            return self.begin(connection, served, None).await;
        }
        if served.due.is_some_and(|due| due <= now) && *served.last.get_or_insert(now + self.timeout) <= now {
            return Err(Failure::Timeout(self.timeout));
        }
        let wake = served.due.unwrap_or(served.check);
        let mut outgoing = self.outgoing.clone();
        tokio::select! {
            // A reply that is there is read before it is late, and no message waits for all of the others'.
            biased;
            changed = outgoing.changed(), if is_free => {
                if changed.is_err() {
                    // The other side is gone, and with it the reason to go on.
                    return Err(Failure::Closed(io::ErrorKind::BrokenPipe.into()));
                }
                let message = self.outgoing.borrow_and_update().clone();
                self.begin(connection, served, Some(&message)).await?;
            }
            read = self.read(connection) => return read,
            () = sleep_until(wake) => {
                if !is_free {
                    return Err(Failure::Timeout(self.timeout));
                }
            }
        }
        Ok(())
    }

    /// Sends a message, or asks the server what it is.
    async fn begin(
        &self,
        connection: &mut Connection,
        served: &mut Served,
        message: Option<&[u8]>,
    ) -> Result<(), Failure> {
        (served.due, served.last) = (Some(Instant::now() + self.timeout), None);
        let sent = async {
            match message {
                Some(message) => self.send(connection, &[b"PUBLISH", self.channel.as_bytes(), message]).await,
                None => self.send(connection, &[b"HELLO", b"3"]).await,
            }
        };
        timeout(self.timeout, sent).await.unwrap_or(Err(Failure::Timeout(self.timeout)))
    }

    async fn take(&self, value: Value, served: &mut Served) -> Result<(), Failure> {
        match value {
            Value::Push(parts) => {
                let mut parts = parts.into_iter();
                let kind = parts.next();
                if kind.as_ref().and_then(Value::text) == Some(b"message")
                    && let Some(Value::Text(message)) = parts.nth(1)
                {
                    // It waits while the one who reads is busy; the server keeps what comes meanwhile.
                    let _ = self.events.send(Event::Message(message)).await;
                }
            }
            Value::Error(words) => return Err(Failure::refused(&words, false)),
            reply => {
                served.due = None;
                is_primary(&reply)?;
            }
        }
        Ok(())
    }
}

/// State of a connection that is served.
struct Served {
    /// Time until which the command under way has to be answered.
    due: Option<Instant>,
    /// Time until which a late reply is looked for behind messages that are there.
    last: Option<Instant>,
    /// Time at which the server is asked what it is.
    check: Instant,
}

fn backoff((first, most): (Duration, Duration)) -> Backoff {
    Backoff::new(first, most)
}

/// Checks the reply to `HELLO`: on a replica messages would reach nobody, and parts of clusters and sentinels are
/// not what later messages need.
fn is_primary(reply: &Value) -> Result<(), Failure> {
    if let Some(mode) = reply.field(b"mode").filter(|mode| *mode != b"standalone") {
        return Err(Failure::Mode(String::from_utf8_lossy(mode).chars().take(20).collect()));
    }
    match reply.field(b"role") {
        Some(b"master" | b"primary") | None => Ok(()),
        Some(_) => Err(Failure::ReadOnly),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use prometheus::Registry;
    use tokio::io::{ReadBuf, duplex};
    use tokio::time::advance;

    use super::*;

    fn link(events: mpsc::Sender<Event>) -> (Link, watch::Sender<Vec<u8>>) {
        let (sender, outgoing) = watch::channel(Vec::new());
        let address = StoreAddress::tcp(false, "a").unwrap();
        let link = Link {
            store: StateStoreSettings::at(address),
            name: "a".to_owned(),
            channel: "c".to_owned(),
            timeout: Duration::from_secs(1),
            outgoing,
            events,
            metrics: ReplicasMetrics::register(&Registry::new()).unwrap(),
        };
        (link, sender)
    }

    fn connection(stream: impl Stream + 'static) -> Connection {
        Connection { stream: Box::new(stream), decoder: Decoder::default(), out: Vec::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn server_is_asked_for_its_role_however_much_is_to_be_sent() {
        let (mut link, sender) = link(mpsc::channel(1).0);
        let (ours, mut theirs) = duplex(1 << 16);
        let served = tokio::spawn(async move { link.serve(connection(ours)).await });
        let mut commands = Decoder::default();
        let begin = Instant::now();
        sender.send_replace(vec![1]);
        loop {
            let Some(Value::List(command)) = commands.next().unwrap() else {
                assert!(theirs.read_buf(&mut commands.bytes).await.unwrap() > 0);
                continue;
            };
            if command[0].text() == Some(b"HELLO") {
                break;
            }
            assert!(begin.elapsed() < CHECK * 2, "never asked");
            advance(Duration::from_millis(10)).await;
            // The next message is there before the reply to the last.
            sender.send_replace(vec![1]);
            theirs.write_all(b":1\r\n").await.unwrap();
        }
        theirs.write_all(b"%1\r\n+role\r\n+replica\r\n").await.unwrap();
        assert_eq!(served.await.unwrap().reason(), "read_only");
    }

    /// A server that sends messages without end, and no reply.
    struct Flood(Vec<u8>);

    impl AsyncRead for Flood {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if self.0.is_empty() {
                self.0.extend(b">3\r\n+message\r\n+c\r\n+m\r\n");
            }
            let length = self.0.len().min(into.remaining());
            into.put_slice(&self.0.drain(..length).collect::<Vec<_>>());
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Flood {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reply_that_does_not_come_is_missed_in_a_flood_of_messages() {
        let (events, mut taken) = mpsc::channel(1);
        let (mut link, sender) = link(events);
        let served = tokio::spawn(async move { link.serve(connection(Flood(Vec::new()))).await });
        sender.send_replace(vec![1]);
        let begin = Instant::now();
        while taken.recv().await.is_some() {
            assert!(begin.elapsed() < Duration::from_secs(10), "it would wait for ever");
            advance(Duration::from_millis(10)).await;
        }
        assert_eq!(served.await.unwrap().reason(), "timeout");
    }
}
