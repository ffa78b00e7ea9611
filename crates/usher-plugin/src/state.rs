//! State that outlives a configuration: sessions, caches, loads. Plugins hold handles to
//! it, so that a configuration that is read again finds it as it was.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use usher_core::endpoints::{AttributeId, Clock, InFlightId, Lease, Leases, Snapshot};
use usher_core::memory::Budget;
use usher_core::metrics::SeriesRoom;

use super::learned::Learned;

/// State that outlives the plugin which asked for it.
pub trait Persistent: Any + Send + Sync {
    /// Drops what is of no more use: of endpoints that are not in the snapshot, or
    /// expired at `now_ms` (on the clock of the readings). Called now and then, by
    /// one task.
    fn sweep(&self, snapshot: &Snapshot, now_ms: u64);

    /// Waits until everything that it was given counts, where that happens on another
    /// thread. For simulations and tests.
    fn settle(&self) {}

    /// State to hand on to other replicas and to those that start. `None`: there is none.
    fn learned(&self) -> Option<&dyn Learned> {
        None
    }
}

type Value = Arc<dyn Persistent>;

/// State by its type and the name of the plugin that it belongs to.
pub struct State {
    clock: Clock,
    budget: Arc<Budget>,
    // Taken while a configuration is built and while state is swept, never by a request.
    kept: Mutex<HashMap<(TypeId, String), (Value, Arc<dyn Any + Send + Sync>)>>,
    /// By producer.
    in_flight: Mutex<Leases<InFlightId, String>>,
    /// By producer and name.
    attributes: Mutex<Leases<AttributeId, (String, String)>>,
}

impl Default for State {
    fn default() -> Self {
        Self::new(Clock::start())
    }
}

impl State {
    /// Empty state. What is kept measures time with this clock.
    pub fn new(clock: Clock) -> Self {
        Self::within(clock, Arc::default())
    }

    /// Empty state that counts against a memory budget.
    pub fn within(clock: Clock, budget: Arc<Budget>) -> Self {
        Self {
            clock,
            budget,
            kept: Mutex::default(),
            in_flight: Mutex::new(Leases::of(InFlightId::all())),
            attributes: Mutex::new(Leases::of(AttributeId::all())),
        }
    }

    /// The clock that stamps readings and ends what expires.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Memory budget of the process.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Room that the memory budget has for series whose labels clients choose; see
    /// [`ClientSeries`](usher_core::metrics::ClientSeries).
    pub fn series_room(&self) -> &SeriesRoom {
        self.budget.series_room()
    }

    /// The state of this type and name; made when it is asked for first.
    pub fn of<T: Persistent>(&self, name: &str, make: impl FnOnce() -> T) -> Arc<T> {
        let Ok(state) = self.try_of(name, || Ok::<T, Infallible>(make()));
        state
    }

    /// The state of this type and name, from a constructor that can fail.
    ///
    /// # Errors
    /// The error of the constructor, which is called again at the next request for it.
    pub fn try_of<T: Persistent, E>(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (TypeId::of::<T>(), name.to_owned());
        if let Some(found) = kept.get(&key).and_then(|(_, any)| Arc::clone(any).downcast::<T>().ok()) {
            return Ok(found);
        }
        let made = Arc::new(make()?);
        kept.insert(key, (Arc::clone(&made) as Value, Arc::clone(&made) as Arc<dyn Any + Send + Sync>));
        Ok(made)
    }

