//! `destination-endpoint-served-verifier`: shows a conformance test which endpoint served.

use std::sync::Arc;

use bytes::Bytes;
use usher_core::config::ConfigError;
use usher_plugin::{
    Build, BuildContext, Context, Decision, Effects, Header, Kind, PluginParts, PluginType, PreRequest,
    ResponseHead, ResponseObserver, Served, beta,
};

/// `destination-endpoint-served-verifier` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("destination-endpoint-served-verifier", &[Kind::Response],
    "For conformance tests: names in a header of the response the endpoint that served.",
    Build::Reading(build))
    .when("Conformance tests.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    cx.takes_nothing()?;
    Ok(PluginParts { pre_request: Some(Arc::new(ServedVerifier::default())), ..PluginParts::bare() })
}

/// Sets the response's header `x-conformance-test-served-endpoint` to the endpoint that
/// the gateway says served, or to why it doesn't say so.
#[derive(Clone, Debug)]
pub struct ServedVerifier {
    header: Arc<str>,
}

impl Default for ServedVerifier {
    fn default() -> Self {
        Self { header: "x-conformance-test-served-endpoint".into() }
    }
}

impl PreRequest for ServedVerifier {
    fn decided(&self, _cx: &Context<'_>, _decision: &Decision, effects: &mut Effects) {
        effects.observe(ServedReporter { header: Arc::clone(&self.header) });
    }
}

struct ServedReporter {
    header: Arc<str>,
}

impl ResponseObserver for ServedReporter {
    fn response_headers(&mut self, head: &ResponseHead<'_>, out: &mut Vec<Header>) {
        let value = match head.served {
            Served::Unknown => Bytes::from_static(b"fail: missing envoy lb metadata"),
            Served::Missing => Bytes::from_static(b"fail: missing destination endpoint served metadata"),
            Served::By(address) => Bytes::copy_from_slice(address.as_bytes()),
        };
        out.push(Header { name: Arc::clone(&self.header), value });
    }
}
