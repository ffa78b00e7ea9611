//! Log lines of a test that runs on one thread.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, Once};

thread_local! {
    /// Receiver of this thread's lines.
    static HERE: RefCell<Option<Lines>> = const { RefCell::new(None) };
}

/// Log lines of this thread.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

/// Ends a log when it is dropped.
pub(crate) struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        HERE.set(None);
    }
}

/// Writes to the log of the thread, if it has one. There is one subscriber for all threads: with one
/// for each, a place in the code that a thread without any comes to first may be taken for one that
/// nobody wants to hear of.
struct Here;

impl Write for Here {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        HERE.with_borrow(|lines| lines.iter().for_each(|lines| lines.0.lock().unwrap().extend(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Collects the lines of a test from now on, as long as the guard is there.
    pub(crate) fn start() -> (Self, Guard) {
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| tracing_subscriber::fmt().with_writer(|| Here).with_ansi(false).init());
        let lines = Self::default();
        HERE.set(Some(lines.clone()));
        (lines, Guard)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Lines that have all of this.
    pub(crate) fn count(&self, what: &[&str]) -> usize {
        self.text().lines().filter(|line| what.iter().all(|what| line.contains(what))).count()
    }
}
