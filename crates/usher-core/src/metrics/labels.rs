//! Keys of series whose labels clients choose: several texts and a number.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};

/// Texts and a number, such as flow, model and priority, as a key of [`ClientSeries`](super::ClientSeries).
#[derive(Clone, Debug)]
pub struct LabelKey<const N: usize> {
    texts: [Box<str>; N],
    number: i32,
}

/// Borrowed form of a [`LabelKey`]: looking a series up copies nothing.
#[derive(Clone, Copy, Debug)]
pub struct LabelRef<'a, const N: usize>(pub [&'a str; N], pub i32);

/// Labels of either form.
pub trait Labels<const N: usize> {
    /// Both parts.
    fn labels(&self) -> LabelRef<'_, N>;
}

impl<const N: usize> LabelKey<N> {
    /// The texts.
    pub fn texts(&self) -> [&str; N] {
        self.texts.each_ref().map(|text| &**text)
    }

    /// The number.
    pub fn number(&self) -> i32 {
        self.number
    }
}

impl<'a, const N: usize> LabelRef<'a, N> {
    /// The form in which [`find`](super::ClientSeries::find) takes it.
    pub fn as_dyn(&self) -> &(dyn Labels<N> + 'a) {
        self
    }

    /// A copy of it.
    pub fn to_key(self) -> LabelKey<N> {
        LabelKey { texts: self.0.map(Box::from), number: self.1 }
    }
}

impl<const N: usize> Labels<N> for LabelKey<N> {
    fn labels(&self) -> LabelRef<'_, N> {
        LabelRef(self.texts(), self.number)
    }
}

impl<const N: usize> Labels<N> for LabelRef<'_, N> {
    fn labels(&self) -> LabelRef<'_, N> {
        *self
    }
}

impl<'a, const N: usize> Borrow<dyn Labels<N> + 'a> for LabelKey<N> {
    fn borrow(&self) -> &(dyn Labels<N> + 'a) {
        self
    }
}

impl<const N: usize> PartialEq for dyn Labels<N> + '_ {
    fn eq(&self, other: &Self) -> bool {
        let (LabelRef(texts, number), LabelRef(others, other)) = (self.labels(), other.labels());
        number == other && texts == others
    }
}

impl<const N: usize> Eq for dyn Labels<N> + '_ {}

impl<const N: usize> Hash for dyn Labels<N> + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let LabelRef(texts, number) = self.labels();
        texts.iter().for_each(|text| text.hash(state));
        number.hash(state);
    }
}

impl<const N: usize> PartialEq for LabelKey<N> {
    fn eq(&self, other: &Self) -> bool {
        self.labels().as_dyn() == other.labels().as_dyn()
    }
}

impl<const N: usize> Eq for LabelKey<N> {}

impl<const N: usize> Hash for LabelKey<N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.labels().as_dyn().hash(state);
    }
}
