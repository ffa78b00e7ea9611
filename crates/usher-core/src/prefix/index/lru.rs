//! The blocks of one endpoint, by when they were added.

use super::key::Key;
use super::place::{NONE, Place};

/// The blocks that an endpoint holds, by when they were added last, and from which
/// sources this is known: each is a bit. Of what was added together the head is the most recent, so that the tail
/// goes first: without the blocks before it a block matches nothing.
///
/// An open table whose places are also the links of the list, in 12 bytes a place; four
/// places of five are full at most.
#[derive(Clone, Debug)]
pub(super) struct LruList {
    places: Box<[Place]>,
    /// The sources of each place that are other processes, where the place is [marked](MARK) to have some; empty as long
    /// as none is.
    others: Box<[u16]>,
    len: usize,
    newest: u32,
    oldest: u32,
    /// The block that was added last since [`begin`](LruList::begin); the next one comes behind it.
    /// [`NONE`] before the first.
    last: u32,
    /// Blocks that were pushed since others were [marked](LruList::mark_unpublished).
    pushed: usize,
}

/// The source of what this process added.
pub(super) const OWN: u16 = 1;
/// No source: the stream has the block, not far from its end. One without the mark is published at its next use.
pub(super) const PUBLISHED: u16 = 2;
/// The source of what was read at the start, and of what other processes published that are silent by now.
pub(super) const RESTORED: u16 = 4;
/// The sources of what other processes published.
pub(super) const OTHERS: u16 = !(OWN | PUBLISHED | RESTORED);
/// Mark of a place with sources among [`OTHERS`]. These three and the mark are in the place itself: a block that only this
/// process uses costs no look elsewhere.
const MARK: u16 = 8;

/// Part of a list that is new before what is in use is republished. A start takes the blocks that were published last, as
/// many as an endpoint holds: what was published before a quarter of them is among these.
const NEWER: usize = 4;

const MIN_PLACES: usize = 16;

impl Default for LruList {
    fn default() -> Self {
        Self {
            places: Box::default(),
            others: Box::default(),
            len: 0,
            newest: NONE,
            oldest: NONE,
            last: NONE,
            pushed: 0,
        }
    }
}

