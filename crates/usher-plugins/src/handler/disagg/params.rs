//! Parameters of `disagg-profile-handler`, in their present form and in the flat one.

use serde::Serialize;
use serde_json::{Value, json};
use usher_core::config::{ConfigError, Name, Node, Position};

use super::joint::JointParams;
use super::references::name;
use super::written::{StageProfiles, Written};

/// Stage that is placed first, and so which one can look at the other's endpoint.
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
    fn parse(written: &str, at: Position) -> Result<Self, ConfigError> {
        let word: String = written.chars().filter(|c| !matches!(c, '-' | '_')).collect();
        match word.to_ascii_lowercase().as_str() {
            "" | "decode" | "decodefirst" => Ok(Self::DecodeFirst),
            "prefill" | "prefillfirst" => Ok(Self::PrefillFirst),
            _ => Err(ConfigError::at(at, format!("stageOrder '{written}' is not known"))
                .hint("write decode-first or prefill-first")
                .did_you_mean(written, ["decode-first", "prefill-first"])),
        }
    }
}

/// Parameters of `disagg-profile-handler`.
#[derive(Clone, Debug, PartialEq)]
pub struct DisaggParams {
    /// Stage that is placed first. Default `decode-first`.
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
    /// Joint choice of prefill and decode; `None`: each profile picks alone. Ours:
    /// llm-d-router has no such parameters.
    pub joint: Option<JointParams>,
}

/// Profiles and deciders of either form.
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
    /// `ConfigError` with line and column for unknown keys, wrong types, an order that there isn't, both
    /// forms at once, two stages with one profile, and a decider of what always runs.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let written: Written = node.decode()?;
        let stage_order = written.stage_order.clone();
        let joint = pairing(node, written)?;
        let stage_order = StageOrder::parse(&stage_order, node.position_of("stageOrder"))?;
        let given = |key: &str| name(node, key);
        let named = given("prefillDeciderPluginName");
        let older = given("deciderPluginName").filter(|_| named.is_none());
        let flat_decider = if older.is_some() { "deciderPluginName" } else { "prefillDeciderPluginName" };
        let flat = Form {
            profiles: ["decodeProfile", "prefillProfile", "encodeProfile"].map(given),
            deciders: [named.or(older), given("encodeDeciderPluginName")],
        };
        let present = Form {
            profiles: ["profiles.decode", "profiles.prefill", "profiles.encode"].map(given),
            deciders: ["deciders.prefill", "deciders.encode"].map(given),
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

    /// Effect of the parameters, in sentences.
    pub fn summary(&self) -> String {
        let StageProfiles { decode, prefill, encode } = &self.profiles;
        let mut text = format!("Runs the profile '{decode}', whose pick responds");
        match (&self.prefill_decider, self.stage_order) {
            (_, StageOrder::PrefillFirst) => {
                text.push_str(&format!(", after '{prefill}', whose pick computes the prompt"))
            }
            (Some(decider), StageOrder::DecodeFirst) => {
                let decider = &decider.value;
                text.push_str(&format!(
                    ", and where {decider} requires it '{prefill}', whose pick computes the prompt"
                ));
            }
            (None, StageOrder::DecodeFirst) if self.joint.is_some() => {
                text.push_str(&format!(
                    ", and '{prefill}', whose pick computes the prompt where that costs less"
                ));
            }
            (None, StageOrder::DecodeFirst) => text.push_str(" and computes the prompt itself"),
        }
        if let Some(decider) = &self.encode_decider {
            text.push_str(&format!(
                "; where {} requires it '{encode}' picks the endpoints that encode images, videos and clips",
                decider.value
            ));
        }
        let together = if self.joint.is_some() {
            " Prefill and decode are chosen as a pair, by the least cost."
        } else {
            ""
        };
        format!("{text}.{together}")
    }

    /// The parameters in the form in which they are written.
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

/// Choice of pairs: the parameters of joint pairing, if it is asked for.
fn pairing(node: &Node, written: Written) -> Result<Option<JointParams>, ConfigError> {
    match written.pairing.as_str() {
        "" | "independent" => match JointParams::first(node) {
            None => Ok(None),
            Some((key, at)) => {
                Err(ConfigError::at(at, format!("{key} has no effect without pairing: joint"))
                    .hint("add pairing: joint, or leave it out"))
            }
        },
        "joint" => JointParams::read(node, written).map(Some),
        other => Err(ConfigError::at(node.position_of("pairing"), format!("pairing '{other}' is not known"))
            .hint("write independent or joint")
            .did_you_mean(other, ["independent", "joint"])),
    }
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
