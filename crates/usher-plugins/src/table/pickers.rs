//! Pickers.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_plugin::Kind::Picker;
use usher_plugin::{Build, Built, Parameter, PluginType, Site, beta, parameter};

use crate::pick::PickerParams;
use crate::{MaxScorePicker, RandomPicker, WeightedRandomPicker};

const MAX_ENDPOINTS: &[Parameter] = &[parameter(
    "maxNumOfEndpoints",
    "1",
    "endpoints",
    "How many are picked: the first serves, the others are fallbacks. Below 1 means 1.",
)];

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("max-score-picker", &[Picker],
        "Picks the endpoints with the highest totals; equals in random order.",
        MAX_ENDPOINTS, Build::Reading(max_score_picker))
        .when("The usual choice, and the default."),
    beta("random-picker", &[Picker],
        "Picks any endpoints that the filters left, whatever their totals.",
        MAX_ENDPOINTS, Build::Reading(random_picker))
        .when("To compare with, or when filters alone decide."),
    beta("weighted-random-picker", &[Picker],
        "Picks at random, endpoints with a higher total more often in proportion.",
        MAX_ENDPOINTS, Build::Reading(weighted_random_picker))
        .when("To spread requests over all good endpoints instead of sending them all to the best."),
];

fn max_score_picker(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = PickerParams::decode(site.parameters)?;
    let picker = Arc::new(MaxScorePicker::new(params.max_num_of_endpoints));
    Ok(Built { picker: Some(picker), ..Built::with(&params)? })
}

fn random_picker(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = PickerParams::decode(site.parameters)?;
    let picker = Arc::new(RandomPicker::new(params.max_num_of_endpoints));
    Ok(Built { picker: Some(picker), ..Built::with(&params)? })
}

fn weighted_random_picker(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = PickerParams::decode(site.parameters)?;
    let picker = Arc::new(WeightedRandomPicker::new(params.max_num_of_endpoints));
    Ok(Built { picker: Some(picker), ..Built::with(&params)? })
}
