//! `prefix-based-pd-decider`: a prompt is computed elsewhere if much of it is new to the
//! endpoint that decodes.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::Candidates;
use usher_plugin::data::{PrefixMatch, PromptTokens};
use usher_plugin::params::refused;
use usher_plugin::{Build, BuildContext, Context, Decider, Key, Kind, PluginParts, PluginType, beta};

use super::references::{PREFIX_PRODUCER, prompt_and_cached};

/// `prefix-based-pd-decider` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("prefix-based-pd-decider", &[Kind::Decider],
    "Lets another endpoint compute a prompt if the one that decodes has little of it in its prefix cache.",
    Build::Reading(build)).takes::<PrefixBasedPdParams>()
    .when("The usual choice for prefill: short prompts and cached ones are not worth the transfer of their KV cache.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = PrefixBasedPdParams::decode(cx.parameters)?;
    let (tokens, prefix) = prompt_and_cached(cx, PREFIX_PRODUCER);
    let decider = Arc::new(PrefixBasedPdDecider::new(params, tokens, prefix));
    Ok(PluginParts { decider: Some(decider), ..PluginParts::with(&params)?.with_summary(params.summary()) })
}

/// Parameters of `prefix-based-pd-decider`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PrefixBasedPdParams {
    /// Tokens that the decoding endpoint would have to compute, from which on another one does. 0:
    /// never.
    #[schemars(extend("x-unit" = "tokens"))]
    pub non_cached_tokens: i64,
    /// Prompts of fewer tokens stay whole.
    #[schemars(extend("x-unit" = "tokens"))]
    pub prompt_tokens: i64,
}

impl PrefixBasedPdParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let (new, whole) = (self.non_cached_tokens, self.prompt_tokens);
        if new == 0 {
            return "Never lets another endpoint compute the prompt, as nonCachedTokens is 0.".to_owned();
        }
        let long = match whole {
            0 => String::new(),
            _ => format!(" and the prompt has {whole} or more"),
        };
        format!(
            "Lets another endpoint compute the prompt where the one that decodes lacks {new} tokens of it or more{long}."
        )
    }
}

impl PrefixBasedPdParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types and negative numbers.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        for (key, tokens) in
            [("nonCachedTokens", params.non_cached_tokens), ("promptTokens", params.prompt_tokens)]
        {
            if tokens < 0 {
                return Err(refused(node, key, tokens).hint("write 0 or more tokens"));
            }
        }
        Ok(params)
    }
}

/// Accepts if the decoding endpoint is known, the prompt is at least so long, and at
/// least so many of its tokens are not in that endpoint's prefix cache. What nobody looked
/// up in the caches stays whole.
#[derive(Clone, Copy, Debug)]
pub struct PrefixBasedPdDecider {
    params: PrefixBasedPdParams,
    tokens: Key<PromptTokens>,
    prefix: Key<PrefixMatch>,
}

impl PrefixBasedPdDecider {
    /// A decider by how long the prompt is, and how much of it is cached.
    pub fn new(params: PrefixBasedPdParams, tokens: Key<PromptTokens>, prefix: Key<PrefixMatch>) -> Self {
        Self { params, tokens, prefix }
    }
}

