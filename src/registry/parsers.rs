//! Parsers of a configuration, in their order.

use usher_plugin::{Kind, wrong_kind};

use crate::config::{ConfigError, EndpointPickerConfig, Name};
use crate::request::ParserKind;

use super::instances::{Instances, START};
use super::resolved::Use;

const KEY: &str = "requestHandler.parsers";

/// The parsers of a configuration that lists none, in order.
const DEFAULT: [&str; 4] = ["openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"];

/// The parsers that the configuration asks for, or the default ones. Those that
/// are not declared are added by type.
pub(super) fn add(
    config: &EndpointPickerConfig,
    instances: &mut Instances<'_>,
) -> Result<Vec<Name>, ConfigError> {
    for reference in &config.parsers {
        if instances.types().find(&reference.value).is_some() {
            instances.inject(&reference.value, reference.at)?;
        }
    }
    if !config.parsers.is_empty() {
        return Ok(config.parsers.clone());
    }
    for name in DEFAULT {
        instances.inject(name, START)?;
    }
    Ok(DEFAULT.iter().map(|name| Name { at: START, value: (*name).to_owned() }).collect())
}

/// Refuses parsers that do not exist.
pub(super) fn check(references: &[Name], instances: &Instances<'_>) -> Result<(), ConfigError> {
    let types = || instances.types().all().filter(|plugin_type| plugin_type.is(Kind::Parser));
    references.iter().try_for_each(|reference| {
        instances.get_or_type(KEY, reference, types().map(|plugin_type| plugin_type.name)).map(|_| ())
    })
}

/// The parsers that are asked: each type once, and none after one that takes every path.
pub(super) fn asked(
    references: &[Name],
    defaulted: bool,
    instances: &Instances<'_>,
    notes: &mut Vec<String>,
) -> Result<(Vec<ParserKind>, Vec<Use>), ConfigError> {
    let (mut kinds, mut uses): (Vec<ParserKind>, Vec<Use>) = (Vec::new(), Vec::new());
    for reference in references {
        let instance = instances.get_kind(KEY, reference, Kind::Parser)?;
        let kind = instance.parts.extra::<ParserKind>().copied();
        let kind = kind.ok_or_else(|| wrong_kind(KEY, reference, "a parser"))?;
        if kinds.contains(&ParserKind::PassThrough) {
            notes.push(format!("parser '{}' is never asked: it follows a passthrough-parser", instance.name));
        } else if kinds.contains(&kind) {
            notes.push(format!("parser '{}' is never asked: its type is listed already", instance.name));
        } else {
            kinds.push(kind);
            uses.push(Use::of(&instance.name, defaulted));
        }
    }
    Ok((kinds, uses))
}
