//! An endpoints file as it lives on disk: read at the start, followed later.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use usher::discovery::{FileDiscovery, FileError};
use usher::endpoints::Store;

fn text(names: &[&str]) -> String {
    let entry = |name: &&str| format!("- {{name: {name}, address: 127.0.0.1, port: \"8000\"}}\n");
    if names.is_empty() {
        return "endpoints: []\n".to_owned();
    }
    format!("endpoints:\n{}", names.iter().map(entry).collect::<String>())
}

/// A watched file in a directory of its own.
struct Watched {
    directory: TempDir,
    store: Arc<Store>,
    changes: watch::Receiver<u64>,
    current: IntGauge,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Watched {
    /// Prepares the directory, loads `endpoints.yaml` in it and starts to watch.
    fn start(prepare: impl FnOnce(&Path)) -> Self {
        Self::start_with(prepare, |discovery| discovery)
    }

    fn start_with(prepare: impl FnOnce(&Path), change: impl FnOnce(FileDiscovery) -> FileDiscovery) -> Self {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path());
        let store = Arc::new(Store::default());
        let current = IntGauge::new("current", "Help.").unwrap();
        let discovery = FileDiscovery::new(directory.path().join("endpoints.yaml"), true);
        let mut discovery = change(discovery).report_to(current.clone());
        discovery.load_into(&store).unwrap();
        let changes = store.subscribe();
        let stop = CancellationToken::new();
        let task = tokio::spawn(discovery.watch(Arc::clone(&store), stop.clone()));
        Self { directory, store, changes, current, stop, task }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file beside the watched one and renames it over it.
    fn put(&self, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path("endpoints.yaml")).unwrap();
    }

    fn names(&self) -> Vec<String> {
        self.store.snapshot().endpoints().iter().map(|e| e.name().to_owned()).collect()
    }

    /// Waits for the next change of membership.
    async fn changed(&mut self) -> Vec<String> {
        tokio::time::timeout(Duration::from_secs(30), self.changes.changed()).await.unwrap().unwrap();
        self.names()
    }

