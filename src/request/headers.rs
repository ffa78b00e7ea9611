//! Request headers as the gateway sent them.

use bytes::Bytes;

/// Header names and values, each a slice of the message they arrived in. Names
/// are compared without regard to case; of several headers with one name the
/// last counts, as it does for the peer.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    entries: Vec<(Bytes, Bytes)>,
}

impl Headers {
    /// Adds a header after those that are there.
    pub fn push(&mut self, name: Bytes, value: Bytes) {
        self.entries.push((name, value));
    }

    /// The value of a header. `name` is lower-case.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.entries
            .iter()
            .rev()
            .find(|(key, _)| key.len() == name.len() && key.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value.as_ref())
    }

    /// The value of a header as text; `None` as well when it is not UTF-8.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The first of several headers that is there and not empty: a name and its
    /// deprecated aliases.
    pub fn first_text(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.text(name).filter(|value| !value.is_empty()))
    }

    /// Number of headers.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Headers {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(iter: I) -> Self {
        let copy = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        Self { entries: iter.into_iter().map(|(name, value)| (copy(name), copy(value))).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::Headers;

    #[test]
    fn the_last_of_a_name_counts_whatever_its_case() {
        let headers: Headers =
            [("X-Id", "1"), ("other", "x"), ("x-id", "2"), ("x-none", "")].into_iter().collect();
        assert_eq!(headers.text("x-id"), Some("2"));
        assert_eq!(headers.text("x-missing"), None);
        assert_eq!(headers.first_text(&["x-none", "x-id"]), Some("2"));
    }
}
