//! The lines that a child process writes.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::watch;

use super::PATIENCE;

/// All lines of one stream of a process, and those to come.
pub(crate) struct Log {
    // What the process is called in a message.
    name: &'static str,
    lines: watch::Receiver<Vec<String>>,
}

impl Log {
    /// Reads `stream` to its end in a task.
    pub(crate) fn follow(name: &'static str, stream: impl AsyncRead + Send + Unpin + 'static) -> Self {
        let (sender, lines) = watch::channel(Vec::new());
        let mut stream = BufReader::new(stream).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = stream.next_line().await {
                sender.send_modify(|lines| lines.push(line));
            }
        });
        Self { name, lines }
    }

    /// Number of lines: where to look for what is written from now on.
    pub(crate) fn end(&self) -> usize {
        self.lines.borrow().len()
    }

    /// Waits for a line, from line `start` on, that `read` makes something of.
    pub(crate) async fn find<T>(
        &self,
        start: usize,
        what: &str,
        mut read: impl FnMut(&str) -> Option<T>,
    ) -> T {
        let mut lines = self.lines.clone();
        let mut next = start;
        let found = async {
            loop {
                for line in lines.borrow_and_update().iter().skip(next) {
                    next += 1;
                    if let Some(found) = read(line) {
                        return Some(found);
                    }
                }
                lines.changed().await.ok()?;
            }
        };
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(Some(found)) => found,
            ended => panic!(
                "{} {} {what}; its last lines:\n{}",
                self.name,
                if ended.is_ok() { "ended without" } else { "is late with" },
                self.last_lines()
            ),
        }
    }

    /// Returns `true` if some line from line `start` on contains a text by now.
    #[allow(dead_code, reason = "not every test asks")]
    pub(crate) fn mentions_since(&self, start: usize, text: &str) -> bool {
        self.lines.borrow().iter().skip(start).any(|line| line.contains(text))
    }

    /// Number of lines that contain a text by now.
    #[allow(dead_code, reason = "not every test asks")]
    pub(crate) fn count(&self, text: &str) -> usize {
        self.lines.borrow().iter().filter(|line| line.contains(text)).count()
    }

    /// Returns `true` if some line contains a text by now.
    #[allow(dead_code, reason = "not every test asks")]
    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.lines.borrow().iter().any(|line| line.contains(text))
    }

    fn last_lines(&self) -> String {
        let lines = self.lines.borrow();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}
