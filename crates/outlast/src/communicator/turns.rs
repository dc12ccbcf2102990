//! Calls of two votes with work between them: `optimize_topology` measures, `sync_state` moves bytes.
//!
//! After the first vote everybody counts on everybody's second one. A program that gives its call up in between, by an
//! interrupt, an error or a panic, must say so, or the others wait for it until their deadline. So whoever begins such a call
//! holds [`Turns`] until the call is over: if a turn is owed then, it is given up, and the others hear who it was. And whoever
//! still works may look whether [that turn is over](Control::is_turn_over) for all, and need not finish.

use super::control::Control;

/// Held by a call of two votes for as long as it lasts.
pub(super) struct Turns<'a>(&'a Control);

impl Control {
    /// A call of two votes begins.
    pub(super) fn turns(&self) -> Turns<'_> {
        Turns(self)
    }

    /// Whether the second vote that we owe is over for everybody: somebody gave up, or ran out of time.
    pub(super) fn is_turn_over(&self) -> bool {
        crate::sync::lock(&self.state).session.is_turn_over()
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        self.0.tell(|session, _| session.handle_turn_given_up());
    }
}
