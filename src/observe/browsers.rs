//! Headers of requests that tell browsers from others, and the names that a browser was led here by.

use std::net::IpAddr;

use http::header::{ACCEPT, HOST};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue};

/// Returns `true` if the host that is asked for can't be a name of somebody else's DNS. Without a host it is no
/// browser.
pub(super) fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).filter(|host| !host.is_empty()) else { return true };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
    let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    is_address || !name.contains('.') || name.ends_with(".localhost")
}

/// Returns `true` if a page of another site asks, and not to show the response as a page of its own. Browsers say so.
pub(super) fn is_foreign(headers: &HeaderMap) -> bool {
    let says = |name: &str, value: &str| headers.get(name).is_some_and(|said| said == value);
    says("sec-fetch-site", "cross-site") && !says("sec-fetch-mode", "navigate")
}

/// Location of the page for a browser that asked a proxy for it by a path without a slash at its end: the page's links
/// would lead past that path. Envoy sends the path.
pub(super) fn folder(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers.get("x-envoy-original-path")?.to_str().ok()?;
    let (path, query) = asked.split_at(asked.find('?').unwrap_or(asked.len()));
    let last = path.rsplit('/').next().filter(|last| !last.is_empty())?;
    // With a dot in front it is a path, whatever is in it.
    HeaderValue::try_from(format!("./{last}/{query}")).ok()
}

/// Returns `true` for browsers: nobody else names HTML.
pub(super) fn wants_html(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts.flat_map(|value| value.split(',')).any(|range| {
        range.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case("text/html"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_without_a_trailing_slash_is_redirected() {
        for (asked, folder) in [
            ("/usher", Some("./usher/")),
            ("/a/b?c=/d", Some("./b/?c=/d")),
            ("/javascript:x", Some("./javascript:x/")),
            ("/usher/", None),
            ("/?x", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static("x-envoy-original-path"),
                HeaderValue::from_static(asked),
            )]);
            let found = super::folder(&headers);
            assert_eq!(found.as_ref().map(HeaderValue::as_bytes), folder.map(str::as_bytes), "{asked}");
        }
        assert_eq!(folder(&HeaderMap::new()), None);
    }

    #[test]
    fn foreign_host_names_are_not_local() {
        let table = [
            ("127.0.0.1:9095", true),
            ("[::1]:9095", true),
            ("10.1.2.3", true),
            ("localhost:9095", true),
            ("usher.localhost", true),
            ("usher", true),
            ("attacker.example:9095", false),
            ("127.0.0.1.attacker.example", false),
            ("localhost.attacker.example.", false),
            ("a b", false),
            ("", true),
        ];
        for (host, expected) in table {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
            assert_eq!(is_local(&headers), expected, "{host}");
        }
        assert!(is_local(&HeaderMap::new()));
    }

    #[test]
    fn cross_site_requests_are_foreign_but_for_navigation() {
        let table = [
            (&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")][..], true),
            (&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")], false),
            (&[("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")], false),
            (&[], false),
        ];
        for (headers, expected) in table {
            let headers = headers
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
            assert_eq!(is_foreign(&headers.collect()), expected);
        }
    }

    #[test]
    fn browsers_are_detected_by_accepting_html() {
        let table = [
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
            ("application/json, Text/HTML;q=0.5", true),
            ("*/*", false),
            ("text/plain", false),
            ("", false),
        ];
        for (accept, expected) in table {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(wants_html(&headers), expected, "{accept}");
        }
        assert!(!wants_html(&HeaderMap::new()));
    }
}
