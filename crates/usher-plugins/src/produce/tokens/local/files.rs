//! The files of a model: tokenizer.json, tokenizer_config.json, chat template.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::Deserialize;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer, TokenizerImpl,
};
use usher_core::config::{ConfigError, Node};
use usher_core::memory::{Budget, NoRoom, Reservation};

use super::params::{FormatParam, LocalParams};
use super::size::{ModelKind, Size};
use super::template::{ChatTemplate, ContentFormat};

/// Bytes of a file at most.
const MAX: u64 = 256 << 20;
const MI: u64 = 1 << 20;
/// Names of special tokens that transformers hands to templates.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Paths of a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Files {
    tokenizer: PathBuf,
    config: Option<PathBuf>,
    template: Option<PathBuf>,
}

/// Contents of these files.
pub(super) struct Model {
    pub(super) tokenizer: Tokenizer,
    /// Memory of the tokenizer.
    pub(super) held: Reservation,
    pub(super) template: Option<ChatTemplate>,
    /// Texts of special tokens by name.
    pub(super) special: Vec<(String, String)>,
    /// Tokens before and behind a text, where they don't follow from tokenizer.json.
    pub(super) around: Option<[Option<String>; 2]>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Config {
    chat_template: Option<Templates>,
    #[serde(flatten)]
    others: Fields,
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

    /// Reads them, if a memory budget has room for the tokenizer.
    ///
    /// # Errors
    /// `ConfigError`, at the parameter that names the file, for a file that is missing, malformed or too
    /// large.
    pub(super) fn read(
        &self,
        params: &LocalParams,
        node: &Node,
        budget: &Arc<Budget>,
    ) -> Result<Model, ConfigError> {
        let at = |key: &str| node.position_of(&format!("local.{key}"));
        let in_path = |message: String| ConfigError::at(at("path"), message);
        let (tokenizer, held) = self.read_tokenizer(budget, in_path)?;
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
        let special =
            SPECIAL.iter().filter_map(|&name| Some((name.to_owned(), token(&config.others, name)?)));
        let (special, around) = (special.collect(), around(&config.others));
        Ok(Model { tokenizer, held, template, special, around })
    }

    fn read_tokenizer(
        &self,
        budget: &Arc<Budget>,
        in_path: impl Fn(String) -> ConfigError,
    ) -> Result<(Tokenizer, Reservation), ConfigError> {
        let name = self.tokenizer.display();
        let unreadable = |error| in_path(error).hint("name the model's tokenizer.json, or its folder");
        let reserve = |loading: u64, loaded: u64| {
            budget.reserve_tokenizer(loading, loaded).map_err(|NoRoom { room, least }| {
                let (needs, room, least) = (loading.div_ceil(MI), room / MI, least.div_ceil(MI));
                let message = format!(
                    "{name} takes up to {needs} MiB while it is read; the memory budget has room for {room}"
                );
                let hint = format!(
                    "raise --memory-budget, or the container's memory limit, to {least}Mi at least, or ask a server for tokens (vllm: {{url: …}})"
                );
                in_path(message).hint(hint).temporary()
            })
        };
        let file = file_size(&self.tokenizer).map_err(unreadable)?;
        let file = reserve(file, 0)?;
        let text = text(&self.tokenizer).map_err(unreadable)?;
        drop(file);
        let wrong =
            |error: &dyn fmt::Display| in_path(format!("{name} is no tokenizer that can be read: {error}"));
        let size = Size::of(&text).map_err(|error| wrong(&error))?;
        let mut held = reserve(size.loading(), size.loaded())?;
        let tokenizer = parse(&text, size.model.kind).map_err(|error| wrong(&error))?;
        drop(text);
        held.set(size.loaded());
        Ok((tokenizer, held))
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

/// Fields of tokenizer_config.json.
type Fields = std::collections::BTreeMap<String, serde_json::Value>;

/// Text of a special token.
fn token(fields: &Fields, name: &str) -> Option<String> {
    let token = fields.get(name)?;
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}

/// Tokens that transformers puts around texts by `add_bos_token` and `add_eos_token`: with Llama's classes these replace
/// the post-processor of tokenizer.json, others ignore them.
fn around(fields: &Fields) -> Option<[Option<String>; 2]> {
    let class = fields.get("tokenizer_class")?.as_str()?;
    if !matches!(class, "LlamaTokenizer" | "LlamaTokenizerFast") {
        return None;
    }
    let flag = |name: &str| fields.get(name).and_then(serde_json::Value::as_bool);
    let (bos, eos) = (flag("add_bos_token"), flag("add_eos_token"));
    // A file without either goes by its post-processor, which converters made by the same flags.
    bos.or(eos)?;
    let added = |adds: bool, name: &str| adds.then(|| token(fields, name)).flatten();
    Some([added(bos.unwrap_or(true), "bos_token"), added(eos.unwrap_or(false), "eos_token")])
}

fn format(params: &LocalParams) -> Option<ContentFormat> {
    match params.chat_template_content_format {
        FormatParam::Auto => None,
        FormatParam::String => Some(ContentFormat::Text),
        FormatParam::Openai => Some(ContentFormat::Parts),
    }
}

/// A tokenizer. Where the type of its model is known, the model is read as that: otherwise `tokenizers` keeps all of it
/// twice meanwhile, which takes several times as much.
pub(super) fn parse(text: &str, kind: ModelKind) -> tokenizers::Result<Tokenizer> {
    type Of<M> =
        TokenizerImpl<M, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;
    Ok(match kind {
        ModelKind::Bpe => text.parse::<Of<BPE>>()?.into(),
        ModelKind::WordPiece => text.parse::<Of<WordPiece>>()?.into(),
        ModelKind::WordLevel => text.parse::<Of<WordLevel>>()?.into(),
        ModelKind::Unigram => text.parse::<Of<Unigram>>()?.into(),
        ModelKind::Unknown => text.parse::<Tokenizer>()?,
    })
}

/// Bytes of a file.
fn file_size(path: &Path) -> Result<u64, String> {
    let name = path.display();
    let size = fs::metadata(path).map_err(|error| format!("{name} can't be read: {error}"))?.len();
    if size > MAX { Err(format!("{name} is larger than 256 MiB")) } else { Ok(size) }
}

fn text(path: &Path) -> Result<String, String> {
    file_size(path)?;
    fs::read_to_string(path).map_err(|error| format!("{} can't be read: {error}", path.display()))
}
