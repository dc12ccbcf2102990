//! Bytes as lower-case letters and digits (RFC 4648 §6, without padding).
//!
//! Used where text must survive people and DNS names: the run secret, and the run id in a TLS server name,
//! where case does not count. There is exactly one text for each byte string: [`decode`] refuses any other.

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Why a text is not base32.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Base32Error {
    /// A character outside the alphabet.
    #[error("character {position} is {character:?}; only a-z and 2-7 occur")]
    Character {
        /// Counted from one.
        position: usize,
        /// What stood there.
        character: char,
    },
    /// No byte string has a text of this length, or the last character holds bits that belong to no byte.
    #[error("a text of {0} characters was cut short or lengthened")]
    Length(usize),
}

/// How many characters `bytes` bytes take.
pub const fn encoded_len(bytes: usize) -> usize {
    (bytes * 8).div_ceil(5)
}

/// The text of `bytes`.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(encoded_len(bytes.len()));
    let (mut buffer, mut bits) = (0u32, 0);
    for &byte in bytes {
        buffer = buffer << 8 | u32::from(byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(letter(buffer >> bits));
        }
    }
    if bits > 0 {
        text.push(letter(buffer << (5 - bits)));
    }
    text
}

/// The bytes of `text`.
pub fn decode(text: &str) -> Result<Vec<u8>, Base32Error> {
    let mut bytes = Vec::with_capacity(text.len() * 5 / 8);
    let (mut buffer, mut bits) = (0u32, 0);
    for (index, character) in text.chars().enumerate() {
        let value = value(character).ok_or(Base32Error::Character { position: index + 1, character })?;
        buffer = buffer << 5 | value;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((buffer >> bits) as u8);
        }
    }
    let leftover = buffer & ((1 << bits) - 1);
    if bits >= 5 || leftover != 0 {
        return Err(Base32Error::Length(text.len()));
    }
    Ok(bytes)
}

fn letter(value: u32) -> char {
    char::from(ALPHABET[(value & 31) as usize])
}

fn value(character: char) -> Option<u32> {
    match character {
        'a'..='z' => Some(character as u32 - 'a' as u32),
        '2'..='7' => Some(character as u32 - '2' as u32 + 26),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_examples_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "my"),
            ("fo", "mzxq"),
            ("foo", "mzxw6"),
            ("foob", "mzxw6yq"),
            ("foobar", "mzxw6ytboi"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
    }

    #[test]
    fn every_length_returns_and_has_one_text() {
        for length in 0..80usize {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 37 + length) as u8).collect();
            let text = encode(&bytes);
            assert_eq!(text.len(), encoded_len(length));
            assert_eq!(decode(&text).unwrap(), bytes);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        assert_eq!(decode("MZ"), Err(Base32Error::Character { position: 1, character: 'M' }));
        assert_eq!(decode("m1"), Err(Base32Error::Character { position: 2, character: '1' }));
        // Bits after the last byte, and a character that completes no byte.
        assert_eq!(decode("mz"), Err(Base32Error::Length(2)));
        assert_eq!(decode("mya"), Err(Base32Error::Length(3)));
        assert_eq!(decode("é"), Err(Base32Error::Character { position: 1, character: 'é' }));
    }
}
