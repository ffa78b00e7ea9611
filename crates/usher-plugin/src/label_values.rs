//! The values of a label among the endpoints of a snapshot, as numbers: comparing these is
//! what a decision can afford for every endpoint.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use usher_core::endpoints::Endpoint;

/// The values of one label.
#[derive(Debug)]
pub struct LabelValues {
    numbers: HashMap<Box<[u8]>, u32>,
    /// By position in the snapshot; 0: it has no such label.
    at: Box<[u32]>,
}

/// A value that some endpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelValue(u32);

impl LabelValues {
    /// The values of the label with this key.
    pub fn of(key: &str, endpoints: &[Arc<Endpoint>]) -> Self {
        let mut numbers: HashMap<Box<[u8]>, u32> = HashMap::new();
        let at = endpoints.iter().map(|endpoint| {
            let Some(value) = endpoint.label(key) else { return 0 };
            let next = numbers.len() as u32 + 1;
            *numbers.entry(value.as_bytes().into()).or_insert(next)
        });
        let at = at.collect();
        Self { numbers, at }
    }

    /// A value, if an endpoint has it.
    pub fn find(&self, value: &[u8]) -> Option<LabelValue> {
        self.numbers.get(value).copied().map(LabelValue)
    }

    /// The number of the value at this position of the snapshot; `None`: it has no such
    /// label.
    #[inline]
    pub fn number(&self, position: u32) -> Option<NonZeroU32> {
        self.at.get(position as usize).copied().and_then(NonZeroU32::new)
    }

    /// Returns `true` if the endpoint at this position of the snapshot has the value.
    #[inline]
    pub fn has(&self, position: u32, value: LabelValue) -> bool {
        self.at.get(position as usize) == Some(&value.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::endpoints::{EndpointSpec, Store};

    #[test]
    fn endpoints_have_the_values_of_their_labels() {
        let values = [Some("a"), None, Some("b"), Some(""), Some("a")];
        let spec = |(index, value): (usize, &Option<&str>)| EndpointSpec {
            labels: value.iter().map(|value| ("key".to_owned(), (*value).to_owned())).collect(),
            ..EndpointSpec::new(format!("pod-{index}"), ([10, 0, 0, index as u8], 80))
        };
        let store = Store::default();
        store.replace(values.iter().enumerate().map(spec).collect());
        let known = LabelValues::of("key", store.snapshot().endpoints());
        for wanted in ["a", "b", ""] {
            let number = known.find(wanted.as_bytes()).unwrap();
            for (position, value) in (0..).zip(values) {
                assert_eq!(known.has(position, number), value == Some(wanted), "{wanted:?} {value:?}");
            }
            assert!(!known.has(5, number), "nobody is there");
        }
        assert_eq!(known.find(b"c"), None);
    }
}
