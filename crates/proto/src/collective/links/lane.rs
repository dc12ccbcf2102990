//! What the loss of a link means for one lane that used it: one direction of one attempt, with one other member.
//!
//! A new connection helps as long as nothing of the attempt was on the old one. Afterwards nobody knows what has arrived,
//! so the attempt ends, and the decider's verdict puts everybody back to where they were (rule 4). What happened to a lane is
//! a handful of facts, and what follows is a function of them.

use super::Direction;

/// How often a connection that broke before it was of use may be made again, per lane.
pub const REDIALS_MAX: u8 = 2;

/// What is known of a lane whose link is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostLane<C> {
    /// Which way its blocks go.
    pub direction: Direction,
    /// Whether it is of a transfer between two members, which is no transaction (rule 8).
    pub is_transfer: bool,
    /// Whether all that it was for is done.
    pub is_done: bool,
    /// Whether a block of it was on the link, or had begun to go out: none of it may be on the wire yet, but it is no longer
    /// among those that could be sent elsewhere.
    pub is_begun: bool,
    /// Whether the other host acknowledged nothing any more: what was sent last is lost.
    pub is_silent: bool,
    /// How often it may still be given another link.
    pub redials_left: u8,
    /// The link in that direction, if another connection is it by now.
    pub present: Option<C>,
}

/// What becomes of the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLoss<C> {
    /// Nothing: all that the link was for is done.
    Nothing,
    /// Its attempt stops, with the broken link as the reason.
    Stop,
    /// It goes on over this connection. Takes a redial.
    Use(C),
    /// It wants the link again, which is dialled. Takes a redial.
    Dial,
    /// The predecessor dials again when it notices; if it is there to notice. So the attempt stops unless the link is back
    /// within link grace. Takes a redial.
    AwaitWithinGrace,
    /// The sender of a transfer has perhaps not even called yet: it is waited for as before. Takes a redial.
    Await,
}

impl<C> AfterLoss<C> {
    /// Whether it takes one of the lane's redials.
    pub fn takes_a_redial(&self) -> bool {
        !matches!(self, Self::Nothing | Self::Stop)
    }
}

/// What becomes of a lane whose link is gone.
pub fn after_loss<C: Copy>(lane: &LostLane<C>) -> AfterLoss<C> {
    let towards = lane.direction == Direction::Towards;
    // If the other end is not content with what is done here, its vote says so; unless the path was cut, for then it
    // waits for what is lost in our kernel. A transfer is done when the receiver has said that it is.
    let may_be_lost = towards && lane.is_silent && !lane.is_transfer;
    if lane.is_done && !may_be_lost {
        return AfterLoss::Nothing;
    }
    if lane.is_begun || lane.redials_left == 0 {
        return AfterLoss::Stop;
    }
    match lane.present {
        Some(link) => AfterLoss::Use(link),
        None if towards => AfterLoss::Dial,
        None if lane.is_transfer => AfterLoss::Await,
        None => AfterLoss::AwaitWithinGrace,
    }
}

/// Whether a lane that sends may go on over another connection. If not, all that it had to send went over a link that broke:
/// whether it arrived is not known, and if not, the other end would wait for it on the new one forever. The two ends of a
/// transfer find out what is missing by themselves.
pub fn may_change_links(has_sent: bool, is_transfer: bool) -> bool {
    !has_sent || is_transfer
}