impl LruList {
    /// Blocks that an endpoint can hold: their places have to fit into a link.
    pub(super) const MAX: usize = (NONE as usize) / 5 * 4 - 1;

    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.places) + size_of_val(&*self.others)
    }

    /// The next block that is added becomes the most recent of all, and those after it come
    /// behind it in their order.
    pub(super) fn begin(&mut self) {
        self.last = NONE;
    }

    /// The next block that is added comes behind this one. Returns whether it is held; if not,
    /// nothing changes.
    pub(super) fn continue_after(&mut self, key: Key) -> bool {
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

    /// Returns `true` if a block is held.
    pub(super) fn contains(&self, key: Key) -> bool {
        self.find(key).is_ok()
    }

    /// Moves a block that is held behind the one that was added last, and adds sources. Returns those that it had; `None`
    /// when it is not held.
    pub(super) fn touch(&mut self, key: Key, sources: u16) -> Option<u16> {
        let at = self.find(key).ok()?;
        let marks = self.places[at as usize].marks();
        self.unlink(at);
        self.link_next(at, key, marks);
        Some(self.add_sources(at, sources))
    }

    /// Adds sources of a block, and leaves it where it is. Returns whether it is held.
    pub(super) fn confirm(&mut self, key: Key, sources: u16) -> bool {
        let found = self.find(key);
        if let Ok(at) = found {
            self.add_sources(at, sources);
        }
        found.is_ok()
    }

    /// Takes a block that is not held, behind the one that was added last. With `room` for so
    /// many: the table grows no further than that takes.
    pub(super) fn push(&mut self, key: Key, sources: u16, room: usize) {
        self.grow(room);
        if let Err(at) = self.find(key) {
            self.link_next(at, key, 0);
            self.len += 1;
            self.pushed += 1;
            self.set_sources(at, sources);
        }
    }

    /// The same, behind all that are held.
    pub(super) fn push_oldest(&mut self, key: Key, sources: u16, room: usize) {
        self.grow(room);
        if let Err(at) = self.find(key) {
            self.link(at, key, 0, (self.oldest, NONE));
            self.len += 1;
            self.set_sources(at, sources);
        }
    }

    /// Drops the oldest block.
    pub(super) fn pop(&mut self) -> Option<Key> {
        let at = self.oldest;
        let key = self.at(at)?.key()?;
        self.drop_at(at);
        self.shrink();
        Some(key)
    }

    /// Takes these sources of all blocks away. Blocks without another one count as restored.
    pub(super) fn retire(&mut self, sources: u16) {
        for at in (0..).take(self.others.len()) {
            let before = self.sources_at(at);
            if before & sources != 0 {
                let left = before & !sources;
                self.set_sources(at, if left & !PUBLISHED == 0 { left | RESTORED } else { left });
            }
        }
        if self.places.iter().all(|place| place.marks() & MARK == 0) {
            self.others = Box::default();
        }
    }

    /// Marks all blocks as not published, if a part of the list is newer than it was last time, or anyway.
    pub(super) fn mark_unpublished(&mut self, anyway: bool) {
        if anyway || self.pushed > self.len / NEWER {
            self.pushed = 0;
            self.places.iter_mut().for_each(|place| place.set_marks(place.marks() & !PUBLISHED));
        }
    }

    /// The blocks and their sources, from the most recent to the oldest.
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
        let marks = self.places.get(at as usize).map_or(0, |place| place.marks());
        match marks & MARK {
            0 => marks,
            _ => marks & !MARK | self.others.get(at as usize).copied().unwrap_or_default(),
        }
    }

    /// Returns those that it had.
    fn add_sources(&mut self, at: u32, sources: u16) -> u16 {
        let before = self.sources_at(at);
        if before & sources != sources {
            self.set_sources(at, before | sources);
        }
        before
    }

    fn set_sources(&mut self, at: u32, sources: u16) {
        let (others, mut marks) = (sources & OTHERS, sources & !OTHERS);
        if others != 0 {
            marks |= MARK;
            if self.others.is_empty() {
                self.others = vec![0; self.places.len()].into_boxed_slice();
            }
            self.others[at as usize] = others;
        }
        self.places[at as usize].set_marks(marks);
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
    fn link_next(&mut self, at: u32, key: Key, marks: u16) {
        let older = self.at(self.last).map_or(self.newest, Place::older);
        self.link(at, key, marks, (self.last, older));
        self.last = at;
    }

    /// Writes a block into a place, between these neighbours.
    fn link(&mut self, at: u32, key: Key, marks: u16, (newer, older): (u32, u32)) {
        self.places[at as usize] = Place::new(key, marks, newer, older);
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
                if place.marks() & MARK != 0 {
                    self.others[gap as usize] = self.others[next as usize];
                }
                gap = next;
            }
        }
        self.places[gap as usize] = Place::EMPTY;
    }

    /// Makes room for one more block, of so many at most.
    fn grow(&mut self, room: usize) {
        if places(self.len + 1) > self.places.len() {
            let enough = with_room(places(self.len + 1)).max(MIN_PLACES).min(places(room.max(self.len + 1)));
            self.renew(enough);
        }
    }

    /// Gives back what is empty, if that is more than half.
    fn shrink(&mut self) {
        if self.places.len() > 4 * MIN_PLACES && self.len * 2 < self.places.len() {
            self.renew(with_room(places(self.len)));
        }
    }

    /// Makes a table of so many places with the same blocks.
    fn renew(&mut self, places: usize) {
        let mut new = Self {
            places: vec![Place::EMPTY; places].into_boxed_slice(),
            len: self.len,
            pushed: self.pushed,
            ..Self::default()
        };
        let last = self.at(self.last).and_then(Place::key);
        for (key, sources) in self.iter() {
            if let Err(at) = new.find(key) {
                new.link(at, key, 0, (NONE, new.newest));
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
#[path = "lru_tests.rs"]
mod tests;
