//! Listening sockets: bound before the server starts, and handed to it, so that
//! tests bind port 0.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use crate::settings::ListenSettings;

/// Connections that may wait to be accepted. A gateway that restarts reconnects
/// from all its workers at once.
const BACKLOG: i32 = 1024;

/// The sockets of a server, bound and not yet accepting.
#[derive(Debug)]
pub struct Listeners {
    /// ext_proc (and health).
    pub extproc: TcpListener,
    /// Health in plain text.
    pub health: TcpListener,
    /// Prometheus metrics.
    pub metrics: TcpListener,
    /// Administration, unless it is off or its default address is taken.
    pub admin: Option<TcpListener>,
    /// KEDA's external scaler, unless it is off.
    pub keda: Option<TcpListener>,
}

/// An address that can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({flag}): {source}; {hint}")]
pub struct BindError {
    /// The address that was tried.
    pub address: SocketAddr,
    /// The flag that chose it.
    pub flag: &'static str,
    /// Error of the operating system.
    pub source: io::Error,
    hint: String,
}

impl Listeners {
    /// Binds what `settings` ask for.
    ///
    /// A default admin address that is taken is logged and left out; an admin address
    /// that was asked for must be free.
    ///
    /// # Errors
    /// `BindError` that names the address, the flag and what to do.
    pub fn bind(settings: &ListenSettings) -> Result<Self, BindError> {
        let port = |port, flag| bind(settings.bind, port, flag);
        let extproc = port(settings.grpc_port, "--grpc-port")?;
        let health = port(settings.health_port, "--grpc-health-port")?;
        let metrics = port(settings.metrics_port, "--metrics-port")?;
        let admin = match settings.admin {
            None => None,
            Some(address) => match bind(Some(address.ip()), address.port(), "--admin-address") {
                Ok(listener) => Some(listener),
                Err(error) if settings.admin_given => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "serving without an admin port");
                    None
                }
            },
        };
        let keda = settings.keda.map(|address| bind(Some(address.ip()), address.port(), "--keda-address"));
        Ok(Self { extproc, health, metrics, admin, keda: keda.transpose()? })
    }
}

/// Listens on a port of one address, or of every interface. `flag` is what chose the
/// port, for the error.
///
/// Every interface means `[::]` for both families, and `0.0.0.0` on a host without
/// IPv6.
///
/// # Errors
/// `BindError` that names the address, the flag and what to do.
pub fn bind(ip: Option<IpAddr>, port: u16, flag: &'static str) -> Result<TcpListener, BindError> {
    let first = SocketAddr::new(ip.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port);
    let result = match listen(first) {
        Err(error) if ip.is_none() && no_ipv6(&error) => {
            let second = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
            listen(second).map_err(|error| (second, error))
        }
        result => result.map_err(|error| (first, error)),
    };
    result.map_err(|(address, source)| BindError { address, flag, hint: hint(&source, flag), source })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // An address of one interface is of its family; only `[::]` serves both.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    // A restarted server gets its port back while old connections linger.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Returns `true` if the error says that this host has no IPv6, as opposed to a busy port.
fn no_ipv6(error: &io::Error) -> bool {
    // Depending on how IPv6 is off, the socket, the option or the bind fails, each with
    // an error of its own. These two are about the port.
    !matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

fn hint(error: &io::Error, flag: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!("stop what listens there, or choose another with {flag}"),
        io::ErrorKind::PermissionDenied => {
            format!("ports below 1024 need a privilege; choose another with {flag}")
        }
        io::ErrorKind::AddrNotAvailable => "no interface of this host has that address".to_owned(),
        _ => format!("choose another with {flag}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_port_is_named_with_its_flag() {
        let first = bind(Some(Ipv4Addr::LOCALHOST.into()), 0, "--grpc-port").unwrap();
        let port = first.local_addr().unwrap().port();
        let error = bind(Some(Ipv4Addr::LOCALHOST.into()), port, "--grpc-port").unwrap_err().to_string();
        assert!(error.contains(&format!("127.0.0.1:{port} (--grpc-port)")), "{error}");
        assert!(error.contains("choose another with --grpc-port"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn only_a_chosen_admin_address_must_be_free() {
        let taken = bind(Some(Ipv4Addr::LOCALHOST.into()), 0, "--admin-address").unwrap();
        let mut settings = ListenSettings {
            bind: Some(Ipv4Addr::LOCALHOST.into()),
            grpc_port: 0,
            health_port: 0,
            metrics_port: 0,
            admin: Some(taken.local_addr().unwrap()),
            admin_given: false,
            keda: None,
        };
        assert!(Listeners::bind(&settings).unwrap().admin.is_none());
        settings.admin_given = true;
        assert_eq!(Listeners::bind(&settings).unwrap_err().flag, "--admin-address");
    }
}
