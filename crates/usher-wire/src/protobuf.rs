//! The protobuf wire format, as far as walking and writing messages by hand needs it.
//!
//! Header maps and metadata are the bulk of what a gateway sends, and we read
//! two or three fields of them. Walking their bytes finds those and makes
//! nothing of the rest.

/// A field of a message: its number and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) number: u32,
    pub(crate) value: Value<'a>,
}

/// The value of a field. Fixed-width values are skipped: nothing here has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// The bytes are not a message, or one of more parts than any gateway sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The fields of an encoded message, in order.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Bytes after the fields that were taken.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// A number of up to 64 bits.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        // Lengths and numbers of fields are mostly below 128.
        if let [byte @ 0..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for (index, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.skip(index + 1)?;
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    #[inline]
    fn skip(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (skipped, rest) = self.rest.split_at_checked(count).ok_or(Malformed)?;
        self.rest = rest;
        Ok(skipped)
    }

    #[inline]
    fn field(&mut self) -> Result<Field<'a>, Malformed> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| Malformed)?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.skip(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Value::Bytes(self.skip(length)?)
            }
            5 => self.skip(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed),
        };
        Ok(Field { number, value })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// The length-delimited fields with the given numbers, the last of each; empty
/// where there is none.
#[inline]
pub(crate) fn pick<const N: usize>(message: &[u8], numbers: [u32; N]) -> Result<[&[u8]; N], Malformed> {
    let mut found = [&[][..]; N];
    for field in Fields::of(message) {
        let field = field?;
        if let (Some(at), Value::Bytes(bytes)) =
            (numbers.iter().position(|n| *n == field.number), field.value)
        {
            found[at] = bytes;
        }
    }
    Ok(found)
}

/// Length of a varint.
#[inline]
fn varint_len(value: usize) -> usize {
    (usize::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Length of a length-delimited field with a number below 16.
#[inline]
pub(crate) fn field_len(content: usize) -> usize {
    1 + varint_len(content) + content
}

/// Writes the head of a length-delimited field; the content comes next.
#[inline]
pub(crate) fn put_head(out: &mut Vec<u8>, number: u8, content: usize) {
    out.push(number << 3 | 2);
    let mut rest = content;
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Writes a length-delimited field.
#[inline]
pub(crate) fn put_bytes(out: &mut Vec<u8>, number: u8, content: &[u8]) {
    put_head(out, number, content.len());
    out.extend_from_slice(content);
}

/// Writes a field that is true.
#[inline]
pub(crate) fn put_true(out: &mut Vec<u8>, number: u8) {
    out.extend_from_slice(&[number << 3, 1]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_fields_are_read_back(parts in prop::collection::vec((1u8..16, prop::collection::vec(any::<u8>(), 0..300)), 0..6)) {
            let mut out = Vec::new();
            let mut length = 0;
            for (number, content) in &parts {
                put_bytes(&mut out, *number, content);
                length += field_len(content.len());
            }
            prop_assert_eq!(out.len(), length);
            let fields: Vec<_> = Fields::of(&out).map(Result::unwrap).collect();
            let want: Vec<_> = parts
                .iter()
                .map(|(number, content)| Field { number: (*number).into(), value: Value::Bytes(content) })
                .collect();
            prop_assert_eq!(fields, want);
        }

        #[test]
        fn random_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Fields::of(&bytes).count() <= bytes.len());
        }
    }
}
