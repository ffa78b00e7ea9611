//! Events applied to what sources hold.

use smallvec::SmallVec;

use crate::kv_events::cache_kind::CacheKind;
use crate::kv_events::chain::Chain;
use crate::kv_events::event::{Event, Removed, Stored};
use crate::kv_events::skip::Skip;

use super::blocks::{NONE, SourceId};
use super::forest::{AHEAD, Change, Forest, Place, Source};
use super::pending::{PendingStore, PendingStores};
use super::settings::{Settings, Summary};
use super::tier::{Media, Tier};

/// Blocks that all sources hold.
#[derive(Debug)]
pub struct Residency {
    settings: Settings,
    media: Media,
    forest: Forest,
    waiting: PendingStores,
    sources: u32,
    /// Kept between events.
    scratch: Vec<u64>,
}

/// Blocks of one store. A million tokens are half as many at a block of 16, and bounds are kept between events only.
const MAX_BLOCKS: usize = 1 << 17;

impl Residency {
    /// No source.
    pub fn new(settings: Settings, media: Media) -> Self {
        Self {
            settings,
            media,
            forest: Forest::new(settings.block_tokens),
            waiting: PendingStores::default(),
            sources: 0,
            scratch: Vec::new(),
        }
    }

    /// Changes the bytes that all blocks may take. What is beyond them goes with the next event.
    pub fn limit_bytes(&mut self, bytes: usize) {
        self.settings.bytes = bytes;
    }

    /// A new source, in epoch 0, of which nothing is known.
    pub fn add_source(&mut self) -> SourceId {
        let id = SourceId(self.sources);
        self.sources += 1;
        self.forest.sources.insert(id, Source::default());
        id
    }

    /// Drops a source with all that it holds. Events of it are outdated from now on.
    pub fn remove_source(&mut self, source: SourceId, sink: &mut impl FnMut(Change)) {
        self.clear(source, sink);
        self.forest.sources.remove(&source);
    }

    /// Drops all that a source holds, and begins an epoch. `complete`: from here on everything is published.
    pub fn reset(&mut self, source: SourceId, epoch: u64, complete: bool, sink: &mut impl FnMut(Change)) {
        self.clear(source, sink);
        if let Some(source) = self.forest.sources.get_mut(&source) {
            (source.epoch, source.complete) = (epoch, complete);
            source.groups.clear();
        }
    }

    /// Applies an event of an epoch, as its batch has it: of one that can't be read only counts that it is missing.
    /// `model` is the chain of the model that the engine serves; an adapter that the event names has its own.
    ///
    /// A store without tokens is applied to the blocks that are known, though others are not. Where
    /// [removals may be missing](Skip::may_miss_removals), a [reset](Self::reset) has to follow.
    pub fn apply(
        &mut self,
        source: SourceId,
        epoch: u64,
        model: Chain,
        event: Result<Event<'_>, Skip>,
        sink: &mut impl FnMut(Change),
    ) -> Result<(), Skip> {
        if self.forest.sources.get(&source).is_none_or(|source| source.epoch != epoch) {
            return Err(Skip::Outdated);
        }
        let applied = event.and_then(|event| match event {
            Event::Stored(stored) => self.stored(source, model, &stored, sink),
            Event::Removed(removed) => self.removed(source, &removed, sink),
            Event::Cleared { medium: None } => {
                self.clear(source, sink);
                self.set_complete(source, true);
                Ok(())
            }
            Event::Cleared { medium } => self.clear_medium(source, medium, sink),
        });
        if applied.is_err_and(Skip::may_miss_blocks) {
            self.set_complete(source, false);
        }
        let kept = self.keep_bounds(sink);
        applied.and(kept)
    }

    fn set_complete(&mut self, source: SourceId, complete: bool) {
        if let Some(source) = self.forest.sources.get_mut(&source) {
            source.complete = complete;
        }
    }

    /// Summary of a source.
    pub fn summary(&self, source: SourceId) -> Option<Summary> {
        let known = self.forest.sources.get(&source)?;
        Some(Summary {
            blocks: self.forest.count(source),
            waiting: known.waiting,
            complete: known.complete && known.waiting == 0,
            block_tokens: known.block_size,
            evicted: known.evicted,
        })
    }

    /// Blocks that are held, of all sources.
    pub fn blocks(&self) -> usize {
        self.forest.held()
    }

