//! Reads YAML and JSON documents into [nodes](Node).

use std::collections::{HashMap, HashSet};
use std::iter::Peekable;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StructureStyle};

use super::error::{ConfigError, Position};
use super::node::{Entry, Node, Value};
use super::scalar;
use super::syntax::{self, position};

/// Longest configuration that is read, in bytes. llm-d-router's largest is 4 KB.
pub const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting, aliases resolved. The schema needs 8.
const MAX_DEPTH: usize = 64;
/// Bytes that a document may take once its aliases are resolved; 16 times
/// [`MAX_BYTES`], which a document without aliases can't reach.
const MAX_EXPANDED: usize = 16 * MAX_BYTES;
/// Bytes that a value counts towards [`MAX_EXPANDED`] beside its text.
const NODE_COST: usize = 15;

impl Node {
    /// Reads one YAML or JSON document.
    ///
    /// # Errors
    /// `ConfigError` if the text is too long, isn't one well-formed document, nests too deeply, repeats a
    /// key, or grows too large through aliases.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        reader(text)?.document()
    }

    /// Reads all documents of a file. Empty ones, as separators leave them, are none.
    ///
    /// # Errors
    /// Same as [`Node::parse`], for all documents together; there may be none, or several.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, ConfigError> {
        reader(text)?.documents()
    }
}

/// A node that aliases may repeat, with what each repetition costs.
struct Anchored {
    node: Node,
    depth: usize,
    cost: usize,
}

struct Reader<'a, I: Iterator<Item = Parsed<'a>>> {
    text: &'a str,
    events: Peekable<I>,
    anchors: HashMap<usize, Anchored>,
    expanded: usize,
}

fn reader(text: &str) -> Result<Reader<'_, impl Iterator<Item = Parsed<'_>>>, ConfigError> {
    if text.len() > MAX_BYTES {
        let hint = format!("the limit is {MAX_BYTES} bytes");
        return Err(ConfigError::new("the document is too long").hint(hint));
    }
    let options = granit_parser::options! { emit_comments: false };
    Ok(Reader {
        text,
        events: Parser::new_from_str_with_options(text, options).peekable(),
        anchors: HashMap::new(),
        expanded: 0,
    })
}

/// The parser's next event and its place, or its error.
type Parsed<'a> = Result<(Event<'a>, Span), ScanError>;

/// A node with its depth below itself.
type Measured = (Node, usize);

