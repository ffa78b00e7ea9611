//! Flags of the store through which replicas share state.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::pflag::{at_most, given};
use crate::settings::{Secret, StateStoreSettings, StoreAddress, StorePassword};

/// Flags of the store through which replicas share state.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several replicas")]
pub struct StateStoreFlags {
    /// Redis or Valkey through which replicas share what they have in flight and which prefixes endpoints hold:
    /// redis://HOST:PORT/DB, with TLS rediss://HOST:PORT/DB, or unix://PATH. A user and a password may stand before
    /// the host, as USER:PASSWORD@.
    #[arg(long, value_name = "URL")]
    pub state_store: Option<String>,

    /// File with the store's password, read again for every connection.
    #[arg(long, value_name = "FILE")]
    pub state_store_password_file: Option<String>,

    /// PEM file of the authorities that sign the state store's certificate. By default those that the system trusts.
    #[arg(long, value_name = "FILE")]
    pub state_store_ca_file: Option<String>,

    /// PEM file of the certificate that is shown to the state store, as Redis asks for one where it has TLS, unless
    /// tls-auth-clients is no. Read again for every connection, as is its key.
    #[arg(long, value_name = "FILE")]
    pub state_store_client_cert_file: Option<String>,

    /// PEM file of the key of that certificate.
    #[arg(long, value_name = "FILE")]
    pub state_store_client_key_file: Option<String>,

    /// Longest time for which a start waits, before it is ready, for what the store has: prefixes, sessions and learned
    /// latencies. They are read to the end later. At most 1m; 0s doesn't wait.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = at_most("1m"))]
    pub warm_up_timeout: Duration,
}

/// Text of an error. What is wrong is not repeated: there may be a password in it.
fn wrong(why: &str) -> String {
    format!("--state-store: {why}; write for example redis://valkey.models:6379/0")
}

impl StateStoreFlags {
    /// The store; `None` without `--state-store`.
    pub(super) fn settings(&self) -> Result<Option<StateStoreSettings>, String> {
        let password = given(&self.state_store_password_file);
        let tls = [
            ("--state-store-ca-file", given(&self.state_store_ca_file)),
            ("--state-store-client-cert-file", given(&self.state_store_client_cert_file)),
            ("--state-store-client-key-file", given(&self.state_store_client_key_file)),
        ];
        let Some(url) = given(&self.state_store) else {
            let mut alone = tls.into_iter().chain([("--state-store-password-file", password)]);
            return match alone.find(|(_, file)| file.is_some()) {
                None => Ok(None),
                Some((flag, _)) => {
                    Err(format!("{flag} says nothing of which store; give --state-store, too"))
                }
            };
        };
        let mut settings = read(url)?;
        if let Some(file) = password {
            if settings.password.is_some() {
                return Err("--state-store has a password, and --state-store-password-file is given, too; keep one of them".to_owned());
            }
            settings.password = Some(StorePassword::File(file.into()));
        }
        if settings.user.is_some() && settings.password.is_none() {
            // The protocol has no user without one.
            return Err("--state-store has a user without a password; write USER:PASSWORD@, or give --state-store-password-file (any password does for a user with nopass)".to_owned());
        }
        let has_tls = matches!(settings.address, StoreAddress::Tcp { tls: true, .. });
        if let Some((flag, _)) = tls.iter().find(|(_, file)| file.is_some() && !has_tls) {
            return Err(format!("{flag} is for rediss://, and --state-store has no TLS"));
        }
        let [ca, cert, key] = tls.map(|(_, file)| file.map(PathBuf::from));
        if cert.is_some() != key.is_some() {
            return Err(
                "--state-store-client-cert-file and --state-store-client-key-file need each other; give both"
                    .to_owned(),
            );
        }
        (settings.ca_file, settings.client_cert) = (ca, cert.zip(key));
        Ok(Some(settings))
    }
}

/// Reads a URL.
fn read(url: &str) -> Result<StateStoreSettings, String> {
    let (scheme, rest) =
        url.split_once("://").ok_or_else(|| wrong("no redis:// or rediss:// at its start"))?;
    let tls = match scheme {
        "redis" | "valkey" => Some(false),
        "rediss" | "valkeys" => Some(true),
        "unix" | "redis+unix" => None,
        other if other.contains("sentinel") => {
            return Err(wrong(
                "Redis Sentinel is not supported; name the server or the Service of the primary",
            ));
        }
        other if other.contains("cluster") => {
            return Err(wrong("Redis Cluster is not supported; name a server that is not part of one"));
        }
        _ => return Err(wrong("no redis:// or rediss:// at its start")),
    };
    if rest.contains(['?', '#']) {
        return Err(wrong("it has a query or a fragment"));
    }
    let Some(tls) = tls else {
        if !rest.starts_with('/') {
            return Err(wrong("no absolute path after unix://"));
        }
        return Ok(StateStoreSettings::at(StoreAddress::Unix(rest.into())));
    };
    let (credentials, rest) = rest.rsplit_once('@').map_or((None, rest), |(it, rest)| (Some(it), rest));
    let (place, db) = rest.split_once('/').unwrap_or((rest, ""));
    if place.contains(',') {
        return Err(wrong("several servers (Redis Sentinel or Cluster) are not supported; name one"));
    }
    let address = StoreAddress::tcp(tls, place).map_err(wrong)?;
    let db = match db {
        "" => 0,
        db => db.parse().map_err(|_| wrong("no number of a database after the host"))?,
    };
    let mut settings = StateStoreSettings { db, ..StateStoreSettings::at(address) };
    if let Some(credentials) = credentials {
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        let [user, password] = [user, password].map(|text| decoded(text).map(Cow::into_owned));
        let (user, password) = (user?, password?);
        settings.user = Some(user).filter(|user| !user.is_empty());
        settings.password =
            Some(password).filter(|text| !text.is_empty()).map(|text| StorePassword::Text(Secret(text)));
    }
    Ok(settings)
}

