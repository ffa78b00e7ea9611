//! `session-id-producer`: the session that a request names in a header or a cookie.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::Candidates;
use usher_core::request::{Headers, MAX_NAME};
use usher_plugin::data::SessionId;
use usher_plugin::params::header_name;
use usher_plugin::{
    Build, BuildContext, DataProducer, Facts, Key, Kind, PluginParts, PluginType, RequestContext, beta,
};

/// `session-id-producer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("session-id-producer", &[Kind::DataProducer],
    "Reads the session of a request from a header or a cookie. Exactly one of its parameters is given.",
    Build::Reading(build)).takes::<SessionIdParams>()
    .when("Where a header or a cookie names the session.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = SessionIdParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?;
    let producer = Arc::new(SessionIdProducer::new(params, cx.produces()));
    Ok(PluginParts { producer: Some(producer), ..parts })
}

/// Parameters of `session-id-producer`: where a session is named, in one of both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionIdParams {
    /// The header in which clients name their session.
    ///
    /// Lower case once it is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_name: Option<String>,
    /// The cookie in which clients name their session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie_name: Option<String>,
}

impl SessionIdParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` for unknown keys, wrong types, names that can't be, with their place; anything but
    /// exactly one of the two keys.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        let there = |name: Option<String>| name.filter(|name| !name.is_empty());
        match (there(params.header_name), there(params.cookie_name)) {
            (Some(header), None) => {
                let header = header_name(node.position_of("headerName"), &header)?;
                Ok(Self { header_name: Some(header), cookie_name: None })
            }
            (None, Some(cookie)) if cookie.bytes().all(is_token) => {
                Ok(Self { header_name: None, cookie_name: Some(cookie) })
            }
            (None, Some(cookie)) => {
                let message = format!("'{cookie}' can't be the name of a cookie");
                Err(ConfigError::at(node.position_of("cookieName"), message))
            }
            _ => Err(ConfigError::at(node.at, "it needs exactly one of headerName and cookieName")
                .hint("say where clients name their session")),
        }
    }
}

/// Returns `true` if the name of a cookie may have this byte (RFC 6265, section 4.1.1).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Finds the session of a request, if it names one.
#[derive(Clone, Debug)]
pub struct SessionIdProducer {
    params: SessionIdParams,
    session: Key<SessionId>,
}

impl SessionIdProducer {
    /// A producer that says what it found under `session`.
    pub fn new(params: SessionIdParams, session: Key<SessionId>) -> Self {
        Self { params, session }
    }
}

impl DataProducer for SessionIdProducer {
    fn produce(&self, cx: &RequestContext<'_>, _candidates: &Candidates, facts: &mut Facts) {
        let headers = &cx.request.headers;
        let SessionIdParams { header_name, cookie_name } = &self.params;
        let header = header_name.as_ref().and_then(|name| headers.text(name));
        let found = header.or_else(|| cookie(headers, cookie_name.as_ref()?));
        let found = found.filter(|session| !session.is_empty());
        if found.is_some_and(|session| session.len() > MAX_NAME) {
            return headers.ignore("cookie");
        }
        if let Some(session) = found {
            facts.set(self.session, SessionId(session.to_owned()));
        }
    }
}

/// The value of the first cookie of this name. HTTP/2 lets clients send each cookie in
/// a header of its own.
fn cookie<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    let pairs = headers.all("cookie").flat_map(|header| header.split(|byte| *byte == b';'));
    pairs.filter_map(|pair| std::str::from_utf8(pair).ok()?.split_once('=')).find_map(|(key, value)| {
        let value = value.trim();
        let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        (key.trim() == name).then_some(unquoted.unwrap_or(value))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use usher_core::endpoints::Store;
    use usher_core::request::{Parsers, RequestParser};

    fn session(params: &str, headers: &[(&str, &str)]) -> Option<String> {
        let params = SessionIdParams::decode(&Node::parse(params).unwrap()).unwrap();
        let headers = headers.iter().copied().collect();
        let request = RequestParser::new(headers, &Parsers::new(&[])).without_body();
        let cx = RequestContext { request: &request, now_ms: 1, max_age: Duration::ZERO };
        let (mut facts, key) = (Facts::default(), Key::new(3));
        SessionIdProducer::new(params, key).produce(&cx, &Store::default().snapshot().all(), &mut facts);
        facts.get(key).map(|session| session.0.clone())
    }

    #[test]
    fn sessions_are_found_in_headers_and_cookies() {
        let (header, cookie) = ("{headerName: X-Session}", "{cookieName: sid}");
        let table: [(&str, &[(&str, &str)], Option<&str>); 12] = [
            (header, &[("x-session", "a")], Some("a")),
            (header, &[("x-session", "")], None),
            (header, &[("cookie", "x-session=a")], None),
            (header, &[("x-session", "a"), ("X-SESSION", "b")], Some("b")),
            (cookie, &[("cookie", "sid=a")], Some("a")),
            (cookie, &[("cookie", "other=1; sid = a ;last=2")], Some("a")),
            (cookie, &[("cookie", "other=1"), ("cookie", "sid=a=b")], Some("a=b")),
            (cookie, &[("cookie", "sid=\"quoted\"; sid=second")], Some("quoted")),
            (cookie, &[("cookie", "SID=a; sidd=b; xsid=c; sid")], None),
            (cookie, &[("cookie", "sid=")], None),
            (cookie, &[("cookie", "sid=\"")], Some("\"")),
            (cookie, &[("sid", "a")], None),
        ];
        for (params, headers, expected) in table {
            assert_eq!(session(params, headers).as_deref(), expected, "{params} {headers:?}");
        }
    }

    proptest! {
        /// The first cookie of the name counts, whatever else is in the headers.
        #[test]
        fn cookies_equal_their_reference(headers in vec(vec(("(sid|SID|other|)", "[a-z=\" ]{0,4}"), 0..4), 0..4)) {
            let text = |pairs: &Vec<(String, String)>| {
                pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ")
            };
            let texts: Vec<String> = headers.iter().map(text).collect();
            let texts: Vec<(&str, &str)> = texts.iter().map(|text| ("cookie", text.as_str())).collect();
            let mut expected = None;
            for (name, value) in headers.iter().flatten() {
                if name == "sid" && expected.is_none() {
                    let value = value.trim();
                    let is_quoted = value.len() > 1 && value.starts_with('"') && value.ends_with('"');
                    expected = Some(if is_quoted { &value[1..value.len() - 1] } else { value });
                }
            }
            let got = session("{cookieName: sid}", &texts);
            prop_assert_eq!(got.as_deref(), expected.filter(|value| !value.is_empty()));
        }

        #[test]
        fn any_bytes_are_accepted(bytes in vec(any::<u8>(), 0..64)) {
            let mut headers = Headers::of([b"cookie".as_slice(), &bytes].concat().into());
            headers.push(0..6, 6..6 + bytes.len());
            prop_assert!(cookie(&headers, "sid").is_none_or(|value| bytes.len() >= value.len() + 4));
        }
    }

    #[test]
    fn exactly_one_session_source_is_required() {
        let table = [
            ("{}", "exactly one of headerName and cookieName", 1),
            ("{headerName: '', cookieName: ''}", "exactly one of headerName and cookieName", 1),
            ("{headerName: a, cookieName: b}", "exactly one of headerName and cookieName", 1),
            ("{headerName: 'a b'}", "'a b' can't be the name of a header", 14),
            ("{cookieName: 'a;b'}", "'a;b' can't be the name of a cookie", 14),
            ("{cookie: a}", "unknown field 'cookie'", 2),
        ];
        for (text, message, column) in table {
            let error = SessionIdParams::decode(&Node::parse(text).unwrap()).expect_err(text);
            assert!(error.message().contains(message), "{text}: {error}");
            assert_eq!(error.position().map(|at| at.column), Some(column), "{text}: {error}");
        }
        let json = serde_json::to_value(
            SessionIdParams::decode(&Node::parse("{cookieName: sid}").unwrap()).unwrap(),
        );
        let json = json.unwrap();
        assert_eq!(json, serde_json::json!({"cookieName": "sid"}));
    }
}