    /// The state of this type and name, if it was asked for before.
    pub fn find<T: Persistent>(&self, name: &str) -> Option<Arc<T>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, any) = kept.get(&(TypeId::of::<T>(), name.to_owned()))?;
        Arc::clone(any).downcast::<T>().ok()
    }

    /// All states of this type, with the names of their plugins.
    pub fn all<T: Persistent>(&self) -> Vec<(String, Arc<T>)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let of_type = kept.iter().filter(|((id, _), _)| *id == TypeId::of::<T>());
        let named = |((_, name), (_, any)): (&(TypeId, String), &(Value, Arc<dyn Any + Send + Sync>))| {
            Some((name.clone(), Arc::clone(any).downcast::<T>().ok()?))
        };
        of_type.filter_map(named).collect()
    }

    /// Counter of what is in flight for the producer of this name, as long as it or a
    /// request holds that; `None` when too many others do.
    pub fn in_flight(&self, producer: &str) -> Option<Lease<InFlightId>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).take(producer.to_owned())
    }

    /// Gauge of a producer's attribute of this name, as long as a plugin that fills it holds
    /// that; `None` when too many others do.
    pub fn attribute(&self, producer: &str, name: &str) -> Option<Lease<AttributeId>> {
        let name = (producer.to_owned(), name.to_owned());
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).take(name)
    }

    /// All states that replicas hand on, with the names of their plugins, in the order of these.
    pub fn learned(&self) -> Vec<(String, Arc<dyn Persistent>)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let learned = kept.iter().filter(|(_, (value, _))| value.learned().is_some());
        let mut all: Vec<_> =
            learned.map(|((_, name), (value, _))| (name.clone(), Arc::clone(value))).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }

    /// Drops what is of no more use.
    pub fn sweep(&self, snapshot: &Snapshot, now_ms: u64) {
        self.values().iter().for_each(|value| value.sweep(snapshot, now_ms));
        let loads = || snapshot.endpoints().iter().map(|endpoint| endpoint.load());
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        // What this process counted was given back by those who held it.
        in_flight.forget(|id| loads().for_each(|load| load.in_flight_of(id).report(0, 0)));
        drop(in_flight);
        let mut attributes = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        attributes.forget(|id| loads().for_each(|load| load.attribute(id).clear()));
    }

    /// Drops what no plugin and no request holds any more: the state of plugins that a configuration
    /// no longer has.
    pub fn forget_unused(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Two of them are here.
        kept.retain(|_, (value, _)| Arc::strong_count(value) > 2);
    }

    /// Waits until everything that was given to the kept state counts; see [`Persistent::settle`].
    pub fn settle(&self) {
        self.values().iter().for_each(|value| value.settle());
    }

    fn values(&self) -> Vec<Value> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.values().map(|(value, _)| Arc::clone(value)).collect()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;
    use usher_core::endpoints::Store;

    #[derive(Default)]
    struct Swept(AtomicU64);

    impl Persistent for Swept {
        fn sweep(&self, _snapshot: &Snapshot, now_ms: u64) {
            self.0.store(now_ms, Relaxed);
        }
    }

    #[test]
    fn state_is_found_again_by_its_name_and_swept() {
        let state = State::default();
        let first = state.of("a", Swept::default);
        assert!(Arc::ptr_eq(&first, &state.of("a", Swept::default)));
        let other = state.of("b", Swept::default);
        assert!(!Arc::ptr_eq(&first, &other));
        assert!(Arc::ptr_eq(&first, &state.find("a").unwrap()));
        assert!(state.find::<Swept>("c").is_none());
        let mut all = state.all::<Swept>();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        assert!(all[0].0 == "a" && Arc::ptr_eq(&first, &all[0].1) && all[1].0 == "b" && all.len() == 2);
        state.sweep(&Store::default().snapshot(), 9);
        assert_eq!((first.0.load(Relaxed), other.0.load(Relaxed)), (9, 9));
    }

    #[test]
    fn unused_state_is_dropped_on_demand() {
        let state = State::default();
        let held = state.of("held", Swept::default);
        state.of("gone", Swept::default);
        state.forget_unused();
        assert!(state.find::<Swept>("gone").is_none());
        assert!(Arc::ptr_eq(&held, &state.find("held").unwrap()));
    }

    #[test]
    fn producers_and_attributes_are_bounded_and_kept_in_use() {
        let state = State::default();
        let counters: Vec<_> =
            (0..InFlightId::MAX).map(|n| state.in_flight(&n.to_string()).unwrap()).collect();
        assert_eq!(state.in_flight("one too many"), None);
        assert_eq!(state.in_flight("2").as_ref(), Some(&counters[2]));
        let first = state.attribute("extractor", "temperature").unwrap();
        assert_ne!(state.attribute("other", "temperature").as_ref(), Some(&first), "another producer's");
        let attributes: Vec<_> =
            (1..AttributeId::MAX).map(|n| state.attribute("extractor", &n.to_string()).unwrap()).collect();
        assert_eq!(state.attribute("extractor", "one too many"), None);
        assert_eq!(state.attribute("extractor", "temperature").unwrap(), first);
        drop((counters, attributes));
        assert!(state.in_flight("another").is_some() && state.attribute("another", "a").is_some());
    }
}
