//! A model's tokenizer and template, ready to use, and the threads that use them.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::Snapshot;
use usher_core::memory::{Budget, Reservation};
use usher_core::request::{Api, Body};
use usher_plugin::data::{PromptTokenIds, TokenizedPrompt};
use usher_plugin::{BuildContext, Persistent};

use super::super::failure::Failure;
use super::super::room::parsed;
use super::chat::{Chat, ChatFailure};
use super::encoder::{Encoder, Sources, Turn};
use super::files::Files;
use super::params::LocalParams;
use super::template::ChatTemplate;
use super::workers::Workers;

/// Bytes that one of a text takes: with its tokens, of which it may be one.
const TEXT: usize = 10;

/// A model's tokenizer and chat template, and threads.
#[derive(Debug)]
pub(in super::super) struct LocalModel {
    encoder: Encoder,
    template: Option<ChatTemplate>,
    special: Vec<(String, String)>,
    files: Files,
    /// Memory of the tokenizer.
    held: Reservation,
    pub(super) workers: Workers,
}

impl Persistent for LocalModel {
    fn sweep(&self, _snapshot: &Snapshot, _now_ms: u64) {}
}

/// Fields of a completion's body that its prompt depends on.
#[derive(Deserialize)]
struct Completion {
    prompt: Texts,
    #[serde(default)]
    add_special_tokens: Option<bool>,
    #[serde(default)]
    prompt_embeds: Option<IgnoredAny>,
    #[serde(default)]
    truncate_prompt_tokens: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

impl LocalModel {
    /// The model of a configuration: that of the one before, if neither its files nor its parameters changed.
    ///
    /// # Errors
    /// `ConfigError` for files that can't be read, and threads that can't be started.
    pub(in super::super) fn of(
        cx: &BuildContext<'_>,
        params: &LocalParams,
        node: &Node,
    ) -> Result<Arc<Self>, ConfigError> {
        let files = Files::of(params);
        let key = format!("{} {params:?} {:?}", cx.name, files.version());
        cx.state.try_of(&key, || Self::read(files, params, node, cx.state.budget()))
    }

    pub(super) fn read(
        files: Files,
        params: &LocalParams,
        node: &Node,
        budget: &Arc<Budget>,
    ) -> Result<Self, ConfigError> {
        let at = |key: &str| node.position_of(&format!("local.{key}"));
        let model = files.read(params, node, budget)?;
        let cache = usize::try_from(params.cache_bytes).unwrap_or(usize::MAX);
        let mut encoder = Encoder::new(model.tokenizer, cache, budget).map_err(|error| {
            let message = format!("{} can't be used: {error}", files.tokenizer().display());
            ConfigError::at(at("path"), message)
        })?;
        if let Some(around) = model.around {
            let number =
                |token: Option<String>| token.and_then(|token| encoder.tokenizer.token_to_id(&token));
            encoder.put_around(around.map(number));
        }
        let workers = Workers::start(params.workers_count).map_err(|error| {
            ConfigError::at(at("workersCount"), format!("no thread can be started: {error}")).temporary()
        })?;
        Ok(Self {
            encoder,
            template: model.template,
            special: model.special,
            files,
            held: model.held,
            workers,
        })
    }

    /// Sentences about what is used.
    pub(in super::super) fn summary(&self, params: &LocalParams) -> String {
        let tokenizer = &self.encoder.tokenizer;
        let added = tokenizer.get_added_tokens_decoder().len();
        let mut text = format!(
            "Tokenizes prompts in this process with {} ({} tokens, {added} of them added, some {} MiB), for {:?} at most{}; \
             then estimates how many they are.",
            self.files.tokenizer().display(),
            tokenizer.get_vocab_size(true),
            self.held.bytes().div_ceil(1 << 20),
            params.timeout,
            if self.encoder.is_fast() { "" } else { ", on the slow path" },
        );
        let [before, behind] = self.encoder.names_around();
        let list = |names: &[String]| if names.is_empty() { "nothing".to_owned() } else { names.join(" ") };
        text += &format!(" Puts {} before completions and {} behind them.", list(&before), list(&behind));
        match &self.template {
            None => text += " Has no chat template: chats are not tokenized.",
            Some(template) => {
                let content = match template.format {
                    super::template::ContentFormat::Text => "strings",
                    super::template::ContentFormat::Parts => "lists of parts",
                };
                text += &format!(" Chats by the template in {}, contents as {content}", self.files.place());
                let names: Vec<String> =
                    self.special.iter().map(|(name, text)| format!("{name} {text}")).collect();
                text +=
                    &if names.is_empty() { ".".to_owned() } else { format!(", with {}.", names.join(", ")) };
            }
        }
        text
    }

