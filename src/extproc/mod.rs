//! The gRPC side: listeners, TLS, worker threads, health, and the server that
//! holds them together.

pub mod accept;
pub mod cert;
pub mod conn;
pub mod health;
pub mod listen;
pub mod router;
pub mod server;
pub mod stop;
pub mod tls;
pub mod workers;
