//! Parameters of `disagg-profile-handler`, in their present form and in the flat one.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use usher_core::config::{ConfigError, Name, Node, Position, Positioned};

use super::joint::{self, JointParams};

/// Which stage is placed first, and so which one can look at the other's endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageOrder {
    /// The endpoint that decodes, then the others.
    #[default]
    DecodeFirst,
    /// The endpoint that computes the prompt, then the others.
    PrefillFirst,
}

impl StageOrder {
    /// Reads an order, written with hyphens, with underscores, in camel case, or without
    /// `first`.
    fn parse(written: &Name) -> Result<Self, ConfigError> {
        let word: String = written.value.chars().filter(|c| !matches!(c, '-' | '_')).collect();
        match word.to_ascii_lowercase().as_str() {
            "" | "decode" | "decodefirst" => Ok(Self::DecodeFirst),
            "prefill" | "prefillfirst" => Ok(Self::PrefillFirst),
            _ => Err(ConfigError::at(written.at, format!("stageOrder '{}' is not known", written.value))
                .hint("write decode-first or prefill-first")
                .did_you_mean(&written.value, ["decode-first", "prefill-first"])),
        }
    }
}

/// Parameters of `disagg-profile-handler`.
#[derive(Clone, Debug, PartialEq)]
pub struct DisaggParams {
    /// Which stage is placed first. Default `decode-first`.
    pub stage_order: StageOrder,
    /// The profiles of the stages.
    pub profiles: StageProfiles,
    /// Name of the plugin that says whether another endpoint computes the prompt; `None`:
    /// none does, unless prefill comes first.
    pub prefill_decider: Option<Name>,
    /// Name of the plugin that says whether other endpoints encode; `None`: none does.
    pub encode_decider: Option<Name>,
    /// Under which key of the older, flat form the decider of prefill is written; `None`:
    /// the parameters are in the present form.
    pub flat: Option<&'static str>,
    /// How prefill and decode are chosen together; `None`: each profile picks alone. Ours:
    /// the peer has no such parameters.
    pub joint: Option<JointParams>,
}

/// The profiles of the stages, each by its name. No two are the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StageProfiles {
    /// Picks who decodes. Default `decode`.
    pub decode: String,
    /// Picks who computes the prompt. Default `prefill`.
    pub prefill: String,
    /// Picks who encodes images, videos and clips. Default `encode`.
    pub encode: String,
}

