//! Names of a request, as a record keeps them.

use super::subject::MODEL;
use super::text::push_bounded;

/// Characters of a request's id that are kept.
const ID: usize = 128;

/// Bytes of most ids of requests: those of a UUID.
const USUAL_ID: usize = 36;

/// Names of a request, in one allocation.
#[derive(Debug, Default)]
pub(super) struct RequestNames {
    /// Model, model upstream and id, one after the other.
    all: String,
    /// End of the model.
    model: usize,
    /// End of the model upstream; `None` if it is the same.
    target: Option<usize>,
}

impl RequestNames {
    /// Names of a request that has no id yet.
    pub(super) fn new(model: &str, target: &str) -> Self {
        let mut all = String::with_capacity(model.len().min(MODEL) + USUAL_ID);
        push_bounded(&mut all, model, MODEL);
        let model_end = all.len();
        let target = (target != model).then(|| {
            push_bounded(&mut all, target, MODEL);
            all.len()
        });
        Self { all, model: model_end, target }
    }

    /// Adds the id.
    pub(super) fn identify(&mut self, id: &str) {
        self.all.truncate(self.target.unwrap_or(self.model));
        push_bounded(&mut self.all, id, ID);
    }

    pub(super) fn model(&self) -> &str {
        self.all.get(..self.model).unwrap_or_default()
    }

    pub(super) fn target(&self) -> Option<&str> {
        self.all.get(self.model..self.target?)
    }

    pub(super) fn id(&self) -> &str {
        self.all.get(self.target.unwrap_or(self.model)..).unwrap_or_default()
    }

    /// Bytes that they take.
    pub(super) fn size(&self) -> usize {
        self.all.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::bounded;
    use super::*;

    #[test]
    fn names_are_bounded_each() {
        let long = "é".repeat(MODEL + 9);
        let mut names = RequestNames::new(&long, "a\nb");
        assert_eq!((names.model().chars().count(), names.target(), names.id()), (MODEL + 1, Some("a b"), ""));
        for id in ["r-1", &"x".repeat(1 << 20)] {
            names.identify(id);
            assert_eq!(names.id(), &*bounded(id, ID));
        }
        let names = RequestNames::new("m", "m");
        assert_eq!((names.model(), names.target(), names.id()), ("m", None, ""));
    }
}
