//! Who produces the data that plugins read.

use crate::schedule::DataType;

/// All data of a configuration. Its position in the list is its number.
#[derive(Debug, Default)]
pub(super) struct Keys {
    entries: Vec<Entry>,
}

/// Data of one producer.
#[derive(Debug)]
struct Entry {
    data: DataType,
    /// Name of the producer, which may not exist.
    producer: String,
    produced: bool,
    readers: Vec<Reader>,
}

#[derive(Debug)]
struct Reader {
    plugin: String,
    required: bool,
}

/// Data that somebody can't do without and nobody produces.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) data: DataType,
    pub(super) producer: String,
    pub(super) reader: String,
}

impl Keys {
    pub(super) fn read(&mut self, data: DataType, producer: &str, reader: &str, required: bool) -> u32 {
        let number = self.number(data, producer);
        self.entries[number].readers.push(Reader { plugin: reader.to_owned(), required });
        number as u32
    }

    pub(super) fn produce(&mut self, data: DataType, producer: &str) -> u32 {
        let number = self.number(data, producer);
        self.entries[number].produced = true;
        number as u32
    }

    fn number(&mut self, data: DataType, producer: &str) -> usize {
        let known = self.entries.iter().position(|entry| entry.data == data && entry.producer == producer);
        known.unwrap_or_else(|| {
            let producer = producer.to_owned();
            self.entries.push(Entry { data, producer, produced: false, readers: Vec::new() });
            self.entries.len() - 1
        })
    }

    /// The first required data without a producer.
    pub(super) fn missing(&self) -> Option<Missing> {
        self.entries.iter().filter(|entry| !entry.produced).find_map(|entry| {
            let reader = entry.readers.iter().find(|reader| reader.required)?;
            let (producer, reader) = (entry.producer.clone(), reader.plugin.clone());
            Some(Missing { data: entry.data, producer, reader })
        })
    }

    /// The number of data that is produced.
    pub(super) fn produced(&self, data: DataType, producer: &str) -> Option<u32> {
        let is = |entry: &Entry| entry.data == data && entry.producer == producer && entry.produced;
        self.entries.iter().position(is).map(|number| number as u32)
    }

    /// Who produces data of a kind.
    pub(super) fn producers_of(&self, data: DataType) -> impl Iterator<Item = &str> {
        let of = move |entry: &&Entry| entry.produced && entry.data == data;
        self.entries.iter().filter(of).map(|entry| entry.producer.as_str())
    }

    /// What a plugin reads, and from whom; only what is there.
    pub(super) fn read_by<'a>(&'a self, plugin: &'a str) -> impl Iterator<Item = (DataType, &'a str)> {
        let reads = move |entry: &&Entry| {
            entry.produced && entry.readers.iter().any(|reader| reader.plugin == plugin)
        };
        self.entries.iter().filter(reads).map(|entry| (entry.data, entry.producer.as_str()))
    }

    /// What a plugin produces.
    pub(super) fn produced_by<'a>(&'a self, plugin: &'a str) -> impl Iterator<Item = DataType> {
        let of = move |entry: &&Entry| entry.produced && entry.producer == plugin;
        self.entries.iter().filter(of).map(|entry| entry.data)
    }

    /// The producers so that each comes behind those whose data it reads, otherwise in
    /// the order in which they are given.
    ///
    /// # Errors
    /// The names of some that wait for each other.
    pub(super) fn ordered<'a>(&self, producers: &[&'a str]) -> Result<Vec<&'a str>, Vec<&'a str>> {
        let mut waiting = producers.to_vec();
        let mut ordered = Vec::with_capacity(waiting.len());
        while !waiting.is_empty() {
            let is_free = |plugin: &str| {
                self.read_by(plugin).all(|(_, from)| from == plugin || !waiting.contains(&from))
            };
            let Some(next) = waiting.iter().position(|plugin| is_free(plugin)) else { return Err(waiting) };
            ordered.push(waiting.remove(next));
        }
        Ok(ordered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DataType::{PrefixCacheMatchInfo, SessionId, TokenizedPrompt};

    #[test]
    fn the_same_data_has_the_same_number() {
        let mut keys = Keys::default();
        let read = keys.read(TokenizedPrompt, "a", "scorer", true);
        assert_eq!(keys.produce(TokenizedPrompt, "a"), read);
        assert_ne!(keys.produce(TokenizedPrompt, "b"), read);
        assert_ne!(keys.produce(SessionId, "a"), read);
        assert_eq!(keys.read_by("scorer").collect::<Vec<_>>(), [(TokenizedPrompt, "a")]);
    }

    #[test]
    fn only_required_data_is_missed() {
        let mut keys = Keys::default();
        keys.read(PrefixCacheMatchInfo, "prefix", "optional", false);
        assert_eq!(keys.missing(), None);
        keys.read(PrefixCacheMatchInfo, "prefix", "scorer", true);
        let missing = keys.missing().unwrap();
        assert_eq!((missing.producer.as_str(), missing.reader.as_str()), ("prefix", "scorer"));
        keys.produce(PrefixCacheMatchInfo, "prefix");
        assert_eq!(keys.missing(), None);
    }

    #[test]
    fn producers_come_behind_those_that_they_read() {
        let mut keys = Keys::default();
        keys.produce(TokenizedPrompt, "tokens");
        keys.produce(PrefixCacheMatchInfo, "prefix");
        keys.produce(SessionId, "session");
        keys.read(TokenizedPrompt, "tokens", "prefix", true);
        assert_eq!(keys.ordered(&["prefix", "session", "tokens"]), Ok(vec!["session", "tokens", "prefix"]));
        keys.read(PrefixCacheMatchInfo, "prefix", "tokens", false);
        assert_eq!(keys.ordered(&["prefix", "session", "tokens"]), Err(vec!["prefix", "tokens"]));
    }
}
