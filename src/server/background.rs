//! Tasks beside the server.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::observe::http::HttpServer;
use crate::scrape::Scraper;

/// Time for background tasks to end. One may be reading from a slow file system.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(5);

/// Tasks beside the server, on its runtime.
#[derive(Default)]
pub(super) struct Background {
    /// Cancelled: `tasks` end.
    pub(super) shutdown: CancellationToken,
    pub(super) tasks: JoinSet<()>,
    pub(super) scrapers: Vec<Scraper>,
    pub(super) pages: Vec<HttpServer>,
}

impl Background {
    /// Runs a task until the shutdown.
    pub(super) fn run<F>(&mut self, task: F)
    where
        F: Future + Send + 'static,
    {
        self.tasks.spawn(self.shutdown.clone().run_until_cancelled_owned(task).map(|_| ()));
    }

    /// Ends everything and waits until it has ended. What doesn't end by itself in time
    /// is aborted.
    pub(super) async fn end(self) {
        let Self { shutdown, mut tasks, scrapers, pages } = self;
        shutdown.cancel();
        let pages = join_all(pages.into_iter().map(HttpServer::stop));
        let scrapers = join_all(scrapers.into_iter().map(Scraper::shutdown));
        let finished = async {
            let finish = async { while tasks.join_next().await.is_some() {} };
            if tokio::time::timeout(BACKGROUND_TIMEOUT, finish).await.is_err() {
                tracing::warn!(tasks = tasks.len(), "background tasks did not end in time");
                tasks.shutdown().await;
            }
        };
        tokio::join!(pages, scrapers, finished);
    }
}