    /// Bytes taken, computed from what is allocated.
    pub fn bytes(&self) -> usize {
        self.forest.allocated() + self.waiting.bytes() + self.scratch.capacity() * size_of::<u64>()
    }

    fn clear(&mut self, source: SourceId, sink: &mut impl FnMut(Change)) {
        self.forest.clear(source, sink);
        if let Some(known) = self.forest.sources.get_mut(&source)
            && std::mem::take(&mut known.waiting) > 0
        {
            self.waiting.forget(source);
        }
    }

    fn clear_medium(
        &mut self,
        source: SourceId,
        medium: Option<&str>,
        sink: &mut impl FnMut(Change),
    ) -> Result<(), Skip> {
        let tier = self.media.tier(medium).ok_or(Skip::UnknownMedium)?;
        for at in self.forest.all(source) {
            self.forest.change(at, |block| block.holds.clear(tier), sink);
            self.forest.settle(at, false);
        }
        Ok(())
    }

    fn removed(
        &mut self,
        source: SourceId,
        removed: &Removed<'_>,
        sink: &mut impl FnMut(Change),
    ) -> Result<(), Skip> {
        let group = removed.group.map(u8::try_from).transpose().map_err(|_| Skip::OtherGroup)?;
        if !group.map_or(CacheKind::Unknown, |group| self.group_kind(source, group)).counts() {
            return Err(Skip::OtherGroup);
        }
        let tier = self.media.tier(removed.medium).ok_or(Skip::UnknownMedium)?;
        for (number, hash) in removed.hashes.iter().enumerate() {
            if number % AHEAD == 0 {
                self.forest.touch(source, removed.hashes.iter().skip(number).take(AHEAD));
            }
            if let Some(at) = self.forest.find(source, hash) {
                self.forest.change(at, |block| block.holds.remove(tier, group), sink);
                if self.forest.blocks.get(at).holds.best().is_none() {
                    self.forest.settle(at, true);
                }
            }
        }
        Ok(())
    }

    fn stored(
        &mut self,
        source: SourceId,
        model: Chain,
        stored: &Stored<'_>,
        sink: &mut impl FnMut(Change),
    ) -> Result<(), Skip> {
        if stored.hashes.len() > MAX_BLOCKS {
            return Err(Skip::Malformed);
        }
        let group = self.group(source, stored)?;
        let tier = self.media.tier(stored.medium).ok_or(Skip::UnknownMedium)?;
        if stored.tokens.is_empty() {
            return self.stored_elsewhere(source, stored, tier, group, sink);
        }
        if stored.block_size == 0 {
            return Err(Skip::Placeholder);
        }
        let size = u16::try_from(stored.block_size).map_err(|_| Skip::Malformed)?;
        if stored.tokens.len() != stored.hashes.len().saturating_mul(usize::from(size)) {
            return Err(Skip::Unaligned);
        }
        self.check_ancestors(stored)?;
        if let Some(known) = self.forest.sources.get_mut(&source) {
            known.block_size = size;
        }
        let parent = match stored.parent {
            None => NONE,
            Some(parent) => match self.forest.find(source, parent) {
                Some(at) if self.forest.blocks.get(at).size > 0 => at,
                _ => {
                    self.wait(source, parent, stored, size);
                    for hash in stored.hashes.iter() {
                        if let Some(at) = self.forest.find(source, hash) {
                            self.forest.hold(at, tier, group, stored.reused, sink);
                        }
                    }
                    return Ok(());
                }
            },
        };
        let mut chain = match (parent, stored.lora_name, stored.lora_id) {
            (NONE, Some(adapter), _) => Chain::of_model(adapter.as_bytes()),
            (NONE, None, Some(id)) => model.with_lora_id(id),
            (NONE, None, None) => model,
            (at, ..) => Chain::from_key(self.forest.blocks.get(at).key),
        };
        if let (NONE, Some(salt)) = (parent, stored.cache_salt) {
            chain.push_extra(salt);
        }
        let mut tokens = stored.tokens.iter();
        let mut extras = extras_by_block(stored);
        let mut newly_placed = SmallVec::<[u64; 32]>::new();
        let mut before = parent;
        for (number, hash) in stored.hashes.iter().enumerate() {
            if number % AHEAD == 0 {
                self.forest.touch(source, stored.hashes.iter().skip(number).take(AHEAD));
                self.forest.touch_free(stored.hashes.len() - number);
            }
            extras().into_iter().for_each(|extra| chain.push_extra(extra));
            let place = self.place(&mut chain, before, size, tokens.by_ref().take(usize::from(size)));
            let (at, is_new) = self.forest.place(source, hash, place, sink);
            self.forest.hold(at, tier, group, stored.reused, sink);
            if is_new {
                newly_placed.push(hash);
            }
            before = at;
        }
        self.resolve(source, newly_placed, sink);
        Ok(())
    }

