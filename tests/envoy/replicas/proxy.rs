//! A proxy between replicas and their store that does what networks do: it delays, so that messages overtake each other,
//! and ends connections, also in the middle of a message.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use usher_core::random::mix;

/// Each piece of each connection has its draw; which bytes come as one piece is up to the machine.
const SEED: u64 = 28;

/// Of a thousand pieces so many are the last of their connection, are so and are not passed on as a whole, are late.
const CUT: u64 = 15;
const TRUNCATED: u64 = 15;
const LATE: u64 = 100;

/// A late piece comes up to 2 to the power of this milliseconds later: longer than replicas wait for a reply.
const LATEST: u64 = 10;

/// Most bytes of a piece.
const PIECE: usize = 64 << 10;

/// Faults so far.
#[derive(Debug, Default)]
struct Faults {
    are_on: AtomicBool,
    /// Messages of replicas that came, and the highest number among those that were passed on.
    came: AtomicU64,
    passed: AtomicU64,
    late: AtomicU64,
    cut: AtomicU64,
    truncated: AtomicU64,
    /// Messages that were passed on after later ones.
    overtaken: AtomicU64,
}

/// A running proxy.
pub(super) struct Proxy {
    address: SocketAddr,
    faults: Arc<Faults>,
}

impl Proxy {
    /// Starts one in front of the store with this socket.
    pub(super) async fn start(store: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, faults) = (listener.local_addr().unwrap(), Arc::<Faults>::default());
        let shared = Arc::clone(&faults);
        tokio::spawn(async move {
            for connection in 0.. {
                let (mut replica, _) = listener.accept().await.unwrap();
                replica.set_nodelay(true).unwrap();
                let (faults, store) = (Arc::clone(&shared), store.clone());
                tokio::spawn(async move {
                    let Ok(mut store) = UnixStream::connect(store).await else { return };
                    let ((from, to), (back, into)) = (replica.split(), store.split());
                    let seed = mix(SEED ^ mix(connection));
                    // The end of either direction is that of both.
                    let _ = tokio::select! {
                        ended = pass(from, into, seed, &faults) => ended,
                        ended = pass(back, to, mix(seed), &faults) => ended,
                    };
                });
            }
        });
        Self { address, faults }
    }

    /// The flag that names it as the store.
    pub(super) fn flag(&self) -> String {
        format!("--state-store=redis://{}", self.address)
    }

    /// Begins or ends its faults.
    pub(super) fn set_faults(&self, are_on: bool) {
        self.faults.are_on.store(are_on, Relaxed);
    }

    /// Returns `true` once there were enough faults of each kind, which takes some seconds.
    pub(super) fn did_enough(&self) -> bool {
        let Faults { late, cut, truncated, overtaken, .. } = &*self.faults;
        [(late, 50), (cut, 6), (truncated, 6), (overtaken, 10)]
            .iter()
            .all(|(count, least)| count.load(Relaxed) >= *least)
    }
}

impl std::fmt::Display for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Faults { late, cut, truncated, overtaken, .. } = &*self.faults;
        let [late, cut, truncated, overtaken] =
            [late, cut, truncated, overtaken].map(|count| count.load(Relaxed));
        write!(f, "seed {SEED}: {late} late, {cut} cut, {truncated} truncated, {overtaken} overtaken")
    }
}

/// Passes one direction of a connection on until it ends.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut random: u64,
    faults: &Faults,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        let piece = &buffer[..length];
        let is_message = piece.windows(7).any(|bytes| bytes == b"PUBLISH");
        let number = is_message.then(|| faults.came.fetch_add(1, Relaxed));
        random = mix(random);
        let (draw, more) = (random % 1000, random >> 32);
        if faults.are_on.load(Relaxed) {
            if draw < CUT {
                faults.cut.fetch_add(1, Relaxed);
                return Ok(());
            }
            if draw < CUT + TRUNCATED {
                faults.truncated.fetch_add(1, Relaxed);
                to.write_all(&piece[..usize::try_from(more).unwrap() % length]).await?;
                return Ok(());
            }
            if draw < CUT + TRUNCATED + LATE {
                faults.late.fetch_add(1, Relaxed);
                tokio::time::sleep(Duration::from_millis(1 << (more % (LATEST + 1)))).await;
            }
        }
        to.write_all(piece).await?;
        if number.is_some_and(|number| faults.passed.fetch_max(number, Relaxed) > number) {
            faults.overtaken.fetch_add(1, Relaxed);
        }
    }
}
