//! Files that are read again when they change.

use std::fmt::Display;
use std::time::Duration;

/// Interval at which files are compared with what was last seen. Reading them again is
/// cheap, and sees every way of replacing them: writing, renaming, or the swap of a
/// symbolic link by which Kubernetes updates a mounted secret.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Reads files again and again, and takes what is made of them when they change; never
/// returns. What can't be used leaves the old in use, and the log says why.
///
/// `current`: what the files held when they were last used.
pub(crate) async fn keep_fresh<F, T, E>(
    interval: Duration,
    current: F,
    read: impl Fn() -> Result<F, E> + Clone + Send + 'static,
    parse: impl Fn(&F) -> Result<T, E>,
    take: impl Fn(T),
) where
    F: PartialEq + Send + 'static,
    E: Display + Send + 'static,
{
    let mut watch = Watch::new(current);
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // Off this thread: the folder may be on a network.
        let Ok(read) = tokio::task::spawn_blocking(read.clone()).await else { return };
        match watch.see(read, &parse) {
            Seen::Nothing => {}
            Seen::Usable(new) => take(new),
            Seen::Problem(error) => {
                tracing::warn!(%error, "certificate reload failed, keeping the previous certificates")
            }
        }
    }
}

/// Decides when changed files are worth loading. No I/O.
pub(crate) struct Watch<F> {
    /// Contents, or the error of reading them, that were last used or refused.
    settled: Result<F, String>,
    /// Contents, or the error of reading them, that were seen last time, if they were new.
    pending: Option<Result<F, String>>,
}

/// Result of a look at the files.
pub(crate) enum Seen<T, E> {
    Nothing,
    Usable(T),
    Problem(E),
}

impl<F: PartialEq> Watch<F> {
    /// Files that are in use.
    pub(crate) fn new(files: F) -> Self {
        Self { settled: Ok(files), pending: None }
    }

    /// Takes what was read. Something new counts when it is seen twice in a row: the
    /// first time one of the files may still be the old one, or half written.
    pub(crate) fn see<T, E: Display>(
        &mut self,
        read: Result<F, E>,
        parse: impl FnOnce(&F) -> Result<T, E>,
    ) -> Seen<T, E> {
        let (seen, error) = match read {
            Ok(files) => (Ok(files), None),
            Err(error) => (Err(error.to_string()), Some(error)),
        };
        if seen == self.settled {
            self.pending = None;
            return Seen::Nothing;
        }
        if self.pending.as_ref() != Some(&seen) {
            self.pending = Some(seen);
            return Seen::Nothing;
        }
        self.pending = None;
        self.settled = seen;
        match (&self.settled, error) {
            (Ok(files), _) => parse(files).map_or_else(Seen::Problem, Seen::Usable),
            (Err(_), Some(error)) => Seen::Problem(error),
            (Err(_), None) => Seen::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files are two numbers here, which have to be the same.
    type Files = (u32, u32);

    fn see(watch: &mut Watch<Files>, files: Files) -> Seen<u32, String> {
        watch.see(Ok(files), |(a, b)| if a == b { Ok(*a) } else { Err("mixed".to_owned()) })
    }

    #[test]
    fn new_key_pair_is_used_once_unchanged_for_a_while() {
        let mut watch = Watch::new((1, 1));
        assert!(matches!(see(&mut watch, (1, 1)), Seen::Nothing));
        // Half written, complete, and the same again.
        assert!(matches!(see(&mut watch, (2, 1)), Seen::Nothing));
        assert!(matches!(see(&mut watch, (2, 2)), Seen::Nothing));
        assert!(matches!(see(&mut watch, (2, 2)), Seen::Usable(2)));
        assert!(matches!(see(&mut watch, (2, 2)), Seen::Nothing));
    }

    #[test]
    fn invalid_key_pair_is_reported_once_and_may_be_repaired() {
        let mut watch = Watch::new((1, 1));
        see(&mut watch, (2, 1));
        assert!(matches!(see(&mut watch, (2, 1)), Seen::Problem(error) if error == "mixed"));
        assert!(matches!(see(&mut watch, (2, 1)), Seen::Nothing));
        see(&mut watch, (2, 2));
        assert!(matches!(see(&mut watch, (2, 2)), Seen::Usable(2)));
    }

    #[test]
    fn removed_files_are_reported_once_and_may_return() {
        let mut watch = Watch::new((1, 1));
        let gone = |watch: &mut Watch<Files>| {
            watch.see(Err("gone".to_owned()), |_| -> Result<u32, String> { unreachable!() })
        };
        assert!(matches!(gone(&mut watch), Seen::Nothing));
        assert!(matches!(gone(&mut watch), Seen::Problem(_)));
        assert!(matches!(gone(&mut watch), Seen::Nothing));
        see(&mut watch, (1, 1));
        assert!(matches!(see(&mut watch, (1, 1)), Seen::Usable(1)));
    }
}