    /// The group of a store, if it counts.
    fn group(&mut self, source: SourceId, stored: &Stored<'_>) -> Result<u8, Skip> {
        let group = u8::try_from(stored.group.unwrap_or(0)).map_err(|_| Skip::OtherGroup)?;
        if let (Some(known), Some(kind), Some(_)) =
            (self.forest.sources.get_mut(&source), stored.group_kind, stored.group)
        {
            known.groups.insert(group, CacheKind::named(kind));
        }
        if self.cache_kind(source, &Event::Stored(*stored)).counts() {
            Ok(group)
        } else {
            Err(Skip::OtherGroup)
        }
    }

    /// Attention of an event's KV cache group, as the event or one before it says.
    pub fn cache_kind(&self, source: SourceId, event: &Event<'_>) -> CacheKind {
        let (group, kind) = match event {
            Event::Stored(stored) => (stored.group, stored.group_kind),
            Event::Removed(removed) => (removed.group, None),
            Event::Cleared { .. } => (None, None),
        };
        let known = || Some(self.group_kind(source, u8::try_from(group?).ok()?));
        kind.map(CacheKind::named).or_else(known).unwrap_or_default()
    }

    fn group_kind(&self, source: SourceId, group: u8) -> CacheKind {
        let known = self.forest.sources.get(&source).and_then(|source| source.groups.get(&group));
        known.copied().unwrap_or_default()
    }

    /// Checks that no block is its own ancestor.
    fn check_ancestors(&mut self, stored: &Stored<'_>) -> Result<(), Skip> {
        self.scratch.clear();
        self.scratch.extend(stored.hashes.iter().chain(stored.parent));
        self.scratch.sort_unstable();
        let twice = self.scratch.windows(2).any(|pair| pair[0] == pair[1]);
        if self.scratch.capacity() > 1 << 16 {
            self.scratch = Vec::new();
        }
        if twice { Err(Skip::SelfParent) } else { Ok(()) }
    }

    /// Blocks that are in one tier more.
    fn stored_elsewhere(
        &mut self,
        source: SourceId,
        stored: &Stored<'_>,
        tier: Tier,
        group: u8,
        sink: &mut impl FnMut(Change),
    ) -> Result<(), Skip> {
        let mut unknown = false;
        for hash in stored.hashes.iter() {
            let Some(at) = self.forest.find(source, hash) else {
                unknown = true;
                continue;
            };
            self.forest.hold(at, tier, group, stored.reused, sink);
        }
        if unknown { Err(Skip::UnknownBlock) } else { Ok(()) }
    }

    /// Place of the next block of a sequence.
    fn place(
        &self,
        chain: &mut Chain,
        parent: u32,
        size: u16,
        mut tokens: impl Iterator<Item = u32>,
    ) -> Place {
        let block_tokens = self.settings.block_tokens.get();
        let offset = if parent == NONE { 0 } else { self.forest.end(parent) };
        let mut inner = SmallVec::new();
        let (mut missing, mut left) = (block_tokens - offset, size);
        while left > 0 {
            let now = missing.min(left);
            tokens.by_ref().take(usize::from(now)).for_each(|token| chain.push(token));
            missing -= now;
            left -= now;
            if missing == 0 {
                missing = block_tokens;
                if left > 0 {
                    inner.push(chain.key());
                }
            }
        }
        Place { key: chain.key(), parent, offset, size, inner }
    }

    /// Keeps a store until its parent comes. Its blocks are there, but have no keys.
    fn wait(&mut self, source: SourceId, parent: u64, stored: &Stored<'_>, size: u16) {
        let mut is_new = false;
        for hash in stored.hashes.iter() {
            if self.forest.find(source, hash).is_none() {
                self.forest.insert(source, hash);
                is_new = true;
            }
        }
        if !is_new {
            return;
        }
        let mut of_next = extras_by_block(stored);
        let extras = (0..).take(stored.hashes.len()).flat_map(|block| {
            let of_block = of_next().into_iter();
            of_block.map(move |extra| (block, Chain::digest(extra))).collect::<SmallVec<[_; 4]>>()
        });
        let waiting = PendingStore {
            hashes: stored.hashes.iter().collect(),
            tokens: stored.tokens.iter().collect(),
            extras: extras.collect(),
            block_size: size,
        };
        self.waiting.push(source, parent, waiting);
        if let Some(source) = self.forest.sources.get_mut(&source) {
            source.waiting += 1;
        }
    }