    /// Bytes that the tokenizer takes, estimated.
    pub(super) fn bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// Returns `true` if it has a template for chats.
    pub(super) fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens of a request's prompts, and the bytes of text by where they came from.
    ///
    /// # Errors
    /// `Failure` for a body of another form, messages that the template refuses, and cancelled requests.
    pub(super) fn tokens(
        &self,
        api: Api,
        body: Body,
        turn: &mut Turn<'_>,
    ) -> Result<(PromptTokenIds, Sources), Failure> {
        let bytes = body.into_bytes();
        turn.room.take(parsed(&bytes))?;
        let (texts, adds) = match api {
            Api::ChatCompletions => self.chat(&bytes)?,
            _ => completion(&bytes)?,
        };
        drop(bytes);
        let len: usize = texts.iter().map(String::len).sum();
        turn.room.take(len.saturating_mul(TEXT))?;
        let mut all = Sources::default();
        let mut prompts = Vec::with_capacity(texts.len());
        for text in texts {
            let mut ids = Vec::with_capacity(text.len() / 4 + 8);
            if adds {
                ids.extend_from_slice(&self.encoder.around.0);
            }
            let sources = self.encoder.encode(&text, turn, &mut ids)?;
            if adds {
                ids.extend_from_slice(&self.encoder.around.1);
            }
            all.cached += sources.cached;
            all.encoded += sources.encoded;
            prompts.push(TokenizedPrompt { ids, items: Vec::new() });
        }
        let ids: usize = prompts.iter().map(|prompt| prompt.ids.capacity()).sum();
        turn.room.keep(ids.saturating_mul(size_of::<u32>()));
        Ok((PromptTokenIds { prompts }, all))
    }

    /// The tokens of a text by the general path of the tokenizer.
    pub(super) fn plain(&self, text: &str, special: bool) -> Option<Vec<u32>> {
        let encoded = self.encoder.tokenizer.encode_fast(text, special).ok()?;
        Some(encoded.get_ids().to_vec())
    }

    /// The text of a chat, and whether special tokens go around it.
    pub(super) fn chat(&self, bytes: &Bytes) -> Result<(Vec<String>, bool), Failure> {
        let template = self.template.as_ref().ok_or(Failure::Unreadable("chat without a template"))?;
        let chat: Chat = serde_json::from_slice(bytes).map_err(|_| Failure::Unreadable("request"))?;
        let adds = chat.add_special_tokens.unwrap_or(false);
        let text = chat.render(template, &self.special).map_err(|failure| match failure {
            ChatFailure::Unknown(what) => Failure::Unreadable(what),
            ChatFailure::Template(failure) => Failure::Template(failure.to_string()),
        })?;
        Ok((vec![text], adds))
    }
}

fn completion(bytes: &Bytes) -> Result<(Vec<String>, bool), Failure> {
    let completion: Completion = serde_json::from_slice(bytes).map_err(|_| Failure::Unreadable("request"))?;
    if completion.prompt_embeds.is_some() || completion.truncate_prompt_tokens.is_some() {
        return Err(Failure::Unreadable("prompt_embeds or truncate_prompt_tokens"));
    }
    let texts = match completion.prompt {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    };
    Ok((texts, completion.add_special_tokens.unwrap_or(true)))
}
