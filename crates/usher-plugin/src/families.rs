//! Metric families of plugins.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::Registry;

type Known = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

/// Metric families by their Rust type, each registered once however many plugins count in it.
/// Clones share them.
#[derive(Clone)]
pub struct Families {
    registry: Registry,
    // Taken when a plugin is built.
    known: Arc<Mutex<Known>>,
}

impl Families {
    /// No families yet; those to come are registered here.
    pub fn new(registry: Registry) -> Self {
        Self { registry, known: Arc::default() }
    }

    /// The families of a type, registered when they are asked for first.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn get<T: Any + Send + Sync>(
        &self,
        register: impl FnOnce(&Registry) -> prometheus::Result<T>,
    ) -> prometheus::Result<Arc<T>> {
        let mut families = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = families.get(&TypeId::of::<T>()).cloned().and_then(|any| any.downcast::<T>().ok());
        if let Some(known) = known {
            return Ok(known);
        }
        let made = Arc::new(register(&self.registry)?);
        families.insert(TypeId::of::<T>(), Arc::clone(&made) as Arc<dyn Any + Send + Sync>);
        Ok(made)
    }
}

impl fmt::Debug for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Families")
    }
}
