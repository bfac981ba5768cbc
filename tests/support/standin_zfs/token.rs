//! Resume tokens in their real form: a name-value list, deflated, in hexadecimal, behind its checksum and length.

use std::io::{Read, Write};

use crate::record::{Fletcher4, Value, pack_list, unpack_list};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    pub from_guid: u64,
    pub object: u64,
    pub offset: u64,
    pub bytes: u64,
    pub to_guid: u64,
    pub to_name: String,
    /// `largeblockok`, `embedok`, `compressok`, `rawok`
    pub flags: Vec<String>,
}

impl Token {
    pub fn encode(&self) -> String {
        let mut pairs = Vec::new();
        if self.from_guid != 0 {
            pairs.push(("fromguid", Value::Number(self.from_guid)));
        }
        pairs.push(("object", Value::Number(self.object)));
        pairs.push(("offset", Value::Number(self.offset)));
        pairs.push(("bytes", Value::Number(self.bytes)));
        pairs.push(("toguid", Value::Number(self.to_guid)));
        pairs.push(("toname", Value::Text(self.to_name.clone())));
        pairs.extend(self.flags.iter().map(|flag| (flag.as_str(), Value::Flag)));
        let list = pack_list(&pairs);
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(6));
        encoder.write_all(&list).expect("deflating to memory");
        let packed = encoder.finish().expect("deflating to memory");
        let digits: String = packed.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("1-{:x}-{:x}-{digits}", checksum(&packed), list.len())
    }

    /// The error is what the real `zfs` puts in brackets.
    pub fn decode(text: &str) -> Result<Token, &'static str> {
        let parts: Vec<&str> = text.split('-').collect();
        let number = |index: usize| parts.get(index).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let (Some(version), Some(sum), Some(_)) = (number(0), number(1), number(2)) else {
            return Err("invalid format");
        };
        if version != 1 {
            return Err("invalid version");
        }
        let digits = parts[parts.len() - 1];
        let byte = |i: usize| digits.get(i..i + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let packed: Option<Vec<u8>> = (0..digits.len() / 2 * 2).step_by(2).map(byte).collect();
        let packed = packed.ok_or("payload is not hex-encoded")?;
        if checksum(&packed) != sum {
            return Err("incorrect checksum");
        }
        let mut list = Vec::new();
        flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut list).map_err(|_| "decompression failed")?;
        let mut token = Token::default();
        for (name, value) in unpack_list(&list).ok_or("nvlist_unpack failed")? {
            match (name.as_str(), value) {
                ("fromguid", Value::Number(number)) => token.from_guid = number,
                ("object", Value::Number(number)) => token.object = number,
                ("offset", Value::Number(number)) => token.offset = number,
                ("bytes", Value::Number(number)) => token.bytes = number,
                ("toguid", Value::Number(number)) => token.to_guid = number,
                ("toname", Value::Text(text)) => token.to_name = text,
                (_, Value::Flag) => token.flags.push(name),
                _ => {}
            }
        }
        Ok(token)
    }

    /// The letters of `zfs send` that this token stands for.
    pub fn options(&self) -> String {
        let letter = |flag: &str, letter: &'static str| if self.flags.iter().any(|f| f == flag) { letter } else { "" };
        // A raw send compresses too, without being asked.
        let raw = letter("rawok", "w");
        let compressed = if raw.is_empty() { letter("compressok", "c") } else { "" };
        [letter("largeblockok", "L"), letter("embedok", "e"), compressed, raw].concat()
    }

    /// As `zfs send -nv -t` shows it.
    pub fn describe(&self) -> String {
        let mut out = "resume token contents:\nnvlist version: 0\n".to_owned();
        if self.from_guid != 0 {
            out += &format!("\tfromguid = {:#x}\n", self.from_guid);
        }
        out += &format!("\tobject = {:#x}\n\toffset = {:#x}\n\tbytes = {:#x}\n", self.object, self.offset, self.bytes);
        out += &format!("\ttoguid = {:#x}\n\ttoname = {}\n", self.to_guid, self.to_name);
        for flag in &self.flags {
            out += &format!("\t{flag} = 1\n");
        }
        out
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = Fletcher4::default();
    sum.add(bytes);
    sum.0[0]
}
