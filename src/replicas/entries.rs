//! Entries of a stream in the replies of the store.

use usher_core::prefix::share::EntryId;

use super::resp::Value;

/// An entry: its id, and the bytes of its first field. An entry of another form has no bytes, but counts as read.
pub(super) type Entry = (EntryId, Vec<u8>);

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
        Some(Value::List(fields)) => fields.into_iter().nth(1),
        _ => None,
    };
    match payload {
        Some(Value::Text(payload)) => Some((id, payload)),
        _ => Some((id, Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }

    #[test]
    fn malformed_entries_have_no_bytes() {
        let list = |values: Vec<Value>| Value::List(values);
        let whole = list(vec![text("5-1"), list(vec![text("b"), text("payload")])]);
        let others = [Value::Null, list(Vec::new()), list(vec![text("b")]), Value::Integer(1)];
        let others = others.map(|fields| list(vec![text("6-0"), fields]));
        let no_entries = [list(vec![text("x"), Value::Null]), Value::Integer(1), list(Vec::new())];
        let all = list([whole].into_iter().chain(others).chain(no_entries).collect());
        let id = |ms, seq| EntryId { ms, seq };
        let mut expected = vec![(id(5, 1), b"payload".to_vec())];
        expected.extend(vec![(id(6, 0), Vec::new()); 4]);
        assert_eq!(of_range(all.clone()), expected);
        assert_eq!(of_key(list(vec![text("other"), Value::Null, text("k"), all.clone()]), b"k"), expected);
        assert_eq!(of_key(list(vec![text("other"), all]), b"k"), []);
        assert_eq!((of_key(Value::Null, b"k"), of_range(text("x"))), (Vec::new(), Vec::new()));
        assert_eq!((super::id(b"7-2"), super::id(b"7")), (Some(id(7, 2)), None));
    }
}
