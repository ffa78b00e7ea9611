//! Response to an instant query: one number, or an error.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// Longest text of a server in an error.
const MOST_SAID: usize = 200;

/// Error of a response that isn't one number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// Not a response of the Prometheus API.
    #[error("the response is not one of the Prometheus API: {0}; is that the server's base URL?")]
    Malformed(String),
    /// The query failed at the server.
    #[error("the server says: {0}")]
    Refused(String),
    /// No series has a value now.
    #[error("the result has no sample; does the metric exist, with these labels?")]
    NoSample,
    /// More than one sample.
    #[error("the result has {0} samples and has to have one; sum() or max() makes one of them")]
    Several(usize),
    /// Matrix, text or histogram.
    #[error("the result is a {0} and has to be one number")]
    NoNumber(String),
    /// NaN or infinite.
    #[error("the result is {0}, which is no number to scale by")]
    NotFinite(String),
}

#[derive(Deserialize)]
struct Envelope {
    status: String,
    error: Option<String>,
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: Box<RawValue>,
}

/// Time and value; the API writes the value as text.
type Point = (IgnoredAny, String);

#[derive(Deserialize)]
struct Sample {
    value: Option<Point>,
}

/// The single number in a response's body.
///
/// # Errors
/// `ResponseError` if the query failed, or its result isn't one finite number.
pub(super) fn number(body: &[u8]) -> Result<f64, ResponseError> {
    let malformed = |error: serde_json::Error| ResponseError::Malformed(clipped(&error.to_string()));
    let envelope: Envelope = serde_json::from_slice(body).map_err(malformed)?;
    if envelope.status != "success" {
        return Err(ResponseError::Refused(clipped(&envelope.error.unwrap_or_default())));
    }
    let missing = || ResponseError::Malformed("it has no data".to_owned());
    let Data { result_type, result } = envelope.data.ok_or_else(missing)?;
    let text = match result_type.as_str() {
        "scalar" => serde_json::from_str::<Point>(result.get()).map_err(malformed)?.1,
        "vector" => {
            let samples: Vec<Sample> = serde_json::from_str(result.get()).map_err(malformed)?;
            let many = samples.len();
            let mut samples = samples.into_iter();
            match (samples.next(), many) {
                (None, _) => return Err(ResponseError::NoSample),
                (Some(sample), 1) => {
                    sample.value.ok_or_else(|| ResponseError::NoNumber("histogram".to_owned()))?.1
                }
                _ => return Err(ResponseError::Several(many)),
            }
        }
        other => return Err(ResponseError::NoNumber(clipped(other))),
    };
    let value = text.parse::<f64>().map_err(|_| ResponseError::NoNumber(clipped(&text)))?;
    if value.is_finite() { Ok(value) } else { Err(ResponseError::NotFinite(text)) }
}

/// Error message in the body of an error response, if any.
pub(super) fn complaint(body: &[u8]) -> Option<String> {
    let envelope: Envelope = serde_json::from_slice(body).ok()?;
    envelope.error.as_deref().map(clipped).filter(|said| !said.is_empty())
}

/// A server's text for the log: one line, shortened.
fn clipped(text: &str) -> String {
    let clean = |letter: char| if letter.is_control() { ' ' } else { letter };
    let mut short: String = text.chars().take(MOST_SAID).map(clean).collect();
    if text.chars().nth(MOST_SAID).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(kind: &str, result: &str) -> Result<f64, ResponseError> {
        let text = format!(
            r#"{{"status":"success","data":{{"resultType":"{kind}","result":{result}}},"warnings":["w"]}}"#
        );
        number(text.as_bytes())
    }

    #[test]
    fn one_sample_is_a_number() {
        for (text, value) in [("1.5", 1.5), ("-3", -3.0), ("1e+06", 1e6), ("0", 0.0)] {
            let sample = format!(r#"[1700000000.123,"{text}"]"#);
            assert_eq!(response("scalar", &sample), Ok(value));
            let vector = format!(r#"[{{"metric":{{"pool":"a"}},"value":{sample}}}]"#);
            assert_eq!(response("vector", &vector), Ok(value));
        }
    }

    #[test]
    fn results_without_one_finite_number_are_errors() {
        let sample = |value: &str| format!(r#"{{"metric":{{}},"value":[1,"{value}"]}}"#);
        let two = format!("[{},{}]", sample("1"), sample("2"));
        let table = [
            ("vector", "[]", ResponseError::NoSample),
            ("vector", two.as_str(), ResponseError::Several(2)),
            ("vector", r#"[{"metric":{},"histogram":[1,{}]}]"#, ResponseError::NoNumber("histogram".into())),
            ("matrix", "[]", ResponseError::NoNumber("matrix".into())),
            ("string", r#"[1,"7"]"#, ResponseError::NoNumber("string".into())),
            ("scalar", r#"[1,"NaN"]"#, ResponseError::NotFinite("NaN".into())),
            ("scalar", r#"[1,"+Inf"]"#, ResponseError::NotFinite("+Inf".into())),
            ("scalar", r#"[1,"-Inf"]"#, ResponseError::NotFinite("-Inf".into())),
            ("scalar", r#"[1,"x"]"#, ResponseError::NoNumber("x".into())),
        ];
        for (kind, result, error) in table {
            assert_eq!(response(kind, result), Err(error), "{kind} {result}");
        }
        let malformed = ["", "{}", "<html>", r#"{"status":"success"}"#, "[]", "\u{0}"];
        for text in malformed {
            assert!(matches!(number(text.as_bytes()), Err(ResponseError::Malformed(_))), "{text}");
        }
        for result in ["{}", "[[1]]", r#"[{"value":[1]}]"#, r#"[{"value":[1,2]}]"#] {
            assert!(matches!(response("vector", result), Err(ResponseError::Malformed(_))), "{result}");
        }
    }

    #[test]
    fn server_error_is_one_short_line() {
        let refused = br#"{"status":"error","errorType":"bad_data","error":"parse error:\nunexpected }"}"#;
        assert_eq!(number(refused), Err(ResponseError::Refused("parse error: unexpected }".to_owned())));
        assert_eq!(complaint(refused).as_deref(), Some("parse error: unexpected }"));
        let long = format!(r#"{{"status":"error","error":"{}"}}"#, "é".repeat(1000));
        assert_eq!(complaint(long.as_bytes()).unwrap().chars().count(), MOST_SAID + 1);
        for text in ["", "Bad gateway", "{}", r#"{"status":"error"}"#] {
            assert_eq!(complaint(text.as_bytes()), None, "{text}");
        }
    }
}
