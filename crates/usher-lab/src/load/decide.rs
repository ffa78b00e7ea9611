//! Decisions of an ext_proc server on single requests, for callers that compare them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::body::Style;
pub use super::decision::Decided;
use super::direct::Direct;
use super::error::LoadError;
use super::failure::Failure;
use super::prompt::{Envelope, Packer, Wire};
use super::script::Voice;
use super::settings::TlsMode;
use super::trace::Row;
use usher_wire::client::message::Context;

/// Tokens of every response.
const OUTPUT_TOKENS: usize = 4;

/// Client of one server.
pub struct Asker {
    direct: Direct,
    packer: Packer,
}

impl Asker {
    /// Connects to `address`, `HOST:PORT`; `headers` go with every request. It has to be used within a
    /// [`LocalSet`](tokio::task::LocalSet).
    ///
    /// # Errors
    /// `LoadError` if nothing listens there, or no ext_proc server.
    pub async fn connect(
        address: &str,
        tls: TlsMode,
        style: Style,
        headers: &[(String, String)],
    ) -> Result<Self, LoadError> {
        let direct = Direct::connect(address, tls, 1, Duration::ZERO).await?;
        let voice = Voice::new(style.api, &style.model, style.stream);
        // Every picker is asked under the same name, wherever it listens.
        let authority = "gateway".to_owned();
        let envelope = Envelope { context: Context::default(), authority, headers: headers.to_vec(), voice };
        let packer = Packer { style, output_tokens: Some(OUTPUT_TOKENS), messages: Some(envelope) };
        Ok(Self { direct, packer })
    }

    /// Decision of the server on request `number` of a trace, with its response played to the end.
    ///
    /// # Errors
    /// `Failure` if the server breaks the protocol or the connection is lost.
    pub async fn ask(&self, number: u64, row: &Row) -> Result<Decided, Failure> {
        let prompt = self.packer.row(row, 0);
        let Wire::Messages(messages) = &prompt.wire else {
            return Err(Failure::protocol("a request for another kind of target"));
        };
        let mut decided = self.direct.decide(messages, number).await?;
        // llm-d-router sets all headers again.
        if let Some(envelope) = &self.packer.messages {
            unchanged(&mut decided.headers, &envelope.headers(self.packer.style.api, ""));
        }
        unchanged(&mut decided.response_headers, &Voice::headers(self.packer.style.stream));
        Ok(decided)
    }
}

/// Takes out what was sent like this.
fn unchanged(set: &mut BTreeMap<String, String>, sent: &[(&str, &str)]) {
    for (name, value) in sent {
        if set.get(*name).is_some_and(|set| set == value) {
            set.remove(*name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn headers_set_to_their_old_value_are_dropped() {
        let mut set =
            headers(&[(":path", "/v1/completions"), ("x-tenant", "red"), ("x-prefiller-host-port", "a:1")]);
        unchanged(&mut set, &[(":path", "/v1/completions"), ("x-tenant", "blue"), ("accept", "*/*")]);
        assert_eq!(set, headers(&[("x-tenant", "red"), ("x-prefiller-host-port", "a:1")]));
    }
}
