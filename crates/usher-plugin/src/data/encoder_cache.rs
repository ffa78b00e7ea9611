//! Images and clips of a request that an endpoint has encoded already.

use crate::{DataType, Fact};

/// The request's multimodal items, and how many of them each endpoint has encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncoderCacheMatch {
    /// Hashes of the items, each once.
    pub items: Vec<u64>,
    /// Items that an endpoint has, by its position in the snapshot. Endpoints behind
    /// the end have none.
    pub matched: Vec<u32>,
}

impl EncoderCacheMatch {
    /// Items that the endpoint at this position of the snapshot has.
    #[inline]
    pub fn items_at(&self, position: u32) -> u32 {
        self.matched.get(position as usize).copied().unwrap_or(0)
    }
}

impl Fact for EncoderCacheMatch {
    const DATA: DataType = DataType::EncoderCacheMatchInfo;
}
