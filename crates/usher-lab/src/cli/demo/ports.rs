//! The ports of a demo: a row of consecutive ones on loopback.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rand::RngExt;
use serde::Serialize;

/// Ports before those of the servers.
const FIXED: u16 = 6;

/// Admin port of `usher serve` by default, which `usher explain` asks.
pub const DEFAULT_ADMIN: u16 = 9095;

/// Range of free ports: above the well-known ones, and below those that systems give to
/// outgoing connections, which could take one before it is bound.
const FREE: std::ops::Range<u16> = 10_000..30_000;
const TRIES: usize = 100;

/// Error of a demo that finds no ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The port is taken.
    #[error(
        "port {port} on 127.0.0.1 is in use; choose other ports with --port (the first of {count} in a row)"
    )]
    InUse {
        /// The port.
        port: u16,
        /// Number of ports in a row that are needed.
        count: u16,
    },
    /// The system refuses the port.
    #[error("cannot listen on port {port} of 127.0.0.1: {reason}; choose other ports with --port")]
    Refused {
        /// The port.
        port: u16,
        /// Error of the system.
        reason: String,
    },
    /// The ports would end above 65535.
    #[error("{count} ports from {first} on would end above 65535; choose a lower --port")]
    TooHigh {
        /// The lowest of them.
        first: u16,
        /// Number of ports that are needed.
        count: u16,
    },
    /// None was found.
    #[error("found no {count} free ports in a row; choose the first one with --port")]
    NoneFree {
        /// Number of ports that are needed.
        count: u16,
    },
}

/// Ports of one Usher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct UsherPorts {
    /// Address that Envoy asks it at.
    pub extproc: u16,
    /// Port of gRPC health.
    pub health: u16,
    /// Port of the metrics.
    pub metrics: u16,
    /// Port of the admin server.
    pub admin: u16,
}

impl UsherPorts {
    /// Number of ports that one takes.
    pub const COUNT: u16 = 4;
}

/// The ports of a demo, on 127.0.0.1.
#[derive(Debug, Clone, Serialize)]
pub struct Ports {
    /// Address that clients send requests to.
    pub envoy: u16,
    /// Address that Envoy asks Usher at.
    pub extproc: u16,
    /// Usher's gRPC health.
    pub health: u16,
    /// Usher's metrics.
    pub metrics: u16,
    /// Usher's admin server.
    pub admin: u16,
    /// Envoy's admin interface.
    pub envoy_admin: u16,
    /// The simulated servers.
    pub servers: Vec<u16>,
    /// Ushers beside the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<UsherPorts>,
}

impl Ports {
    /// `first` and those that follow, but for the default admin port where that is free; with 0 any that are free.
    ///
    /// # Errors
    /// `PortError` if one of the ports is taken.
    pub fn choose(first: u16, servers: u16) -> Result<Self, PortError> {
        if first != 0 {
            let ports = Self::from_first(first, servers)?;
            return ports.check().map(|()| ports.with_admin(DEFAULT_ADMIN));
        }
        (0..TRIES)
            .map(|_| Self::from_first(rand::rng().random_range(FREE), servers))
            .find_map(|ports| ports.ok().filter(|ports| ports.check().is_ok()))
            .ok_or(PortError::NoneFree { count: FIXED.saturating_add(servers) })
    }

    /// The ports from `first` on, free or not.
    ///
    /// # Errors
    /// `PortError` if fewer ports are free.
    pub fn from_first(first: u16, servers: u16) -> Result<Self, PortError> {
        let count = FIXED.saturating_add(servers);
        let end = first.checked_add(count - 1).ok_or(PortError::TooHigh { first, count })?;
        Ok(Self {
            envoy: first,
            extproc: first + 1,
            health: first + 2,
            metrics: first + 3,
            admin: first + 4,
            envoy_admin: first + 5,
            servers: (first + FIXED..=end).collect(),
            replicas: Vec::new(),
        })
    }

    /// Ports of all Ushers.
    pub fn ushers(&self) -> Vec<UsherPorts> {
        let Self { extproc, health, metrics, admin, .. } = *self;
        let mut all = vec![UsherPorts { extproc, health, metrics, admin }];
        all.extend(&self.replicas);
        all
    }

    /// Gives ports of the last servers to one more Usher. `None`: there are too few.
    pub fn add_replica(&mut self) -> Option<()> {
        let mut last = || self.servers.pop();
        let (admin, metrics, health, extproc) = (last()?, last()?, last()?, last()?);
        self.replicas.push(UsherPorts { extproc, health, metrics, admin });
        Some(())
    }

    /// These ports, with the admin server at `admin` if that is free and none of them.
    fn with_admin(self, admin: u16) -> Self {
        let is_ours = self.all().contains(&admin);
        if is_ours || TcpListener::bind(local(admin)).is_err() { self } else { Self { admin, ..self } }
    }

    fn check(&self) -> Result<(), PortError> {
        let all = self.all();
        let count = all.len() as u16;
        for port in all {
            TcpListener::bind(local(port)).map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => PortError::InUse { port, count },
                _ => PortError::Refused { port, reason: error.to_string() },
            })?;
        }
        Ok(())
    }

    fn all(&self) -> Vec<u16> {
        let mut all = vec![self.envoy];
        for UsherPorts { extproc, health, metrics, admin } in self.ushers() {
            all.extend([extproc, health, metrics, admin]);
        }
        all.push(self.envoy_admin);
        all.extend(&self.servers);
        all
    }
}

/// The address of a port.
pub fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_in_a_row() {
        let ports = Ports::from_first(8081, 3).unwrap();
        assert_eq!(ports.all(), (8081..8090).collect::<Vec<_>>());
        assert!(Ports::from_first(65_527, 3).is_ok());
        assert_eq!(Ports::from_first(65_528, 3).unwrap_err(), PortError::TooHigh { first: 65_528, count: 9 });
    }

    #[test]
    fn admin_port_moves_only_to_a_free_one() {
        let taken = TcpListener::bind(local(0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let ports = || Ports::from_first(8081, 3).unwrap();
        assert_eq!(ports().with_admin(port).admin, 8085);
        assert_eq!(ports().with_admin(8089).admin, 8085, "a server has it");
        drop(taken);
        assert_eq!(ports().with_admin(port).admin, port);
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind(local(0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = Ports::choose(port - 1, 1).unwrap_err();
        // Should the one before be taken too, it is named.
        assert!(matches!(error, PortError::InUse { count: 7, .. }), "{error}");
        assert_eq!(Ports::choose(port, 1).unwrap_err(), PortError::InUse { port, count: 7 });
    }

    #[test]
    fn replica_takes_ports_of_the_last_servers() {
        let mut ports = Ports::from_first(8081, 5).unwrap();
        let row = ports.all();
        ports.add_replica().unwrap();
        assert_eq!((&ports.servers[..], ports.replicas[0].extproc), (&[8087][..], 8088));
        let mut all = ports.all();
        all.sort_unstable();
        assert_eq!(all, row);
        assert_eq!(ports.add_replica(), None);
    }

    #[test]
    fn free_ports_are_found() {
        let ports = Ports::choose(0, 4).unwrap();
        assert_eq!(ports.servers.len(), 4);
        assert!(FREE.contains(&ports.envoy));
    }
}
