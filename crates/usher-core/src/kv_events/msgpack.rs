//! Reader of MessagePack over borrowed bytes.
//!
//! Nothing is allocated, and nothing recurses: lengths that a payload claims are only counted, so hostile ones cost
//! no more than the bytes that are there.

/// A value whose head is read: scalars and texts with their content, arrays and maps with their length, their items
/// following in the reader.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Head<'a> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    /// A number below zero.
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Binary(&'a [u8]),
    Extension,
    Array(u32),
    Map(u32),
}

/// Payload that ends within a value, or has the byte that MessagePack never uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Truncated;

/// The rest of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Truncated> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (number, rest) = self.rest.split_first_chunk().ok_or(Truncated)?;
        self.rest = rest;
        Ok(*number)
    }

    fn byte(&mut self) -> Result<u8, Truncated> {
        let [byte] = self.number()?;
        Ok(byte)
    }

    fn short(&mut self) -> Result<u32, Truncated> {
        Ok(u32::from(u16::from_be_bytes(self.number()?)))
    }

    fn long(&mut self) -> Result<u32, Truncated> {
        Ok(u32::from_be_bytes(self.number()?))
    }

    fn extension(&mut self, len: usize) -> Result<Head<'a>, Truncated> {
        self.take(len + 1).map(|_| Head::Extension)
    }

    /// Reads the next value, of an array or map its length only.
    #[inline]
    pub(super) fn head(&mut self) -> Result<Head<'a>, Truncated> {
        let first = self.byte()?;
        Ok(match first {
            0x00..=0x7f => Head::Unsigned(u64::from(first)),
            0xcd => Head::Unsigned(u64::from(self.short()?)),
            0xce => Head::Unsigned(u64::from(self.long()?)),
            0xcf => Head::Unsigned(u64::from_be_bytes(self.number()?)),
            0xcc => Head::Unsigned(u64::from(self.byte()?)),
            0x80..=0x8f => Head::Map(u32::from(first & 0x0f)),
            0x90..=0x9f => Head::Array(u32::from(first & 0x0f)),
            0xa0..=0xbf => Head::Text(self.take(usize::from(first & 0x1f))?),
            0xe0..=0xff => Head::Negative(i64::from(first as i8)),
            0xc0 => Head::Nil,
            0xc1 => return Err(Truncated),
            0xc2 | 0xc3 => Head::Bool(first == 0xc3),
            0xc4 => {
                let len = usize::from(self.byte()?);
                Head::Binary(self.take(len)?)
            }
            0xc5 => {
                let len = self.short()? as usize;
                Head::Binary(self.take(len)?)
            }
            0xc6 => {
                let len = self.long()? as usize;
                Head::Binary(self.take(len)?)
            }
            0xc7 => {
                let len = usize::from(self.byte()?);
                self.extension(len)?
            }
            0xc8 => {
                let len = self.short()? as usize;
                self.extension(len)?
            }
            0xc9 => {
                let len = self.long()? as usize;
                self.extension(len)?
            }
            0xca => Head::Float(f64::from(f32::from_be_bytes(self.number()?))),
            0xcb => Head::Float(f64::from_be_bytes(self.number()?)),
            0xd0 => signed(i64::from(i8::from_be_bytes(self.number()?))),
            0xd1 => signed(i64::from(i16::from_be_bytes(self.number()?))),
            0xd2 => signed(i64::from(i32::from_be_bytes(self.number()?))),
            0xd3 => signed(i64::from_be_bytes(self.number()?)),
            0xd4..=0xd8 => self.extension(1 << (first - 0xd4))?,
            0xd9 => {
                let len = usize::from(self.byte()?);
                Head::Text(self.take(len)?)
            }
            0xda => {
                let len = self.short()? as usize;
                Head::Text(self.take(len)?)
            }
            0xdb => {
                let len = self.long()? as usize;
                Head::Text(self.take(len)?)
            }
            0xdc => Head::Array(self.short()?),
            0xdd => Head::Array(self.long()?),
            0xde => Head::Map(self.short()?),
            0xdf => Head::Map(self.long()?),
        })
    }

    /// Returns `true` if the next value is nil.
    pub(super) fn is_nil(&self) -> bool {
        self.rest.first() == Some(&0xc0)
    }

    /// Skips a value with everything in it, however deep.
    pub(super) fn skip(&mut self) -> Result<(), Truncated> {
        self.skip_many(1)
    }

    /// Skips so many values.
    pub(super) fn skip_many(&mut self, values: u64) -> Result<(), Truncated> {
        let mut left = values;
        while left > 0 {
            // Each value takes a byte at least.
            if left > self.rest.len() as u64 {
                return Err(Truncated);
            }
            left -= 1;
            let first = *self.rest.first().ok_or(Truncated)?;
            match SIZES[usize::from(first)] {
                0 => match self.head()? {
                    Head::Array(items) => left += u64::from(items),
                    Head::Map(pairs) => left += 2 * u64::from(pairs),
                    _ => {}
                },
                size => drop(self.take(usize::from(size))?),
            }
        }
        Ok(())
    }

    /// Reads an unsigned number of up to 32 bits. `None` for another value.
    #[inline]
    pub(super) fn small(&mut self) -> Option<u32> {
        // Tokens are numbers of different sizes in no order, so their size should be no branch.
        if let Some(eight) = self.rest.first_chunk::<8>() {
            let (size, right) = SMALL[usize::from(eight[0])];
            if let Some(rest) = self.rest.get(usize::from(size)..)
                && size > 0
            {
                self.rest = rest;
                let left = u32::from(size > 1) * 8;
                return Some((u64::from_be_bytes(*eight) << left >> right) as u32);
            }
        }
        match self.head().ok()? {
            Head::Unsigned(number) => u32::try_from(number).ok(),
            _ => None,
        }
    }

    /// Takes a value with everything in it, as a reader of its own.
    pub(super) fn value(&mut self) -> Result<Self, Truncated> {
        let start = self.rest;
        self.skip()?;
        Ok(Self { rest: &start[..start.len() - self.rest.len()] })
    }
}

