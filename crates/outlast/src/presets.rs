//! Do all members of a run go by the same times?
//!
//! A preset decides how long silence lasts until it means something. Where two members have different ones, both are right by
//! their own clocks and wrong by each other's, and what goes wrong later does not look like that at all. So every peer says which
//! one it has, in the metadata that a member carries anyway, and whoever meets somebody with another one warns, with both names.
//!
//! It is a warning and no more: nothing is refused, because members of one run may have reasons of their own.

use outlast_proto::id::PeerId;
use outlast_proto::membership::Preset;
use outlast_proto::text::printable;
use outlast_proto::wire::membership::MemberInfo;
use std::collections::BTreeSet;

/// What stands before the name in a member's metadata.
const MARK: &[u8] = b"preset=";
/// Members that were warned of; beyond it nothing is said any more.
const WARNED_MAX: usize = 1_024;

/// What people call a preset.
pub(crate) const fn name(preset: Preset) -> &'static str {
    match preset {
        Preset::Local => "local",
        Preset::Lan => "lan",
        Preset::Wan => "wan",
    }
}

/// The metadata that says it.
pub(crate) fn mark(preset: Preset) -> Vec<u8> {
    [MARK, name(preset).as_bytes()].concat()
}

/// Which one a member says that it has; none if it says nothing, as members of other programs do.
fn of(info: &MemberInfo) -> Option<&str> {
    info.meta.strip_prefix(MARK).and_then(|name| std::str::from_utf8(name).ok())
}

/// Who was warned of already.
#[derive(Debug, Default)]
pub(crate) struct Warned(BTreeSet<PeerId>);

impl Warned {
    /// What to say of a member that has another preset than `ours`, once for each.
    pub(crate) fn of(&mut self, info: &MemberInfo, ours: &str, us: &str) -> Option<String> {
        let theirs = of(info).filter(|theirs| *theirs != ours)?;
        if self.0.len() >= WARNED_MAX || !self.0.insert(info.id) {
            return None;
        }
        let (name, theirs) = (printable(&info.name), printable(theirs));
        Some(format!(
            "{name} {} has the preset {theirs} and {us} has {ours}: give all members and the coordinator the same",
            info.id.short()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(meta: &[u8]) -> MemberInfo {
        MemberInfo {
            id: PeerId::from_bytes([7; 16]),
            name: "ada".to_owned(),
            address: "127.0.0.1:1".parse().unwrap(),
            closed_port: 2,
            meta: meta.to_vec(),
        }
    }

    #[test]
    fn both_are_named_once_and_whoever_says_nothing_is_left_alone() {
        let mut warned = Warned::default();
        assert_eq!(warned.of(&member(b""), "lan", "this peer"), None);
        assert_eq!(warned.of(&member(&mark(Preset::Lan)), "lan", "this peer"), None);
        let said = warned.of(&member(&mark(Preset::Wan)), "lan", "this peer");
        let expected = "ada 07070707 has the preset wan and this peer has lan: give all members and the coordinator the same";
        assert_eq!(said.as_deref(), Some(expected));
        assert_eq!(warned.of(&member(&mark(Preset::Wan)), "lan", "this peer"), None, "once is enough");
    }
}
