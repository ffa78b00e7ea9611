//! The server as a whole, from its settings to its end.

use std::sync::Arc;

use usher::cli::{Command, parse};
use usher::endpoints::{Store, StoreLocator};
use usher::extproc::listen::Listeners;
use usher::extproc::stop::{Stop, StopSignals};

use crate::support::listener;

#[tokio::test]
async fn shutdown_leaves_no_task_running() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("endpoints.yaml");
    // Nobody listens there: a scrape is always under way or about to be.
    std::fs::write(&path, "endpoints: [{name: a, address: 127.0.0.1, port: '9'}]").unwrap();
    let file = format!("--endpoints-file={}", path.display());
    let flags = ["usher", "serve", "--secure-serving=false", "--worker-threads=1", &file];
    let Command::Serve(args) = parse(flags.map(Into::into)).unwrap() else { panic!("not serve") };
    let locator = Arc::new(StoreLocator::new(Arc::new(Store::default()), false));
    let setup =
        usher::Setup::new(args.settings(Default::default()).unwrap()).unwrap().with_locator(locator.clone());
    let listeners = Listeners {
        extproc: listener(),
        health: listener(),
        metrics: listener(),
        admin: Some(listener()),
        keda: None,
    };
    let (stopper, stops) = StopSignals::channel();
    stopper.stop(Stop::Now);
    usher::run(setup, listeners, stops).await.unwrap();
    assert_eq!(Arc::strong_count(&locator), 1, "something still looks for endpoints");
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}
