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

impl SubsetHint {
    /// Reads entries like `10.0.0.1:8000`, `10.0.0.1`, `[::1]:8000`, `::1`.
    /// Each string may hold several, separated by commas; what is not an address
    /// allows nothing.
    pub fn from_entries<'a>(entries: impl IntoIterator<Item = &'a str>) -> Self {
        let mut list: Vec<(IpAddr, Option<u16>)> = entries
            .into_iter()
            .flat_map(|text| text.split(','))
            .filter_map(|text| parse_address(text.trim()))
            .collect();
        list.sort_unstable();
        list.dedup();
        Self::Only(list.into())
    }
}

/// Reads an address with or without a port; IPv6 with or without brackets.
pub(crate) fn parse_address(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some((address.ip(), Some(address.port())));
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    bare.parse::<IpAddr>().ok().map(|ip| (ip, None))
}

#[cfg(test)]
mod tests {
    use super::SubsetHint;

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
    fn what_is_not_an_address_allows_nothing() {
        assert_eq!(hint(&["pod-1", "", "10.0.0.1:notaport", "10.0.0.1:99999"]), hint(&[]));
        assert_ne!(hint(&[]), SubsetHint::Missing);
    }
}
