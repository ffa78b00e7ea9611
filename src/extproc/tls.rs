//! TLS of the ext_proc port: protocol versions, cipher suites, ALPN.

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ProtocolVersion, ServerConfig};

use crate::settings::TlsSettings;
use crate::tls::{CertError, Certificate, ClientAuthorities};

/// Cipher suites of TLS 1.2 by their Go names.
const TLS12_SUITES: [(&str, CipherSuite); 8] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    // Go's names from before the hash was part of the name.
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Suites of TLS 1.3. As in Go, naming them changes nothing: they are always offered.
const TLS13_SUITES: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// Suites that Go knows and that are no longer considered safe: without forward secrecy,
/// CBC or RC4.
const UNSAFE_SUITES: [&str; 15] = [
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
];

/// Cipher suites that a list of names asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuiteChoice {
    /// Suites of TLS 1.2, `None` for all.
    pub tls12: Option<Vec<CipherSuite>>,
    /// `true` if names were left out because their suites aren't safe.
    pub dropped_unsafe: bool,
}

/// Reads Go's names of cipher suites. An empty list leaves the choice to us.
///
/// Unsafe suites are left out; a list of nothing else is refused, as no client that
/// needs one of them could connect.
///
/// # Errors
/// A sentence that quotes the name and lists the known ones.
pub fn choose_suites(names: &[String]) -> Result<SuiteChoice, String> {
    let mut chosen = Vec::new();
    let (mut tls13, mut dropped_unsafe) = (false, false);
    for name in names {
        if let Some((_, suite)) = TLS12_SUITES.iter().find(|(known, _)| known == name) {
            chosen.push(*suite);
        } else if TLS13_SUITES.contains(&name.as_str()) {
            tls13 = true;
        } else if UNSAFE_SUITES.contains(&name.as_str()) {
            dropped_unsafe = true;
        } else {
            return Err(format!("{name:?} is not a cipher suite; known are {}", known_suites()));
        }
    }
    if chosen.is_empty() && !tls13 && dropped_unsafe {
        return Err(format!("none of these suites is considered safe; choose from {}", known_suites()));
    }
    Ok(SuiteChoice { tls12: (!names.is_empty()).then_some(chosen), dropped_unsafe })
}

fn known_suites() -> String {
    let names = TLS12_SUITES.iter().map(|(name, _)| *name).chain(TLS13_SUITES);
    names.collect::<Vec<_>>().join(", ")
}

/// TLS as the ext_proc port serves it, and the certificate it shows.
#[derive(Debug, Clone)]
pub struct Tls {
    /// For the handshakes.
    pub config: Arc<ServerConfig>,
    /// The certificate in use; may be replaced at any time.
    pub certificate: Arc<Certificate>,
    clients: Option<Arc<ClientAuthorities>>,
}

impl Tls {
    /// Loads or makes the certificate and puts the rest around it: HTTP/2 by ALPN, clients'
    /// certificates where the settings ask for them, aws-lc-rs.
    ///
    /// # Errors
    /// `CertError` if a certificate can't be loaded.
    pub fn new(settings: &TlsSettings) -> Result<Self, CertError> {
        let provider = Arc::new(provider(settings));
        let certificate = Arc::new(match &settings.cert_dir {
            Some(folder) => Certificate::load(folder, "--cert-path")?,
            None => Certificate::self_signed()?,
        });
        // A list without a suite of TLS 1.2 leaves TLS 1.3.
        let has_tls12 =
            provider.cipher_suites.iter().any(|suite| suite.version().version == ProtocolVersion::TLSv1_2);
        let versions: &[_] = if has_tls12 { &[&TLS13, &TLS12] } else { &[&TLS13] };
        let load = |path| ClientAuthorities::load(path, "--client-ca-path", Arc::clone(&provider));
        let clients = settings.client_ca.as_deref().map(load).transpose()?.map(Arc::new);
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(CertError::Setup)?;
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                builder.with_client_cert_verifier(Arc::clone(clients) as Arc<dyn ClientCertVerifier>)
            }
        };
        let mut config = builder.with_cert_resolver(certificate.clone());
        config.alpn_protocols = vec![b"h2".to_vec()];
        if clients.is_some() {
            // A session that is resumed would outlive the authority that vouched for the client.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Self { config: Arc::new(config), certificate, clients })
    }

    /// Watches the files, and uses what they hold when they change; never returns, unless
    /// there are none.
    pub async fn keep_fresh(self, interval: Duration) {
        let clients = async {
            if let Some(clients) = self.clients {
                clients.keep_fresh(interval).await;
            }
        };
        tokio::join!(self.certificate.keep_fresh(interval), clients);
    }
}

/// The suites of TLS 1.3, and those of TLS 1.2 that the settings allow.
fn provider(settings: &TlsSettings) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| {
        let version = suite.version().version;
        let chosen = |list: &Vec<CipherSuite>| list.contains(&suite.suite());
        version != ProtocolVersion::TLSv1_2
            || !settings.only_tls13 && settings.tls12_suites.as_ref().is_none_or(chosen)
    });
    provider
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(names: &[&str]) -> Result<SuiteChoice, String> {
        choose_suites(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn cipher_suites_have_their_go_names() {
        assert_eq!(choose(&[]), Ok(SuiteChoice { tls12: None, dropped_unsafe: false }));
        let modern = CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256;
        assert_eq!(
            choose(&["TLS_RSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]),
            Ok(SuiteChoice { tls12: Some(vec![modern]), dropped_unsafe: true })
        );
        assert_eq!(
            choose(&["TLS_AES_128_GCM_SHA256"]),
            Ok(SuiteChoice { tls12: Some(vec![]), dropped_unsafe: false })
        );
        let unknown = choose(&["TLS_FROM_THE_FUTURE"]).unwrap_err();
        assert!(unknown.contains("\"TLS_FROM_THE_FUTURE\""), "{unknown}");
        assert!(unknown.contains("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"), "{unknown}");
        assert!(choose(&["TLS_RSA_WITH_AES_128_CBC_SHA"]).unwrap_err().contains("safe"));
    }

    #[test]
    fn tls_settings_restrict_versions_and_suites() {
        let suites = |settings: &TlsSettings| {
            provider(settings).cipher_suites.iter().map(|suite| suite.suite()).collect::<Vec<_>>()
        };
        let all = suites(&TlsSettings::default());
        let one = CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256;
        let narrowed = suites(&TlsSettings { tls12_suites: Some(vec![one]), ..TlsSettings::default() });
        assert!(all.len() > narrowed.len());
        assert!(narrowed.contains(&one) && narrowed.contains(&CipherSuite::TLS13_AES_128_GCM_SHA256));
        let only13 = suites(&TlsSettings { only_tls13: true, ..TlsSettings::default() });
        assert!(!only13.is_empty() && only13.iter().all(|suite| !all.contains(&one) || *suite != one));
        assert!(!only13.contains(&CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384));
    }

    #[test]
    fn every_named_suite_is_supported() {
        let all = provider(&TlsSettings::default());
        for (name, suite) in TLS12_SUITES {
            assert!(all.cipher_suites.iter().any(|known| known.suite() == suite), "{name}");
        }
    }
}
