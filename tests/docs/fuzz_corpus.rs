//! Every file of the fuzz corpora, checked as the fuzz targets check it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../fuzz/src/lib.rs"]
mod checks;

type Check = fn(&[u8]);

const TARGETS: [(&str, Check); 12] = [
    ("chat", checks::chat),
    ("connection", checks::connection),
    ("exchange", checks::exchange),
    ("exposition", checks::exposition),
    ("kv_events", checks::kv_events),
    ("page", checks::page),
    ("recording", checks::recording),
    ("request_body", checks::request_body),
    ("usage_json", checks::usage_json),
    ("usage_sse", checks::usage_sse),
    ("wire", checks::wire),
    ("zmtp", checks::zmtp),
];

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
}

fn replay(target: &str) {
    let &(_, check) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let folders = ["seeds", "corpus"].map(|kind| fuzz().join(kind).join(target));
    let mut failed = Vec::new();
    for file in folders.iter().flat_map(|folder| files(folder)) {
        let bytes = fs::read(&file).unwrap();
        // What isn't ours may go down as deep as an input.
        let checks = std::thread::Builder::new().stack_size(64 << 20).spawn(move || check(&bytes)).unwrap();
        if checks.join().is_err() {
            failed.push(file);
        }
    }
    assert!(failed.is_empty(), "{target} fails with {failed:#?}");
}

/// A test for each target.
macro_rules! replays {
    ($($target:ident),* $(,)?) => {
        $(
            #[test]
            fn $target() {
                replay(stringify!($target));
            }
        )*

        const REPLAYED: &[&str] = &[$(stringify!($target)),*];
    };
}

replays!(
    chat,
    connection,
    exchange,
    exposition,
    kv_events,
    page,
    recording,
    request_body,
    usage_json,
    usage_sse,
    wire,
    zmtp,
);

/// A target without a corpus, or a corpus without a test, would go unnoticed.
#[test]
fn every_target_is_replayed() {
    let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(REPLAYED.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>(), known);
    for folder in ["fuzz_targets", "seeds", "corpus", "dictionaries"] {
        let names = files(&fuzz().join(folder))
            .into_iter()
            .map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned());
        assert_eq!(names.collect::<BTreeSet<_>>(), known, "fuzz/{folder}");
    }
}
