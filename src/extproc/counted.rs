//! Counts the frames and the data that arrive on a connection, and takes them in turns.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::backlog::Backlog;
use super::first_settings::FirstSettings;
use super::forward::forward_all_but_writes;
use super::frames::{Arrival, Received, ResetStreams};
use super::preface::PREFACE;
use crate::memory::{ConnectionRoom, TURN};

/// Unread trailers of a connection at most. They have no flow control, and a few hundred bytes on their way
/// become 20 KiB; requests of gRPC have none.
const MAX_TRAILERS: i64 = 4;

/// Text of the error that ends the connection of such a client.
pub const TOO_MANY_TRAILERS: &str = "the client sent more trailers than may be unread";

/// Bytes of a read at most while nothing can be written: what is held of it may stay until the client reads.
const BLOCKED_READ: usize = 1 << 10;

/// Turns of a connection, each of which ends before its streams run.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<AtomicU64>);

impl Turns {
    /// Runs the connection. Each time that its task is polled is a turn.
    pub async fn of<C: Future>(&self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|context| {
            self.0.fetch_add(1, Relaxed);
            connection.as_mut().poll(context)
        })
        .await
    }

    fn now(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A connection whose DATA frames are counted as they arrive. Its streams get a turn to read after
/// every [`TURN`] bytes, and its replies are written after some frames, of any kind.
#[derive(Debug)]
pub struct Counted<I> {
    io: I,
    room: ConnectionRoom,
    received: Received,
    reset: ResetStreams,
    /// Arrived since the last turn.
    recent: u64,
    /// The turn of the connection in which it has yielded.
    yielded: Option<u64>,
    turns: Turns,
    /// Headers have arrived whose streams may not have begun.
    has_coming: bool,
    backlog: Backlog,
    /// Bytes of the last read from `io` whose frames are to come in a later turn.
    held: Bytes,
    /// Until it is sent.
    settings: Option<FirstSettings>,
}

impl<I> Counted<I> {
    /// A connection from its preface on.
    pub fn new(io: I, room: ConnectionRoom, turns: Turns) -> Self {
        let (received, reset) = (Received::after(PREFACE.len()), ResetStreams::new());
        let settings = Some(FirstSettings::new(room.windows().streams));
        Self {
            io,
            room,
            received,
            reset,
            recent: 0,
            yielded: None,
            turns,
            has_coming: false,
            backlog: Backlog::default(),
            held: Bytes::new(),
            settings,
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Counted<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.has_coming {
            // HTTP/2 has read all that was there, as it asks for more.
            let is_within_headers = this.received.is_within_headers();
            this.has_coming = this.room.unread().were_read(this.turns.now(), is_within_headers);
        }
        this.room.begin(this.received.ahead());
        if let Some(turn) = this.yielded {
            if turn == this.turns.now() {
                // Asked again before streams have run; it is to be woken already.
                return Poll::Pending;
            }
            this.room.settle(this.recent);
            (this.recent, this.yielded) = (0, None);
        } else if this.recent >= TURN {
            this.yielded = Some(this.turns.now());
            context.waker().wake_by_ref();
            return Poll::Pending;
        } else if this.room.is_unsettled() {
            this.room.settle(this.recent);
        }
        if this.room.is_unsettled() {
            this.room.unread().settles_with(context.waker());
        }
        // What streams have read is settled also while nothing may come.
        let Some(most) = this.backlog.may_take(this.turns.now(), context.waker()) else {
            return Poll::Pending;
        };
        let unread = this.room.unread();
        let before = buffer.filled().len();
        let is_held = !this.held.is_empty();
        if is_held {
            buffer.put_slice(&this.held[..this.held.len().min(buffer.remaining())]);
        } else if this.backlog.is_blocked() {
            let mut bytes = [0; BLOCKED_READ];
            let mut few = ReadBuf::new(&mut bytes[..BLOCKED_READ.min(buffer.remaining())]);
            ready!(Pin::new(&mut this.io).poll_read(context, &mut few))?;
            buffer.put_slice(few.filled());
        } else {
            ready!(Pin::new(&mut this.io).poll_read(context, buffer))?;
        }
        let (has_coming, mut dropped) = (&mut this.has_coming, 0);
        let arrived =
            this.received.read(&buffer.filled()[before..], most, &this.reset, |stream, what| match what {
                Arrival::Headers => {
                    if unread.headers_arrived(stream) {
                        *has_coming = true;
                    } else {
                        unread.trailers_arrived();
                    }
                }
                Arrival::Data { taken, charge } => {
                    if !unread.data_arrived(stream, taken) {
                        dropped += taken;
                    } else if charge != 0 {
                        unread.add_small(charge);
                    }
                }
            });
        this.backlog.arrived(arrived.frames);
        let end = before + arrived.bytes;
        if is_held {
            this.held.advance(arrived.bytes);
            if this.held.is_empty() {
                this.held = Bytes::new();
            }
        } else if end < buffer.filled().len() {
            this.held = Bytes::copy_from_slice(&buffer.filled()[end..]);
        }
        buffer.set_filled(end);
        let data = arrived.data - dropped;
        if data != 0 {
            unread.add(data);
            this.recent = this.recent.saturating_add_signed(data);
        }
        if unread.trailers() > MAX_TRAILERS {
            return Poll::Ready(Err(io::Error::other(TOO_MANY_TRAILERS)));
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Counted<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let io = Pin::new(&mut this.io);
        let written = match &mut this.settings {
            None => ready!(this.backlog.write(io.poll_write(context, bytes)))?,
            Some(settings) => {
                let written = ready!(this.backlog.write(io.poll_write(context, settings.replace(bytes))))?;
                if settings.sent(written) {
                    this.settings = None;
                }
                written
            }
        };
        this.backlog.sent(this.reset.sent(&bytes[..written]));
        Poll::Ready(Ok(written))
    }

    forward_all_but_writes!();

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.settings.is_some()
            && let Some(first) = slices.iter().find(|slice| !slice.is_empty())
        {
            return self.poll_write(context, first);
        }
        let this = &mut *self;
        let written = Pin::new(&mut this.io).poll_write_vectored(context, slices);
        let written = ready!(this.backlog.write(written))?;
        let mut rest = written;
        for slice in slices {
            let part = rest.min(slice.len());
            this.backlog.sent(this.reset.sent(&slice[..part]));
            rest -= part;
        }
        Poll::Ready(Ok(written))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;
    use crate::extproc::backlog::FRAMES;
    use crate::memory::Windows;

    /// Reads in a turn until there is nothing more in it; what was read.
    fn turn(counted: &mut Counted<impl AsyncRead + Unpin>) -> Vec<u8> {
        counted.turns.0.fetch_add(1, Relaxed);
        let mut read = Vec::new();
        loop {
            let mut bytes = [0; 500];
            let mut buffer = ReadBuf::new(&mut bytes);
            let mut context = Context::from_waker(Waker::noop());
            match Pin::new(&mut *counted).poll_read(&mut context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => read.extend(buffer.filled()),
                Poll::Ready(end) => {
                    end.unwrap();
                    return read;
                }
                Poll::Pending => return read,
            }
        }
    }

    #[tokio::test]
    async fn frames_of_every_kind_are_taken_in_turns() {
        for kind in 0..=u8::MAX {
            let room = ConnectionRoom::new(&Arc::default(), Windows::LARGEST);
            let (mut client, server) = duplex(64 << 10);
            let mut counted = Counted::new(server, room, Turns::default());
            // Longer ones than are read at once among them.
            let frame = |number: usize| {
                let length = if number % 7 == 6 { 700u16 } else { 5 };
                let stream = 2 * number as u32 + 1;
                let head = [&[0][..], &length.to_be_bytes(), &[kind, 4], &stream.to_be_bytes()].concat();
                [head, vec![0; length.into()]].concat()
            };
            let frames: Vec<u8> = (0..3 * FRAMES).flat_map(frame).collect();
            client.write_all(&[PREFACE, &frames].concat()).await.unwrap();
            let mut read = Vec::new();
            for turns in 1..=3 {
                read.extend(turn(&mut counted));
                // As a task does, which may read only so often in a turn.
                tokio::task::yield_now().await;
                let whole =
                    PREFACE.len() + (0..turns * FRAMES).map(|number| frame(number).len()).sum::<usize>();
                // DATA and HEADERS end a turn also for what they take.
                assert!(read.len() == whole || (kind < 2 && read.len() <= whole), "{kind}: {}", read.len());
            }
            drop(client);
            for _ in 0..20 {
                read.extend(turn(&mut counted));
                tokio::task::yield_now().await;
            }
            assert!(read[PREFACE.len()..] == frames, "{kind}");
        }
    }
}
