//! What a frame is to us: a block for an operation, one for later, a credit, a question, or nothing any more.

use super::conn::Broken;
use super::desk::{Desk, OpId};
use super::lanes::Landing;
use super::parking::{Parked, Parking};
use super::{ConnId, Direction, Stopped};
use outlast_proto::collective::frame::{FrameKind, Header};
use outlast_proto::id::PeerId;

/// Where a frame goes.
#[derive(Debug)]
pub(super) enum Route {
    Into(OpId, Landing),
    Park,
    Drain,
    Credit(OpId, usize),
    Ask(OpId, usize),
}

/// Decides about a frame from its header, before any of its payload is used.
pub(super) fn route(
    desk: &mut Desk,
    conn: ConnId,
    peer: PeerId,
    direction: Direction,
    parking: &mut Parking,
    header: &Header,
) -> Result<Route, Broken> {
    match (direction, header.kind) {
        (Direction::From, FrameKind::Block) => route_block(desk, conn, peer, parking, header),
        (Direction::From, FrameKind::Ask) => route_ask(desk, peer, parking, header),
        (Direction::Towards, FrameKind::Credit) => route_credit(desk, peer, parking, header),
        (_, kind) => Err(Broken::Misbehaved(format!("a {kind:?} frame against the direction of the link"))),
    }
}

fn route_block(
    desk: &mut Desk,
    conn: ConnId,
    peer: PeerId,
    parking: &Parking,
    header: &Header,
) -> Result<Route, Broken> {
    let Some(op) = desk.find(&header.op) else {
        if desk.is_stale(&header.op) {
            return Ok(Route::Drain);
        }
        if parking.has_room(header) {
            return Ok(Route::Park);
        }
        return Err(Broken::Misbehaved(format!("more than may be sent without credit, for {:?}", header.op)));
    };
    accept_block(desk, conn, peer, op, header)
}

/// A block for an operation that is here.
fn accept_block(
    desk: &mut Desk,
    conn: ConnId,
    peer: PeerId,
    op: OpId,
    header: &Header,
) -> Result<Route, Broken> {
    let Some((operation, slots)) = desk.parts_mut(op) else { return Ok(Route::Drain) };
    if operation.ending.is_some() {
        return Ok(Route::Drain);
    }
    // First of all the call: another one has other neighbours, too.
    if operation.parts.fingerprint != header.fingerprint {
        desk.stop(op, Stopped::Mismatch { peer, theirs: header.fingerprint });
        return Ok(Route::Drain);
    }
    let Some(lane) = operation.lane_from(peer) else {
        return Err(Broken::Misbehaved(format!("a block of {:?}, whose plan has another order", header.op)));
    };
    if operation.is_given_up(header) {
        desk.stop(op, Stopped::GivenUp("the sender gave up while it was on its way"));
        return Ok(Route::Drain);
    }
    if operation.incoming[lane].conn.is_some_and(|bound| bound != conn) || !operation.expects(lane, header) {
        let Header { lap, step, length, .. } = header;
        let what = format!("{length} bytes for step {step} of lap {lap}, which the plan does not expect");
        return Err(Broken::Misbehaved(what));
    }
    Ok(Route::Into(op, operation.landing(lane, header, slots)))
}

/// The sender wants to hear of our call: now, if it is made.
fn route_ask(desk: &mut Desk, peer: PeerId, parking: &mut Parking, header: &Header) -> Result<Route, Broken> {
    let Some(op) = desk.find(&header.op) else {
        if !desk.is_stale(&header.op) && !parking.park_ask(header.op) {
            return Err(Broken::Misbehaved("more questions than calls can be open".to_owned()));
        }
        return Ok(Route::Drain);
    };
    let Some(operation) = desk.get_mut(op).filter(|operation| operation.ending.is_none()) else {
        return Ok(Route::Drain);
    };
    if operation.parts.fingerprint != header.fingerprint {
        desk.stop(op, Stopped::Mismatch { peer, theirs: header.fingerprint });
        return Ok(Route::Drain);
    }
    let Some(lane) = operation.lane_from(peer) else {
        return Err(Broken::Misbehaved(format!(
            "a question about {:?}, whose plan has another order",
            header.op
        )));
    };
    // Once is enough: who asks on and on must not fill our queue.
    Ok(if operation.incoming[lane].allowed > 0 { Route::Drain } else { Route::Ask(op, lane) })
}

fn route_credit(
    desk: &mut Desk,
    peer: PeerId,
    parking: &mut Parking,
    header: &Header,
) -> Result<Route, Broken> {
    let Some(op) = desk.find_granted(&header.op) else {
        if !desk.is_stale(&header.op) && !parking.park_credit(*header) {
            return Err(Broken::Misbehaved("more credits than calls can be open".to_owned()));
        }
        return Ok(Route::Drain);
    };
    Ok(check_credit(desk, op, peer, header)?.map_or(Route::Drain, |lane| Route::Credit(op, lane)))
}

/// The lane of this call that a credit is for; a different call under the same name ends it.
pub(super) fn check_credit(
    desk: &mut Desk,
    op: OpId,
    peer: PeerId,
    header: &Header,
) -> Result<Option<usize>, Broken> {
    let Some(operation) = desk.get_mut(op) else { return Ok(None) };
    if operation.parts.fingerprint != header.fingerprint {
        desk.stop(op, Stopped::Mismatch { peer, theirs: header.fingerprint });
        return Ok(None);
    }
    let lane = operation.lane_to(peer);
    lane.map(Some).ok_or_else(|| {
        Broken::Misbehaved(format!("a credit for {:?}, whose plan has another order", header.op))
    })
}

/// Gives a block that was parked to its operation.
pub(super) fn deliver(desk: &mut Desk, conn: ConnId, peer: PeerId, parked: Parked) -> Result<(), Broken> {
    let Parked { header, bytes } = parked;
    let Some(op) = desk.find(&header.op) else { return Ok(()) };
    let Route::Into(op, mut landing) = accept_block(desk, conn, peer, op, &header)? else { return Ok(()) };
    let Some((operation, slots)) = desk.parts_mut(op) else { return Ok(()) };
    operation.landing_bytes(&header, &mut landing).copy_from_slice(&bytes);
    operation.landed(&header, landing, slots);
    Ok(())
}
