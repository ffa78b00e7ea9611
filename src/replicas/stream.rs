//! Stream of a pool in the store: its commands, one at a time over one connection.

use std::time::Duration;

use prometheus::IntGauge;
use tokio::sync::oneshot;
use tokio::time::timeout;
use usher_core::prefix::share::EntryId;

use super::connection::{CONNECT, Connection, Connector};
use super::entries::{self, Entry, Payload};
use super::failure::Failure;
use super::resp::Value;

/// Time for a reply. A page is up to 1 MiB.
const REPLY: Duration = Duration::from_secs(5);

/// Entries of a reply at most: at 64 KiB each, a quarter of what a reply may have.
pub(super) const PAGE: usize = 16;

/// Seconds after which the store drops a stream to which nobody comes back: caches of engines are younger.
const EXPIRY: &[u8] = b"86400";

/// Entries in a row.
pub(super) struct Page {
    /// In the order in which they were asked for.
    pub(super) entries: Vec<Entry>,
    /// Nothing is behind them.
    pub(super) is_last: bool,
    /// It is a single entry that did not come in time.
    is_cut: bool,
}

/// A stream, and the start of the replica that waits for it.
pub(super) struct Stream {
    pub(super) connector: Connector,
    key: String,
    /// 1 while it is read and written, or there is nothing to share.
    pub(super) connected: IntGauge,
    /// Told once when the start has nothing left to wait for.
    warm: Option<oneshot::Sender<()>>,
    pub(super) connection: Option<Connection>,
    /// Entries of the next page.
    count: usize,
}

impl Stream {
    /// The stream `key`, without a connection.
    pub(super) fn new(
        connector: Connector,
        key: String,
        connected: IntGauge,
        warm: oneshot::Sender<()>,
    ) -> Self {
        Self { connector, key, connected, warm: Some(warm), connection: None, count: PAGE }
    }

    /// Has the start wait no longer.
    pub(super) fn is_warm(&mut self) {
        if let Some(warm) = self.warm.take() {
            // Nobody may wait.
            let _ = warm.send(());
        }
    }

    /// Ends the connection; the next command makes another one.
    pub(super) fn disconnect(&mut self) {
        self.connection = None;
        self.connected.set(0);
    }

    /// Id of the oldest entry. One that does not come in time is dropped: no look at the beginning would ever end.
    pub(super) async fn oldest(&mut self) -> Result<Option<EntryId>, Failure> {
        let key = self.key.clone();
        let command: [&[u8]; 5] = [b"XRANGE", key.as_bytes(), b"-", b"+", b"COUNT"];
        let page = self.page(&command, 1, entries::of_range).await?;
        let Some(id) = page.entries.first().map(|entry| entry.id) else { return Ok(None) };
        if page.is_cut {
            let behind = EntryId { seq: id.seq.saturating_add(1), ..id }.to_string();
            let message = "the state store does not drop an entry that is too long to come in time";
            self.attempt("XTRIM", &[b"MINID", behind.as_bytes()], message).await?;
        }
        Ok(Some(id))
    }

    /// Entries behind this one.
    pub(super) async fn after(&mut self, id: EntryId) -> Result<Page, Failure> {
        let (key, id) = (self.key.clone(), id.to_string());
        let command: [&[u8]; 5] = [b"XREAD", b"COUNT", b"STREAMS", key.as_bytes(), id.as_bytes()];
        self.page(&command, PAGE, |reply| entries::of_key(reply, key.as_bytes())).await
    }

    /// Entries before this one, or the stream's end, the newest first.
    pub(super) async fn before(&mut self, id: Option<EntryId>) -> Result<Page, Failure> {
        let (key, before) = (self.key.clone(), id.map_or("+".to_owned(), |id| format!("({id}")));
        let command: [&[u8]; 5] = [b"XREVRANGE", key.as_bytes(), before.as_bytes(), b"-", b"COUNT"];
        self.page(&command, PAGE, entries::of_range).await
    }

    /// Entries that a command reads, fewer after a reply that was late. One that doesn't even come alone, and is too long to
    /// be a replica's, is left out: behind it there may be others.
    async fn page(
        &mut self,
        command: &[&[u8]],
        most: usize,
        entries_of: impl Fn(Value) -> Vec<Entry>,
    ) -> Result<Page, Failure> {
        loop {
            let count = self.count.min(most);
            let text = count.to_string();
            let words = command.iter().flat_map(|word| {
                let count = (*word == b"COUNT").then_some(text.as_bytes());
                std::iter::once(*word).chain(count)
            });
            let late = match self.send(&words.collect::<Vec<_>>()).await {
                Ok(reply) => {
                    self.count = self.count.max(count * 2).min(PAGE);
                    let entries = entries_of(reply);
                    return Ok(Page { is_last: entries.len() < count, is_cut: false, entries });
                }
                Err(failure @ Failure::Timeout(_)) => failure,
                Err(failure) => return Err(failure),
            };
            self.count = 1;
            // The rest of the reply is still on its way there.
            let Some(Connection { mut decoder, .. }) = self.connection.take() else { return Err(late) };
            if count > 1 && !decoder.bytes.is_empty() {
                continue;
            }
            let entries = decoder.cut_short().map(&entries_of).unwrap_or_default();
            let [Entry { id, payload: Payload::LeftOut(bytes) }] = entries[..] else { return Err(late) };
            tracing::warn!(stream = %self.key, entry = %id, bytes, "an entry is too long to come in time; it is left out");
            return Ok(Page { entries, is_last: false, is_cut: true });
        }
    }

