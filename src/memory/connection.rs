//! What a connection may make the process hold before anybody reads it.

use std::sync::Arc;

use super::{Budget, Full, Kind, Reservation};

/// Room of a connection in each direction, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// What a gateway may send on all streams before they have read it.
    pub connection: u32,
    /// What it may send on one.
    pub stream: u32,
    /// What a stream may have to send before it has to wait.
    pub unsent: u32,
}

/// A connection's own buffers, and what the system's library keeps for it.
const BUFFERS: u64 = 32 << 10;

impl Windows {
    /// Without a budget. A gateway puts all its requests on few connections, so that of a
    /// connection is many streams' worth. On one stream a prompt of 50k tokens arrives without
    /// waiting for the window to open.
    pub const LARGEST: Self = Self { connection: 4 << 20, stream: 256 << 10, unsent: 256 << 10 };

    /// What HTTP/2 begins with, and less can't be said before the first stream.
    pub const SMALLEST: Self = Self { connection: 64 << 10, stream: 64 << 10, unsent: 16 << 10 };

    /// For one more connection of a process of so many bytes, where those that are open count so
    /// many: a 64th of them, and a quarter of what is left of an eighth where that is less. So
    /// however many there are, they come to little more than an eighth.
    pub fn within(process: u64, open: u64) -> Self {
        let room = (process / 8).saturating_sub(open) / 4;
        let within = |bytes: u64, smallest: u32, largest: u32| {
            u32::try_from(bytes).unwrap_or(u32::MAX).clamp(smallest, largest)
        };
        let (least, most) = (Self::SMALLEST, Self::LARGEST);
        let connection = within(room.min(process / 64), least.connection, most.connection);
        Self {
            connection,
            stream: connection.min(most.stream),
            unsent: within(process / 1024, least.unsent, most.unsent),
        }
    }
}

/// An open connection: its windows count until this is dropped.
#[derive(Debug)]
pub struct ConnectionRoom {
    windows: Windows,
    _held: Reservation,
}

impl ConnectionRoom {
    /// Room for one more connection.
    ///
    /// # Errors
    /// When there is none, even for the smallest.
    pub fn new(budget: &Arc<Budget>) -> Result<Self, Full> {
        let open = budget.used(Kind::Connections);
        let windows = budget.process().map_or(Windows::LARGEST, |process| Windows::within(process, open));
        let mut held = Reservation::new(budget, Kind::Connections);
        held.grow_to(u64::from(windows.connection) + BUFFERS, || None)?;
        Ok(Self { windows, _held: held })
    }

    /// Its windows.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }
}
