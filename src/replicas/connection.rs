//! Connection to the store: signed in at the primary, for commands and their replies.

use std::io;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout};

use super::failure::Failure;
use super::metrics::ReplicasMetrics;
use super::resp::{self, Decoder, Value};
use super::retries::{NamedCauses, Retries};
use crate::scrape::{TlsClient, TlsSettings};
use crate::settings::{StateStoreSettings, StoreAddress, StorePassword};

/// Time for a connection, its TLS and its first commands.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// Time for a connection to one of its addresses: where packets are dropped, nothing says that there will be none.
const REACH: Duration = Duration::from_secs(1);

/// Line of the log for a failure that all kinds of state have in common.
pub(super) const AWAY: &str = "state store is away; requests go on, by what this replica knows itself";

/// Bytes of a password file at most.
const MOST_PASSWORD: u64 = 64 << 10;

/// Bytes both ways.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection with its bytes.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    pub(super) decoder: Decoder,
    out: Vec<u8>,
}

impl Connection {
    /// A connection over a stream of which nothing has been read.
    pub(super) fn over(stream: Box<dyn Stream>) -> Self {
        Self { stream, decoder: Decoder::default(), out: Vec::new() }
    }
}

/// Maker of connections to a store.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) store: StateStoreSettings,
    /// Name of this replica in the server's list of clients.
    pub(super) name: String,
    pub(super) metrics: ReplicasMetrics,
    /// Causes of failures that the log has named.
    pub(super) named: NamedCauses,
}

impl Connector {
    /// Counts a failure, and logs it unless it is known: under this message if only this kind of state is known to be
    /// concerned. Returns the pause until the next attempt.
    pub(super) fn failed(&self, failure: &Failure, retries: &mut Retries, message: &'static str) -> Duration {
        self.metrics.failed(failure.reason());
        let message = line(failure, retries, message);
        let (is_logged, pause) = retries.failed(failure, message, Instant::now());
        if is_logged {
            self.warn(failure, message);
        }
        pause
    }

    /// Counts a refusal with which a connection goes on, and logs it unless it is known.
    pub(super) fn refused(&self, failure: &Failure, message: &'static str) {
        self.metrics.failed(failure.reason());
        if self.named.is_new((failure.reason(), message), Instant::now()) {
            self.warn(failure, message);
        }
    }

    fn warn(&self, failure: &Failure, message: &'static str) {
        let (store, reason) = (&self.store.address, failure.reason());
        tracing::warn!(%store, reason, error = %failure, "{message}");
    }

    /// A connection to the primary, signed in and at its database.
    pub(super) async fn connect(&self) -> Result<Connection, Failure> {
        let password = self.password().await?;
        let mut connection = Connection::over(self.open().await?);
        let signed_in = self.sign_in(&mut connection, password).await;
        signed_in.map_err(|failure| Failure::SignIn(Box::new(failure)))?;
        Ok(connection)
    }

    async fn sign_in(&self, connection: &mut Connection, password: Option<String>) -> Result<(), Failure> {
        let mut hello: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if let Some(password) = &password {
            let user = self.store.user.as_deref().unwrap_or("default");
            hello.extend([&b"AUTH"[..], user.as_bytes(), password.as_bytes()]);
        }
        let client = format!("usher-{}", self.name);
        hello.extend([&b"SETNAME"[..], client.as_bytes()]);
        match self.ask(connection, &hello).await? {
            Value::Error(words) => return Err(Failure::refused(&words, true)),
            reply => is_primary(&reply)?,
        }
        if self.store.db > 0 {
            self.ask_plainly(connection, &[b"SELECT", self.store.db.to_string().as_bytes()]).await?;
        }
        Ok(())
    }

