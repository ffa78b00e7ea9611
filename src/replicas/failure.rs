//! Failures of the store: each has a name for metrics, and says what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use super::resp;
use crate::cluster::Backoff;

/// Time after which the same failure is logged again.
const REPEATED: Duration = Duration::from_secs(600);

/// Time for which a connection has to last until its next failure is logged, whatever it is.
const SETTLED: Duration = Duration::from_secs(10);

/// Pauses after a failure that may end by itself: a store that is back is found within half a second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// Pauses after a failure that only a change of the configuration or the store ends.
const LONG_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Longest part of a server's words that is repeated.
const MOST_WORDS: usize = 200;

/// Cause of a missing connection. No text shows a password.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("can't connect: {0}; check that the store runs, its address, and what lies between")]
    Connect(#[source] io::Error),
    #[error(
        "no TLS: {0}; check --state-store-ca-file, the server's certificate, and --state-store-client-cert-file, which it asks for unless tls-auth-clients is no"
    )]
    Tls(String),
    #[error("no reply within {0:?}; the store hangs, or does not speak RESP (or needs TLS: rediss://)")]
    Timeout(Duration),
    #[error("the connection ended: {0}; the store stopped, or ended it (see its log)")]
    Closed(#[source] io::Error),
    #[error("the password can't be read from {0}: {1}; put it there")]
    PasswordFile(PathBuf, #[source] io::Error),
    #[error("the environment variable {0} of the password is not set; set it")]
    PasswordVariable(String),
    #[error(
        "wrong user or password ({0}); check the URL of --state-store, its password file, or the parameters of redis-syncer"
    )]
    Password(String),
    #[error(
        "a password is asked for ({0}); give --state-store-password-file, or a password parameter of redis-syncer"
    )]
    NoPassword(String),
    #[error(
        "not permitted: {0}; allow its user HELLO, SELECT, PUBLISH, SUBSCRIBE, XADD, XRANGE, XREAD, XREVRANGE, XTRIM, EXPIRE and TIME, the channels usher:* and the keys usher:*"
    )]
    NotPermitted(String),
    #[error("the server is loading its data; it connects by itself once it is done")]
    Loading,
    #[error("the server is out of memory: {0}; raise its maxmemory or free some")]
    Memory(String),
    #[error("the key of the stream has something else ({0}); delete it, or use another database")]
    WrongType(String),
    #[error("the server is a read-only replica, whose messages reach no other; name the primary")]
    ReadOnly,
    #[error("the server is part of a {0}, which is not supported; name a server that stands alone")]
    Mode(String),
    #[error(
        "the server is in protected mode: without a password it takes only clients of its own machine; give it one"
    )]
    Protected,
    #[error("the server has as many clients as it takes; raise its maxclients, or end some")]
    Clients,
    #[error("the server does not speak RESP3 ({0}); Redis 6.2 or Valkey 7.2, or later, is needed")]
    Version(String),
    #[error("the server sent something else than RESP3: {0}; check the address")]
    Protocol(#[from] resp::Malformed),
    #[error("the server refused a command: {0}")]
    Refused(String),
}

impl Failure {
    /// Cause of the end of a connection. A server may refuse TLS after the handshake, too.
    pub(super) fn ended(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Tls(error.to_string()),
            _ => Self::Closed(error),
        }
    }

    /// Cause of a refusal, by its words. `shows_secret`: the command had the password, which old servers repeat.
    pub(super) fn refused(words: &[u8], shows_secret: bool) -> Self {
        let words = String::from_utf8_lossy(words);
        let code = words.split(' ').next().unwrap_or_default();
        let is_code = |c: char| c.is_ascii_uppercase();
        let code: String = code.chars().filter(|c| is_code(*c)).take(20).collect();
        let said = if shows_secret {
            format!("{code} in reply to HELLO, see its log")
        } else {
            words.chars().filter(|c| !c.is_control()).take(MOST_WORDS).collect()
        };
        match code.as_str() {
            "WRONGPASS" => Self::Password(said),
            "NOAUTH" => Self::NoPassword(said),
            "NOPERM" => Self::NotPermitted(said),
            "LOADING" => Self::Loading,
            "OOM" => Self::Memory(said),
            "WRONGTYPE" => Self::WrongType(said),
            "READONLY" | "MASTERDOWN" => Self::ReadOnly,
            "MOVED" | "CLUSTERDOWN" | "CROSSSLOT" => Self::Mode("cluster".to_owned()),
            "NOPROTO" => Self::Version(said),
            "DENIED" => Self::Protected,
            "ERR" if words.starts_with("ERR max number of clients") => Self::Clients,
            // The first command is the only one that an older server doesn't know.
            "ERR" if words.starts_with("ERR unknown command") => Self::Version(said),
            _ => Self::Refused(said),
        }
    }

    /// The cause in a word, for metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Tls(_) => "tls",
            Self::Timeout(_) => "timeout",
            Self::Closed(_) => "closed",
            Self::PasswordFile(..) | Self::PasswordVariable(_) => "password_missing",
            Self::Password(_) | Self::NoPassword(_) => "password",
            Self::NotPermitted(_) => "not_permitted",
            Self::Loading => "loading",
            Self::Memory(_) => "out_of_memory",
            Self::WrongType(_) => "wrong_type",
            Self::ReadOnly => "read_only",
            Self::Mode(_) => "mode",
            Self::Protected => "protected_mode",
            Self::Clients => "max_clients",
            Self::Version(_) => "version",
            Self::Protocol(_) => "protocol",
            Self::Refused(_) => "refused",
        }
    }

    /// Returns `true` if it lasts until the configuration or the store is changed.
    pub(super) fn needs_somebody(&self) -> bool {
        !matches!(self, Self::Connect(_) | Self::Timeout(_) | Self::Closed(_) | Self::Loading)
    }
}

