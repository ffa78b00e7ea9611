//! `disagg-headers-handler`, and `prefill-header-handler`, its older name: names to the
//! sidecar of the decoding pod who encodes and who computes the prompt.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::or_default;
use usher_plugin::{
    Build, BuildContext, Context, Decision, Effects, Kind, PluginParts, PluginType, PreRequest, beta,
};

/// `disagg-headers-handler` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("disagg-headers-handler", &[Kind::PreRequest],
    "Names the pods that encode and prefill in headers.",
    Build::Reading(build)).takes::<DisaggHeadersParams>().instead("disagg-profile-handler")
    .when("Not in new configurations.");

/// `prefill-header-handler` in a configuration.
#[rustfmt::skip]
pub static OLDER_NAME: PluginType = beta("prefill-header-handler", &[Kind::PreRequest],
    "The older name of disagg-headers-handler.",
    Build::Reading(build)).takes::<DisaggHeadersParams>().instead("disagg-profile-handler")
    .when("Not in new configurations.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = DisaggHeadersParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?;
    let profiles = params.prefill_profile.iter().map(|name| ("prefillProfile", name.clone())).collect();
    Ok(PluginParts { pre_request: Some(Arc::new(DisaggHeaders::new(params))), profiles, ..parts })
}

/// Parameters of `disagg-headers-handler`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DisaggHeadersParams {
    /// The profile whose first pick computes the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "the profile handler's"))]
    pub prefill_profile: Option<String>,
    /// The profile whose picks encode images, audio and video.
    pub encode_profile: String,
}

const ENCODE: &str = "encode";

impl Default for DisaggHeadersParams {
    fn default() -> Self {
        Self { prefill_profile: None, encode_profile: ENCODE.to_owned() }
    }
}

impl DisaggHeadersParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and wrong types.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        params.prefill_profile = params.prefill_profile.filter(|name| !name.is_empty());
        or_default(&mut params.encode_profile, ENCODE);
        Ok(params)
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