    async fn open(&self) -> Result<Box<dyn Stream>, Failure> {
        let (tls, host, port) = match &self.store.address {
            StoreAddress::Unix(path) => {
                return Ok(Box::new(UnixStream::connect(path).await.map_err(Failure::Connect)?));
            }
            StoreAddress::Tcp { tls, host, port } => (*tls, host, *port),
        };
        let stream = reach(host, port).await.map_err(Failure::Connect)?;
        stream.set_nodelay(true).map_err(Failure::Connect)?;
        if !tls {
            return Ok(Box::new(stream));
        }
        let (ca_cert, client_cert) = (self.store.ca_file.clone(), self.store.client_cert.clone());
        let settings = TlsSettings { insecure_skip_verify: false, ca_cert, client_cert };
        // Read again for every connection: authorities and certificates are replaced, too.
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
    pub(super) async fn ask(&self, connection: &mut Connection, command: &[&[u8]]) -> Result<Value, Failure> {
        self.send(connection, command).await?;
        loop {
            if let Some(value) = connection.decoder.next()? {
                return Ok(value);
            }
            self.read(connection).await?;
        }
    }

    /// The same for a command whose refusal has nothing secret.
    pub(super) async fn ask_plainly(
        &self,
        connection: &mut Connection,
        command: &[&[u8]],
    ) -> Result<Value, Failure> {
        match self.ask(connection, command).await? {
            Value::Error(words) => Err(Failure::refused(&words, false)),
            reply => Ok(reply),
        }
    }

    /// Sends a command.
    pub(super) async fn send(&self, connection: &mut Connection, command: &[&[u8]]) -> Result<(), Failure> {
        connection.out.clear();
        resp::command(command, &mut connection.out);
        connection.stream.write_all(&connection.out).await.map_err(Failure::ended)?;
        connection.stream.flush().await.map_err(Failure::ended)?;
        self.metrics.sent.inc_by(connection.out.len() as u64);
        Ok(())
    }

    /// Reads what is there. May be dropped while it waits.
    pub(super) async fn read(&self, connection: &mut Connection) -> Result<(), Failure> {
        let read = connection.stream.read_buf(&mut connection.decoder.bytes).await.map_err(Failure::ended)?;
        if read == 0 {
            return Err(Failure::Closed(io::ErrorKind::UnexpectedEof.into()));
        }
        self.metrics.received.inc_by(read as u64);
        Ok(())
    }
}

/// Line of the log for a failure of a connection whose state is not shared by this message. One that ends may be the
/// first that is seen of a store's end; where another connection was first, it has been said.
fn line(failure: &Failure, retries: &Retries, message: &'static str) -> &'static str {
    let is_end = matches!(failure, Failure::Timeout(_) | Failure::Closed(_));
    match failure.is_of_store() || is_end && retries.is_named((failure.reason(), AWAY)) {
        true => AWAY,
        false => message,
    }
}

/// A connection to the first address of a host that takes one.
async fn reach(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut error = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in lookup_host((host, port)).await? {
        match timeout(REACH, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(refused)) => error = refused,
            Err(_) => error = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {REACH:?}")),
        }
    }
    Err(error)
}

/// Checks the reply to `HELLO`: on a replica messages would reach nobody, and parts of clusters and sentinels are
/// not what later messages need.
pub(super) fn is_primary(reply: &Value) -> Result<(), Failure> {
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
    use prometheus::Registry;
    use tokio::net::TcpSocket;

    use super::*;

    #[test]
    fn end_of_one_connection_does_not_say_that_the_store_is_away() {
        let (named, message, now) = (NamedCauses::default(), "prefixes are not shared", Instant::now());
        let [mut load, mut prefixes] = [(); 2].map(|()| Retries::new(named.clone()));
        for kind in [&mut load, &mut prefixes] {
            kind.connected(now);
        }
        let late = Failure::Timeout(CONNECT);
        assert_eq!(line(&late, &prefixes, message), message);
        let failure = Failure::SignIn(Box::new(Failure::Timeout(CONNECT)));
        assert_eq!(line(&failure, &prefixes, message), AWAY);
        assert!(load.failed(&late, AWAY, now + CONNECT).0);
        assert_eq!(line(&late, &prefixes, message), AWAY, "it has been said");
        prefixes.connected(now + 2 * CONNECT);
        assert_eq!(line(&late, &prefixes, message), message);
    }

    #[tokio::test(start_paused = true)]
    async fn address_that_drops_packets_is_given_up_after_a_second() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        // Nobody takes these, so that there is no room for more.
        let waits = Duration::from_millis(100);
        let taken = || std::net::TcpStream::connect_timeout(&address, waits);
        let _held: Vec<_> = std::iter::from_fn(|| taken().ok()).collect();
        let connector = Connector {
            store: StateStoreSettings::at(StoreAddress::tcp(false, &address.to_string()).unwrap()),
            name: "a".to_owned(),
            metrics: ReplicasMetrics::register(&Registry::new()).unwrap(),
            named: NamedCauses::default(),
        };
        let began = Instant::now();
        let failure = timeout(CONNECT, connector.connect()).await.unwrap().err().unwrap();
        assert_eq!((failure.reason(), began.elapsed()), ("connect", REACH), "{failure}");
    }
}