/// Pauses between connections, and which of their failures are logged.
#[derive(Debug)]
pub(super) struct Retries {
    short: Backoff,
    long: Backoff,
    log: LogFilter,
}

impl Default for Retries {
    fn default() -> Self {
        let [short, long] = [PAUSES, LONG_PAUSES].map(|(first, most)| Backoff::new(first, most));
        Self { short, long, log: LogFilter::default() }
    }
}

impl Retries {
    /// Returns `true` if a connection is to be logged, as its absence was.
    pub(super) fn connected(&mut self) -> bool {
        self.log.connected()
    }

    /// A connection has ended after this time.
    pub(super) fn lasted(&mut self, time: Duration) {
        if time >= SETTLED {
            self.log.settled();
            self.short.reset();
            self.long.reset();
        }
    }

    /// Returns whether a failure is to be logged, and the pause until the next attempt.
    pub(super) fn failed(&mut self, failure: &Failure, now: Instant) -> (bool, Duration) {
        let pauses = if failure.needs_somebody() { &mut self.long } else { &mut self.short };
        (self.log.failed(failure.reason(), now), pauses.next(&mut rand::rng()))
    }
}

/// Decides which failures are logged.
#[derive(Debug, Default)]
struct LogFilter {
    last: Option<(&'static str, Instant)>,
    /// The last log line is a failure.
    is_down: bool,
}

impl LogFilter {
    /// Returns `true` if a failure is to be logged.
    fn failed(&mut self, reason: &'static str, now: Instant) -> bool {
        let is_known = self
            .last
            .is_some_and(|(last, at)| last == reason && now.saturating_duration_since(at) < REPEATED);
        if !is_known {
            (self.last, self.is_down) = (Some((reason, now)), true);
        }
        !is_known
    }

    /// Returns `true` if a connection is to be logged: the one after a failure that was logged.
    fn connected(&mut self) -> bool {
        std::mem::take(&mut self.is_down)
    }

    /// A connection has lasted.
    fn settled(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart_by_their_code() {
        let table: [(&[u8], &str); 13] = [
            (b"WRONGPASS invalid username-password pair or user is disabled.", "password"),
            (b"NOAUTH HELLO must be called with the client already authenticated", "password"),
            (b"NOPERM User u has no permissions to run the 'publish' command", "not_permitted"),
            (b"LOADING Redis is loading the dataset in memory", "loading"),
            (b"OOM command not allowed when used memory > 'maxmemory'.", "out_of_memory"),
            (b"WRONGTYPE Operation against a key holding the wrong kind of value", "wrong_type"),
            (b"READONLY You can't write against a read only replica.", "read_only"),
            (b"MOVED 1 10.0.0.1:6379", "mode"),
            (b"NOPROTO unsupported protocol version", "version"),
            (b"ERR DB index is out of range", "refused"),
            (b"MISCONF no snapshots", "refused"),
            (b"", "refused"),
            (b"\xff\xff", "refused"),
        ];
        for (words, reason) in table {
            let failure = Failure::refused(words, false);
            assert_eq!(failure.reason(), reason, "{failure}");
            assert!(!failure.to_string().contains('\n'));
        }
    }

    #[test]
    fn refusals_of_the_first_command_are_told_apart() {
        let table: [(&[u8], &str, &str); 6] = [
            (b"DENIED Redis is running in protected mode because", "protected_mode", "without a password"),
            (b"ERR max number of clients reached", "max_clients", "raise its maxclients"),
            (
                b"ERR max number of clients + cluster connections reached",
                "max_clients",
                "raise its maxclients",
            ),
            (b"ERR unknown command `HELLO`, with args beginning with: `3`,", "version", "Redis 6.2"),
            (b"ERR Client names cannot contain spaces", "refused", "ERR in reply to HELLO, see its log"),
            (b"NOPROTO unsupported protocol version", "version", "Redis 6.2"),
        ];
        for (words, reason, part) in table {
            let failure = Failure::refused(words, true);
            assert_eq!(failure.reason(), reason, "{failure}");
            assert!(failure.to_string().contains(part), "{failure}");
        }
    }

    #[test]
    fn late_tls_refusal_is_no_closed_connection() {
        let ended = |kind: io::ErrorKind| Failure::ended(kind.into()).reason();
        assert_eq!(ended(io::ErrorKind::InvalidData), "tls");
        assert_eq!(ended(io::ErrorKind::ConnectionReset), "closed");
    }

    #[test]
    fn refusals_of_the_password_do_not_repeat_it() {
        let words = b"ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 'hunter2'";
        let failure = Failure::refused(words, true);
        assert_eq!(failure.reason(), "version");
        for failure in [failure, Failure::refused(b"WRONGPASS hunter2", true)] {
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
        }
    }

    #[test]
    fn failures_are_logged_once_per_change_of_cause() {
        let (mut log, now) = (LogFilter::default(), Instant::now());
        assert!(!log.connected() && log.failed("closed", now));
        assert!(!log.failed("closed", now));
        assert!(log.failed("connect", now) && !log.failed("connect", now));
        assert!(log.failed("connect", now + REPEATED), "somebody may have missed it");
        assert!(log.connected());
        assert!(!log.failed("connect", now + REPEATED), "a server that comes and goes fills no log");
        assert!(!log.connected());
        log.settled();
        assert!(log.failed("connect", now + REPEATED));
    }
}
