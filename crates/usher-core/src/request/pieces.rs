//! Bytes in one or several pieces, as they lay in the frames that they came in.

use bytes::Bytes;
use smallvec::SmallVec;

/// A run of bytes. Most have one piece, which takes no allocation.
#[derive(Clone, Debug, Default)]
pub struct Pieces(SmallVec<[Bytes; 1]>);

impl Pieces {
    /// Adds a piece at the end; an empty one is left out.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.0.push(piece);
        }
    }

    /// The pieces, in order. None is empty.
    pub fn iter(&self) -> std::slice::Iter<'_, Bytes> {
        self.0.iter()
    }

    /// Length of all of them in bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Returns `true` if there is not a single byte.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Bytes> for Pieces {
    fn from(bytes: Bytes) -> Self {
        let mut pieces = Self::default();
        pieces.push(bytes);
        pieces
    }
}

impl FromIterator<Bytes> for Pieces {
    fn from_iter<I: IntoIterator<Item = Bytes>>(iter: I) -> Self {
        let mut pieces = Self::default();
        iter.into_iter().for_each(|piece| pieces.push(piece));
        pieces
    }
}

impl IntoIterator for Pieces {
    type Item = Bytes;
    type IntoIter = smallvec::IntoIter<[Bytes; 1]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Pieces {
    type Item = &'a Bytes;
    type IntoIter = std::slice::Iter<'a, Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Equality of the bytes, wherever they are cut.
impl PartialEq for Pieces {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().flatten().eq(other.iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equality_ignores_chunk_boundaries() {
        let pieces = |parts: &[&'static str]| -> Pieces {
            parts.iter().map(|part| Bytes::from_static(part.as_bytes())).collect()
        };
        let whole = pieces(&["abcd"]);
        let cut = pieces(&["a", "", "bc", "d"]);
        assert_eq!(whole, cut);
        assert_eq!((cut.iter().count(), cut.len()), (3, 4));
        assert_ne!(whole, pieces(&["abce"]));
        assert!(Pieces::from(Bytes::new()).is_empty());
    }
}
