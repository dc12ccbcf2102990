//! Sealed datagrams: who sent this, is it new, does its sender live?
//!
//! # The problem
//!
//! Health travels in datagrams over networks that others can read, copy, delay and write to. A forged "I am
//! dead" must not evict anybody; but a *genuine* datagram at the wrong time or place is as dangerous: copies
//! of a dead member's last words would keep it alive, and a newcomer has no memory with which to recognise
//! copies at all.
//!
//! # The intuition
//!
//! Each start of each process (a *boot*) seals under a key of its own and numbers what it seals. A receiver
//! keeps, for each boot that it believes, a window over the numbers, and it believes a boot only after that
//! boot has echoed a nonce which the receiver made up for it a moment ago (rule 33). The dead cannot echo.
//!
//! ```text
//!  A (new boot)                                     B
//!    |-- Data(ping) -------------------------------->|  opens, boot unknown: keep the ping, believe nothing
//!    |<------------------- Challenge(nonce b) -------|  (B keeps no other state: the nonce is a keyed hash)
//!    |-- Echo(b, and nonce a: A does not know B) --->|  A lives now: believed; the kept ping is delivered
//!    |<------------------------------ Echo(a) -------|  B lives now: believed
//!    |<------------------------------ Data(ack) -----|
//! ```
//!
//! # What others can do
//!
//! Whoever has the secret is a member, and members trust each other. Whoever does not have it can:
//!
//! - *Forge or alter*: no. The seal covers the header, the run id and, in a handshake, the addressee.
//! - *Replay to the same receiver*: no. The window refuses each number the second time, and a window starts
//!   above the number of the echo that made it, so nothing from before the handshake is taken.
//! - *Replay an old boot's datagrams*, to a newcomer or after a restart: no. The old boot never echoes; the
//!   newcomer's challenge comes to nothing. A boot that a newer one replaced is refused without a challenge.
//! - *Bring a datagram to a member it was not meant for*, or hold one back and release it later: for at most
//!   [`LATENESS_MAX`] beyond the fastest trip (see `outlast_proto::wire::lateness`), counted from sending time
//!   under the seal. It then still says something true, namely that its sender lived that recently. (An answer
//!   in it is for somebody else: whoever reads packets takes answers only from the peer it asked.) Whoever
//!   holds back *every* datagram of a pair can age the gauge by its drift allowance, 3.6 s in an hour, and by
//!   a nonce's lifetime when it delays an echo; it could as well cut the pair off.
//! - *Relay a handshake* between two members that cannot reach each other: yes, and that is a network. Belief
//!   is in a (sender, boot), never in an address.
//! - *Reflect*: our own datagrams come back to us and are refused by their sender. A replayed challenge is
//!   answered only by the boot it was meant for, with an echo that checks out nowhere else.
//! - *Amplify*: no. Each datagram gets at most one answer, and no answer is longer than what it answers.
//! - *Fill our memory*: no. Belief takes an echo; the stash and the log are bounded; nonces are not kept.
//! - *Cost us time*: one key derivation and one failed opening for each datagram, some microseconds.
//!
//! While a secret is rotated a guard has two. It opens under both, answers under the one that it was spoken to
//! under, and speaks to whom it believes under the one that this one proved itself with.
//!
//! A host that was suspended finds its datagrams late, because its clock stood still: it is challenged again,
//! and its echo starts a new gauge.
//!
//! # The invariant
//!
//! [`Opened::Packet`] is returned at most once for anything that was sealed, and only for a boot that has
//! echoed a nonce of this very guard.
//!
//! # What it does not do
//!
//! It opens no socket and reads no clock but to stamp what it seals. It does not hide who talks to whom, nor
//! how much, nor how long a datagram is. It does not tell members apart who share the secret.

mod counters;
mod envelope;
mod nonce;
mod stash;
#[cfg(test)]
mod tests;

pub use counters::{DatagramCounters, RefusedDatagram};

