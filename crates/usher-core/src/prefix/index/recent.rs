//! The blocks of one endpoint, by when they were added.

use super::key::Key;

/// The blocks that an endpoint holds, by when they were added last, and who said so: each
/// source is a bit. Of what was added together the head is the most recent, so that the tail
/// goes first: without the blocks before it a block matches nothing.
///
/// An open table whose places are also the links of the list, in 12 bytes a place; four
/// places of five are full at most.
#[derive(Debug)]
pub(super) struct Recent {
    places: Box<[Place]>,
    /// The sources of each place; empty as long as all are [`OWN`].
    sources: Box<[u16]>,
    len: usize,
    newest: u32,
    oldest: u32,
    /// The block that was added last since [`begin`](Recent::begin); the next one comes behind it.
    /// [`NONE`] before the first.
    last: u32,
}

/// The source of what this process added.
pub(super) const OWN: u16 = 1;

/// A block's key, and the places of its neighbours in 24 bits each. With a key of 0 it is
/// empty.
#[derive(Clone, Copy, Debug)]
struct Place([u32; 3]);

/// Bits of a link.
const LINK: u32 = 24;
const LINK_MASK: u32 = (1 << LINK) - 1;
/// No neighbour.
const NONE: u32 = LINK_MASK;
const MIN_PLACES: usize = 16;
const _: () = assert!(Key::BITS <= 3 * u32::BITS - 2 * LINK);

impl Place {
    const EMPTY: Self = Self([0; 3]);

    fn new(key: Key, newer: u32, older: u32) -> Self {
        let high = (key.bits() >> 32) as u32;
        Self([key.bits() as u32, newer | (high & 0xff) << LINK, older | (high >> 8) << LINK])
    }

    fn bits(self) -> u64 {
        let Self([low, newer, older]) = self;
        u64::from(low) | u64::from(newer >> LINK) << 32 | u64::from(older >> LINK) << 40
    }

    fn key(self) -> Option<Key> {
        let bits = self.bits();
        (bits != 0).then(|| Key::from_bits(bits))
    }

    fn newer(self) -> u32 {
        self.0[1] & LINK_MASK
    }

    fn older(self) -> u32 {
        self.0[2] & LINK_MASK
    }

    fn set_newer(&mut self, place: u32) {
        self.0[1] = self.0[1] & !LINK_MASK | place;
    }

    fn set_older(&mut self, place: u32) {
        self.0[2] = self.0[2] & !LINK_MASK | place;
    }
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            places: Box::default(),
            sources: Box::default(),
            len: 0,
            newest: NONE,
            oldest: NONE,
            last: NONE,
        }
    }
}

