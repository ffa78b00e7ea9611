//! Parameters of queries, and pages that are rendered by them.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::JoinError;

/// Responses that are rendered at the same time; each has a bound of its own.
const AT_ONCE: usize = 2;

/// Longest query that is read, in bytes.
const LONGEST: usize = 4 << 10;

/// Most parameters of a query.
const MOST: usize = 16;

type Render = dyn Fn(&str) -> Result<Vec<u8>, String> + Send + Sync;

/// Renders responses to queries off the runtime, some at a time.
#[derive(Clone)]
pub(super) struct Renderer {
    render: Arc<Render>,
    places: Arc<Semaphore>,
}

impl Renderer {
    pub(super) fn new(render: impl Fn(&str) -> Result<Vec<u8>, String> + Send + Sync + 'static) -> Self {
        Self { render: Arc::new(render), places: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// The response, or a sentence about what is wrong with the query.
    ///
    /// # Errors
    /// `JoinError` if rendering panicked, or the runtime shuts down.
    pub(super) async fn render(&self, query: Option<&str>) -> Result<Result<Bytes, String>, JoinError> {
        let query = query.unwrap_or_default();
        if query.len() > LONGEST {
            return Ok(Err(format!("the query is longer than {LONGEST} bytes")));
        }
        // The semaphore is never closed.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (render, query) = (Arc::clone(&self.render), query.to_owned());
        let body = tokio::task::spawn_blocking(move || render(&query)).await?;
        drop(place);
        Ok(body.map(Bytes::from))
    }
}

/// The parameters of a query, decoded; one without `=` has an empty value.
///
/// # Errors
/// A message if a parameter can't be decoded, or there are too many.
pub fn parameters(query: &str) -> Result<Vec<(String, String)>, String> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    let parameters = parts.take(MOST + 1).map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        Ok((decoded(name)?, decoded(value)?))
    });
    let parameters: Vec<_> = parameters.collect::<Result<_, String>>()?;
    if parameters.len() > MOST {
        Err(format!("the query has more than {MOST} parameters"))
    } else {
        Ok(parameters)
    }
}

/// A value as it may stand in a query.
pub fn encoded(value: &str) -> String {
    let encode = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    value.as_bytes().iter().map(encode).collect()
}

fn decoded(text: &str) -> Result<String, String> {
    let wrong = || "the query has a % that isn't followed by two hexadecimal digits".to_owned();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = digit(rest.next()).zip(digit(rest.next())).ok_or_else(wrong)?;
                u8::try_from(high * 16 + low).map_err(|_| wrong())?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| "the query is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let table: &[(&str, &[(&str, &str)])] = &[
            ("", &[]),
            ("slow", &[("slow", "")]),
            ("last=3&id=a%2Fb+c", &[("last", "3"), ("id", "a/b c")]),
            ("a==b&&", &[("a", "=b")]),
        ];
        for (query, expected) in table {
            let found = parameters(query).unwrap();
            let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(found, *expected, "{query}");
        }
        for query in ["a=%", "a=%4", "%zz", "a=%ff", &"a&".repeat(17)] {
            assert!(parameters(query).is_err(), "{query}");
        }
        let hostile = "<script>\u{1b}[31m&=é%";
        let query = format!("id={}", encoded(hostile));
        assert_eq!(parameters(&query).unwrap(), [("id".to_owned(), hostile.to_owned())]);
    }

    #[tokio::test]
    async fn long_queries_are_refused_and_slots_are_freed() {
        let renderer = Renderer::new(|query| match query {
            "bad" => Err("no".to_owned()),
            query => Ok(query.as_bytes().to_vec()),
        });
        for _ in 0..3 * AT_ONCE {
            assert_eq!(renderer.render(Some("x=1")).await.unwrap().unwrap(), "x=1");
            assert_eq!(renderer.render(Some("bad")).await.unwrap(), Err("no".to_owned()));
        }
        assert!(renderer.render(Some(&"x".repeat(LONGEST + 1))).await.unwrap().is_err());
        assert_eq!(renderer.render(None).await.unwrap().unwrap(), "");
    }
}
