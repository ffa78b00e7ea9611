//! Numbers for people.

/// With three digits that count, thousands apart.
pub fn number(value: f64) -> String {
    // Below this all the decimals are 0.
    if value.abs() < 0.000_005 {
        return "0".to_owned();
    }
    // The digits before the point; negative where there are zeros behind it.
    let before = value.abs().log10().floor() as i32 + 1;
    let decimals = usize::try_from((3 - before).clamp(0, 5)).unwrap_or_default();
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), ""), |(whole, rest)| (whole, rest));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut grouped = String::from(sign);
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if !rest.is_empty() {
        grouped.push('.');
        grouped.push_str(rest);
    }
    grouped
}

/// With its unit, which may be empty.
pub fn with_unit(value: f64, unit: &str) -> String {
    format!("{} {unit}", number(value)).trim_end().to_owned()
}

/// 0.015 as 1.5 %.
pub fn percent(share: f64) -> String {
    format!("{} %", number(share * 100.0))
}