/// Text without its percent escapes.
fn decoded(text: &str) -> Result<Cow<'_, str>, String> {
    if !text.contains('%') {
        return Ok(text.into());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let escaped = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.ok_or_else(|| wrong("a % without two hexadecimal digits"))?);
        bytes.extend_from_slice(part.get(2..).unwrap_or_default().as_bytes());
    }
    String::from_utf8(bytes).map(Into::into).map_err(|_| wrong("escapes that are no UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(url: &str) -> StateStoreFlags {
        StateStoreFlags {
            state_store: Some(url.to_owned()),
            state_store_password_file: None,
            state_store_ca_file: None,
            state_store_client_cert_file: None,
            state_store_client_key_file: None,
            warm_up_timeout: Duration::ZERO,
        }
    }

    fn settings(url: &str) -> StateStoreSettings {
        flags(url).settings().unwrap().unwrap()
    }

    #[test]
    fn urls_name_server_database_and_credentials() {
        let plain = settings("redis://valkey");
        assert_eq!(plain, StateStoreSettings::at(StoreAddress::tcp(false, "valkey:6379").unwrap()));
        let full = settings("rediss://me:p%40ss%3A%2f@[fd00::1]:7000/3");
        assert_eq!(full.address, StoreAddress::tcp(true, "[fd00::1]:7000").unwrap());
        let password = Some(StorePassword::Text(Secret("p@ss:/".to_owned())));
        assert_eq!((full.db, full.user.as_deref(), &full.password), (3, Some("me"), &password));
        assert!(!format!("{full:?}").contains("p@ss"));
        assert_eq!(settings("redis://:secret@a").user, None);
        assert_eq!(settings("unix:///run/v.sock").address, StoreAddress::Unix("/run/v.sock".into()));
    }

    #[test]
    fn wrong_urls_are_refused_without_their_password() {
        let table = [
            ("redis+sentinel://:hunter2@a:26379", "Redis Sentinel is not supported"),
            ("rediss-cluster://:hunter2@a", "Redis Cluster is not supported"),
            ("redis://:hunter2@a:1,b:2", "several servers (Redis Sentinel or Cluster)"),
            ("http://:hunter2@a", "no redis:// or rediss://"),
            ("hunter2@a", "no redis:// or rediss://"),
            ("redis://:hunter2@", "no host"),
            ("redis://:hunter2@a:x", "no port"),
            ("redis://:hunter2@a/x", "no number of a database"),
            ("redis://:hunter2%@a", "two hexadecimal digits"),
            ("redis://:hunter2@a?x=1", "a query"),
            ("unix://hunter2", "no absolute path"),
            ("redis+unix:///run/valkey.sock?db=0&pass=hunter2", "a query"),
            ("unix:///run/valkey.sock#hunter2", "a fragment"),
            ("redis+unix://:hunter2@/run/valkey.sock", "no absolute path"),
        ];
        for (url, part) in table {
            let error = flags(url).settings().unwrap_err();
            assert!(error.contains(part) && error.starts_with("--state-store: "), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn user_without_a_password_is_refused_unless_a_file_has_it() {
        for url in ["redis://me@a", "rediss://me:@a"] {
            let error = flags(url).settings().unwrap_err();
            assert!(error.contains("a user without a password"), "{url}: {error}");
            let file = Some("/f".to_owned());
            let with_file = StateStoreFlags { state_store_password_file: file, ..flags(url) };
            assert_eq!(with_file.settings().unwrap().unwrap().user.as_deref(), Some("me"), "{url}");
        }
    }

    #[test]
    fn files_go_with_the_store_that_needs_them() {
        let file = || Some("/f".to_owned());
        let with = |flag: &str, url| {
            let mut flags = flags(url);
            match flag {
                "password" => flags.state_store_password_file = file(),
                "ca" => flags.state_store_ca_file = file(),
                "client-cert" => flags.state_store_client_cert_file = file(),
                _ => flags.state_store_client_key_file = file(),
            }
            flags.settings()
        };
        for flag in ["password", "ca", "client-cert", "client-key"] {
            let begin = format!("--state-store-{flag}-file says nothing");
            assert!(with(flag, "").unwrap_err().starts_with(&begin), "{flag}");
        }
        for flag in ["ca", "client-cert", "client-key"] {
            let begin = format!("--state-store-{flag}-file is for rediss://");
            assert!(with(flag, "redis://a").unwrap_err().starts_with(&begin), "{flag}");
        }
        for flag in ["client-cert", "client-key"] {
            assert!(with(flag, "rediss://a").unwrap_err().contains("give both"), "{flag}");
        }
        let twice = StateStoreFlags { state_store_password_file: file(), ..flags("redis://:p@a") };
        assert!(twice.settings().unwrap_err().contains("keep one of them"));
        let all = StateStoreFlags {
            state_store_password_file: file(),
            state_store_ca_file: file(),
            state_store_client_cert_file: file(),
            state_store_client_key_file: Some("/k".to_owned()),
            ..flags("rediss://a")
        };
        let all = all.settings().unwrap().unwrap();
        let password = Some(StorePassword::File("/f".into()));
        assert_eq!((all.password, all.ca_file), (password, Some("/f".into())));
        assert_eq!(all.client_cert, Some(("/f".into(), "/k".into())));
    }
}