    /// Places the stores that waited for these blocks, and those that waited for theirs.
    fn resolve(&mut self, source: SourceId, mut parents: SmallVec<[u64; 32]>, sink: &mut impl FnMut(Change)) {
        while self.forest.sources.get(&source).is_some_and(|source| source.waiting > 0)
            && let Some(parent) = parents.pop()
        {
            let resolved = self.waiting.take(source, parent);
            if let Some(source) = self.forest.sources.get_mut(&source) {
                source.waiting -= resolved.len();
            }
            for waiting in resolved {
                self.place_waiting(source, parent, &waiting, &mut parents, sink);
            }
        }
    }

    fn place_waiting(
        &mut self,
        source: SourceId,
        parent: u64,
        waiting: &PendingStore,
        placed: &mut SmallVec<[u64; 32]>,
        sink: &mut impl FnMut(Change),
    ) {
        let Some(mut before) = self.forest.find(source, parent) else { return };
        let mut chain = Chain::from_key(self.forest.blocks.get(before).key);
        let tokens = waiting.tokens.chunks(usize::from(waiting.block_size.max(1)));
        for ((hash, tokens), block) in waiting.hashes.iter().zip(tokens).zip(0..) {
            let extras = waiting.extras.iter().filter(|(of, _)| *of == block);
            extras.for_each(|(_, digest)| chain.push_digest(*digest));
            let place = self.place(&mut chain, before, waiting.block_size, tokens.iter().copied());
            let (at, is_new) = self.forest.place(source, *hash, place, sink);
            self.forest.settle(at, true);
            if is_new {
                placed.push(*hash);
            }
            before = at;
        }
    }

    /// Gives up what is beyond the bounds.
    fn keep_bounds(&mut self, sink: &mut impl FnMut(Change)) -> Result<(), Skip> {
        let mut kept = Ok(());
        let waiting_bytes = self.settings.waiting_bytes.min(self.settings.bytes / 4);
        loop {
            // Cold blocks go before those of a moment ago.
            let has_room = self.forest.bytes() <= self.settings.bytes;
            if !has_room && self.forest.evict(sink) {
                continue;
            }
            if has_room && self.waiting.bytes() <= waiting_bytes {
                break;
            }
            let Some((source, waiting)) = self.waiting.pop() else { break };
            self.give_up(source, &waiting);
            kept = Err(Skip::UnknownParent);
        }
        while self.forest.remembered() > self.settings.remembered {
            let over = self.forest.remembered() - self.settings.remembered;
            self.forest.touch_remembered(over);
            if !(0..over.min(AHEAD)).all(|_| self.forest.evict_remembered()) {
                break;
            }
        }
        kept
    }

    /// Forgets the blocks of a store whose parent didn't come.
    fn give_up(&mut self, source: SourceId, waiting: &PendingStore) {
        self.set_complete(source, false);
        if let Some(source) = self.forest.sources.get_mut(&source) {
            source.waiting -= 1;
        }
        for hash in &waiting.hashes {
            if let Some(at) = self.forest.find(source, *hash)
                && self.forest.blocks.get(at).size == 0
            {
                self.forest.remove(at);
            }
        }
    }
}

/// Keys of each block besides its tokens, in order. vLLM's keys begin with the adapter's name, which is left out there, as
/// the chain begins with it already; a salt may be the same.
fn extras_by_block<'a>(stored: &Stored<'a>) -> impl FnMut() -> SmallVec<[&'a [u8]; 4]> + use<'a> {
    let adapter = stored.lora_name.map(str::as_bytes);
    let (mut extra_keys, mut mm_keys) = (stored.extra_keys.iter(), stored.mm_keys.iter());
    move || {
        let mut of_block = extra_keys.next().into_iter().flat_map(|keys| keys.iter()).peekable();
        of_block.next_if(|first| adapter == Some(*first));
        of_block.chain(mm_keys.next().into_iter().flat_map(|keys| keys.iter())).collect()
    }
}
