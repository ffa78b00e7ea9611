//! Producers of the data that plugins read.

use super::facts::DataType;

/// All data of a configuration. Its position in the list is its number.
#[derive(Debug, Default)]
pub struct DataGraph {
    entries: Vec<Entry>,
}

/// Data of one producer.
#[derive(Debug)]
struct Entry {
    data: DataType,
    /// Name among its data; empty where it has one of a kind.
    name: String,
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

/// Required data without a producer.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing {
    /// The kind of data.
    pub data: DataType,
    /// Name among the producer's data; empty where it has one of a kind.
    pub name: String,
    /// Name of the plugin that should produce it.
    pub producer: String,
    /// Name of the first plugin that can't do without it.
    pub reader: String,
}

impl DataGraph {
    pub(crate) fn read(&mut self, data: DataType, producer: &str, reader: &str, required: bool) -> u32 {
        self.read_named(data, "", producer, reader, required)
    }

    /// Registers a reader of data that a producer has several of, by name.
    pub(crate) fn read_named(
        &mut self,
        data: DataType,
        name: &str,
        producer: &str,
        reader: &str,
        required: bool,
    ) -> u32 {
        let number = self.number(data, name, producer);
        self.entries[number].readers.push(Reader { plugin: reader.to_owned(), required });
        number as u32
    }

    pub(crate) fn produce(&mut self, data: DataType, producer: &str) -> u32 {
        self.produce_named(data, "", producer)
    }

    /// Registers data that a producer has several of, by name.
    pub(crate) fn produce_named(&mut self, data: DataType, name: &str, producer: &str) -> u32 {
        let number = self.number(data, name, producer);
        self.entries[number].produced = true;
        number as u32
    }

    fn number(&mut self, data: DataType, name: &str, producer: &str) -> usize {
        let is = |entry: &Entry| entry.data == data && entry.name == name && entry.producer == producer;
        self.entries.iter().position(is).unwrap_or_else(|| {
            let (name, producer) = (name.to_owned(), producer.to_owned());
            self.entries.push(Entry { data, name, producer, produced: false, readers: Vec::new() });
            self.entries.len() - 1
        })
    }

    /// The names of a producer's data of a kind.
    pub fn names(&self, data: DataType, producer: &str) -> Vec<&str> {
        let of = |entry: &&Entry| entry.data == data && entry.producer == producer && entry.produced;
        self.entries.iter().filter(of).map(|entry| entry.name.as_str()).collect()
    }

    /// The first required data without a producer.
    pub fn missing(&self) -> Option<Missing> {
        self.entries.iter().filter(|entry| !entry.produced).find_map(|entry| {
            let reader = entry.readers.iter().find(|reader| reader.required)?;
            let (name, producer) = (entry.name.clone(), entry.producer.clone());
            Some(Missing { data: entry.data, name, producer, reader: reader.plugin.clone() })
        })
    }

    /// The number of data that is produced.
    pub fn produced(&self, data: DataType, producer: &str) -> Option<u32> {
        let is = |entry: &Entry| entry.data == data && entry.producer == producer && entry.produced;
        self.entries.iter().position(is).map(|number| number as u32)
    }

    /// Names of the producers of data of a kind.
    pub fn producers_of(&self, data: DataType) -> impl Iterator<Item = &str> {
        let of = move |entry: &&Entry| entry.produced && entry.data == data;
        self.entries.iter().filter(of).map(|entry| entry.producer.as_str())
    }

    /// Data that a plugin reads, and the producer of each; without data that has no producer.
    pub fn read_by<'a>(&'a self, plugin: &'a str) -> impl Iterator<Item = (DataType, &'a str)> {
        let reads = move |entry: &&Entry| {
            entry.produced && entry.readers.iter().any(|reader| reader.plugin == plugin)
        };
        self.entries.iter().filter(reads).map(|entry| (entry.data, entry.producer.as_str()))
    }

    /// Data that a plugin produces, each kind once.
    pub fn produced_by<'a>(&'a self, plugin: &'a str) -> impl Iterator<Item = DataType> {
        let of = move |entry: &Entry| entry.produced && entry.producer == plugin;
        let earlier = move |number: usize, data| {
            self.entries.iter().take(number).any(|entry| of(entry) && entry.data == data)
        };
        let produced = self.entries.iter().enumerate().filter(move |(_, entry)| of(entry));
        produced.filter(move |(number, entry)| !earlier(*number, entry.data)).map(|(_, entry)| entry.data)
    }

    /// The producers so that each comes behind those whose data it reads, otherwise in
    /// the order in which they are given.
    ///
    /// # Errors
    /// Names of plugins that form a cycle.
    pub fn ordered<'a>(&self, producers: &[&'a str]) -> Result<Vec<&'a str>, Vec<&'a str>> {
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
    fn equal_data_has_one_number() {
        let mut graph = DataGraph::default();
        let read = graph.read(TokenizedPrompt, "a", "scorer", true);
        assert_eq!(graph.produce(TokenizedPrompt, "a"), read);
        assert_ne!(graph.produce(TokenizedPrompt, "b"), read);
        assert_ne!(graph.produce(SessionId, "a"), read);
        assert_eq!(graph.read_by("scorer").collect::<Vec<_>>(), [(TokenizedPrompt, "a")]);
    }

    #[test]
    fn only_missing_required_data_is_reported() {
        let mut graph = DataGraph::default();
        graph.read(PrefixCacheMatchInfo, "prefix", "optional", false);
        assert_eq!(graph.missing(), None);
        graph.read(PrefixCacheMatchInfo, "prefix", "scorer", true);
        let missing = graph.missing().unwrap();
        assert_eq!((missing.producer.as_str(), missing.reader.as_str()), ("prefix", "scorer"));
        graph.produce(PrefixCacheMatchInfo, "prefix");
        assert_eq!(graph.missing(), None);
    }

    #[test]
    fn a_producer_may_have_several_data_of_a_kind() {
        let mut graph = DataGraph::default();
        let data = DataType::ScalarMetricValue;
        graph.produce_named(data, "a", "extractor");
        graph.produce_named(data, "b", "extractor");
        assert_eq!(graph.produced_by("extractor").collect::<Vec<_>>(), [data]);
        graph.read_named(data, "b", "extractor", "scorer", true);
        assert_eq!(graph.missing(), None);
        graph.read_named(data, "c", "extractor", "scorer", true);
        assert_eq!(graph.missing().unwrap().name, "c");
        assert_eq!(graph.names(data, "extractor"), ["a", "b"]);
        assert_eq!(graph.read_by("scorer").collect::<Vec<_>>(), [(data, "extractor")]);
    }

    #[test]
    fn producers_are_ordered_after_their_inputs() {
        let mut graph = DataGraph::default();
        graph.produce(TokenizedPrompt, "tokens");
        graph.produce(PrefixCacheMatchInfo, "prefix");
        graph.produce(SessionId, "session");
        graph.read(TokenizedPrompt, "tokens", "prefix", true);
        assert_eq!(graph.ordered(&["prefix", "session", "tokens"]), Ok(vec!["session", "tokens", "prefix"]));
        graph.read(PrefixCacheMatchInfo, "prefix", "tokens", false);
        assert_eq!(graph.ordered(&["prefix", "session", "tokens"]), Err(vec!["prefix", "tokens"]));
    }
}