/// The parameters as they are written.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    stage_order: Option<Name>,
    profiles: Profiles,
    deciders: Deciders,
    decode_profile: Option<Name>,
    prefill_profile: Option<Name>,
    encode_profile: Option<Name>,
    prefill_decider_plugin_name: Option<Name>,
    decider_plugin_name: Option<Name>,
    encode_decider_plugin_name: Option<Name>,
    pairing: Option<Name>,
    pair_candidates: Option<Positioned<u64>>,
    kv_bytes_per_token: Option<Positioned<f64>>,
    peak_prefill_throughput: Option<Positioned<f64>>,
    links: Option<Node>,
    kv_cache_limit: Option<Positioned<f64>>,
    constraint_mode: Option<Name>,
    constraint_layer: Option<Name>,
    revision_label: Option<Name>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Profiles {
    decode: Option<Name>,
    prefill: Option<Name>,
    encode: Option<Name>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Deciders {
    prefill: Option<Name>,
    encode: Option<Name>,
}

/// A name that says something; an empty one doesn't, as with the peer.
fn given(name: Option<Name>) -> Option<Name> {
    name.filter(|name| !name.value.is_empty())
}

/// What either form says.
struct Form {
    profiles: [Option<Name>; 3],
    deciders: [Option<Name>; 2],
}

impl Form {
    fn first(&self) -> Option<&Name> {
        self.profiles.iter().chain(&self.deciders).flatten().next()
    }
}

impl DisaggParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types, an order that there isn't, both forms at once, two stages
    /// with one profile, and a decider of what always runs, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let written: Written = node.decode()?;
        let joint = pairing(
            written.pairing,
            joint::Written {
                pair_candidates: written.pair_candidates,
                kv_bytes_per_token: written.kv_bytes_per_token,
                peak_prefill_throughput: written.peak_prefill_throughput,
                links: written.links,
                kv_cache_limit: written.kv_cache_limit,
                constraint_mode: written.constraint_mode,
                constraint_layer: written.constraint_layer,
                revision_label: written.revision_label,
            },
        )?;
        let stage_order =
            written.stage_order.as_ref().map_or(Ok(StageOrder::default()), StageOrder::parse)?;
        let named = given(written.prefill_decider_plugin_name);
        let older = given(written.decider_plugin_name).filter(|_| named.is_none());
        let flat_decider = if older.is_some() { "deciderPluginName" } else { "prefillDeciderPluginName" };
        let flat = Form {
            profiles: [written.decode_profile, written.prefill_profile, written.encode_profile].map(given),
            deciders: [named.or(older), given(written.encode_decider_plugin_name)],
        };
        let Written { profiles, deciders, .. } = written;
        let present = Form {
            profiles: [profiles.decode, profiles.prefill, profiles.encode].map(given),
            deciders: [deciders.prefill, deciders.encode].map(given),
        };
        let is_flat = match (flat.first(), present.first()) {
            (Some(first), Some(_)) => return Err(both_forms(first)),
            (first, _) => first.is_some(),
        };
        let Form { profiles, deciders: [prefill_decider, encode_decider] } =
            if is_flat { flat } else { present };
        if let Some(decider) = prefill_decider.as_ref().filter(|_| stage_order == StageOrder::PrefillFirst) {
            let message = "with stageOrder prefill-first, prefill always runs and can't have a decider";
            return Err(ConfigError::at(decider.at, message)
                .hint("leave out the decider, or write stageOrder: decode-first"));
        }
        let flat = is_flat.then_some(flat_decider);
        Ok(Self {
            stage_order,
            profiles: distinct(profiles, node.at)?,
            prefill_decider,
            encode_decider,
            flat,
            joint,
        })
    }

    /// The parameters in the form in which they are written, for people.
    pub fn shown(&self) -> Value {
        let profiles = &self.profiles;
        let [prefill, encode] = [&self.prefill_decider, &self.encode_decider]
            .map(|decider| decider.as_ref().map(|name| name.value.as_str()));
        let mut shown = match self.flat {
            None => json!({
                "stageOrder": self.stage_order,
                "profiles": profiles,
                "deciders": {"prefill": prefill, "encode": encode},
            }),
            Some(decider) => json!({
                "stageOrder": self.stage_order,
                "decodeProfile": profiles.decode,
                "prefillProfile": profiles.prefill,
                "encodeProfile": profiles.encode,
                decider: prefill,
                "encodeDeciderPluginName": encode,
            }),
        };
        if let Some(Ok(Value::Object(joint))) = self.joint.as_ref().map(serde_json::to_value)
            && let Value::Object(shown) = &mut shown
        {
            shown.insert("pairing".to_owned(), "joint".into());
            shown.extend(joint);
        }
        shown
    }
}

/// How pairs are chosen: the parameters of joint pairing, if it is asked for.
fn pairing(mode: Option<Name>, written: joint::Written) -> Result<Option<JointParams>, ConfigError> {
    let Some(mode) = given(mode).filter(|mode| mode.value != "independent") else {
        return match written.first() {
            None => Ok(None),
            Some((key, at)) => {
                Err(ConfigError::at(at, format!("{key} has no effect without pairing: joint"))
                    .hint("add pairing: joint, or leave it out"))
            }
        };
    };
    if mode.value == "joint" {
        return JointParams::read(written).map(Some);
    }
    Err(ConfigError::at(mode.at, format!("pairing '{}' is not known", mode.value))
        .hint("write independent or joint")
        .did_you_mean(&mode.value, ["independent", "joint"]))
}

fn both_forms(first: &Name) -> ConfigError {
    let message = "stages are given in the flat form of older versions, and also under profiles or deciders";
    ConfigError::at(first.at, message).hint("keep what is under profiles and deciders")
}

/// The profiles with their defaults, which stand at `at`, if every stage has one of its own.
fn distinct(written: [Option<Name>; 3], at: Position) -> Result<StageProfiles, ConfigError> {
    let or = |written: Option<Name>, default: &str| {
        written.unwrap_or_else(|| Name { at, value: default.to_owned() })
    };
    let [decode, prefill, encode] = written;
    let (decode, prefill, encode) = (or(decode, "decode"), or(prefill, "prefill"), or(encode, "encode"));
    for (one, other) in [(&decode, &prefill), (&decode, &encode), (&prefill, &encode)] {
        if one.value == other.value {
            // What is written stands behind the beginning of the parameters.
            let message = format!("the profile '{}' is given to two stages", one.value);
            return Err(
                ConfigError::at(one.at.max(other.at), message).hint("every stage has a profile of its own")
            );
        }
    }
    Ok(StageProfiles { decode: decode.value, prefill: prefill.value, encode: encode.value })
}
