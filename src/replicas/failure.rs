//! Failures of the store: each has a name for metrics, and says what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::resp;

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
    /// One of these before anything could be asked for.
    #[error("{0}")]
    SignIn(Box<Failure>),
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
            Self::SignIn(failure) => failure.reason(),
        }
    }

    /// Returns `true` if it lasts until the configuration or the store is changed.
    pub(super) fn needs_somebody(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Timeout(_) | Self::Closed(_) | Self::Loading => false,
            Self::SignIn(failure) => failure.needs_somebody(),
            _ => true,
        }
    }

    /// Returns `true` if it is one of the store, and not of the commands or the connection of one kind of state.
    pub(super) fn is_of_store(&self) -> bool {
        !matches!(
            self,
            Self::Timeout(_)
                | Self::Closed(_)
                | Self::NotPermitted(_)
                | Self::Memory(_)
                | Self::WrongType(_)
                | Self::Protocol(_)
                | Self::Refused(_)
        )
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
    fn failures_of_one_kind_of_state_are_told_from_those_of_the_store() {
        for words in
            [&b"NOPERM no permissions to run the 'xadd' command"[..], b"OOM", b"WRONGTYPE", b"ERR syntax"]
        {
            let failure = Failure::refused(words, false);
            assert!(!failure.is_of_store() && failure.needs_somebody(), "{failure}");
            let at_first = Failure::SignIn(Box::new(failure));
            assert!(at_first.is_of_store() && at_first.needs_somebody(), "{at_first}");
        }
        let hangs = Failure::Timeout(Duration::from_secs(5));
        assert!(!hangs.is_of_store() && Failure::SignIn(Box::new(hangs)).is_of_store());
        let loading = Failure::SignIn(Box::new(Failure::Loading));
        assert!(loading.is_of_store() && !loading.needs_somebody());
        assert_eq!(loading.reason(), "loading");
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
}