use super::{RefusalLog, RunKeys};
use aws_lc_rs::aead::LessSafeKey;
use envelope::{Addressee, BODY_BYTES_MIN, Content, Header, Kind};
use nonce::{ChallengeNonce, NonceMint};
use outlast_proto::id::{BootId, PeerId};
use outlast_proto::limits::MEMBERS_MAX;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::lateness::{LATENESS_MAX, LatenessGauge};
use outlast_proto::wire::replay::{Freshness, ReplayWindow};
use stash::{Stash, Stashed};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Boots that are remembered as replaced, for each sender. Two processes that share a peer id by mistake are
/// told apart by it: the later one stays.
const RETIRED_BOOTS: usize = 4;
/// A believed sender whose datagrams are late is challenged no more often than this.
const LATE_CHALLENGE_INTERVAL: Duration = Duration::from_secs(1);
/// In an echo: "I do not need one from you". A nonce is a keyed hash and never comes out like this.
const NO_NONCE: ChallengeNonce = [0; 16];

/// Seals what this process sends and opens what it receives. One for each (peer, boot), because it counts the
/// nonces of their key; a forked child must not use its copy.
///
/// The caller sends what [`DatagramGuard::seal`] appends, passes each received datagram to
/// [`DatagramGuard::open`], and sends the replies that come back to where the datagram came from.
pub struct DatagramGuard {
    keys: Arc<RunKeys>,
    me: PeerId,
    boot: BootId,
    /// Ours, one for each secret that the run is known by here.
    own: Vec<LessSafeKey>,
    /// The number of the last datagram sealed, under whichever of them.
    counter: u64,
    /// What sending times count from. Receivers compare them only with each other.
    started: std::time::Instant,
    mint: NonceMint,
    believed: BTreeMap<PeerId, Believed>,
    believed_max: usize,
    stash: Stash,
    counters: DatagramCounters,
    log: RefusalLog,
}

/// A sender that has proved itself.
struct Believed {
    boot: BootId,
    key: LessSafeKey,
    /// Under which of our secrets it speaks, and is spoken to.
    generation: usize,
    window: ReplayWindow,
    gauge: LatenessGauge,
    heard: Instant,
    late_challenge: Option<Instant>,
    /// Oldest first.
    retired: Vec<BootId>,
}

/// What became of a received datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum Opened {
    /// An authentic and fresh packet. `reply`, if any, goes back to where the datagram came from, before
    /// anything else does.
    Packet {
        /// Who sealed it.
        sender: PeerId,
        /// What was sealed.
        plaintext: Vec<u8>,
        /// What to send back.
        reply: Option<Vec<u8>>,
    },
    /// A step of a handshake: nothing for us; send these bytes back to where the datagram came from.
    Reply(Vec<u8>),
    /// The last step of a handshake: this sender is believed now; nothing to read, nothing to send.
    Settled(PeerId),
    /// Refused and counted; nothing else happened.
    Refused(RefusedDatagram),
}

impl DatagramGuard {
    /// A guard that believes nobody yet. `boot` must be fresh (see [`super::fresh_boot_id`]).
    pub fn new(keys: Arc<RunKeys>, me: PeerId, boot: BootId) -> Self {
        Self {
            own: (0..keys.generations()).map(|generation| keys.datagram_key(generation, me, boot)).collect(),
            keys,
            me,
            boot,
            counter: 0,
            started: std::time::Instant::now(),
            mint: NonceMint::new(),
            believed: BTreeMap::new(),
            believed_max: MEMBERS_MAX,
            stash: Stash::default(),
            counters: DatagramCounters::default(),
            log: RefusalLog::new("datagram"),
        }
    }

