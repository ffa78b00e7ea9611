//! Values by their type.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

/// At most one value of each type; few, so that a list will do.
#[derive(Clone, Default)]
pub struct ByType(Vec<(TypeId, Arc<dyn Any + Send + Sync>)>);

impl ByType {
    pub(crate) fn get<T: Any>(&self) -> Option<&T> {
        let (_, value) = self.0.iter().find(|(id, _)| *id == TypeId::of::<T>())?;
        value.downcast_ref()
    }

    /// Keeps a value, in place of an earlier one of its type.
    pub(crate) fn set<T: Any + Send + Sync>(&mut self, value: T) {
        self.0.retain(|(id, _)| *id != TypeId::of::<T>());
        self.0.push((TypeId::of::<T>(), Arc::new(value)));
    }
}

impl fmt::Debug for ByType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByType({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_has_one_value() {
        let mut map = ByType::default();
        map.set(1u8);
        map.set("one");
        map.set(2u8);
        assert_eq!((map.get::<u8>(), map.get::<&str>(), map.get::<u16>()), (Some(&2), Some(&"one"), None));
    }
}
