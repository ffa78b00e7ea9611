//! Stream of a pool in the store: its commands, one at a time over one connection.

use std::time::Duration;

use prometheus::IntGauge;
use tokio::sync::oneshot;
use tokio::time::timeout;
use usher_core::prefix::share::EntryId;

use super::connection::{CONNECT, Connection, Connector};
use super::entries::{self, Entry};
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
}

impl Stream {
    /// The stream `key`, without a connection.
    pub(super) fn new(
        connector: Connector,
        key: String,
        connected: IntGauge,
        warm: oneshot::Sender<()>,
    ) -> Self {
        Self { connector, key, connected, warm: Some(warm), connection: None }
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

    /// Id of the oldest entry.
    pub(super) async fn oldest(&mut self) -> Result<Option<EntryId>, Failure> {
        let entries = entries::of_range(self.ask("XRANGE", &[b"-", b"+", b"COUNT", b"1"]).await?);
        Ok(entries.first().map(|(id, _)| *id))
    }

    /// Entries behind this one.
    pub(super) async fn after(&mut self, id: EntryId) -> Result<Page, Failure> {
        let (count, key, id) = (PAGE.to_string(), self.key.clone(), id.to_string());
        let command = [b"XREAD", b"COUNT", count.as_bytes(), b"STREAMS", key.as_bytes(), id.as_bytes()];
        let entries = entries::of_key(self.send(&command).await?, key.as_bytes());
        Ok(Page { is_last: entries.len() < PAGE, entries })
    }

    /// Entries before this one, or the stream's end, the newest first.
    pub(super) async fn before(&mut self, id: Option<EntryId>) -> Result<Page, Failure> {
        let before = id.map_or("+".to_owned(), |id| format!("({id}"));
        let count = PAGE.to_string();
        let arguments: [&[u8]; 4] = [before.as_bytes(), b"-", b"COUNT", count.as_bytes()];
        let entries = entries::of_range(self.ask("XREVRANGE", &arguments).await?);
        Ok(Page { is_last: entries.len() < PAGE, entries })
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
        self.ask("EXPIRE", &[EXPIRY]).await.map(drop)
    }

    /// Reply to a command of this key.
    async fn ask(&mut self, command: &str, arguments: &[&[u8]]) -> Result<Value, Failure> {
        let key = self.key.clone();
        self.send(&[&[command.as_bytes(), key.as_bytes()], arguments].concat()).await
    }

    async fn send(&mut self, command: &[&[u8]]) -> Result<Value, Failure> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let connected = timeout(CONNECT, self.connector.connect()).await;
                none.insert(connected.unwrap_or(Err(Failure::Timeout(CONNECT)))?)
            }
        };
        let reply = timeout(REPLY, self.connector.ask_plainly(connection, command)).await;
        reply.unwrap_or(Err(Failure::Timeout(REPLY)))
    }
}