    /// Appends the sealed `plaintext` to `out`, for whoever has our secret.
    ///
    /// # Panics
    /// If `plaintext` is longer than `limits::PACKET_BYTES_MAX`.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut Vec<u8>) {
        self.seal_at(self.started.elapsed(), plaintext, out);
    }

    /// Under which secrets to seal for `peer`, for [`Self::seal_under`]: the one that it speaks under. Who is not
    /// believed yet may have any of ours, so while a secret is rotated the first words go out under each.
    pub fn generations_for(&self, peer: Option<PeerId>) -> std::ops::Range<usize> {
        match peer.and_then(|peer| self.believed.get(&peer)) {
            Some(known) => known.generation..known.generation + 1,
            None => 0..self.own.len(),
        }
    }

    /// Appends the `plaintext`, sealed under one of our secrets, to `out`.
    ///
    /// # Panics
    /// If `plaintext` is longer than `limits::PACKET_BYTES_MAX`, or there is no such secret.
    pub fn seal_under(&mut self, generation: usize, plaintext: &[u8], out: &mut Vec<u8>) {
        self.counters.sealed += 1;
        self.seal_kind(Kind::Data, generation, None, self.started.elapsed(), plaintext, out);
    }

    /// Like [`DatagramGuard::seal`], with the sending time passed in: the time since an origin of the caller's
    /// choice on a clock that only grows. Do not mix the two.
    pub fn seal_at(&mut self, sent: Duration, plaintext: &[u8], out: &mut Vec<u8>) {
        self.counters.sealed += 1;
        self.seal_kind(Kind::Data, 0, None, sent, plaintext, out);
    }

    /// Opens one datagram that came from `from`.
    pub fn open(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) -> Opened {
        self.open_at(now, self.started.elapsed(), from, datagram)
    }

    /// Like [`DatagramGuard::open`]; `sending` stamps the replies, as in [`DatagramGuard::seal_at`].
    pub fn open_at(&mut self, now: Instant, sending: Duration, from: SocketAddr, datagram: &[u8]) -> Opened {
        let opened = self.admit(now, sending, from, datagram);
        match opened {
            Ok(opened) => {
                if let Opened::Reply(reply) | Opened::Packet { reply: Some(reply), .. } = &opened {
                    assert!(reply.len() <= datagram.len(), "an answer is never longer than what it answers");
                }
                self.counters.accepted += u64::from(matches!(opened, Opened::Packet { .. }));
                opened
            }
            Err(cause) => {
                self.counters.count(cause);
                if cause.is_suspicious() {
                    self.log.report(now, from.ip(), &cause);
                }
                Opened::Refused(cause)
            }
        }
    }

    /// What the guard did so far.
    pub fn counters(&self) -> &DatagramCounters {
        &self.counters
    }

    /// Senders that are believed now.
    pub fn believed(&self) -> usize {
        self.believed.len()
    }

    /// Packets that wait for their sender's echo.
    pub fn stashed(&self) -> usize {
        self.stash.len()
    }

    fn admit(
        &mut self,
        now: Instant,
        sending: Duration,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Result<Opened, RefusedDatagram> {
        let header = Header::read(datagram)?;
        if header.sender == self.me {
            return Err(RefusedDatagram::OwnName);
        }
        match self.believed.get(&header.sender) {
            Some(known) if known.boot == header.boot => {
                self.admit_known(now, sending, from, &header, datagram)
            }
            Some(known) if known.retired.contains(&header.boot) => Err(RefusedDatagram::RetiredBoot),
            _ => self.admit_unknown(now, sending, from, &header, datagram),
        }
    }

    /// A datagram that claims to come from a boot that we believe.
    fn admit_known(
        &mut self,
        now: Instant,
        sending: Duration,
        from: SocketAddr,
        header: &Header,
        datagram: &[u8],
    ) -> Result<Opened, RefusedDatagram> {
        let addressee = self.addressee_of(header.kind);
        let known = self.believed.get_mut(&header.sender).expect("the caller found it");
        // Looking first spares the opening of copies; only what opened may move the window.
        if known.window.look(header.counter) != Freshness::Fresh {
            return Err(RefusedDatagram::Replayed);
        }
        let content = envelope::open(&known.key, self.keys.run(), header, addressee, datagram)?;
        let freshness = known.window.mark(header.counter);
        assert_eq!(freshness, Freshness::Fresh, "nothing came between looking and marking");
        let late = known.gauge.read(now, content.sent_us) > LATENESS_MAX;
        let generation = known.generation;
        match header.kind {
            Kind::Data if late => {
                let again = now - LATE_CHALLENGE_INTERVAL;
                if known.late_challenge.is_some_and(|last| last > again) {
                    return Err(RefusedDatagram::Late);
                }
                known.late_challenge = Some(now);
                self.counters.count(RefusedDatagram::Late);
                Ok(self.challenge(now, sending, from, header, generation))
            }
            Kind::Data => {
                known.heard = now;
                Ok(Opened::Packet { sender: header.sender, plaintext: content.body, reply: None })
            }
            Kind::Challenge => {
                let [nonce, _] = nonces(&content)?;
                Ok(Opened::Reply(self.echo(sending, header, generation, nonce, NO_NONCE)))
            }
            Kind::Echo => {
                let [nonce, asked] = nonces(&content)?;
                if !self.mint.check(now, header.sender, header.boot, from, &nonce) {
                    return Err(RefusedDatagram::StaleNonce);
                }
                known.heard = now;
                if late {
                    known.gauge = LatenessGauge::from_recent(now, content.sent_us);
                }
                Ok(match asked {
                    NO_NONCE => Opened::Settled(header.sender),
                    asked => Opened::Reply(self.echo(sending, header, generation, asked, NO_NONCE)),
                })
            }
        }
    }

    /// A datagram that claims to come from a boot that we know nothing of.
    fn admit_unknown(
        &mut self,
        now: Instant,
        sending: Duration,
        from: SocketAddr,
        header: &Header,
        datagram: &[u8],
    ) -> Result<Opened, RefusedDatagram> {
        let (generation, key, content) = self.open_unknown(header, datagram)?;
        let &Header { sender, boot, counter, .. } = header;
        match header.kind {
            Kind::Data => {
                let Content { sent_us, body: plaintext } = content;
                let packet = Stashed { sender, boot, counter, sent_us, plaintext };
                self.counters.stash_dropped += self.stash.put(packet);
                Ok(self.challenge(now, sending, from, header, generation))
            }
            Kind::Challenge => {
                let [nonce, _] = nonces(&content)?;
                let ours = self.mint.mint(now, sender, boot, from);
                Ok(Opened::Reply(self.echo(sending, header, generation, nonce, ours)))
            }
            Kind::Echo => {
                let [nonce, asked] = nonces(&content)?;
                if !self.mint.check(now, sender, boot, from, &nonce) {
                    return Err(RefusedDatagram::StaleNonce);
                }
                self.believe(now, header, generation, key, content.sent_us);
                let reply =
                    (asked != NO_NONCE).then(|| self.echo(sending, header, generation, asked, NO_NONCE));
                Ok(match (self.take_stashed(header, content.sent_us), reply) {
                    (Some(plaintext), reply) => Opened::Packet { sender, plaintext, reply },
                    (None, Some(reply)) => Opened::Reply(reply),
                    (None, None) => Opened::Settled(sender),
                })
            }
        }
    }

    /// Opens a datagram of a boot that is not believed, under whichever of our secrets fits. The key is derived again
    /// for each datagram: a cache would be the strangers' to fill.
    fn open_unknown(
        &self,
        header: &Header,
        datagram: &[u8],
    ) -> Result<(usize, LessSafeKey, Content), RefusedDatagram> {
        let addressee = self.addressee_of(header.kind);
        let mut refused = RefusedDatagram::Unauthentic;
        for generation in 0..self.own.len() {
            let key = self.keys.datagram_key(generation, header.sender, header.boot);
            match envelope::open(&key, self.keys.run(), header, addressee, datagram) {
                Ok(content) => return Ok((generation, key, content)),
                Err(cause) => refused = cause,
            }
        }
        Err(refused)
    }

    /// `header`'s boot has proved that it lives: it takes the place of any other boot of its peer.
    fn believe(&mut self, now: Instant, header: &Header, generation: usize, key: LessSafeKey, sent_us: u64) {
        self.counters.boots_believed += 1;
        let mut retired = Vec::new();
        if let Some(replaced) = self.believed.remove(&header.sender) {
            self.counters.boots_retired += 1;
            retired = replaced.retired;
            retired.push(replaced.boot);
            if retired.len() > RETIRED_BOOTS {
                retired.remove(0);
            }
        } else if self.believed.len() >= self.believed_max {
            // Only holders of the secret get here, so the search is not a stranger's to trigger.
            let longest_silent =
                self.believed.iter().min_by_key(|(_, known)| known.heard).map(|(peer, _)| *peer);
            if let Some(peer) = longest_silent {
                self.believed.remove(&peer);
                self.counters.senders_evicted += 1;
            }
        }
        let known = Believed {
            boot: header.boot,
            key,
            generation,
            window: ReplayWindow::after(header.counter),
            gauge: LatenessGauge::from_recent(now, sent_us),
            heard: now,
            late_challenge: None,
            retired,
        };
        self.believed.insert(header.sender, known);
    }

    /// The packet that waited for this echo, unless it is not of the same moment: somebody may have brought us
    /// an old packet of a living boot.
    fn take_stashed(&mut self, echo: &Header, echo_sent_us: u64) -> Option<Vec<u8>> {
        let kept = self.stash.take(echo.sender, echo.boot)?;
        let before = kept.counter < echo.counter && kept.sent_us <= echo_sent_us;
        if before && u128::from(echo_sent_us - kept.sent_us) <= LATENESS_MAX.as_micros() {
            return Some(kept.plaintext);
        }
        self.counters.stash_dropped += 1;
        None
    }

    fn challenge(
        &mut self,
        now: Instant,
        sending: Duration,
        from: SocketAddr,
        to: &Header,
        generation: usize,
    ) -> Opened {
        self.counters.challenges_sent += 1;
        let nonce = self.mint.mint(now, to.sender, to.boot, from);
        Opened::Reply(self.handshake(Kind::Challenge, generation, sending, to, [nonce, NO_NONCE]))
    }

    fn echo(
        &mut self,
        sending: Duration,
        to: &Header,
        generation: usize,
        nonce: ChallengeNonce,
        ours: ChallengeNonce,
    ) -> Vec<u8> {
        self.counters.echoes_sent += 1;
        self.handshake(Kind::Echo, generation, sending, to, [nonce, ours])
    }

    fn handshake(
        &mut self,
        kind: Kind,
        generation: usize,
        sending: Duration,
        to: &Header,
        [first, second]: [ChallengeNonce; 2],
    ) -> Vec<u8> {
        let mut body = [0; BODY_BYTES_MIN];
        body[..16].copy_from_slice(&first);
        body[16..].copy_from_slice(&second);
        let mut out = Vec::new();
        self.seal_kind(kind, generation, Some((to.sender, to.boot)), sending, &body, &mut out);
        out
    }

    fn seal_kind(
        &mut self,
        kind: Kind,
        generation: usize,
        to: Addressee,
        sent: Duration,
        body: &[u8],
        out: &mut Vec<u8>,
    ) {
        self.counter += 1;
        let header = Header { kind, sender: self.me, boot: self.boot, counter: self.counter };
        envelope::seal(
            &self.own[generation],
            self.keys.run(),
            header,
            to,
            sent.as_micros() as u64,
            body,
            out,
        );
    }

    fn addressee_of(&self, kind: Kind) -> Addressee {
        (kind != Kind::Data).then_some((self.me, self.boot))
    }
}

impl fmt::Debug for DatagramGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramGuard")
            .field("me", &self.me)
            .field("boot", &self.boot)
            .field("believed", &self.believed.len())
            .finish_non_exhaustive()
    }
}

/// The two nonces of a handshake's body.
fn nonces(content: &Content) -> Result<[ChallengeNonce; 2], RefusedDatagram> {
    let body: &[u8; BODY_BYTES_MIN] =
        content.body.as_slice().try_into().map_err(|_| RefusedDatagram::Malformed)?;
    let (mut first, mut second) = (NO_NONCE, NO_NONCE);
    first.copy_from_slice(&body[..16]);
    second.copy_from_slice(&body[16..]);
    Ok([first, second])
}
