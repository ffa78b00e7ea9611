//! `token-producer`: the tokens of a prompt. With a model's files it tokenizes by itself, and with the address
//! of an engine that renders prompts, it asks that for the token ids; otherwise it estimates their number, as
//! llm-d-router does: four bytes are a token.

mod calls;
mod client;
mod durations;
mod failure;
mod keys;
mod local;
mod metrics;
mod params;
mod render;
mod room;
mod server;
mod tokenize;

use std::sync::{Arc, OnceLock};

use usher_core::config::ConfigError;
use usher_core::endpoints::Candidates;
use usher_core::request::estimate;
use usher_plugin::data::{PromptTokenIds, PromptTokens};
use usher_plugin::{
    Build, BuildContext, DataProducer, Facts, Gatherer, Key, Kind, PluginParts, PluginType, RequestContext,
    beta,
};

use client::Renderer;
use keys::Keys;
pub use local::DirectTokenizer;
use local::{LocalModel, LocalTokenizer};
use metrics::RenderFamilies;
pub use params::{RenderParams, TokenParams};

/// `token-producer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("token-producer", &[Kind::DataProducer],
    "Estimates how many tokens a prompt has: one for four bytes of text, or 1,024 pixels. With local it tokenizes by itself, with vllm it asks a server for the tokens.",
    Build::Reading(build)).takes::<TokenParams>()
    .when("Added by itself where a plugin needs the length of prompts; declare it with local or vllm for precise-prefix-cache-producer.");

/// `tokenizer` in a configuration.
#[rustfmt::skip]
pub static OLDER_NAME: PluginType = beta("tokenizer", &[Kind::DataProducer],
    "The older name of token-producer.",
    Build::Reading(build)).takes::<TokenParams>().instead("token-producer")
    .when("Not in new configurations.");

/// Source of token ids in a configuration: the first token producer that has a tokenizer, whatever its name.
#[derive(Clone, Debug, Default)]
pub struct TokenSource(Arc<OnceLock<Source>>);

#[derive(Debug)]
struct Source {
    /// Name of the plugin.
    name: String,
    ids: Key<PromptTokenIds>,
    model: String,
}

impl TokenSource {
    /// Key of the token ids; `None` without a tokenizer.
    pub fn ids(&self) -> Option<Key<PromptTokenIds>> {
        self.0.get().map(|source| source.ids)
    }

    /// Name of the tokenizer's model; `None` without a tokenizer or where it has none.
    pub fn model(&self) -> Option<&str> {
        self.0.get().map(|source| source.model.as_str()).filter(|model| !model.is_empty())
    }
}

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = TokenParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?;
    let tokens = cx.produces();
    // Where time is simulated, nobody is asked.
    let is_asked = !cx.state.clock().is_stopped() && (params.vllm.is_some() || params.local.is_some());
    if !is_asked {
        let producer = Arc::new(TokenProducer::new(tokens));
        return Ok(PluginParts { producer: Some(producer), ..parts });
    }
    let ids = cx.produces();
    let keys = Keys { tokens, ids };
    let families = cx.family(RenderFamilies::register)?;
    let counts = families.counts(cx.name);
    let (gatherer, summary): (Arc<dyn Gatherer>, String) = match (&params.local, &params.vllm) {
        (Some(local), _) => {
            let model = LocalModel::of(cx, local, cx.parameters)?;
            let summary = model.summary(local);
            let counts = (counts, families.local(cx.name));
            let tokenizer = LocalTokenizer::new(model, cx.state.budget(), local.timeout(), keys, counts);
            (Arc::new(tokenizer), summary)
        }
        (None, render) => {
            let render = render.clone().unwrap_or_default();
            let summary = format!(
                "Asks {} for the tokens of prompts, for {:?} at most (/v1/completions/render and /v1/chat/completions/render; where these are missing, /tokenize); then estimates how many they are.",
                render.url, render.timeout
            );
            let budget = cx.state.budget();
            (Arc::new(Renderer::new(&render, params.model_name.clone(), budget, keys, counts)), summary)
        }
    };
    let source = Source { name: cx.name.to_owned(), ids, model: params.model_name.clone() };
    // A second one is nobody's source.
    let known = cx.shared::<TokenSource>();
    let first = known.0.set(source).err().and_then(|_| known.0.get()).map(|source| source.name.clone());
    let note = first.map(|first| {
        format!(
            "'{}' is asked for no tokens: those of '{first}', the first in the configuration, count",
            cx.name
        )
    });
    let producer = TokenProducer { tokens, ids: Some(ids) };
    Ok(PluginParts {
        gatherer: Some(gatherer),
        producer: Some(Arc::new(producer)),
        notes: note.into_iter().collect(),
        ..parts.with_summary(summary)
    })
}

/// Estimates the tokens of a prompt, unless they are known.
#[derive(Clone, Copy, Debug)]
pub struct TokenProducer {
    tokens: Key<PromptTokens>,
    ids: Option<Key<PromptTokenIds>>,
}

impl TokenProducer {
    /// A producer that says what it found under `tokens`.
    pub fn new(tokens: Key<PromptTokens>) -> Self {
        Self { tokens, ids: None }
    }
}

impl DataProducer for TokenProducer {
    fn produce(&self, cx: &RequestContext<'_>, _candidates: &Candidates, facts: &mut Facts) {
        if self.ids.is_some_and(|ids| facts.get(ids).is_some()) {
            return;
        }
        if let Some(count) = estimate::count(cx.request) {
            facts.set(self.tokens, PromptTokens { count });
        }
    }
}