    /// Adds an entry of this field, and drops the oldest ones beyond a number. Returns its id.
    pub(super) async fn add(
        &mut self,
        most: Option<usize>,
        field: &[u8],
        payload: &[u8],
    ) -> Result<Option<EntryId>, Failure> {
        let most = most.map(|most| most.to_string());
        let bound = most.as_ref().map_or(vec![], |most| vec![&b"MAXLEN"[..], most.as_bytes()]);
        let reply = self.ask("XADD", &[&bound[..], &[b"*", field, payload]].concat()).await?;
        Ok(reply.text().and_then(entries::id))
    }

    /// Drops entries before this one.
    pub(super) async fn trim(&mut self, oldest: EntryId) -> Result<(), Failure> {
        self.ask("XTRIM", &[b"MINID", oldest.to_string().as_bytes()]).await.map(drop)
    }

    /// Has the store keep it for a day from now.
    pub(super) async fn keep(&mut self) -> Result<(), Failure> {
        let message =
            "the state store does not keep a stream for a day: without replicas it stays, or goes earlier";
        self.attempt("EXPIRE", &[EXPIRY], message).await
    }

    /// Reply to `TIME`: an error where the store's user may not ask for it.
    pub(super) async fn time(&mut self) -> Result<Value, Failure> {
        self.reply(&[b"TIME"]).await
    }

    /// Reply to a command of this key.
    async fn ask(&mut self, command: &str, arguments: &[&[u8]]) -> Result<Value, Failure> {
        let key = self.key.clone();
        self.send(&[&[command.as_bytes(), key.as_bytes()], arguments].concat()).await
    }

    /// Has a command of this key carried out without which state is shared as well: where only it is refused, this is
    /// counted and logged under this message, and ends nothing.
    async fn attempt(
        &mut self,
        command: &str,
        arguments: &[&[u8]],
        message: &'static str,
    ) -> Result<(), Failure> {
        let key = self.key.clone();
        let reply = self.reply(&[&[command.as_bytes(), key.as_bytes()], arguments].concat()).await?;
        let Value::Error(words) = reply else { return Ok(()) };
        match Failure::refused(&words, false) {
            failure @ (Failure::NotPermitted(_) | Failure::Memory(_) | Failure::Refused(_)) => {
                self.connector.refused(&failure, message);
                Ok(())
            }
            failure => Err(failure),
        }
    }

    async fn send(&mut self, command: &[&[u8]]) -> Result<Value, Failure> {
        match self.reply(command).await? {
            Value::Error(words) => Err(Failure::refused(&words, false)),
            reply => Ok(reply),
        }
    }

    async fn reply(&mut self, command: &[&[u8]]) -> Result<Value, Failure> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let connected = timeout(CONNECT, self.connector.connect()).await;
                none.insert(
                    connected
                        .unwrap_or_else(|_| Err(Failure::SignIn(Box::new(Failure::Timeout(CONNECT)))))?,
                )
            }
        };
        let reply = timeout(REPLY, self.connector.ask(connection, command)).await;
        reply.unwrap_or(Err(Failure::Timeout(REPLY)))
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use tokio::io::{AsyncWriteExt, duplex};

    use super::super::metrics::ReplicasMetrics;
    use super::super::retries::NamedCauses;
    use super::*;
    use crate::settings::{StateStoreSettings, StoreAddress};

    #[tokio::test(start_paused = true)]
    async fn refusal_of_a_command_that_is_not_needed_is_counted_and_ends_nothing() {
        let table = [
            (":1", None, Ok(())),
            ("-NOPERM no permissions to run the 'expire' command", Some("not_permitted"), Ok(())),
            ("-OOM command not allowed", Some("out_of_memory"), Ok(())),
            ("-ERR syntax error", Some("refused"), Ok(())),
            ("-READONLY You can't write against a read only replica.", None, Err("read_only")),
            ("-LOADING Redis is loading the dataset in memory", None, Err("loading")),
        ];
        for (reply, counted, result) in table {
            let metrics = ReplicasMetrics::register(&Registry::new()).unwrap();
            let connector = Connector {
                store: StateStoreSettings::at(StoreAddress::Unix("/no/such/socket".into())),
                name: "a".to_owned(),
                metrics: metrics.clone(),
                named: NamedCauses::default(),
            };
            let (connected, warm) = (metrics.connected.clone(), oneshot::channel().0);
            let mut stream = Stream::new(connector, "k".to_owned(), connected, warm);
            let (ours, mut theirs) = duplex(1000);
            stream.connection = Some(Connection::over(Box::new(ours)));
            theirs.write_all(format!("{reply}\r\n").as_bytes()).await.unwrap();
            assert_eq!(stream.keep().await.map_err(|failure| failure.reason()), result, "{reply}");
            for reason in ["not_permitted", "out_of_memory", "refused", "read_only", "loading"] {
                assert_eq!(metrics.failures(reason), u64::from(counted == Some(reason)), "{reply}");
            }
        }
    }
}
