//! Waiting for a moment, more finely than to the runtime's millisecond: a request that is
//! begun a millisecond late, or a token that is, makes a fast server look slow.

use tokio::time::Instant;

/// Waits for one moment at a time.
#[derive(Debug)]
pub(crate) enum Timer {
    /// The runtime's: to the millisecond, and it stands still when time is paused.
    Coarse,
    /// The kernel's.
    #[cfg(target_os = "linux")]
    Fine(fine::Fine),
}

impl Timer {
    /// The finest that the system has.
    pub(crate) fn new() -> Self {
        #[cfg(target_os = "linux")]
        if let Ok(fine) = fine::Fine::new() {
            return Self::Fine(fine);
        }
        Self::Coarse
    }

    /// Returns at `moment`, at once if it is over.
    pub(crate) async fn until(&self, moment: Instant) {
        match self {
            Self::Coarse => tokio::time::sleep_until(moment).await,
            #[cfg(target_os = "linux")]
            Self::Fine(fine) => {
                if fine.until(moment).await.is_err() {
                    tokio::time::sleep_until(moment).await;
                }
            }
        }
    }
}

#[cfg(target_os = "linux")]
mod fine {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;
    use tokio::time::Instant;

    /// A timer of the kernel that becomes readable.
    #[derive(Debug)]
    pub(crate) struct Fine(AsyncFd<OwnedFd>);

    impl Fine {
        #[allow(
            deprecated,
            reason = "its successor is unsafe; what that guards against, a file descriptor that is closed too early, an OwnedFd can't be"
        )]
        pub(crate) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            Ok(Self(AsyncFd::new(timer)?))
        }

        pub(crate) async fn until(&self, moment: Instant) -> io::Result<()> {
            loop {
                let left = moment.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(());
                }
                // Setting it takes back what it signalled before.
                self.set(left)?;
                let mut readable = self.0.readable().await?;
                readable.clear_ready();
            }
        }

        fn set(&self, left: Duration) -> io::Result<()> {
            let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
            let it_value = Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
            Ok(())
        }
    }
}
