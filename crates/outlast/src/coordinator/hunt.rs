//! Finding the one of several coordinators that decides (rule 19).
//!
//! # The problem
//!
//! A peer knows some addresses. Behind one of them may be a coordinator that is dead, stopped, cut off, or stands by; and
//! while it talks to one that decides, another may be elected that it has not heard of, because a process that is stopped
//! does not hang up.
//!
//! # The intuition
//!
//! All addresses are dialled at once, so that a silent one costs nothing. Whoever stands by says so in its hello, and
//! where it believes the leader to be; that address is dialled as well. Then it keeps the stream open, and closes it when
//! things have changed: so whoever waits for an election hears of its end at once, and nobody asks again and again.
//!
//! A peer that is served holds such streams to the others ([`superseded`]), and moves when one of them reigns under a
//! higher term than the one it talks to.
//!
//! # The invariant
//!
//! What is found said that it reigns, with a lease that lasted when it said so. Whether it is the last to reign is
//! settled by terms, in the session (rule 17).

use super::ask::{Dialled, Unreached};
use super::whereabouts::{is_etcd, look_up, resolve};
use crate::port::{self, AuthenticatedStream};
use crate::security::TlsIdentity;
use outlast_proto::id::PeerId;
use outlast_proto::limits::COORDINATORS_MAX;
use outlast_proto::retry;
use outlast_proto::wire::control::Term;
use outlast_proto::wire::hello::Standing;
use socket2::{SockRef, TcpKeepalive};
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// The pause after somebody hung up who stood by; that is news, and rare.
const NEWS_PAUSE: Duration = Duration::from_millis(5);
/// How much longer an election is waited for than one answer.
const LAST_MOMENT: Duration = Duration::from_millis(100);
/// The pauses after an address did not answer, while a peer is served by another.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// What is dialled, and how.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) plane: Vec<u8>,
    pub(super) identity: TlsIdentity,
    /// Nobody else is taken for a coordinator.
    pub(super) pinned: Option<PeerId>,
    pub(super) timeout: Duration,
    /// A stream breaks by itself once the other host has acknowledged nothing for so long.
    pub(super) silent_after: Duration,
    /// Whether whoever dials is served by nobody, and says so.
    pub(super) seeks: bool,
}

/// The coordinator that reigns, or one that is alone, behind one of these addresses. One that stands by is taken only
/// after `settle_after`, if at all.
pub(super) async fn hunt(
    addresses: &str,
    target: &Target,
    settle_after: Option<Duration>,
) -> Result<Dialled, Unreached> {
    let (found, mut failures) = resolve(addresses, target.timeout).await;
    let (hints, mut hinted) = mpsc::channel(COORDINATORS_MAX);
    // Dropped when it is over. Dials are not given up in the middle of a handshake: the other side would count a refusal.
    let (_hunting, over_for_all) = watch::channel(());
    let (mut dials, mut known) = (JoinSet::new(), BTreeSet::new());
    let dial = |dials: &mut JoinSet<_>, known: &mut BTreeSet<SocketAddr>, address: SocketAddr| {
        if known.len() < COORDINATORS_MAX && known.insert(address) {
            let (target, hints, over) = (target.clone(), hints.clone(), over_for_all.clone());
            dials.spawn(async move {
                (address, Box::pin(pursue(address, &target, &hints, over, settle_after)).await)
            });
        }
    };
    for address in found {
        dial(&mut dials, &mut known, address);
    }
    // Whoever does not answer says so itself, a moment earlier.
    let over = tokio::time::sleep(target.timeout + LAST_MOMENT);
    tokio::pin!(over);
    loop {
        tokio::select! {
            ended = dials.join_next() => match ended {
                Some(Ok((_, Ok(dialled)))) => {
                    dials.detach_all();
                    return Ok(dialled);
                }
                Some(Ok((address, Err(failure)))) => {
                    // It may be started again and be elected; then it is dialled again, because somebody says so.
                    known.remove(&address);
                    failures.push(failure);
                }
                // A dial that panicked is one that failed.
                Some(Err(error)) => failures.push(error.to_string().into()),
                None => break,
            },
            hint = hinted.recv() => {
                if let Some(address) = hint {
                    dial(&mut dials, &mut known, address);
                }
            }
            () = &mut over => {
                let waited = target.timeout;
                failures.push(format!("none of the coordinators at {addresses} reigned within {waited:?}").into());
                failures.iter_mut().for_each(Unreached::may_pass);
                break;
            }
        }
    }
    if failures.is_empty() {
        failures.push(format!("no address in {addresses:?}").into());
    }
    Err(Unreached::of(failures, !addresses.contains(',') && !is_etcd(addresses)))
}

