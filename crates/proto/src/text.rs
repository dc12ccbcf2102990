//! Words that others chose and people read.
//!
//! A name, a plane, an error text: they come from somebody else and end in a terminal or a log. A terminal obeys
//! what it is shown: an escape sequence clears the screen, sets the title or repaints the line above, a line
//! feed invents a row of a table, and a mark for right-to-left text turns a name into another.
//!
//! So two things are done. Names are *refused* where they come in (`MemberInfo::check`): nobody needs such a
//! character in one, and a name that was changed silently would no longer be the name. And everything is
//! *escaped* where it is printed ([`printable`]), because there are more ways in than one remembers.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal shows this character and does nothing else.
pub fn is_printable(character: char) -> bool {
    let reorders_or_hides = matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !character.is_control() && !reorders_or_hides
}

/// The first character that is not printable.
pub fn first_unprintable(text: &str) -> Option<char> {
    text.chars().find(|character| !is_printable(*character))
}

/// The text with whatever is not printable written out, as in `\u{1b}`. What is printable stays as it is, so this
/// is for people to read, not for programs to read back.
pub fn printable(text: &str) -> Cow<'_, str> {
    if first_unprintable(text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_printable(character) {
            shown.push(character);
        } else {
            let _ = write!(shown, "{}", character.escape_unicode());
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_written_out() {
        let hostile = "\u{1b}]0;owned\u{7}\u{1b}[2Jp1\nrank 0 \u{9b}31m \u{202e}9p";
        let shown = printable(hostile);
        assert_eq!(first_unprintable(&shown), None, "{shown}");
        assert!(shown.starts_with("\\u{1b}]0;owned\\u{7}"), "{shown}");
    }

    #[test]
    fn ordinary_words_stay_as_they_are() {
        for text in ["", "node-7.rack 3", "größer", "节点", "узел", "ノード", "é"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }
}
