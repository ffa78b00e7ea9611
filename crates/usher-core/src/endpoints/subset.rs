//! The gateway's hint which endpoints a request may go to.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The subset of endpoints that the gateway allows for a request, in a
/// canonical form: equal hints are equal values, whatever the order, the
/// duplicates or the spelling in which they arrived. It is also the key of the
/// locator's cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum SubsetHint {
    /// No hint: every endpoint may be picked.
    #[default]
    Missing,
    /// Only these addresses, sorted, each once; a missing port means any port.
    /// An empty list allows nothing.
    Only(Arc<[(IpAddr, Option<u16>)]>),
}

/// Addresses of a hint that are read.
pub const MAX_ADDRESSES: usize = 16_384;

/// Smaller lists are no more than the streams that they came on, in bytes.
const COUNTED: usize = 4096;

impl SubsetHint {
    /// Reads entries like `10.0.0.1:8000`, `10.0.0.1`, `[::1]:8000`, `::1`.
    /// Each string may hold several, separated by commas; what is not an address
    /// allows nothing, and neither does what comes behind [`MAX_ADDRESSES`].
    pub fn from_entries<'a>(entries: impl IntoIterator<Item = &'a str>) -> Self {
        let mut list: Vec<(IpAddr, Option<u16>)> = entries
            .into_iter()
            .flat_map(|text| text.split(','))
            .filter_map(|text| parse_address(text.trim()))
            .take(MAX_ADDRESSES)
            .collect();
        list.sort_unstable();
        list.dedup();
        Self::Only(list.into())
    }

    /// The addresses that are allowed, sorted, each once; `None` without a hint.
    pub fn addresses(&self) -> Option<&[(IpAddr, Option<u16>)]> {
        match self {
            Self::Missing => None,
            Self::Only(addresses) => Some(addresses),
        }
    }

    /// Bytes of memory that are worth counting while a request with this hint is kept: from 4
    /// KiB on.
    pub fn counted(&self) -> usize {
        let bytes = self.addresses().map_or(0, size_of_val);
        if bytes < COUNTED { 0 } else { bytes }
    }

    /// A hash for the cache, where equal hints meet. It costs two multiplications for an
    /// address: gateways choose hints, not clients, and the cache is bounded however they collide.
    pub(super) fn fingerprint(&self) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let fold = |hash: u64, word: u64| {
            let product = u128::from(hash ^ word) * u128::from(ODD);
            (product as u64) ^ ((product >> 64) as u64)
        };
        let addresses = self.addresses().unwrap_or_default();
        addresses.iter().fold(addresses.len() as u64 + 1, |hash, (ip, port)| {
            let port = port.map_or(1 << 16, u64::from);
            match ip {
                IpAddr::V4(ip) => fold(fold(hash, u64::from(u32::from(*ip)) << 20 | port), 4),
                IpAddr::V6(ip) => {
                    let bits = u128::from(*ip);
                    fold(fold(fold(hash, bits as u64), (bits >> 64) as u64), port)
                }
            }
        })
    }
}

/// Reads an address with or without a port; IPv6 with or without brackets. An IPv4 address
/// in an IPv6 one (`::ffff:10.0.0.1`) is the IPv4 one.
pub fn parse_address(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some((address.ip().to_canonical(), Some(address.port())));
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    bare.parse::<IpAddr>().ok().map(|ip| (ip.to_canonical(), None))
}

#[cfg(test)]
mod tests {
    use super::{MAX_ADDRESSES, SubsetHint};

    fn hint(entries: &[&str]) -> SubsetHint {
        SubsetHint::from_entries(entries.iter().copied())
    }

    #[test]
    fn order_duplicates_and_spelling_do_not_matter() {
        let want = hint(&["10.0.0.1:8000", "10.0.0.2:8000"]);
        assert_eq!(hint(&["10.0.0.2:8000", "10.0.0.1:8000"]), want);
        assert_eq!(hint(&["10.0.0.2:8000", "10.0.0.1:8000", "10.0.0.2:8000"]), want);
        assert_eq!(hint(&["10.0.0.1:8000, 10.0.0.2:8000"]), want);
        assert_ne!(hint(&["10.0.0.1:8000"]), want);
        assert_ne!(hint(&["10.0.0.1:8001", "10.0.0.2:8000"]), want);
    }

    #[test]
    fn ipv6_is_read_with_and_without_brackets() {
        assert_eq!(hint(&["[::1]:80"]), hint(&["[0:0:0:0:0:0:0:1]:80"]));
        assert_eq!(hint(&["::1"]), hint(&["[::1]"]));
        assert_ne!(hint(&["::1"]), hint(&["[::1]:80"]));
    }

    #[test]
    fn a_hint_is_bounded_and_a_long_one_counts() {
        let entries = |count: u32| {
            let text = |i| format!("{}:80", std::net::Ipv4Addr::from(i));
            let list: Vec<String> = (0..count).map(text).collect();
            SubsetHint::from_entries([list.join(",").as_str()])
        };
        let most = MAX_ADDRESSES as u32;
        assert_eq!(entries(most + 9), entries(most));
        assert!(entries(most).counted() > 4096);
        assert_eq!((entries(9).counted(), SubsetHint::Missing.counted()), (0, 0));
    }

    #[test]
    fn invalid_address_in_a_hint_matches_no_endpoint() {
        assert_eq!(hint(&["pod-1", "", "10.0.0.1:notaport", "10.0.0.1:99999"]), hint(&[]));
        assert_ne!(hint(&[]), SubsetHint::Missing);
    }
}
