//! Entries of a stream in the replies of the store.

use usher_core::prefix::share::EntryId;

use super::resp::Value;

/// An entry of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: EntryId,
    pub(super) payload: Payload,
}

/// Content of an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Payload {
    /// Value of the one field, as replicas write it.
    Read(Vec<u8>),
    /// Of another form, or too long to be a replica's: bytes of all fields.
    LeftOut(u64),
}

/// The entries in the reply to `XRANGE` or `XREVRANGE`. Elements without an id are left out.
pub(super) fn of_range(reply: Value) -> Vec<Entry> {
    let Value::List(list) = reply else { return Vec::new() };
    list.into_iter().filter_map(entry).collect()
}

/// The entries of a key in the reply to `XREAD`, which is a map of keys, or nothing.
pub(super) fn of_key(reply: Value, key: &[u8]) -> Vec<Entry> {
    let Value::List(values) = reply else { return Vec::new() };
    let mut values = values.into_iter();
    while let (Some(name), Some(found)) = (values.next(), values.next()) {
        if name.text() == Some(key) {
            return of_range(found);
        }
    }
    Vec::new()
}

/// The id of a new entry in the reply to `XADD`.
pub(super) fn id(text: &[u8]) -> Option<EntryId> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn entry(entry: Value) -> Option<Entry> {
    let Value::List(parts) = entry else { return None };
    let mut parts = parts.into_iter();
    let id = id(parts.next()?.text()?)?;
    let payload = match parts.next() {
        Some(Value::List(mut fields)) => match &mut fields[..] {
            [Value::Text(_), Value::Text(payload)] => Payload::Read(std::mem::take(payload)),
            fields => Payload::LeftOut(fields.iter().map(bytes).fold(0, u64::saturating_add)),
        },
        other => Payload::LeftOut(other.as_ref().map_or(0, bytes)),
    };
    Some(Entry { id, payload })
}

fn bytes(value: &Value) -> u64 {
    match value {
        Value::Text(text) => text.len() as u64,
        Value::LeftOut(bytes) => *bytes,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }

    #[test]
    fn entries_of_another_form_are_left_out_with_their_size() {
        let list = |values: Vec<Value>| Value::List(values);
        let whole = list(vec![text("5-1"), list(vec![text("b"), text("payload")])]);
        let others = [
            (Value::Null, 0),
            (list(Vec::new()), 0),
            (list(vec![text("b")]), 1),
            (Value::Integer(1), 0),
            (Value::LeftOut(7), 7),
            (list(vec![text("b"), Value::LeftOut(u64::MAX)]), u64::MAX),
            (list(vec![text("b"), text("12"), text("c"), text("345")]), 7),
        ];
        let id = |ms, seq| EntryId { ms, seq };
        let mut expected = vec![Entry { id: id(5, 1), payload: Payload::Read(b"payload".to_vec()) }];
        let left_out = |(_, bytes): &(_, u64)| Entry { id: id(6, 0), payload: Payload::LeftOut(*bytes) };
        expected.extend(others.iter().map(left_out));
        let others = others.map(|(fields, _)| list(vec![text("6-0"), fields]));
        let no_entries = [list(vec![text("x"), Value::Null]), Value::Integer(1), list(Vec::new())];
        let all = list([whole].into_iter().chain(others).chain(no_entries).collect());
        assert_eq!(of_range(all.clone()), expected);
        assert_eq!(of_key(list(vec![text("other"), Value::Null, text("k"), all.clone()]), b"k"), expected);
        assert_eq!(of_key(list(vec![text("other"), all]), b"k"), []);
        assert_eq!((of_key(Value::Null, b"k"), of_range(text("x"))), (Vec::new(), Vec::new()));
        assert_eq!((super::id(b"7-2"), super::id(b"7")), (Some(id(7, 2)), None));
    }
}
