//! Any text gives a result, and an error is one line.

use proptest::prelude::*;

use super::build;

const WORDS: [&str; 24] = [
    "plugins",
    "schedulingProfiles",
    "name",
    "type",
    "parameters",
    "pluginRef",
    "weight",
    "dataLayer",
    "sources",
    "featureGates",
    "queue-scorer",
    "random-picker",
    ": ",
    "- ",
    "\n  ",
    "\n",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "&a ",
    "*a",
    "2.5",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = build(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_mixture_of_words_is_answered(picks in proptest::collection::vec(0..WORDS.len(), 0..80)) {
        let text: String = picks.into_iter().map(|pick| WORDS[pick]).collect();
        if let Err(error) = build(&text) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn a_broken_configuration_is_answered(cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = std::fs::read("deploy/config/default.yaml").unwrap();
        let at = cut.index(bytes.len());
        bytes[at] = byte;
        let _ = build(&String::from_utf8_lossy(&bytes));
        bytes.truncate(at);
        let _ = build(&String::from_utf8_lossy(&bytes));
    }
}
