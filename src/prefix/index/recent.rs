//! The blocks of one endpoint, by when they were added.

use super::key::Key;

/// The blocks that an endpoint holds, in the order in which they were added last, and who
/// said so: each source is a bit.
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
    /// The newest block that was there before what is being added; 0 when there is none.
    earlier: u64,
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
            earlier: 0,
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

    /// What is there now is earlier than what comes from now on.
    pub(super) fn begin(&mut self) {
        self.earlier = self.at(self.newest).map_or(0, Place::bits);
    }

    /// Whether anything is left of what was there at [`begin`](Self::begin) and was not
    /// touched since.
    pub(super) fn has_earlier(&self) -> bool {
        self.earlier != 0
    }

    /// Makes a block that is held the most recent. Returns whether this source says for the
    /// first time that it is; `None` when it is not held.
    pub(super) fn touch(&mut self, key: Key, source: u16) -> Option<bool> {
        let at = self.find(key).ok()?;
        self.unlink(at);
        self.link(at, key);
        Some(self.add_source(at, source))
    }

    /// Takes a block that is not held as the most recent. With `room` for so many: the
    /// table grows no further than that takes.
    pub(super) fn push(&mut self, key: Key, source: u16, room: usize) {
        if places(self.len + 1) > self.places.len() {
            let enough = with_room(places(self.len + 1)).max(MIN_PLACES).min(places(room.max(self.len + 1)));
            self.renew(enough);
        }
        if let Err(at) = self.find(key) {
            self.link(at, key);
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
                left => kept.push(key, left, self.len),
            }
        }
        *self = kept;
    }

    /// The blocks and who told of them, from the oldest to the most recent.
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

    /// Where a block is, or the empty place where it would be.
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

    /// Writes a block into a place, as the most recent.
    fn link(&mut self, at: u32, key: Key) {
        let older = self.newest;
        self.places[at as usize] = Place::new(key, NONE, older);
        self.newest = at;
        self.point(at, NONE, older);
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
        if place.bits() == self.earlier {
            self.earlier = self.at(older).map_or(0, Place::bits);
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
        let mut new = Self {
            places: vec![Place::EMPTY; places].into_boxed_slice(),
            len: self.len,
            earlier: self.earlier,
            ..Self::default()
        };
        for (key, sources) in self.iter() {
            if let Err(at) = new.find(key) {
                new.link(at, key);
                new.set_sources(at, sources);
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
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8, u16),
        Pop,
        Begin,
        Forget(u16),
        Fit,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            12 => (any::<u8>(), 0..3u16).prop_map(|(block, source)| Step::Add(block, 1 << source)),
            6 => Just(Step::Pop),
            1 => Just(Step::Begin),
            1 => (1..8u16).prop_map(Step::Forget),
            1 => Just(Step::Fit),
        ];
        prop::collection::vec(step, 0..600)
    }

    proptest! {
        #[test]
        fn it_is_a_list_in_which_what_is_added_comes_last(steps in steps(), room in 1..200usize) {
            let (mut recent, mut list) = (Recent::default(), VecDeque::<(Key, u16)>::new());
            let mut earlier = Vec::new();
            for step in steps {
                match step {
                    Step::Add(block, source) => {
                        let key = Key::of(u64::from(block));
                        let had = list.iter().position(|(held, _)| *held == key);
                        let told = had.and_then(|at| list.remove(at)).map_or(0, |(_, told)| told);
                        list.push_back((key, told | source));
                        earlier.retain(|held| *held != key);
                        let touched = recent.touch(key, source);
                        prop_assert_eq!(touched, had.map(|_| told & source == 0));
                        if touched.is_none() {
                            recent.push(key, source, room);
                        }
                    }
                    Step::Pop => {
                        let oldest = list.pop_front().map(|(key, _)| key);
                        earlier.retain(|held| Some(*held) != oldest);
                        prop_assert_eq!(recent.pop(), oldest);
                    }
                    Step::Begin => {
                        earlier = list.iter().map(|(key, _)| *key).collect();
                        recent.begin();
                    }
                    Step::Forget(sources) => {
                        let mut gone = Vec::new();
                        recent.forget(sources, |key| gone.push(key));
                        let (stay, go): (Vec<_>, Vec<_>) =
                            list.into_iter().map(|(key, told)| (key, told & !sources)).partition(|(_, left)| *left != 0);
                        prop_assert_eq!(gone, go.into_iter().map(|(key, _)| key).collect::<Vec<_>>());
                        list = stay.into();
                        earlier.clear();
                    }
                    Step::Fit => recent.fit(),
                }
                prop_assert_eq!(recent.len(), list.len());
                prop_assert_eq!(recent.has_earlier(), !earlier.is_empty());
                prop_assert_eq!(recent.iter().collect::<VecDeque<_>>(), list.clone());
            }
            recent.fit();
            let sources = if list.iter().all(|(_, told)| *told == OWN) { 0 } else { 2 };
            prop_assert!(recent.bytes() <= places(list.len()) * (12 + sources.max(2)));
        }
    }

    #[test]
    fn it_grows_as_far_as_its_room_takes_and_shrinks_when_it_is_half_empty() {
        let mut recent = Recent::default();
        let room = 31_250;
        for block in 0..room as u64 {
            recent.push(Key::of(block), OWN, room);
            let bytes_each = recent.bytes() as f64 / recent.len() as f64;
            assert!(recent.len() < 100 || bytes_each < 19.0, "{bytes_each} bytes at {block}");
        }
        assert_eq!(recent.bytes(), places(room) * 12);
        while recent.len() > 100 {
            recent.pop();
        }
        assert!(recent.bytes() <= 2 * places(100) * 12, "{}", recent.bytes());
    }
}
