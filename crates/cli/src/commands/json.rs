//! JSON on a terminal.
//!
//! JSON escapes the control characters of ASCII and no others: what a C1 control or a mark for right-to-left text
//! does to a terminal is not its business. It is ours, because others chose the words. In JSON every character may be
//! written as an escape, so nothing is lost.

use outlast::text::is_printable;
use std::fmt::Write as _;

/// One line of JSON in which every character is one that a terminal shows and does not obey.
pub(crate) fn printable_line(json: &str) -> String {
    let mut line = String::with_capacity(json.len() + 1);
    for character in json.chars() {
        if is_printable(character) {
            line.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(line, "\\u{unit:04x}");
            }
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_is_lost_and_nothing_is_obeyed() {
        let value = json!({"name": "a\u{1b}[2J\u{9b}31m\u{202e}\u{e0001}\n", "other": "größer 节点"});
        let line = printable_line(&value.to_string());
        assert_eq!(outlast::text::first_unprintable(line.trim_end()), None, "{line:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }
}
