//! The acceptor of a listening socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};

/// Pauses after an error of the host (such as too many open files): the first, and the
/// longest. Connections wait in the backlog meanwhile.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A gateway whose host is gone is noticed within a minute and a half, and what its streams
/// hold is given back.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Longest time that what we sent may stay unread in the sockets. Keepalive is silent while
/// data waits, and a client that reads nothing doesn't see our pings either.
#[cfg(target_os = "linux")]
const UNREAD_TIMEOUT: Duration = Duration::from_secs(80);

/// Accepts connections forever and hands them to `take`. Sockets don't delay small
/// writes and notice a dead peer.
///
/// Cancel by dropping the future.
pub async fn accept(listener: &TcpListener, mut take: impl FnMut(TcpStream, SocketAddr)) {
    let mut backoff = Backoff::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                backoff = Backoff::default();
                if let Err(error) = prepare(&stream) {
                    // The client is gone already.
                    tracing::debug!(%peer, %error, "connection dropped");
                    continue;
                }
                take(stream, peer);
            }
            Err(error) => {
                let first = backoff == Backoff::default();
                let Some(pause) = backoff.after(&error) else { continue };
                if first {
                    tracing::error!(%error, "cannot accept connections, trying again");
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    let socket = SockRef::from(stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNREAD_TIMEOUT))?;
    socket.set_tcp_keepalive(&keepalive)
}

/// Pause after errors in a row.
#[derive(Debug, Default, PartialEq, Eq)]
struct Backoff {
    last: Duration,
}

impl Backoff {
    /// The pause after one more error; `None` if it concerned one connection only, and
    /// the next one may well be fine.
    fn after(&mut self, error: &io::Error) -> Option<Duration> {
        match error.kind() {
            io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted => None,
            _ => {
                self.last = (self.last * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                Some(self.last)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second() {
        // EMFILE.
        let error = io::Error::from_raw_os_error(24);
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..8).map(|_| backoff.after(&error).unwrap().as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000]);
    }

    #[test]
    fn an_aborted_connection_is_no_reason_to_pause() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.after(&io::ErrorKind::ConnectionAborted.into()), None);
        assert_eq!(backoff, Backoff::default());
    }
}