/// Dials one address until it is somebody to talk to, or fails.
async fn pursue(
    address: SocketAddr,
    target: &Target,
    hints: &mpsc::Sender<SocketAddr>,
    mut over: watch::Receiver<()>,
    settle_after: Option<Duration>,
) -> Result<Dialled, Unreached> {
    loop {
        let mut dialled = dial_one(address, target).await?;
        let Some(standing) = dialled.standing.clone().filter(|standing| !standing.leads) else {
            return Ok(dialled);
        };
        if let Some(leader) = look_up(&standing.leader).await.0.into_iter().next() {
            let _ = hints.try_send(leader);
        }
        let settled = async {
            match settle_after {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = settled => return Ok(dialled),
            () = until_closed(&mut dialled) => {}
            _ = over.changed() => return Err(format!("{address} stands by").into()),
        }
        tokio::time::sleep(NEWS_PAUSE).await;
    }
}

/// Returns when a coordinator reigns under a higher term than `ours`. Never where there is only one.
pub(crate) async fn superseded(
    addresses: &str,
    identity: &TlsIdentity,
    pinned: Option<PeerId>,
    ours: Option<Term>,
    (timeout, silent_after): (Duration, Duration),
) {
    let Some(ours) = ours else { return std::future::pending().await };
    let target = Target {
        plane: port::CONTROL.to_vec(),
        identity: identity.clone(),
        pinned,
        timeout,
        silent_after,
        seeks: false,
    };
    let mut watches = JoinSet::new();
    for address in resolve(addresses, timeout).await.0.into_iter().take(COORDINATORS_MAX) {
        let target = target.clone();
        watches.spawn(async move { Box::pin(outlived(address, &target, ours)).await });
    }
    while let Some(ended) = watches.join_next().await {
        if matches!(ended, Ok(true)) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Whether that coordinator reigns under a higher term, once it does. False if it never will.
async fn outlived(address: SocketAddr, target: &Target, ours: Term) -> bool {
    let mut pause = PAUSES.0;
    loop {
        match dial_one(address, target).await {
            Err(_) => {}
            Ok(dialled) => match dialled.standing.clone() {
                // It is alone, so it is no part of this.
                None => return false,
                Some(standing) if standing.leads && standing.term > ours => return true,
                // The one that we talk to.
                Some(standing) if standing.leads && standing.term == ours => return false,
                Some(standing) if standing.leads => {}
                // The key at etcd has passed on since, so whoever we talk to reigns no more.
                Some(standing) if standing.term > ours && !standing.leader.is_empty() => return true,
                Some(_) => {
                    let mut held = dialled;
                    until_closed(&mut held).await;
                    pause = PAUSES.0;
                    tokio::time::sleep(NEWS_PAUSE).await;
                    continue;
                }
            },
        }
        tokio::time::sleep(pause).await;
        pause = retry::longer(pause, PAUSES.1);
    }
}

/// Whoever stands by says nothing, and closes when there is news.
async fn until_closed(dialled: &mut Dialled) {
    while matches!(dialled.frames.next().await, Ok(Some(_))) {}
}

async fn dial_one(address: SocketAddr, target: &Target) -> Result<Dialled, Unreached> {
    let Target { plane, identity, pinned, timeout, silent_after, seeks } = target;
    let stream = port::connect(address, plane, identity, *timeout).await;
    let stream = stream.map_err(|error| Unreached {
        foreign: matches!(error, port::ConnectError::Foreign { .. } | port::ConnectError::FalseName { .. }),
        unserved: matches!(error, port::ConnectError::NoSuchPlane { .. }),
        incompatible: false,
        text: error.to_string(),
    })?;
    if let Some(pinned) = pinned.filter(|pinned| *pinned != stream.peer) {
        let text = format!(
            "{address} is not the coordinator that this peer registered with: that was {pinned}, which keeps its key, \
             and this is {}; if the key was lost, start the peers again",
            stream.peer
        );
        tracing::warn!(%address, %pinned, answered = %stream.peer, "refused a coordinator that is not ours");
        return Err(Unreached { foreign: true, unserved: false, incompatible: false, text });
    }
    notice_silence(&stream, *silent_after).map_err(|error| error.to_string())?;
    let standing = seeks.then(Standing::seeking);
    let greeted = port::greet_as(stream, identity.peer(), false, standing, *timeout).await;
    let greeted = greeted.map_err(|error| Unreached {
        incompatible: matches!(error, port::GreetError::Incompatible { .. }),
        ..Unreached::from(error.to_string())
    })?;
    let (coordinator, is_kept) = (greeted.peer, greeted.hello.key_is_kept);
    let standing = greeted.hello.standing;
    Ok(Dialled { frames: greeted.frames, version: greeted.version, coordinator, is_kept, standing })
}

/// A host that is cut off says nothing, and whoever waits for a verdict must find out. The kernel asks an idle
/// connection's other end, and gives up on one that acknowledges nothing. What is sent here is small, so a
/// coordinator that is merely stopped has room for it and its kernel goes on acknowledging.
fn notice_silence(stream: &AuthenticatedStream, limit: Duration) -> io::Result<()> {
    let (socket, _) = stream.stream.get_ref();
    let socket = SockRef::from(&**socket);
    // The kernel counts keep-alive in whole seconds.
    let interval = (limit / 2).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(interval).with_interval(interval))?;
    socket.set_tcp_user_timeout(Some(limit))
}
