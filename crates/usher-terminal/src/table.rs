//! Lines and numbers in the tables of reports.

use std::fmt::{self, Formatter};

/// A line with a title; the lines that go on with it have none.
pub fn line(f: &mut Formatter<'_>, title: &str, text: fmt::Arguments<'_>) -> fmt::Result {
    writeln!(f, "{title:<15}{text}")
}

/// A number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_in_groups_of_three() {
        let table = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        for (number, text) in table {
            assert_eq!(grouped(number), text);
        }
    }
}
