//! Memory of a tokenizer: what it reserves is what it takes, or somewhat more.

use stats_alloc::Region;
use usher_plugins::DirectTokenizer;

use crate::alone::{ALLOCATOR, passed_alone};
use crate::vocabulary::{Model, tokenizer};

#[test]
fn tokenizer_memory_matches_its_reservation() {
    if passed_alone("tokenizer_memory::tokenizer_memory_matches_its_reservation") {
        return;
    }
    // Just below and above where tables double.
    let table = [
        (Model::Bpe, 110_000),
        (Model::Bpe, 128_000),
        (Model::WordPiece, 30_000),
        (Model::WordPiece, 57_500),
        (Model::Unigram, 32_000),
    ];
    for (model, entries) in table {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), tokenizer(model, entries)).unwrap();
        let region = Region::new(ALLOCATOR);
        let tokenizer = DirectTokenizer::open(file.path(), 0).unwrap();
        let change = region.change();
        let taken = change.bytes_allocated - change.bytes_deallocated;
        let (taken, reserved) = (taken as f64, tokenizer.bytes() as f64);
        let ratio = reserved / taken;
        assert!((1.0..1.5).contains(&ratio), "{model:?} {entries}: {reserved} reserved, {taken} taken");
    }
}
