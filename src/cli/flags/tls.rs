//! TLS of the ext_proc port.

use clap::{ArgAction, Args};

use super::pflag::{BOOL, given};
use super::unused::Unused;
use crate::config::units::parse_bool;
use crate::extproc::tls::choose_suites;
use crate::settings::TlsSettings;

/// TLS of the ext_proc port.
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsFlags {
    /// Serve ext_proc over TLS, with a self-signed certificate unless --cert-path gives one.
    #[arg(long, value_name = BOOL, default_value = "true", value_parser = parse_bool, action = ArgAction::Set)]
    pub secure_serving: bool,

    /// Folder with tls.crt and tls.key.
    #[arg(long, value_name = "DIR")]
    pub cert_path: Option<String>,

    /// PEM file of the authorities that sign the client certificates of the ext_proc and metrics ports.
    /// The metrics port then serves TLS, with the ext_proc port's certificate unless --metrics-cert-dir
    /// gives another.
    #[arg(long, value_name = "FILE")]
    pub client_ca_path: Option<String>,

    /// Reload the certificate files when they change.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = ArgAction::Set)]
    pub enable_cert_reload: bool,

    /// Lowest version: VersionTLS10 to VersionTLS13. Below 1.2 means 1.2.
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS12", hide_default_value = true, value_parser = parse_version)]
    pub tls_min_version: MinVersion,

    /// Cipher suites of TLS 1.2 by their Go names, separated by commas. By default all that
    /// are safe.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
}

/// The lowest TLS version that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinVersion {
    /// Versions that are no longer safe, 1.0 and 1.1.
    Old,
    /// 1.2.
    Tls12,
    /// 1.3.
    Tls13,
}

impl TlsFlags {
    pub(super) fn settings(self, unused: &mut Unused) -> Result<Option<TlsSettings>, String> {
        let names: Vec<_> = self.tls_cipher_suites.into_iter().filter(|name| !name.is_empty()).collect();
        let suites = choose_suites(&names).map_err(|error| format!("--tls-cipher-suites: {error}"))?;
        let (cert_dir, client_ca) = (given(&self.cert_path), given(&self.client_ca_path));
        if client_ca.is_some() && !self.secure_serving {
            return Err("--client-ca-path needs TLS; leave out --secure-serving=false".to_owned());
        }
        unused.note(
            self.tls_min_version == MinVersion::Old,
            "--tls-min-version",
            "versions below TLS 1.2 are not supported, 1.2 is the lowest",
        );
        unused.note(
            suites.dropped_unsafe,
            "--tls-cipher-suites",
            "some of these suites are no longer safe and not supported; the others are used",
        );
        unused.note(
            self.enable_cert_reload && cert_dir.is_none() && client_ca.is_none(),
            "--enable-cert-reload",
            "without --cert-path and --client-ca-path there is no file to watch",
        );
        unused.note(
            !self.secure_serving && cert_dir.is_some(),
            "--cert-path",
            "with --secure-serving=false there is no TLS",
        );
        Ok(self.secure_serving.then(|| TlsSettings {
            cert_dir: cert_dir.map(Into::into),
            client_ca: client_ca.map(Into::into),
            reload: self.enable_cert_reload,
            only_tls13: self.tls_min_version == MinVersion::Tls13,
            tls12_suites: suites.tls12,
        }))
    }
}

fn parse_version(text: &str) -> Result<MinVersion, String> {
    match text {
        "VersionTLS10" | "VersionTLS11" => Ok(MinVersion::Old),
        "" | "VersionTLS12" => Ok(MinVersion::Tls12),
        "VersionTLS13" => Ok(MinVersion::Tls13),
        _ => Err("write VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13".to_owned()),
    }
}