impl Decider for PrefixBasedPdDecider {
    fn decide(&self, cx: &Context<'_>, _candidates: &Candidates, decode: Option<u32>) -> bool {
        let PrefixBasedPdParams { non_cached_tokens, prompt_tokens } = self.params;
        let [non_cached_tokens, prompt_tokens] = [non_cached_tokens, prompt_tokens].map(i64::unsigned_abs);
        let Some(position) = decode.filter(|_| non_cached_tokens > 0) else { return false };
        let tokens = cx.facts.get(self.tokens).map_or(0, |tokens| tokens.count);
        if tokens < prompt_tokens.max(non_cached_tokens) {
            return false;
        }
        let Some(prefix) = cx.facts.get(self.prefix) else { return false };
        let cached = u64::from(prefix.blocks_at(position)) * u64::from(prefix.block_size);
        // The last block may be partly filled, and then more is cached than there is.
        tokens.checked_sub(cached).is_some_and(|rest| rest >= non_cached_tokens)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use usher_core::endpoints::Store;
    use usher_core::request::Request;
    use usher_plugin::Facts;

    /// Input of a decision: parameters, prompt tokens, cached blocks per endpoint, decoding endpoint.
    #[derive(Clone, Debug)]
    struct Case {
        params: PrefixBasedPdParams,
        tokens: Option<u64>,
        prefix: Option<PrefixMatch>,
        decode: Option<u32>,
    }

    fn decide(case: &Case) -> bool {
        let (tokens, prefix) = (Key::new(0), Key::new(1));
        let mut facts = Facts::default();
        if let Some(count) = case.tokens {
            facts.set(tokens, PromptTokens { count });
        }
        if let Some(found) = &case.prefix {
            facts.set(prefix, found.clone());
        }
        let request = Request::default();
        let cx = Context { facts: &facts, ..Context::new(&request, 1, Duration::from_secs(1)) };
        let candidates = Store::default().snapshot().all();
        PrefixBasedPdDecider::new(case.params, tokens, prefix).decide(&cx, &candidates, case.decode)
    }

    /// The rule as it is written down, with numbers that can be negative.
    fn by_the_book(case: &Case) -> bool {
        let (least, gate) = (case.params.non_cached_tokens as i128, case.params.prompt_tokens as i128);
        let input = case.tokens.unwrap_or(0) as i128;
        let (Some(position), Some(prefix)) = (case.decode, &case.prefix) else { return false };
        if least == 0 || (gate > 0 && input < gate) || input < least {
            return false;
        }
        let blocks = prefix.matched.get(position as usize).copied().unwrap_or(0).min(prefix.total);
        input - i128::from(blocks) * i128::from(prefix.block_size) >= least
    }

    #[test]
    fn decider_follows_its_table() {
        // nonCachedTokens, promptTokens, tokens, cached blocks of 64, yes.
        let table: [(i64, i64, u64, u32, bool); 14] = [
            (0, 0, 1000, 0, false),
            (16, 0, 15, 0, false),
            (16, 0, 16, 0, true),
            (16, 0, 79, 1, false),
            (16, 0, 80, 1, true),
            (16, 0, 128, 2, false),
            (1, 0, 128, 2, false),
            (1, 0, 129, 2, true),
            // The last block is partly filled: less than nothing is left.
            (1, 0, 100, 2, false),
            (16, 0, 100, 2, false),
            (16, 101, 100, 0, false),
            (16, 100, 100, 0, true),
            (16, 100, 100, 1, true),
            (37, 100, 100, 1, false),
        ];
        for (non_cached_tokens, prompt_tokens, tokens, blocks, yes) in table {
            let params = PrefixBasedPdParams { non_cached_tokens, prompt_tokens };
            let prefix = PrefixMatch { total: 1000, block_size: 64, matched: vec![0, blocks] };
            let case = Case { params, tokens: Some(tokens), prefix: Some(prefix), decode: Some(1) };
            assert_eq!(decide(&case), yes, "{case:?}");
            assert_eq!(by_the_book(&case), yes, "{case:?}");
            for unknown in [
                Case { decode: None, ..case.clone() },
                Case { prefix: None, ..case.clone() },
                Case { tokens: None, ..case },
            ] {
                assert!(!decide(&unknown), "{unknown:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn decider_matches_its_documented_rule(
            (non_cached_tokens, prompt_tokens) in (0i64..40, 0i64..80),
            tokens in prop::option::weighted(0.9, prop_oneof![8 => 0u64..200, 1 => Just(u64::MAX)]),
            prefix in prop::option::weighted(
                0.9,
                (0u32..12, prop_oneof![9 => 0u32..20, 1 => Just(u32::MAX)], prop::collection::vec(0u32..14, 0..4)),
            ),
            decode in prop::option::weighted(0.9, 0u32..5),
        ) {
            let prefix = prefix.map(|(total, block_size, matched)| PrefixMatch { total, block_size, matched });
            let case = Case {
                params: PrefixBasedPdParams { non_cached_tokens, prompt_tokens },
                tokens,
                prefix,
                decode,
            };
            prop_assert_eq!(decide(&case), by_the_book(&case));
        }
    }
}
