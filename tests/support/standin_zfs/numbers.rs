//! Numbers for people, in at most five characters.

pub fn nice(number: u64) -> String {
    let units = ["", "K", "M", "G", "T", "P", "E"];
    let mut index = 0;
    let mut whole = number;
    while whole >= 1024 && index < 6 {
        whole /= 1024;
        index += 1;
    }
    let unit = units[index];
    let divisor = 1u64 << (10 * index);
    if index == 0 || number.is_multiple_of(divisor) {
        return format!("{whole}{unit}");
    }
    let value = number as f64 / divisor as f64;
    let texts = (0..=2).rev().map(|digits| format!("{value:.digits$}{unit}"));
    texts.into_iter().find(|text| text.len() <= 5).unwrap_or_else(|| format!("{value:.0}{unit}"))
}

/// As `nice`, but single bytes have a unit too.
pub fn nice_bytes(number: u64) -> String {
    if number < 1024 { format!("{number}B") } else { nice(number) }
}
