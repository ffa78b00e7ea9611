//! Times in the units that people read them in.

/// A time in seconds, with three digits that matter.
pub(super) fn seconds(time: f64) -> String {
    let size = time.abs();
    if size < 1e-3 {
        format!("{:.0} µs", time * 1e6)
    } else if size < 0.01 {
        format!("{:.1} ms", time * 1e3)
    } else if size < 1.0 {
        format!("{:.0} ms", time * 1e3)
    } else if size < 120.0 {
        format!("{time:.2} s")
    } else {
        format!("{:.0} min", time / 60.0)
    }
}

/// An age in milliseconds.
pub(super) fn age(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..120_000 => format!("{:.1} s", ms as f64 / 1000.0),
        _ => format!("{} min", ms / 60_000),
    }
}

/// A time in milliseconds since 1970 as `YYYY-MM-DD HH:MM:SS.mmm UTC`.
pub(super) fn utc(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    // "days_to_civil" of Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", for days after 1970.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02}.{:03} UTC", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_fitting_unit() {
        let table = [
            (0.0, "0 µs"),
            (0.000_45, "450 µs"),
            (0.0045, "4.5 ms"),
            (0.132, "132 ms"),
            (-0.012, "-12 ms"),
            (1.234, "1.23 s"),
            (600.0, "10 min"),
        ];
        for (time, text) in table {
            assert_eq!(seconds(time), text);
        }
        assert_eq!([40, 1500, 180_000].map(age), ["40 ms", "1.5 s", "3 min"]);
    }

    #[test]
    fn dates_match_the_calendar() {
        let table = [
            (0, "1970-01-01 00:00:00.000 UTC"),
            (951_782_400_000, "2000-02-29 00:00:00.000 UTC"),
            (1_709_164_799_999, "2024-02-28 23:59:59.999 UTC"),
            (1_795_747_211_123, "2026-11-27 02:40:11.123 UTC"),
        ];
        for (unix_ms, text) in table {
            assert_eq!(utc(unix_ms), text);
        }
    }
}
