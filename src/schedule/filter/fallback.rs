//! Filters that rather keep everything than nothing.

/// Keeps what passes, in order; everything when nothing does.
pub(super) fn keep_or_all(kept: &mut Vec<u32>, mut passes: impl FnMut(u32) -> bool) {
    let mut passed = 0;
    for index in 0..kept.len() {
        if passes(kept[index]) {
            kept.swap(passed, index);
            passed += 1;
        }
    }
    // While nothing passes nothing moves.
    if passed > 0 {
        kept.truncate(passed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_passes_is_kept_in_order_or_everything(passing in proptest::collection::vec(any::<bool>(), 0..40)) {
            let all: Vec<u32> = (0..passing.len() as u32).map(|position| position * 3).collect();
            let passes = |position: u32| passing[position as usize / 3];
            let mut kept = all.clone();
            keep_or_all(&mut kept, passes);
            let some: Vec<u32> = all.iter().copied().filter(|position| passes(*position)).collect();
            prop_assert_eq!(kept, if some.is_empty() { all } else { some });
        }
    }
}