/// Bytes of a value by its first one; 0 where they depend on more than that.
const SIZES: [u8; 256] = {
    let mut sizes = [0; 256];
    let mut first = 0;
    while first < 256 {
        sizes[first] = match first {
            0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => 1,
            0xa0..=0xbf => (first & 0x1f) as u8 + 1,
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 => 3,
            0xca | 0xce | 0xd2 => 5,
            0xcb | 0xcf | 0xd3 => 9,
            _ => 0,
        };
        first += 1;
    }
    sizes
};

/// Bytes of an unsigned number of up to 32 bits by its first one, 0 for other values; and how far its bits are above
/// the end of eight bytes, once those before them are gone.
const SMALL: [(u8, u8); 256] = {
    let mut small = [(0, 0); 256];
    let mut first = 0;
    while first < 256 {
        small[first] = match first {
            0x00..=0x7f => (1, 56),
            0xcc => (2, 56),
            0xcd => (3, 48),
            0xce => (5, 32),
            _ => (0, 0),
        };
        first += 1;
    }
    small
};

fn signed(number: i64) -> Head<'static> {
    match u64::try_from(number) {
        Ok(number) => Head::Unsigned(number),
        Err(_) => Head::Negative(number),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(value: &rmpv::Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, value).unwrap();
        bytes
    }

    /// The value as `rmpv` has it.
    fn read(reader: &mut Reader<'_>) -> Result<rmpv::Value, Truncated> {
        Ok(match reader.head()? {
            Head::Nil => rmpv::Value::Nil,
            Head::Bool(value) => value.into(),
            Head::Unsigned(number) => number.into(),
            Head::Negative(number) => number.into(),
            Head::Float(number) => number.into(),
            Head::Text(text) => rmpv::Value::String(String::from_utf8(text.to_vec()).unwrap().into()),
            Head::Binary(bytes) => bytes.into(),
            Head::Extension => rmpv::Value::Ext(0, Vec::new()),
            Head::Array(items) => {
                rmpv::Value::Array((0..items).map(|_| read(reader)).collect::<Result<_, _>>()?)
            }
            Head::Map(pairs) => rmpv::Value::Map(
                (0..pairs).map(|_| Ok((read(reader)?, read(reader)?))).collect::<Result<_, _>>()?,
            ),
        })
    }

    fn values() -> impl Strategy<Value = rmpv::Value> {
        let leaf = prop_oneof![
            Just(rmpv::Value::Nil),
            any::<bool>().prop_map(Into::into),
            (any::<u64>(), 0..64u32).prop_map(|(number, shift)| (number >> shift).into()),
            (any::<i64>(), 0..64u32).prop_map(|(number, shift)| (number >> shift).into()),
            (-1e9..1e9).prop_map(|number: f64| number.into()),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Into::into),
            prop::collection::vec(any::<char>(), 0..300)
                .prop_map(|text| text.into_iter().collect::<String>().into()),
        ];
        leaf.prop_recursive(4, 64, 40, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..40).prop_map(rmpv::Value::Array),
                prop::collection::vec((inner.clone(), inner), 0..20).prop_map(rmpv::Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn values_of_another_encoder_are_read(value in values()) {
            let bytes = written(&value);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(read(&mut reader), Ok(value));
            prop_assert_eq!(reader.rest, b"");
            let mut skipped = Reader::new(&bytes);
            prop_assert_eq!(skipped.skip(), Ok(()));
            prop_assert_eq!(skipped.rest, b"");
        }

        #[test]
        fn truncated_payload_is_cut(value in values(), at: prop::sample::Index) {
            let bytes = written(&value);
            prop_assert_eq!(Reader::new(&bytes[..at.index(bytes.len())]).skip(), Err(Truncated));
        }

        #[test]
        fn arbitrary_bytes_are_skipped_or_cut(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut reader = Reader::new(&bytes);
            let _ = reader.skip();
            prop_assert!(reader.rest.len() <= bytes.len());
        }
    }

    #[test]
    fn extensions_of_every_length_are_skipped() {
        for len in [1, 2, 3, 4, 8, 16, 255, 256, 70_000] {
            let mut bytes = written(&rmpv::Value::Ext(-1, vec![7; len]));
            bytes.push(5);
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.head(), Ok(Head::Extension), "{len}");
            assert_eq!(reader.head(), Ok(Head::Unsigned(5)));
        }
    }

    #[test]
    fn hostile_lengths_and_depths_end_at_once() {
        for hex in ["ddffffffff", "dfffffffff", "dbffffffff00", "c6ffffffff00", "c9ffffffff0100", "c1"] {
            let bytes: Vec<u8> = (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect();
            assert_eq!(Reader::new(&bytes).skip(), Err(Truncated), "{hex}");
        }
        let mut deep = vec![0x91; 1 << 20];
        assert_eq!(Reader::new(&deep).skip(), Err(Truncated));
        deep.push(0xc0);
        assert_eq!(Reader::new(&deep).skip(), Ok(()));
        let lengths = [0xdd, 0xff, 0xff, 0xff, 0xff].repeat(100_000);
        assert_eq!(Reader::new(&lengths).skip(), Err(Truncated));
    }
}
