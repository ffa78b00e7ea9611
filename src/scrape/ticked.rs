//! Sockets that are looked at now and then instead of waking the thread.
//!
//! A pool answers its scrapes one by one, and each answer would wake the thread for
//! some microseconds of work. Nobody waits for a page to the millisecond, so all that
//! has come meanwhile is read together.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// How long a socket that has nothing is left alone. Short beside the least interval of
/// 50 ms, and long enough for some answers of a group.
const TICK: Duration = Duration::from_millis(2);

/// Wakes who waits for a socket, all at once and at most every [`TICK`]. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Ticker {
    waiting: Arc<Waiting>,
    _task: Arc<AbortOnDropHandle<()>>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Who waits; taken for a moment, by the scraping thread alone.
    wakers: Mutex<Vec<Waker>>,
    first: Notify,
}

impl Ticker {
    /// Starts the task that wakes, within a tokio runtime. It ends with the last clone.
    pub(super) fn start() -> Self {
        let waiting = Arc::<Waiting>::default();
        let task = tokio::spawn(tick(Arc::clone(&waiting)));
        Self { waiting, _task: Arc::new(AbortOnDropHandle::new(task)) }
    }

    fn wait(&self, context: &Context<'_>) {
        let mut wakers = self.waiting.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if wakers.is_empty() {
            self.waiting.first.notify_one();
        }
        // A task may look at its socket more than once before it waits.
        if !wakers.last().is_some_and(|last| last.will_wake(context.waker())) {
            wakers.push(context.waker().clone());
        }
    }

    /// The result of an operation on a socket; later, if it would block.
    fn ready<T>(
        &self,
        context: &Context<'_>,
        mut operation: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            match operation() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait(context);
                    return Poll::Pending;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

async fn tick(waiting: Arc<Waiting>) {
    loop {
        waiting.first.notified().await;
        sleep(TICK).await;
        let wakers = std::mem::take(&mut *waiting.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A connection whose readiness the runtime doesn't watch.
#[derive(Debug)]
pub(super) struct Ticked {
    stream: TcpStream,
    ticker: Ticker,
}

impl Ticked {
    /// # Errors
    /// When the stream can't leave the runtime.
    pub(super) fn new(stream: tokio::net::TcpStream, ticker: Ticker) -> io::Result<Self> {
        // It stays non-blocking.
        Ok(Self { stream: stream.into_std()?, ticker })
    }
}

impl AsyncRead for Ticked {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, ticker } = &*self;
        let room = buffer.initialize_unfilled();
        let read = ticker.ready(context, || (&*stream).read(room));
        read.map_ok(|count| buffer.advance(count))
    }
}

impl AsyncWrite for Ticked {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, ticker } = &*self;
        ticker.ready(context, || (&*stream).write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.shutdown(std::net::Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair(ticker: &Ticker) -> (Ticked, tokio::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Ticked::new(client, ticker.clone()).unwrap(), listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn what_is_sent_arrives_both_ways_and_the_end_is_seen() {
        let ticker = Ticker::start();
        let (mut client, mut server) = pair(&ticker).await;
        // More than the buffers of a socket hold, so that both have to wait.
        let sent: Vec<u8> = (0..8_000_000u32).map(|n| n as u8).collect();
        let expected = sent.clone();
        let echo = tokio::spawn(async move {
            let mut got = vec![0; expected.len()];
            server.read_exact(&mut got).await.unwrap();
            assert!(got == expected);
            server.write_all(&got).await.unwrap();
        });
        client.write_all(&sent).await.unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert!(got == sent);
        echo.await.unwrap();
    }

    #[tokio::test]
    async fn a_reader_waits_until_the_next_tick_and_is_woken_once() {
        let ticker = Ticker::start();
        let (mut client, mut server) = pair(&ticker).await;
        let reading = tokio::spawn(async move { client.read_u8().await });
        while ticker.waiting.wakers.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        server.write_all(b"x").await.unwrap();
        assert_eq!(reading.await.unwrap().unwrap(), b'x');
        assert!(ticker.waiting.wakers.lock().unwrap().is_empty());
    }
}
