//! What one side encodes the other side decodes: nothing that honest machines say is over a limit, malformed, or
//! torn apart by the way its bytes travel (rule 40).

use super::{Checker, Fact, World};
use outlast_proto::time::Instant;

/// See above.
pub struct Decodable;

impl Checker for Decodable {
    fn name(&self) -> &'static str {
        "decodable"
    }

    fn hear(&mut self, _world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Undecodable { wire, error } => Err(format!("stream {wire} carried no message: {error}")),
            _ => Ok(()),
        }
    }
}