impl<'a, I: Iterator<Item = Parsed<'a>>> Reader<'a, I> {
    fn document(&mut self) -> Result<Node, ConfigError> {
        let mut root = None;
        while let Some((event, span)) = self.next()? {
            match event {
                Event::StreamStart | Event::StreamEnd | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event if root.is_none() => root = Some(self.node(event, span, 0)?.0),
                // What a separator at the end of the file begins.
                Event::Scalar(text, ScalarStyle::Plain, ..) if scalar::resolve(&text) == Value::Null => {}
                _ => {
                    let message = "a second document begins here";
                    return Err(ConfigError::at(position(&span.start), message).hint("keep one of them"));
                }
            }
        }
        root.ok_or_else(|| ConfigError::new("the document is empty"))
    }

    fn documents(&mut self) -> Result<Vec<Node>, ConfigError> {
        let mut roots = Vec::new();
        while let Some((event, span)) = self.next()? {
            match event {
                Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
                // Anchors are a document's own.
                Event::DocumentStart(..) => self.anchors.clear(),
                event => {
                    let root = self.node(event, span, 0)?.0;
                    if root.value != Value::Null {
                        roots.push(root);
                    }
                }
            }
        }
        Ok(roots)
    }

    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, ConfigError> {
        let next = self.events.next().transpose();
        next.map_err(|error| syntax::error(&error))
    }

    fn must_next(&mut self, at: Position) -> Result<(Event<'a>, Span), ConfigError> {
        self.next()?.ok_or_else(|| ConfigError::at(at, "the document ends in the middle of a value"))
    }

    fn spend(&mut self, at: Position, cost: usize) -> Result<(), ConfigError> {
        self.expanded = self.expanded.saturating_add(cost);
        if self.expanded > MAX_EXPANDED {
            return Err(ConfigError::at(at, "the document grows too large")
                .hint(format!("aliases included, the limit is {MAX_EXPANDED} bytes")));
        }
        Ok(())
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Measured, ConfigError> {
        let at = position(&span.start);
        let spent = self.expanded;
        if let Event::SequenceStart(StructureStyle::Block, ..)
        | Event::MappingStart(StructureStyle::Block, ..) = event
        {
            syntax::no_tab_before(self.text, &span.start)?;
        }
        let (value, below, anchor) = match event {
            Event::Alias(id) => return self.alias(id, at, depth),
            Event::Scalar(text, style, anchor, tag) => {
                self.spend(at, NODE_COST + text.len())?;
                let is_text = tag
                    .is_some_and(|tag| !matches!(tag.core_suffix(), Some("int" | "float" | "bool" | "null")));
                let value = match style {
                    ScalarStyle::Plain if !is_text => scalar::resolve(&text),
                    _ => Value::Text(text.into_owned()),
                };
                (value, 0, anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.open(at, depth)?;
                let (items, below) = self.list(at, depth + 1)?;
                (Value::List(items), below, anchor)
            }
            Event::MappingStart(_, anchor, _) => {
                self.open(at, depth)?;
                let (entries, below) = self.map(at, depth + 1)?;
                (Value::Map(entries), below, anchor)
            }
            _ => return Err(ConfigError::at(at, "a value is missing here")),
        };
        let node = Node { at, value };
        if anchor > 0 {
            let cost = self.expanded - spent;
            self.anchors.insert(anchor, Anchored { node: node.clone(), depth: below, cost });
        }
        Ok((node, below))
    }

    fn open(&mut self, at: Position, depth: usize) -> Result<(), ConfigError> {
        if depth >= MAX_DEPTH {
            return Err(ConfigError::at(at, format!("nested more than {MAX_DEPTH} deep")));
        }
        self.spend(at, NODE_COST)
    }

    fn alias(&mut self, id: usize, at: Position, depth: usize) -> Result<Measured, ConfigError> {
        let Some(Anchored { depth: below, cost, .. }) = self.anchors.get(&id) else {
            return Err(ConfigError::at(at, "an alias can't stand inside what it repeats"));
        };
        let (below, cost) = (*below, *cost);
        if depth + below > MAX_DEPTH {
            return Err(ConfigError::at(at, format!("nested more than {MAX_DEPTH} deep")));
        }
        self.spend(at, cost)?;
        let node = self.anchors.get(&id).map(|anchored| anchored.node.clone());
        node.map(|node| (node, below)).ok_or_else(|| ConfigError::at(at, "unknown alias"))
    }

    fn list(&mut self, at: Position, depth: usize) -> Result<(Vec<Node>, usize), ConfigError> {
        let (mut items, mut deepest) = (Vec::new(), 0);
        loop {
            let (event, span) = self.must_next(at)?;
            if event == Event::SequenceEnd {
                return Ok((items, deepest + 1));
            }
            let (item, below) = self.node(event, span, depth)?;
            deepest = deepest.max(below);
            items.push(item);
        }
    }

    fn map(&mut self, at: Position, depth: usize) -> Result<(Vec<Entry>, usize), ConfigError> {
        let (mut entries, mut deepest) = (Vec::new(), 0);
        let mut keys: HashSet<String> = HashSet::new();
        let mut merges = Vec::new();
        loop {
            let (event, span) = self.must_next(at)?;
            if event == Event::MappingEnd {
                break;
            }
            let at = position(&span.start);
            let (key, plain) = match &event {
                Event::Scalar(text, style, ..) => (text.clone().into_owned(), *style == ScalarStyle::Plain),
                _ => return Err(ConfigError::at(at, "a key has to be a word")),
            };
            self.node(event, span, depth)?;
            let (event, span) = self.must_next(at)?;
            let (value, below) = self.node(event, span, depth)?;
            deepest = deepest.max(below);
            if key == "<<" && plain {
                merges.push(Entry { key, at, value });
            } else if keys.insert(key.clone()) {
                entries.push(Entry { key, at, value });
            } else {
                return Err(
                    ConfigError::at(at, format!("'{key}' appears twice here")).hint("keep one of them")
                );
            }
        }
        for merge in merges {
            merge_into(&mut entries, &mut keys, merge)?;
        }
        Ok((entries, deepest + 1))
    }
}

/// `<<: *defaults`: entries of the other map, or of several, that are not there yet.
fn merge_into(entries: &mut Vec<Entry>, keys: &mut HashSet<String>, merge: Entry) -> Result<(), ConfigError> {
    let maps = match merge.value.value {
        Value::List(maps) => maps,
        value => vec![Node { at: merge.value.at, value }],
    };
    for map in maps {
        let Value::Map(others) = map.value else {
            return Err(ConfigError::at(map.at, "only maps can be merged with <<"));
        };
        entries.extend(others.into_iter().filter(|other| keys.insert(other.key.clone())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> (String, Option<(u32, u32)>) {
        let error = Node::parse(text).unwrap_err();
        (error.message(), error.position().map(|p| (p.line, p.column)))
    }

    #[test]
    fn values_have_their_positions() {
        let root = Node::parse("# comment\na: 1\nb:\n  - {c: \"x\", d: 'on'}\n  - yes\n").unwrap();
        let place = |node: &Node| (node.at.line, node.at.column);
        assert_eq!((root.entries()[1].at.line, root.entries()[1].at.column), (3, 1));
        let Value::List(items) = &root.get("b").unwrap().value else { panic!("not a list") };
        assert_eq!((place(&items[0]), place(&items[1])), ((4, 5), (5, 5)));
        let c = items[0].get("c").unwrap();
        assert_eq!((place(c), c.text()), ((4, 9), Some("x")));
        assert_eq!(items[0].get("d").unwrap().text(), Some("on"), "quoted words are text");
        assert_eq!(items[1].value, Value::Bool(true));
    }

    #[test]
    fn json_is_parsed_as_yaml() {
        let root = Node::parse(r#"{"a": [1, 2.5, null, "\u00e9"], "b": {}}"#).unwrap();
        let Value::List(items) = &root.get("a").unwrap().value else { panic!("not a list") };
        let values: Vec<_> = items.iter().map(|n| n.value.clone()).collect();
        assert_eq!(values, [Value::Int(1), Value::Float(2.5), Value::Null, Value::Text("é".into())]);
    }

    #[test]
    fn aliases_and_merge_keys_are_resolved() {
        let root = Node::parse("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a\nd: !!str 7\n").unwrap();
        let b = root.get("b").unwrap();
        assert_eq!(
            (&b.get("x").unwrap().value, &b.get("y").unwrap().value),
            (&Value::Int(1), &Value::Int(3))
        );
        assert_eq!(root.get("c").unwrap().get("y").unwrap().value, Value::Int(2));
        assert_eq!(root.get("d").unwrap().text(), Some("7"));
    }

    #[test]
    fn separators_around_the_document_are_fine() {
        for text in ["---\na: 1\n", "a: 1\n---\n", "a: 1\n...\n", "---\na: 1\n...\n---\n# end\n"] {
            assert_eq!(Node::parse(text).unwrap().get("a").unwrap().value, Value::Int(1), "{text:?}");
        }
    }

    #[test]
    fn invalid_or_multiple_documents_are_refused() {
        let table: [(&str, &str, Option<(u32, u32)>); 9] = [
            ("", "the document is empty", None),
            ("# only a comment\n", "the document is empty", None),
            ("a: 1\na: 2\n", "'a' appears twice here", Some((2, 1))),
            ("a: {b: 1, b: 2}\n", "'b' appears twice here", Some((1, 11))),
            ("a: 1\n---\nb: 2\n", "a second document begins here", Some((3, 1))),
            ("? [a]\n: 1\n", "a key has to be a word", Some((1, 3))),
            ("a: &a [*a]\n", "an alias can't stand inside", Some((1, 8))),
            ("a: {<<: 3}\n", "only maps can be merged", Some((1, 9))),
            ("a: [1, 2\nb: 3\n", "not valid YAML", None),
        ];
        for (text, message, place) in table {
            let (got, at) = error_of(text);
            assert!(got.contains(message), "{text:?}: {got}");
            if place.is_some() {
                assert_eq!(at, place, "{text:?}");
            }
        }
    }

    #[test]
    fn size_depth_and_aliases_are_bounded() {
        assert!(error_of(&"x".repeat(MAX_BYTES + 1)).0.contains("too long"));
        assert!(error_of(&format!("{}{}", "[".repeat(80), "]".repeat(80))).0.contains("deep"));
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for i in 1..12 {
            let item = format!("*a{}", i - 1);
            bomb += &format!("a{i}: &a{i} [{}]\n", [item.as_str(); 9].join(", "));
        }
        assert!(error_of(&bomb).0.contains("too large"));
        let long = "x".repeat(100_000);
        let repeats = ["*a"; 1000].join(", ");
        assert!(error_of(&format!("a: &a {long}\nb: [{repeats}]\n")).0.contains("too large"));
        let mut chain = String::from("a0: &a0 [x]\n");
        for i in 1..200 {
            chain += &format!("a{i}: &a{i} [*a{}]\n", i - 1);
        }
        assert!(error_of(&chain).0.contains("deep"));
    }
}
