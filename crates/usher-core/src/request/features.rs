//! The multimodal items of a prompt of token ids, as vLLM's own API names them:
//! `{"mm_hashes": {"image": ["…"]}, "mm_placeholders": {"image": [{"offset": 5, "length": 9}]}}`.
//!
//! Levels count from the object: its members are at 0, modalities at 1, items at 2 and
//! the members of items at 3.

use std::ops::Range;

use super::body::Span;
use super::json::Token;
use super::prompt::{self, Feature, MAX_FEATURES, Modality, Part};
use super::values::{count, text};

/// Modalities that are told apart, and one for others, of which the last in a body is read.
const MODALITIES: [Option<Modality>; 4] =
    [Some(Modality::Image), Some(Modality::Video), Some(Modality::Audio), None];

/// Reads the items.
#[derive(Debug, Default)]
pub(super) struct Features {
    member: Member,
    /// Index of the modality, and whether it has a list.
    modality: usize,
    listed: bool,
    field: Field,
    /// By modality; an item without a hash keeps its place.
    hashes: [Vec<Option<Part>>; MODALITIES.len()],
    places: [Vec<Place>; MODALITIES.len()],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Member {
    #[default]
    Other,
    Hashes,
    Places,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Field {
    #[default]
    Other,
    Offset,
    Length,
}

/// Position of an item's tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub offset: Option<u64>,
    pub length: Option<u64>,
}

impl Place {
    /// The tokens, if both numbers are there and make sense.
    pub(super) fn range(self) -> Option<Range<u32>> {
        let end = self.offset?.checked_add(self.length?)?;
        Some(u32::try_from(self.offset?).ok()?..u32::try_from(end).ok()?)
    }
}

impl Features {
    /// The name of a member; `false` when it means nothing.
    pub(super) fn key(&mut self, level: usize, name: &[u8]) -> bool {
        match level {
            0 => {
                self.member = match name {
                    b"mm_hashes" => Member::Hashes,
                    b"mm_placeholders" => Member::Places,
                    _ => Member::Other,
                };
                self.member != Member::Other
            }
            1 => {
                let known = Modality::ALL.iter().position(|modality| modality.label().as_bytes() == name);
                self.modality = known.unwrap_or(MODALITIES.len() - 1);
                known.is_some()
            }
            3 => {
                self.field = match name {
                    b"offset" => Field::Offset,
                    b"length" => Field::Length,
                    _ => Field::Other,
                };
                self.field != Field::Other
            }
            _ => true,
        }
    }

    pub(super) fn value(&mut self, level: usize, token: Token, span: Span, head: &[u8]) {
        let (hashes, places) = (&mut self.hashes[self.modality], &mut self.places[self.modality]);
        match (level, self.member) {
            // Of members with one name the last counts.
            (0, member) => {
                match member {
                    Member::Hashes => self.hashes = Default::default(),
                    Member::Places => self.places = Default::default(),
                    Member::Other => {}
                }
                if token != Token::ObjectStart {
                    self.member = Member::Other;
                }
            }
            (1, member) => {
                self.listed = token == Token::ArrayStart;
                match member {
                    Member::Hashes => hashes.clear(),
                    Member::Places => places.clear(),
                    Member::Other => {}
                }
            }
            (2, Member::Hashes) if self.listed => prompt::push_feature(hashes, text(token, span)),
            (2, Member::Places) if self.listed => {
                prompt::push_feature(places, Place::default());
                self.field = Field::Other;
            }
            // Behind the bound there is no place for it.
            (3, Member::Places) if self.listed && places.len() < MAX_FEATURES => {
                if let Some(place) = places.last_mut() {
                    match self.field {
                        Field::Offset => place.offset = count(token, span, head),
                        Field::Length => place.length = count(token, span, head),
                        Field::Other => {}
                    }
                }
            }
            _ => {}
        }
    }

    /// Bytes that are kept of the items, and those of the list that they will be in.
    pub(super) fn counted(&self) -> usize {
        let hashes =
            self.hashes.iter().map(|hashes| prompt::bytes(hashes) + hashes.len() * size_of::<Feature>());
        hashes.chain(self.places.iter().map(prompt::bytes)).sum()
    }

    /// The items, by their place in the prompt.
    pub(super) fn finish(&mut self) -> Vec<Feature> {
        let mut features = Vec::new();
        for (index, modality) in MODALITIES.into_iter().enumerate() {
            let places = &self.places[index];
            for (at, hash) in self.hashes[index].iter().enumerate() {
                let tokens = places.get(at).and_then(|place| place.range());
                features.extend(hash.map(|hash| Feature { modality, hash, tokens }));
            }
        }
        features.sort_by_key(|feature| feature.tokens.as_ref().map_or(u32::MAX, |tokens| tokens.start));
        features
    }
}
