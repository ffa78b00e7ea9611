//! `disagg-headers-handler`, and `prefill-header-handler`, its older name: tells the
//! sidecar of the decoding pod who encodes and who computes the prompt.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::named;
use usher_plugin::{Context, Decision, Effects, PreRequest};

/// Parameters of `disagg-headers-handler`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DisaggHeadersParams {
    /// The profile that picks who computes the prompt; `None`: the one that the profile
    /// handler knows as such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_profile: Option<String>,
    /// The profile that picks who encodes. Default `encode`.
    pub encode_profile: String,
}

impl DisaggHeadersParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys and wrong types, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            prefill_profile: Option<String>,
            encode_profile: Option<String>,
        }
        let written: Written = node.decode()?;
        Ok(Self {
            prefill_profile: written.prefill_profile.filter(|name| !name.is_empty()),
            encode_profile: named(written.encode_profile, "encode"),
        })
    }
}

/// Sets `x-prefiller-host-port` to the first pick of the prefill profile and
/// `x-encoder-hosts-ports` to all picks of the encode profile, where these ran. What a
/// client wrote there is removed anyway.
#[derive(Clone, Debug)]
pub struct DisaggHeaders {
    params: DisaggHeadersParams,
    prefiller: Arc<str>,
    encoders: Arc<str>,
}

impl DisaggHeaders {
    /// A writer of the picks of these profiles.
    pub fn new(params: DisaggHeadersParams) -> Self {
        Self { params, prefiller: "x-prefiller-host-port".into(), encoders: "x-encoder-hosts-ports".into() }
    }
}

impl PreRequest for DisaggHeaders {
    fn decided(&self, _cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        let prefill = match &self.params.prefill_profile {
            Some(profile) => decision.run(profile),
            None => decision.prefill(),
        };
        if let Some(first) = prefill.and_then(|run| decision.endpoints_of(run).next()) {
            effects.set_header(&self.prefiller, Bytes::copy_from_slice(first.authority().as_bytes()));
        }
        if let Some(run) = decision.run(&self.params.encode_profile) {
            let mut list = BytesMut::with_capacity(24 * run.picks.len());
            for (position, encoder) in decision.endpoints_of(run).enumerate() {
                if position > 0 {
                    list.put_u8(b',');
                }
                list.put_slice(encoder.authority().as_bytes());
            }
            effects.set_header(&self.encoders, list.freeze());
        }
    }
}
