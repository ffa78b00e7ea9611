//! Do gateway and picker agree on TLS, and is the certificate good for this gateway?

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use crate::doctor::envoy::Validation;
use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::{Handshake, Observations, Picker};

pub(super) fn check(seen: &Observations) -> Outcome {
    let mut findings = Vec::new();
    let clusters = seen.envoy.as_ref().map(|envoy| {
        let of = |name: &&str| envoy.config.clusters.get(*name);
        envoy.config.picker_clusters().iter().filter_map(of).collect::<Vec<_>>()
    });
    let clusters = clusters.unwrap_or_default();
    for cluster in clusters.iter().filter(|cluster| !cluster.http2) {
        let what = format!("cluster {} of the gateway speaks HTTP/1.1", cluster.name);
        findings.push(Finding::new(&rules::PICKER_NOT_HTTP2, what));
    }
    let picker = match &seen.picker {
        Ok(picker) if picker.unreachable.is_none() => picker,
        Ok(_) if findings.is_empty() => return Outcome::skipped("the picker can't be reached; see picker"),
        Err(reason) if findings.is_empty() => return Outcome::skipped(reason),
        _ => return Outcome::looked("the gateway's side", findings),
    };
    for cluster in &clusters {
        let (gateway, port) = match (&cluster.tls, &picker.tls) {
            (Some(_), Err(_)) if picker.reply.is_ok() => ("TLS", "plain text"),
            (None, Ok(_)) => ("plain text", "TLS"),
            _ => continue,
        };
        let what = format!(
            "cluster {} of the gateway speaks {gateway}, and {} speaks {port}",
            cluster.name, picker.address
        );
        findings.push(Finding::new(&rules::TLS_MISMATCH, what));
    }
    let Ok(handshake) = &picker.tls else {
        return Outcome::looked(format!("{} speaks plain text", picker.address), findings);
    };
    if !handshake.h2 {
        findings.push(Finding::new(&rules::TLS_NO_ALPN, format!("{} agrees on no protocol", picker.address)));
    }
    let asked: Vec<_> = clusters.iter().filter_map(|cluster| cluster.tls.as_ref()).collect();
    let mut looks = "the gateway does not look at the certificate";
    if asked.is_empty() {
        looks = "the certificate is in its time";
    }
    if let Err(reason) = valid(handshake, None, UnixTime::now()) {
        findings.push(Finding::new(&rules::TLS_CERTIFICATE, format!("{}: {reason}", picker.address)));
    }
    for validation in asked {
        match validation {
            Validation::None => {}
            Validation::Elsewhere => {
                looks = "the CA of the gateway is in a secret that is not looked at here"
            }
            Validation::Inline(pem) => {
                findings.extend(trusted(picker, handshake, Ok(pem.as_bytes().to_vec())))
            }
            Validation::File(path) => {
                let read = std::fs::read(path).map_err(|error| error.to_string());
                match read {
                    // The file is the gateway's.
                    Err(_) => looks = "the CA of the gateway is in a file that is not here",
                    Ok(pem) => findings.extend(trusted(picker, handshake, Ok(pem))),
                }
            }
        }
    }
    Outcome::looked(format!("{} speaks TLS; {looks}", picker.address), findings)
}

fn trusted(picker: &Picker, handshake: &Handshake, pem: Result<Vec<u8>, String>) -> Option<Finding> {
    let checked = pem.and_then(|pem| valid(handshake, Some(&pem), UnixTime::now()));
    let what = |reason| format!("{}: {reason}, with the CA of the gateway", picker.address);
    checked.err().map(|reason| Finding::new(&rules::TLS_CERTIFICATE, what(reason)))
}

/// Checks that a certificate is in its time and, given a CA, signed by it. The name is not
/// compared: the gateway decides which name it asks for.
fn valid(handshake: &Handshake, authority: Option<&[u8]>, now: UnixTime) -> Result<(), String> {
    let Some((own, others)) = handshake.chain.split_first() else { return Err("no certificate".to_owned()) };
    let own = CertificateDer::from(own.clone());
    let others: Vec<CertificateDer<'_>> =
        others.iter().map(|der| CertificateDer::from(der.clone())).collect();
    let mut roots = RootCertStore::empty();
    match authority {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|_| "the CA can't be read".to_owned())?;
                roots.add(certificate).map_err(|_| "the CA can't be used".to_owned())?;
            }
        }
        // Whoever signed it: what matters is its time.
        None => {
            roots.add_parsable_certificates(std::iter::once(own.clone()).chain(others.iter().cloned()));
        }
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let verifier = verifier.map_err(|_| "the CA holds no certificate".to_owned())?;
    let name = ServerName::try_from("usher-doctor.invalid").map_err(|error| error.to_string())?;
    use rustls::CertificateError as Bad;
    match verifier.verify_server_cert(&own, &others, &name, &[], now) {
        Err(rustls::Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. })) => {
            Err("the certificate has expired".to_owned())
        }
        Err(rustls::Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. })) => {
            Err("the certificate is not valid yet".to_owned())
        }
        Err(rustls::Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature))
            if authority.is_some() =>
        {
            Err("the certificate is not signed by the CA".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn certificate_validity_and_ca_are_checked() {
        let made = |until: i32| {
            let mut params = CertificateParams::new(vec!["picker".to_owned()]).unwrap();
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(until, 1, 1));
            let key = KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            (Handshake { h2: true, chain: vec![certificate.der().to_vec()] }, certificate.pem())
        };
        // 2026 and 2019, in seconds.
        let (now, early) = (Duration::from_secs(1_770_000_000), Duration::from_secs(1_560_000_000));
        let at = UnixTime::since_unix_epoch;
        let (good, pem) = made(2040);
        let (old, other_pem) = made(2021);
        assert_eq!(valid(&good, None, at(now)), Ok(()));
        assert_eq!(valid(&good, Some(pem.as_bytes()), at(now)), Ok(()));
        assert!(valid(&good, Some(other_pem.as_bytes()), at(now)).unwrap_err().contains("not signed"));
        assert!(valid(&old, None, at(now)).unwrap_err().contains("expired"));
        assert!(valid(&good, None, at(early)).unwrap_err().contains("not valid yet"));
        assert!(valid(&Handshake::default(), None, at(now)).is_err());
    }
}