    /// Lets the watcher look several times; needs a paused clock.
    async fn looks(&self) {
        tokio::time::sleep(Duration::from_millis(350)).await;
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test]
async fn a_file_is_followed_as_it_is_replaced_and_written() {
    let mut watched = Watched::start(|dir| fs::write(dir.join("endpoints.yaml"), text(&["a"])).unwrap());
    assert_eq!(watched.names(), ["a"]);
    let load = Arc::clone(watched.store.snapshot().endpoints()[0].load());
    load.waiting.set(7.0, 1);
    watched.put(&text(&["a", "b"]));
    assert_eq!(watched.changed().await, ["a", "b"]);
    assert!(Arc::ptr_eq(watched.store.snapshot().endpoints()[0].load(), &load), "what stays keeps its load");
    fs::write(watched.path("endpoints.yaml"), text(&["b", "c"])).unwrap();
    loop {
        // A write in place may be seen half done; the whole is seen after it.
        if watched.changed().await == ["b", "c"] {
            break;
        }
    }
    watched.end().await;
}

#[tokio::test(start_paused = true)]
async fn empty_list_keeps_the_last_endpoints() {
    let mut watched = Watched::start(|dir| fs::write(dir.join("endpoints.yaml"), text(&["a"])).unwrap());
    let bad = "endpoints:\n- {name: bad, address: nowhere, port: \"1\"}\n";
    for empty in [text(&[]).as_str(), "endpoints:\n", bad] {
        assert_eq!(watched.current.get(), 1);
        let before = watched.names();
        watched.put(empty);
        watched.looks().await;
        assert_eq!((watched.names(), watched.current.get()), (before.clone(), 0), "{empty:?}");
        let next = if before == ["a"] { "b" } else { "a" };
        watched.put(&text(&[next]));
        assert_eq!(watched.changed().await, [next], "recovers from {empty:?}");
    }
    watched.end().await;
}

#[tokio::test(start_paused = true)]
async fn empty_list_empties_the_pool_when_allowed() {
    let prepare = |dir: &Path| fs::write(dir.join("endpoints.yaml"), text(&["a"])).unwrap();
    let mut watched = Watched::start_with(prepare, |discovery| discovery.allow_empty(true));
    let misspelt = text(&["b", "c"]).replace("address", "adress");
    watched.put(&misspelt);
    watched.looks().await;
    assert_eq!((watched.names(), watched.current.get()), (vec!["a".to_owned()], 0), "a typo is not empty");
    watched.put(&text(&[]));
    assert!(watched.changed().await.is_empty());
    assert_eq!(watched.current.get(), 1);
    watched.put(&misspelt);
    watched.looks().await;
    assert_eq!(watched.current.get(), 0, "the file says nothing that can be used");
    watched.put(&text(&["b"]));
    assert_eq!(watched.changed().await, ["b"]);
    assert_eq!(watched.current.get(), 1);
    fs::remove_file(watched.path("endpoints.yaml")).unwrap();
    watched.looks().await;
    assert_eq!((watched.names(), watched.current.get()), (vec!["b".to_owned()], 0), "gone is not empty");
    watched.end().await;
}

#[test]
fn a_pool_may_begin_empty() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("endpoints.yaml");
    fs::write(&path, text(&[])).unwrap();
    assert!(FileDiscovery::new(&path, true).load_into(&Store::default()).unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_broken_file_keeps_the_last_good_state() {
    let mut watched = Watched::start(|dir| fs::write(dir.join("endpoints.yaml"), text(&["a"])).unwrap());
    let bad_bytes: &[u8] = b"endpoints: [] # \xff";
    for broken in [b"".as_slice(), b"endpoints: [", b"pods: []", bad_bytes] {
        let before = watched.names();
        fs::write(watched.path("endpoints.yaml"), broken).unwrap();
        watched.looks().await;
        assert!(!watched.changes.has_changed().unwrap(), "{broken:?}");
        let next = if before == ["a"] { "b" } else { "a" };
        watched.put(&text(&[next]));
        assert_eq!(watched.changed().await, [next], "recovers from {broken:?}");
    }
    watched.end().await;
}

#[tokio::test]
async fn one_bad_entry_is_left_out() {
    let bad = "- {name: bad, address: nowhere, port: \"1\"}\n";
    let mut watched = Watched::start(|dir| {
        fs::write(dir.join("endpoints.yaml"), text(&["a"]) + bad).unwrap();
    });
    assert_eq!(watched.names(), ["a"]);
    watched.put(&(text(&["b", "c"]) + bad));
    assert_eq!(watched.changed().await, ["b", "c"]);
    watched.end().await;
}

#[tokio::test]
async fn swapped_symlink_is_a_change() {
    // As Kubernetes mounts a ConfigMap: file → ..data/file, ..data → a dated directory.
    let mut watched = Watched::start(|dir| {
        for (version, names) in [("..1", ["a"]), ("..2", ["b"])] {
            fs::create_dir(dir.join(version)).unwrap();
            fs::write(dir.join(version).join("endpoints.yaml"), text(&names)).unwrap();
        }
        symlink("..1", dir.join("..data")).unwrap();
        symlink("..data/endpoints.yaml", dir.join("endpoints.yaml")).unwrap();
    });
    assert_eq!(watched.names(), ["a"]);
    symlink("..2", watched.path("..data_tmp")).unwrap();
    fs::rename(watched.path("..data_tmp"), watched.path("..data")).unwrap();
    fs::remove_dir_all(watched.path("..1")).unwrap();
    assert_eq!(watched.changed().await, ["b"]);
    watched.end().await;
}

#[tokio::test(start_paused = true)]
async fn removed_file_keeps_its_endpoints_until_it_returns() {
    let mut watched = Watched::start(|dir| fs::write(dir.join("endpoints.yaml"), text(&["a"])).unwrap());
    fs::remove_file(watched.path("endpoints.yaml")).unwrap();
    watched.looks().await;
    fs::create_dir(watched.path("endpoints.yaml")).unwrap();
    watched.looks().await;
    fs::remove_dir(watched.path("endpoints.yaml")).unwrap();
    assert_eq!(watched.names(), ["a"]);
    watched.put(&text(&["a", "b"]));
    assert_eq!(watched.changed().await, ["a", "b"]);
    assert_eq!(watched.store.generation(), 2, "nothing happened in between");
    watched.end().await;
}

#[tokio::test]
async fn without_the_flag_nothing_is_watched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("endpoints.json");
    fs::write(&path, r#"{"endpoints": [{"name": "a", "address": "::1", "port": "80"}]}"#).unwrap();
    let store = Arc::new(Store::default());
    let mut discovery = FileDiscovery::new(&path, false);
    assert_eq!(discovery.load_into(&store).unwrap().added, 1);
    // Returns although nobody stops it.
    discovery.watch(store, CancellationToken::new()).await;
}

#[test]
fn start_without_a_usable_file_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("endpoints.yaml");
    let load = || FileDiscovery::new(&path, true).load_into(&Store::default()).unwrap_err();
    assert!(matches!(load(), FileError::Read { .. }));
    let says = format!("{}: the endpoints file can't be read: ", path.display());
    assert!(load().to_string().starts_with(&says), "{}", load());
    assert!(load().to_string().contains("(check the path"), "{}", load());
    fs::create_dir(&path).unwrap();
    assert!(matches!(load(), FileError::NotAFile(_)));
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "").unwrap();
    assert!(matches!(load(), FileError::Parse { .. }));
    assert!(load().to_string().contains("endpoints: []"), "{}", load());
    fs::write(&path, "endpoints: [").unwrap();
    let want = format!("{}:1:12: not valid YAML: unclosed bracket '[' (add the closing ']')", path.display());
    assert_eq!(load().to_string(), want);
    fs::write(&path, b"endpoints: [] # \xff").unwrap();
    assert!(load().to_string().contains("UTF-8"));
    fs::write(&path, format!("endpoints: [] # {}", "ü".repeat(1 << 19))).unwrap();
    assert!(matches!(load(), FileError::TooLarge(_)));
    fs::write(&path, text(&["a", "b"]).replace("address", "adress")).unwrap();
    let file = path.display();
    let want = format!(
        "{file}: no entry of the endpoints file can be used; the first problem: {file}:2:13: endpoints[0] (a): unknown field `adress` (did you mean `address`?)"
    );
    assert_eq!(load().to_string(), want);
}