impl Recent {
    /// Blocks that an endpoint can hold: their places have to fit into a link.
    pub(super) const MAX: usize = (NONE as usize) / 5 * 4 - 1;

    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.places) + size_of_val(&*self.sources)
    }

    /// The next block that is added becomes the most recent of all, and those after it come
    /// behind it in their order.
    pub(super) fn begin(&mut self) {
        self.last = NONE;
    }

    /// The next block that is added comes behind this one. Returns whether it is held; if not,
    /// nothing changes.
    pub(super) fn go_on_behind(&mut self, key: Key) -> bool {
        let found = self.find(key);
        if let Ok(at) = found {
            self.last = at;
        }
        found.is_ok()
    }

    /// Returns `true` if anything is older than what was added since [`begin`](Self::begin).
    pub(super) fn has_earlier(&self) -> bool {
        self.oldest != self.last
    }

    /// Reads something of the place where a block is, or would be.
    pub(super) fn read(&self, key: Key) -> u64 {
        self.at(self.home(key)).map_or(0, Place::bits)
    }

    /// Whether a block is held.
    pub(super) fn contains(&self, key: Key) -> bool {
        self.find(key).is_ok()
    }

    /// Moves a block that is held behind the one that was added last. Returns whether this
    /// source says for the first time that it is; `None` when it is not held.
    pub(super) fn touch(&mut self, key: Key, source: u16) -> Option<bool> {
        let at = self.find(key).ok()?;
        self.unlink(at);
        self.link_next(at, key);
        Some(self.add_source(at, source))
    }

    /// Takes a block that is not held, behind the one that was added last. With `room` for so
    /// many: the table grows no further than that takes.
    pub(super) fn push(&mut self, key: Key, source: u16, room: usize) {
        if places(self.len + 1) > self.places.len() {
            let enough = with_room(places(self.len + 1)).max(MIN_PLACES).min(places(room.max(self.len + 1)));
            self.renew(enough);
        }
        if let Err(at) = self.find(key) {
            self.link_next(at, key);
            self.len += 1;
            self.set_sources(at, source);
        }
    }

    /// Drops the oldest block.
    pub(super) fn pop(&mut self) -> Option<Key> {
        let at = self.oldest;
        let key = self.at(at)?.key()?;
        self.drop_at(at);
        if self.places.len() > 4 * MIN_PLACES && self.len * 2 < self.places.len() {
            self.renew(with_room(places(self.len)));
        }
        Some(key)
    }

    /// Drops what no source is left for when these are gone, and shows it to `gone`.
    pub(super) fn forget(&mut self, sources: u16, mut gone: impl FnMut(Key)) {
        let mut kept = Self::default();
        for (key, told) in self.iter() {
            match told & !sources {
                0 => gone(key),
                left => {
                    kept.begin();
                    kept.push(key, left, self.len);
                }
            }
        }
        kept.begin();
        *self = kept;
    }

    /// The blocks and who told of them, from the most recent to the oldest.
    pub(super) fn recent_first(&self) -> impl Iterator<Item = (Key, u16)> + use<'_> {
        let mut next = self.newest;
        std::iter::from_fn(move || {
            let (at, place) = (next, self.at(next)?);
            next = place.older();
            Some((place.key()?, self.sources_at(at)))
        })
    }

    /// The same from the oldest to the most recent.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, u16)> + use<'_> {
        let mut next = self.oldest;
        std::iter::from_fn(move || {
            let (at, place) = (next, self.at(next)?);
            next = place.newer();
            Some((place.key()?, self.sources_at(at)))
        })
    }

    /// Makes the table as small as what it holds allows.
    pub(super) fn fit(&mut self) {
        if places(self.len) < self.places.len() {
            self.renew(places(self.len));
        }
    }

    fn at(&self, at: u32) -> Option<Place> {
        self.places.get(at as usize).copied()
    }

    fn sources_at(&self, at: u32) -> u16 {
        self.sources.get(at as usize).copied().unwrap_or(OWN)
    }

    /// Returns whether the source had not told of it.
    fn add_source(&mut self, at: u32, source: u16) -> bool {
        let told = self.sources_at(at);
        self.set_sources(at, told | source);
        told & source == 0
    }

    fn set_sources(&mut self, at: u32, sources: u16) {
        if self.sources.is_empty() && sources != OWN {
            self.sources = vec![OWN; self.places.len()].into_boxed_slice();
        }
        if let Some(told) = self.sources.get_mut(at as usize) {
            *told = sources;
        }
    }

    /// Place of a block, or the empty place where it would be.
    fn find(&self, key: Key) -> Result<u32, u32> {
        let home = self.home(key);
        let (before, from) = self.places.split_at(home as usize);
        for (at, place) in (home..).zip(from).chain((0..).zip(before)) {
            match place.key() {
                Some(found) if found == key => return Ok(at),
                Some(_) => {}
                None => return Err(at),
            }
        }
        Err(NONE)
    }

    /// The first place where a block may be.
    fn home(&self, key: Key) -> u32 {
        let low = key.bits() & u64::from(u32::MAX);
        ((low * self.places.len() as u64) >> 32) as u32
    }

    /// Writes a block into a place, behind the one that was added last.
    fn link_next(&mut self, at: u32, key: Key) {
        let older = self.at(self.last).map_or(self.newest, Place::older);
        self.link(at, key, (self.last, older));
        self.last = at;
    }

    /// Writes a block into a place, between these neighbours.
    fn link(&mut self, at: u32, key: Key, (newer, older): (u32, u32)) {
        self.places[at as usize] = Place::new(key, newer, older);
        self.point(at, newer, older);
    }

    /// Makes the neighbours of a place, or the ends of the list, point at it.
    fn point(&mut self, at: u32, newer: u32, older: u32) {
        match self.places.get_mut(newer as usize) {
            Some(place) => place.set_older(at),
            None => self.newest = at,
        }
        match self.places.get_mut(older as usize) {
            Some(place) => place.set_newer(at),
            None => self.oldest = at,
        }
    }

    /// Takes a block out of the list, and leaves it in its place.
    fn unlink(&mut self, at: u32) {
        let place = self.places[at as usize];
        let (newer, older) = (place.newer(), place.older());
        match self.places.get_mut(newer as usize) {
            Some(place) => place.set_older(older),
            None => self.newest = older,
        }
        match self.places.get_mut(older as usize) {
            Some(place) => place.set_newer(newer),
            None => self.oldest = newer,
        }
        if self.last == at {
            self.last = newer;
        }
    }

    /// Drops a block, and closes the gap: blocks behind it that are not at home come up.
    fn drop_at(&mut self, at: u32) {
        self.unlink(at);
        self.len -= 1;
        let end = self.places.len() as u32;
        let (mut gap, mut next) = (at, at);
        loop {
            next = if next + 1 == end { 0 } else { next + 1 };
            let place = self.places[next as usize];
            let Some(key) = place.key().filter(|_| next != at) else { break };
            let home = self.home(key);
            // Whether the home is behind the gap, on the way around from there to here.
            let stays = if gap <= next { gap < home && home <= next } else { gap < home || home <= next };
            if !stays {
                self.places[gap as usize] = place;
                self.point(gap, place.newer(), place.older());
                if self.last == next {
                    self.last = gap;
                }
                if !self.sources.is_empty() {
                    self.sources[gap as usize] = self.sources[next as usize];
                }
                gap = next;
            }
        }
        self.places[gap as usize] = Place::EMPTY;
    }

    /// Makes a table of so many places with the same blocks.
    fn renew(&mut self, places: usize) {
        let mut new =
            Self { places: vec![Place::EMPTY; places].into_boxed_slice(), len: self.len, ..Self::default() };
        let last = self.at(self.last).and_then(Place::key);
        for (key, sources) in self.iter() {
            if let Err(at) = new.find(key) {
                new.link(at, key, (NONE, new.newest));
                new.set_sources(at, sources);
                if last == Some(key) {
                    new.last = at;
                }
            }
        }
        *self = new;
    }
}

/// The least table in which so many blocks fill no more than four places of five.
fn places(blocks: usize) -> usize {
    (blocks * 5).div_ceil(4)
}

/// A little more, so that a table is not made anew for every block.
fn with_room(count: usize) -> usize {
    count + count / 4
}

#[cfg(test)]
#[path = "recent_tests.rs"]
mod tests;
