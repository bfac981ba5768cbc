//! Options as getopt(3) reads them: they may stand together, and behind the operands.

/// An option that is none, or that lacks its value.
pub enum Bad {
    Unknown(String),
    NoValue(char),
}

#[derive(Default)]
pub struct Arguments {
    pub options: Vec<(char, String)>,
    pub operands: Vec<String>,
}

impl Arguments {
    /// `spec` as for getopt: a letter with `:` takes a value.
    pub fn read(arguments: &[String], spec: &str, long: &[(&str, char)]) -> Result<Arguments, Bad> {
        let mut read = Arguments::default();
        let mut words = arguments.iter();
        let takes_value = |letter: char| spec.contains(&format!("{letter}:"));
        while let Some(word) = words.next() {
            if word == "--" {
                read.operands.extend(words.cloned());
                break;
            }
            if let Some(name) = word.strip_prefix("--") {
                let Some(&(_, letter)) = long.iter().find(|(known, _)| *known == name) else {
                    return Err(Bad::Unknown(name.to_owned()));
                };
                let value =
                    if takes_value(letter) { words.next().ok_or(Bad::NoValue(letter))?.clone() } else { String::new() };
                read.options.push((letter, value));
                continue;
            }
            let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
                read.operands.push(word.clone());
                continue;
            };
            for (at, letter) in letters.char_indices() {
                if letter == ':' || !spec.contains(letter) {
                    return Err(Bad::Unknown(letter.to_string()));
                }
                if takes_value(letter) {
                    let rest = &letters[at + letter.len_utf8()..];
                    let value = if rest.is_empty() { words.next().ok_or(Bad::NoValue(letter))?.as_str() } else { rest };
                    read.options.push((letter, value.to_owned()));
                    break;
                }
                read.options.push((letter, String::new()));
            }
        }
        Ok(read)
    }

    pub fn has(&self, letter: char) -> bool {
        self.options.iter().any(|(l, _)| *l == letter)
    }

    /// The value given last.
    pub fn value(&self, letter: char) -> Option<&str> {
        self.options.iter().rev().find(|(l, _)| *l == letter).map(|(_, value)| value.as_str())
    }

    pub fn values(&self, letter: char) -> impl Iterator<Item = &str> {
        self.options.iter().filter(move |(l, _)| *l == letter).map(|(_, value)| value.as_str())
    }
}
