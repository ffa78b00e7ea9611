//! The files of a model: tokenizer.json, tokenizer_config.json, chat template.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;
use tokenizers::Tokenizer;
use usher_core::config::{ConfigError, Node};

use super::params::{FormatParam, LocalParams};
use super::template::{ChatTemplate, ContentFormat};

/// Bytes of a file at most.
const MAX: u64 = 256 << 20;
/// Names of special tokens that transformers hands to templates.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Where the files of a model are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Files {
    tokenizer: PathBuf,
    config: Option<PathBuf>,
    template: Option<PathBuf>,
}

/// What is in them.
pub(super) struct Model {
    pub(super) tokenizer: Tokenizer,
    pub(super) template: Option<ChatTemplate>,
    /// Texts of special tokens by name.
    pub(super) special: Vec<(String, String)>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Config {
    chat_template: Option<Templates>,
    #[serde(flatten)]
    others: std::collections::BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Many(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

impl Files {
    /// The files that parameters name, and those beside them.
    pub(super) fn of(params: &LocalParams) -> Self {
        let tokenizer =
            if params.path.is_dir() { params.path.join("tokenizer.json") } else { params.path.clone() };
        let beside = |name: &str| Some(tokenizer.with_file_name(name)).filter(|path| path.exists());
        let template = match params.chat_template.as_os_str().is_empty() {
            true => beside("chat_template.jinja"),
            false => Some(params.chat_template.clone()),
        };
        let config = beside("tokenizer_config.json");
        Self { tokenizer, config, template }
    }

    /// Changes when one of the files does.
    pub(super) fn version(&self) -> Vec<(PathBuf, Option<(u64, SystemTime)>)> {
        let paths = [Some(&self.tokenizer), self.config.as_ref(), self.template.as_ref()];
        paths
            .into_iter()
            .flatten()
            .map(|path| {
                let found = fs::metadata(path).ok();
                (path.clone(), found.and_then(|found| Some((found.len(), found.modified().ok()?))))
            })
            .collect()
    }

    /// Reads them.
    ///
    /// # Errors
    /// A file that is missing or that can't be understood, at the parameter that names it.
    pub(super) fn read(&self, params: &LocalParams, node: &Node) -> Result<Model, ConfigError> {
        let at = |key: &str| node.position_of(&format!("local.{key}"));
        let in_path = |message: String| ConfigError::at(at("path"), message);
        let text = text(&self.tokenizer)
            .map_err(|error| in_path(error).hint("name the model's tokenizer.json, or its folder"))?;
        let tokenizer = text.parse::<Tokenizer>().map_err(|error| {
            in_path(format!("{} is no tokenizer that can be read: {error}", self.tokenizer.display()))
        })?;
        let config: Config = match &self.config {
            None => Config::default(),
            Some(path) => serde_json::from_str(&self::text(path).map_err(in_path)?)
                .map_err(|error| in_path(format!("{} can't be read: {error}", path.display())))?,
        };
        let templates = match (&self.template, config.chat_template) {
            (Some(path), _) => {
                let text = self::text(path).map_err(|error| ConfigError::at(at("chatTemplate"), error))?;
                vec![("default".to_owned(), text)]
            }
            (None, Some(Templates::One(text))) => vec![("default".to_owned(), text)],
            (None, Some(Templates::Many(many))) => {
                many.into_iter().map(|named| (named.name, named.template)).collect()
            }
            (None, None) => Vec::new(),
        };
        let template = (!templates.is_empty()).then(|| ChatTemplate::compile(&templates, format(params)));
        let template = template.transpose().map_err(|error| {
            let key = if params.chat_template.as_os_str().is_empty() { "path" } else { "chatTemplate" };
            ConfigError::at(at(key), format!("the chat template of {} can't be read: {error}", self.place()))
        })?;
        let special = SPECIAL
            .iter()
            .filter_map(|&name| {
                let token = config.others.get(name)?;
                let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
                Some((name.to_owned(), text.to_owned()))
            })
            .collect();
        Ok(Model { tokenizer, template, special })
    }

    /// The tokenizer's file.
    pub(super) fn tokenizer(&self) -> &Path {
        &self.tokenizer
    }

    /// The file that the chat template is in.
    pub(super) fn place(&self) -> String {
        let path = self.template.as_ref().or(self.config.as_ref());
        path.map_or_else(String::new, |path| path.display().to_string())
    }
}

fn format(params: &LocalParams) -> Option<ContentFormat> {
    match params.chat_template_content_format {
        FormatParam::Auto => None,
        FormatParam::String => Some(ContentFormat::Text),
        FormatParam::Openai => Some(ContentFormat::Parts),
    }
}

fn text(path: &Path) -> Result<String, String> {
    let name = path.display();
    let size = fs::metadata(path).map_err(|error| format!("{name} can't be read: {error}"))?.len();
    if size > MAX {
        return Err(format!("{name} is larger than 256 MiB"));
    }
    fs::read_to_string(path).map_err(|error| format!("{name} can't be read: {error}"))
}
