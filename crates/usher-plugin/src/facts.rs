//! Facts that producers learn about one request, under keys that the configuration fixes.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;

/// Kinds of data that one plugin produces and another reads, with llm-d-router's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum DataType {
    /// Number of tokens of the prompt.
    TokenizedPrompt,
    /// The prompt's tokens, as the engine has them. Not llm-d-router's, where they are a part of the former.
    PromptTokenIds,
    /// Part of the prompt in each endpoint's prefix cache.
    PrefixCacheMatchInfo,
    /// The prompt as the block hashes that a prefix cache is asked with. Not llm-d-router's.
    PromptBlocks,
    /// Part of the prompt that each engine holds by its KV events. Not llm-d-router's.
    KvEventsMatch,
    /// Requests and tokens under way at each endpoint. Lives in the endpoints' loads.
    InFlightLoad,
    /// Tokens of this request that each endpoint would have to compute.
    UncachedRequestTokens,
    /// The session that the request belongs to.
    SessionId,
    /// Images and clips of the request that each endpoint has encoded already.
    EncoderCacheMatchInfo,
    /// Predicted latencies of the request at each endpoint.
    LatencyPredictionInfo,
    /// Host, rack, zone and region of each endpoint. Lives in the endpoints' labels.
    Topology,
    /// A number per endpoint from its metrics page. Lives in the endpoints' loads.
    ScalarMetricValue,
}

impl DataType {
    /// The plugin type that produces it where the configuration names no other.
    pub fn default_producer(self) -> Option<&'static str> {
        match self {
            Self::TokenizedPrompt => Some("token-producer"),
            Self::PrefixCacheMatchInfo => Some("approx-prefix-cache-producer"),
            Self::InFlightLoad | Self::UncachedRequestTokens => Some("inflight-load-producer"),
            Self::SessionId => Some("session-id-producer"),
            Self::EncoderCacheMatchInfo => Some("mm-embeddings-cache-producer"),
            Self::LatencyPredictionInfo => Some("predicted-latency-producer"),
            // llm-d-router adds none; reading labels takes nothing but the plugin.
            Self::Topology => Some("topology-extractor"),
            Self::PromptTokenIds | Self::PromptBlocks | Self::KvEventsMatch | Self::ScalarMetricValue => None,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Fact about a request.
pub trait Fact: Any + Send + Sync {
    /// The kind of data that it is.
    const DATA: DataType;
}

/// Key of the facts of one producer. Good for the pipeline that it was made for.
pub struct Key<T> {
    index: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.index)
    }
}

impl<T> Key<T> {
    /// The key with this number. Numbers are given out by the registry; a test may choose its own.
    pub fn new(index: u32) -> Self {
        Self { index, of: PhantomData }
    }
}

/// Facts about one request beside what it says itself.
#[derive(Default)]
pub struct Facts {
    values: Vec<Option<Box<dyn Any + Send + Sync>>>,
}

impl Facts {
    /// No facts at all.
    pub const NONE: &'static Self = &Self { values: Vec::new() };

    /// The fact under a key; `None` when its producer had nothing to say.
    pub fn get<T: Fact>(&self, key: Key<T>) -> Option<&T> {
        self.values.get(key.index as usize)?.as_ref()?.downcast_ref()
    }

    /// Keeps a fact, in place of an earlier one.
    pub fn set<T: Fact>(&mut self, key: Key<T>, value: T) {
        let index = key.index as usize;
        if self.values.len() <= index {
            self.values.resize_with(index + 1, || None);
        }
        self.values[index] = Some(Box::new(value));
    }

    /// Forgets all facts and keeps the room for them.
    pub fn clear(&mut self) {
        self.values.iter_mut().for_each(|value| *value = None);
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Facts({})", self.values.iter().flatten().count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Tokens(u64);

    impl Fact for Tokens {
        const DATA: DataType = DataType::TokenizedPrompt;
    }

    #[test]
    fn facts_of_two_producers_are_kept_separately() {
        let mut facts = Facts::default();
        let (one, other) = (Key::<Tokens>::new(0), Key::<Tokens>::new(3));
        facts.set(other, Tokens(7));
        assert_eq!((facts.get(one), facts.get(other)), (None, Some(&Tokens(7))));
        facts.set(one, Tokens(1));
        facts.set(other, Tokens(8));
        assert_eq!((facts.get(one), facts.get(other)), (Some(&Tokens(1)), Some(&Tokens(8))));
        facts.clear();
        assert_eq!((facts.get(one), facts.get(other)), (None, None));
    }
}
