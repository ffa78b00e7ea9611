//! Connection to the store: made again and again, it brings messages and takes the newest of ours.

use std::io;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::connection::{AWAY, CONNECT, Connection, Connector, is_primary};
use super::failure::Failure;
use super::resp::Value;
use super::retries::Retries;

/// Interval at which the server is asked whether it still is the primary.
const CHECK: Duration = Duration::from_secs(5);

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
    pub(super) connector: Connector,
    /// Channel of the pool.
    pub(super) channel: String,
    /// Time in which a message is confirmed.
    pub(super) timeout: Duration,
    /// Newest message of ours; those that it replaces before they are sent are never sent.
    pub(super) outgoing: watch::Receiver<Vec<u8>>,
    pub(super) events: mpsc::Sender<Event>,
}

impl Link {
    /// Connects, serves the connection, and begins again when it ends; never returns while events are heard.
    pub(super) async fn run(mut self) {
        let (mut retries, mut is_first) = (Retries::new(self.connector.named.clone()), true);
        while !self.events.is_closed() {
            let connected = timeout(CONNECT, self.connect()).await.unwrap_or(Err(Failure::Timeout(CONNECT)));
            let failure = match connected {
                Err(failure) => failure,
                Ok(connection) => {
                    let began = Instant::now();
                    if retries.connected(began) | std::mem::take(&mut is_first) {
                        tracing::info!(store = %self.connector.store.address, "state store connected");
                    }
                    self.connector.metrics.connected.set(1);
                    // What was not sent before is old: this event brings a new message.
                    self.outgoing.mark_unchanged();
                    let _ = self.events.send(Event::Up).await;
                    let (failure, last) = self.serve(connection).await;
                    self.connector.metrics.connected.set(0);
                    let _ = self.events.send(Event::Down).await;
                    retries.connected(last);
                    retries.ended(began);
                    failure
                }
            };
            let message = match failure {
                Failure::Timeout(_) | Failure::Closed(_) => AWAY,
                _ => "load is not shared; requests go on, by the load that this replica knows itself",
            };
            let pause = self.connector.failed(&failure, &mut retries, message);
            tokio::time::sleep(pause).await;
        }
    }

    /// A connection that hears the channel.
    async fn connect(&self) -> Result<Connection, Failure> {
        let mut connection = self.connector.connect().await?;
        let command: [&[u8]; 2] = [b"SUBSCRIBE", self.channel.as_bytes()];
        self.connector.ask_plainly(&mut connection, &command).await?;
        Ok(connection)
    }

    /// Passes messages on both ways until the connection fails. Returns the time of the last reply as well.
    async fn serve(&mut self, mut connection: Connection) -> (Failure, Instant) {
        let now = Instant::now();
        let mut served = Served { due: None, last: None, check: now + CHECK, replied: now };
        loop {
            if let Err(failure) = self.step(&mut connection, &mut served).await {
                return (failure, served.replied);
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
            read = self.connector.read(connection) => return read,
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
                Some(message) => {
                    self.connector.send(connection, &[b"PUBLISH", self.channel.as_bytes(), message]).await
                }
                None => self.connector.send(connection, &[b"HELLO", b"3"]).await,
            }
        };
        timeout(self.timeout, sent).await.unwrap_or(Err(Failure::Timeout(self.timeout)))
    }

    async fn take(&self, value: Value, served: &mut Served) -> Result<(), Failure> {
        match value {
            Value::Push(parts) => {
                let mut parts = parts.into_iter();
                let kind = parts.next();
                if kind.as_ref().and_then(Value::text) == Some(b"message") {
                    match parts.nth(1) {
                        // It waits while the one who reads is busy; the server keeps what comes meanwhile.
                        Some(Value::Text(message)) => {
                            let _ = self.events.send(Event::Message(message)).await;
                        }
                        // The decoder left it out, as no replica sends so much.
                        _ => self.connector.metrics.messages.with_label_values(&["length"]).inc(),
                    }
                }
            }
            Value::Error(words) => return Err(Failure::refused(&words, false)),
            reply => {
                served.due = None;
                is_primary(&reply)?;
                served.replied = Instant::now();
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
    /// Time of the last reply.
    replied: Instant,
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use prometheus::Registry;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, duplex};
    use tokio::time::advance;

    use super::super::metrics::ReplicasMetrics;
    use super::super::resp::Decoder;
    use super::super::retries::NamedCauses;
    use super::*;
    use crate::settings::{StateStoreSettings, StoreAddress};

    fn link(events: mpsc::Sender<Event>) -> (Link, watch::Sender<Vec<u8>>) {
        let (sender, outgoing) = watch::channel(Vec::new());
        let address = StoreAddress::tcp(false, "a").unwrap();
        let link = Link {
            connector: Connector {
                store: StateStoreSettings::at(address),
                name: "a".to_owned(),
                metrics: ReplicasMetrics::register(&Registry::new()).unwrap(),
                named: NamedCauses::default(),
            },
            channel: "c".to_owned(),
            timeout: Duration::from_secs(1),
            outgoing,
            events,
        };
        (link, sender)
    }

    #[tokio::test(start_paused = true)]
    async fn server_is_asked_for_its_role_however_much_is_to_be_sent() {
        let (mut link, sender) = link(mpsc::channel(1).0);
        let (ours, mut theirs) = duplex(1 << 16);
        let served = tokio::spawn(async move { link.serve(Connection::over(Box::new(ours))).await });
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
        assert_eq!(served.await.unwrap().0.reason(), "read_only");
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
    async fn missing_reply_times_out_in_a_flood_of_messages() {
        let (events, mut taken) = mpsc::channel(1);
        let (mut link, sender) = link(events);
        let served =
            tokio::spawn(async move { link.serve(Connection::over(Box::new(Flood(Vec::new())))).await });
        sender.send_replace(vec![1]);
        let begin = Instant::now();
        while taken.recv().await.is_some() {
            assert!(begin.elapsed() < Duration::from_secs(10), "it would wait for ever");
            advance(Duration::from_millis(10)).await;
        }
        assert_eq!(served.await.unwrap().0.reason(), "timeout");
    }
}
