//! Values that the plugins of one configuration share while they are built.

use std::any::Any;

use usher_core::config::ConfigError;

use super::by_type::ByType;
use super::data_graph::DataGraph;
use super::reserved::Reserved;

/// Keys, places and values that the plugins of one configuration share.
#[derive(Debug, Default)]
pub struct BuildState {
    pub(crate) graph: DataGraph,
    pub(crate) reserved: Reserved,
    values: ByType,
}

impl BuildState {
    /// The data that plugins read and produce.
    pub fn graph(&self) -> &DataGraph {
        &self.graph
    }

    /// The value of this type; its default when it is asked for first. Clones have to share
    /// what they say.
    pub fn shared<T: Any + Clone + Default + Send + Sync>(&mut self) -> T {
        if let Some(known) = self.values.get::<T>() {
            return known.clone();
        }
        let value = T::default();
        self.values.set(value.clone());
        value
    }

    /// Checks that every place that a plugin asked for could be had.
    ///
    /// # Errors
    /// `ConfigError` of the first counter or attribute without room.
    pub fn check(&mut self) -> Result<(), ConfigError> {
        self.reserved.check()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use super::*;

    #[test]
    fn a_shared_value_is_the_same_for_all() {
        let mut build_state = BuildState::default();
        let first: Arc<OnceLock<u8>> = build_state.shared();
        assert!(Arc::ptr_eq(&first, &build_state.shared()));
        assert_eq!(build_state.shared::<u8>(), 0);
    }
}
