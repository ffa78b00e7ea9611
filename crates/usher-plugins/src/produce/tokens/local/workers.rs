//! Threads that tokenize.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use xxhash_rust::xxh3::Xxh3Builder;

use super::fast::Words;

/// Prompts that wait for a thread at most: more would be late.
const WAITING: usize = 64;

type Job = Box<dyn FnOnce(&mut Words) + Send>;

/// A bounded queue before some threads, which end when this is dropped.
#[derive(Debug)]
pub(super) struct Workers {
    queue: SyncSender<Job>,
}

/// The queue is full.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Busy;

impl Workers {
    /// Starts so many threads.
    ///
    /// # Errors
    /// `io::Error` if the system can't start another thread.
    pub(super) fn start(count: u32) -> io::Result<Self> {
        let (queue, jobs) = sync_channel::<Job>(WAITING);
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..count {
            let jobs = Arc::clone(&jobs);
            thread::Builder::new().name("tokenizer".to_owned()).spawn(move || work(&jobs))?;
        }
        Ok(Self { queue })
    }

    /// Has a thread run this, if the queue has room.
    pub(super) fn run(&self, job: impl FnOnce(&mut Words) + Send + 'static) -> Result<(), Busy> {
        self.queue.try_send(Box::new(job)).map_err(|error| match error {
            TrySendError::Full(_) | TrySendError::Disconnected(_) => Busy,
        })
    }
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    let mut words = Words::with_hasher(Xxh3Builder::new().with_seed(rand::random()));
    loop {
        // One thread waits for the next job; the others wait for that thread.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // A library that panics about one prompt must not cost the others their thread. The job drops its
        // sender, so whoever waits for it is woken.
        if catch_unwind(AssertUnwindSafe(|| job(&mut words))).is_err() {
            words.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn full_tokenizer_queue_reports_busy() {
        let workers = Workers::start(1).unwrap();
        let (begun, has_begun) = channel();
        let (go, may_go) = channel::<()>();
        let first = workers.run(move |_| {
            begun.send(()).unwrap();
            may_go.recv().unwrap();
        });
        assert_eq!(first, Ok(()));
        has_begun.recv().unwrap();
        let (done, is_done) = channel();
        for index in 0..WAITING {
            let done = done.clone();
            assert_eq!(workers.run(move |_| done.send(index).unwrap()), Ok(()));
        }
        assert_eq!(workers.run(|_| {}), Err(Busy));
        go.send(()).unwrap();
        let order: Vec<usize> = is_done.iter().take(WAITING).collect();
        assert_eq!(order, (0..WAITING).collect::<Vec<_>>());
    }

    #[test]
    fn panicking_job_fails_alone() {
        let workers = Workers::start(1).unwrap();
        let (done, is_done) = channel();
        let lost = done.clone();
        assert_eq!(
            workers.run(move |_| {
                let _lost = lost;
                panic!("on purpose")
            }),
            Ok(())
        );
        assert_eq!(workers.run(move |_| done.send(()).unwrap()), Ok(()));
        assert_eq!(is_done.iter().count(), 1);
    }
}
