//! Places that there are few of.

use usher_core::config::{ConfigError, Position};
use usher_core::endpoints::{AttributeId, InFlightId, Lease};

use super::state::State;

/// Counters and gauges that plugins asked for, held until the configuration is built.
/// Producers keep theirs; so what a configuration that fails has taken is free again.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    in_flight: Vec<Lease<InFlightId>>,
    attributes: Vec<Lease<AttributeId>>,
    /// First counter or attribute that there was no room for. Readers come before the producers that they name, so
    /// whether these exist is asked before this is an error.
    refused: Option<ConfigError>,
}

impl Reserved {
    /// Counter of what is in flight for a producer. Where there is no room, any place, as
    /// the configuration won't run.
    pub(crate) fn in_flight(
        &mut self,
        state: &State,
        producer: &str,
        plugin: &str,
        at: Position,
    ) -> Lease<InFlightId> {
        let Some(lease) = state.in_flight(producer) else {
            let message = format!("there can be {} in-flight load producers at most", InFlightId::MAX);
            let hint =
                "share one of them; those of an earlier configuration count until their last request ends";
            self.refuse(plugin, ConfigError::at(at, message).hint(hint).temporary());
            return InFlightId::default().into();
        };
        self.in_flight.push(lease.clone());
        lease
    }

    /// Gauge of a producer's attribute; any place where there is no room.
    pub(crate) fn attribute(
        &mut self,
        state: &State,
        (producer, name): (&str, &str),
        plugin: &str,
        at: Position,
    ) -> Lease<AttributeId> {
        let Some(lease) = state.attribute(producer, name) else {
            let message = format!("there can be {} attributes at most", AttributeId::MAX);
            let hint = "use fewer; those of an earlier configuration count while it is in use";
            self.refuse(plugin, ConfigError::at(at, message).hint(hint).temporary());
            return AttributeId::default().into();
        };
        self.attributes.push(lease.clone());
        lease
    }

    fn refuse(&mut self, plugin: &str, error: ConfigError) {
        self.refused.get_or_insert_with(|| error.in_plugin(plugin));
    }

    /// Checks that everything could be had.
    ///
    /// # Errors
    /// `ConfigError` of the first counter or attribute without room.
    pub(crate) fn check(&mut self) -> Result<(), ConfigError> {
        self.refused.take().map_or(Ok(()), Err)
    }
}
