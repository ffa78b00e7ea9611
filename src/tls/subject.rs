//! Subject of a certificate: the part of X.509 that Kubernetes makes a user of.
//!
//! A reader of DER as far as that needs. Certificates get here when their signature has
//! been checked; what isn't understood is an error, never a guess.

/// Subject of a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// CN, the last one. Kubernetes' name of the user.
    pub common_name: String,
    /// All O. Kubernetes' groups of the user.
    pub organizations: Vec<String>,
}

const INTEGER: u8 = 0x02;
const OID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0C;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// `[0]` of a certificate: its version.
const VERSION: u8 = 0xA0;

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.4.10
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0A];

impl Subject {
    /// Subject of a certificate in DER; `None` when it can't be read.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Option<Self> {
        // RFC 5280: Certificate { TBSCertificate { version, serialNumber, signature,
        // issuer, validity, subject, … } … }
        let certificate = Der(certificate).expect(SEQUENCE)?;
        let mut fields = Der(certificate).expect(SEQUENCE).map(Der)?;
        if fields.0.first() == Some(&VERSION) {
            fields.next()?;
        }
        for tag in [INTEGER, SEQUENCE, SEQUENCE, SEQUENCE] {
            fields.expect(tag)?;
        }
        let mut names = Der(fields.expect(SEQUENCE)?);
        let mut subject = Self::default();
        while !names.0.is_empty() {
            let mut set = Der(names.expect(SET)?);
            while !set.0.is_empty() {
                let mut attribute = Der(set.expect(SEQUENCE)?);
                let (kind, (tag, value)) = (attribute.expect(OID)?, attribute.next()?);
                match kind {
                    COMMON_NAME => subject.common_name = text(tag, value)?,
                    ORGANIZATION => subject.organizations.push(text(tag, value)?),
                    _ => {}
                }
            }
        }
        Some(subject)
    }
}

/// The text of a string. Other kinds of strings are obsolete (RFC 5280, 4.1.2.4).
fn text(tag: u8, value: &[u8]) -> Option<String> {
    if !matches!(tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING) {
        return None;
    }
    std::str::from_utf8(value).ok().map(str::to_owned)
}

/// Rest of a sequence of elements.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next element: its tag and what it holds.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut length = usize::from(first);
        if first & 0x80 != 0 {
            // Long form; more than 65,535 bytes is no certificate of a client.
            let bytes = usize::from(first & 0x7F);
            if bytes == 0 || bytes > 2 {
                return None;
            }
            let (long, after) = rest.split_at_checked(bytes)?;
            length = long.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            rest = after;
        }
        let (value, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((tag, value))
    }

    /// Content of the next element, which has to be of this kind; `None` if it isn't.
    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    fn certificate(name: DistinguishedName) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["host.example".to_owned()]).unwrap();
        params.distinguished_name = name;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn name(parts: &[(DnType, DnValue)]) -> DistinguishedName {
        let mut name = DistinguishedName::new();
        parts.iter().for_each(|(kind, value)| name.push(kind.clone(), value.clone()));
        name
    }

    #[test]
    fn the_common_name_is_the_user_and_organizations_are_groups() {
        let utf8 = |text: &str| DnValue::Utf8String(text.to_owned());
        let printable = DnValue::PrintableString("monitoring".try_into().unwrap());
        let parts = [
            (DnType::CountryName, utf8("DE")),
            (DnType::OrganizationName, printable),
            (DnType::OrganizationalUnitName, utf8("not a group")),
            (DnType::CommonName, utf8("prometheus-ü")),
        ];
        let subject = Subject::of(&certificate(name(&parts))).unwrap();
        assert_eq!(subject.common_name, "prometheus-ü");
        assert_eq!(subject.organizations, ["monitoring"]);
        assert_eq!(Subject::of(&certificate(DistinguishedName::new())), Some(Subject::default()));
    }

    #[test]
    fn unsupported_or_truncated_certificate_has_no_subject() {
        let bmp = DnValue::BmpString("old".try_into().unwrap());
        assert_eq!(Subject::of(&certificate(name(&[(DnType::CommonName, bmp)]))), None);
        let whole = certificate(name(&[(DnType::CommonName, DnValue::Utf8String("a".to_owned()))]));
        // The subject is in the first half.
        for end in 0..whole.len() / 2 {
            assert_eq!(Subject::of(&whole[..end]), None, "{end} bytes");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Subject::of(&bytes);
        }
    }
}
