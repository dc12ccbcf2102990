//! The bytes of a sealed datagram.
//!
//! ```text
//!  0        1       2                 18       26         34                                        n-16      n
//!  +--------+-------+-----------------+--------+----------+---------------------------------------------+-----+
//!  | version| kind  | sender PeerId   | boot   | counter  | sent (6) | length (2) | body, padded to 32+ | tag |
//!  +--------+-------+-----------------+--------+----------+---------------------------------------------+-----+
//!  '--------------- in the clear, authenticated ----------'---------------- encrypted ------------------'
//! ```
//!
//! AES-256-GCM; the key belongs to (run, sender, boot), the nonce is the counter, which its one writer never
//! repeats. Authenticated besides the header: the run id, and for challenges and echoes the (peer, boot) they
//! are meant for, which therefore needs no room on the wire. All numbers are big-endian.
//!
//! Short bodies are padded, so that every datagram is at least as long as the challenge that may answer it.

use super::RefusedDatagram;
use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce};
use outlast_proto::id::{BootId, PeerId, RunId};
use outlast_proto::limits::{DATAGRAM_BYTES_MAX, DATAGRAM_OVERHEAD_BYTES, PACKET_BYTES_MAX};

/// The layout on this page.
pub(super) const VERSION: u8 = 1;
const HEADER_BYTES: usize = 2 + 16 + 8 + 8;
const PREFIX_BYTES: usize = 6 + 2;
const TAG_BYTES: usize = 16;
/// Bodies are padded to this: two nonces, the longest that a handshake carries.
pub(super) const BODY_BYTES_MIN: usize = 32;
/// The shortest datagram there is, and the length of every challenge and echo.
pub(super) const DATAGRAM_BYTES_MIN: usize = HEADER_BYTES + PREFIX_BYTES + BODY_BYTES_MIN + TAG_BYTES;

const _: () = assert!(HEADER_BYTES + PREFIX_BYTES + TAG_BYTES == DATAGRAM_OVERHEAD_BYTES);

/// What a datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It carries a packet.
    Data,
    /// "Prove that you live now": carries a nonce.
    Challenge,
    /// Carries the nonce back, and a nonce of its own if its sender has doubts too.
    Echo,
}

/// Who sealed a datagram, and as which one. A claim until the seal has been opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) sender: PeerId,
    pub(super) boot: BootId,
    pub(super) counter: u64,
}

/// What was under the seal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// When it was sealed, on the sender's clock.
    pub(super) sent_us: u64,
    pub(super) body: Vec<u8>,
}

/// Whom a challenge or an echo is meant for; data is meant for whoever it reaches.
pub(super) type Addressee = Option<(PeerId, BootId)>;

impl Header {
    /// Reads the clear part, having checked the length of the whole.
    pub(super) fn read(datagram: &[u8]) -> Result<Self, RefusedDatagram> {
        if datagram.len() > DATAGRAM_BYTES_MAX {
            return Err(RefusedDatagram::TooLong);
        }
        let (Some(header), true) =
            (datagram.first_chunk::<HEADER_BYTES>(), datagram.len() >= DATAGRAM_BYTES_MIN)
        else {
            return Err(RefusedDatagram::TooShort);
        };
        if header[0] != VERSION {
            return Err(RefusedDatagram::UnknownVersion(header[0]));
        }
        let kind = match header[1] {
            0 => Kind::Data,
            1 => Kind::Challenge,
            2 => Kind::Echo,
            other => return Err(RefusedDatagram::UnknownKind(other)),
        };
        let (mut sender, mut boot, mut counter) = ([0; 16], [0; 8], [0; 8]);
        sender.copy_from_slice(&header[2..18]);
        boot.copy_from_slice(&header[18..26]);
        counter.copy_from_slice(&header[26..34]);
        let (boot, counter) = (BootId(u64::from_be_bytes(boot)), u64::from_be_bytes(counter));
        Ok(Self { kind, sender: PeerId::from_bytes(sender), boot, counter })
    }

    fn write(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = VERSION;
        header[1] = match self.kind {
            Kind::Data => 0,
            Kind::Challenge => 1,
            Kind::Echo => 2,
        };
        header[2..18].copy_from_slice(self.sender.as_bytes());
        header[18..26].copy_from_slice(&self.boot.0.to_be_bytes());
        header[26..34].copy_from_slice(&self.counter.to_be_bytes());
        header
    }

    /// What the tag covers besides the ciphertext. The header has a fixed length and fixes by its kind whether
    /// an addressee follows the run, so no two inputs give the same bytes.
    fn associated_data(&self, run: &RunId, addressee: Addressee) -> Vec<u8> {
        let mut data = Vec::with_capacity(HEADER_BYTES + 1 + run.as_str().len() + 24);
        data.extend_from_slice(&self.write());
        data.push(run.as_str().len() as u8);
        data.extend_from_slice(run.as_str().as_bytes());
        if let Some((peer, boot)) = addressee {
            data.extend_from_slice(peer.as_bytes());
            data.extend_from_slice(&boot.0.to_be_bytes());
        }
        data
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.counter.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Appends the sealed datagram to `out`.
///
/// # Panics
/// If `body` is longer than a packet may be.
pub(super) fn seal(
    key: &LessSafeKey,
    run: &RunId,
    header: Header,
    addressee: Addressee,
    sent_us: u64,
    body: &[u8],
    out: &mut Vec<u8>,
) {
    assert!(
        body.len() <= PACKET_BYTES_MAX,
        "sealed a packet of {} bytes, the limit is {PACKET_BYTES_MAX}",
        body.len()
    );
    let start = out.len();
    out.reserve(DATAGRAM_OVERHEAD_BYTES + body.len().max(BODY_BYTES_MIN));
    out.extend_from_slice(&header.write());
    // Six bytes of microseconds last for nine years of one boot.
    out.extend_from_slice(&sent_us.to_be_bytes()[2..]);
    out.extend_from_slice(&(body.len() as u16).to_be_bytes());
    out.extend_from_slice(body);
    out.resize(out.len() + BODY_BYTES_MIN.saturating_sub(body.len()), 0);
    let tag = key
        .seal_in_place_separate_tag(
            header.nonce(),
            Aad::from(header.associated_data(run, addressee)),
            &mut out[start + HEADER_BYTES..],
        )
        .expect("AES-256-GCM seals whatever fits into a datagram");
    out.extend_from_slice(tag.as_ref());
}

/// Opens a datagram whose header was read. Anything but the original gives `Unauthentic`.
pub(super) fn open(
    key: &LessSafeKey,
    run: &RunId,
    header: &Header,
    addressee: Addressee,
    datagram: &[u8],
) -> Result<Content, RefusedDatagram> {
    let mut sealed = datagram[HEADER_BYTES..].to_vec();
    let opened = key
        .open_in_place(header.nonce(), Aad::from(header.associated_data(run, addressee)), &mut sealed)
        .map_err(|_| RefusedDatagram::Unauthentic)?
        .len();
    sealed.truncate(opened);
    let Some((prefix, padded)) = sealed.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(RefusedDatagram::Malformed);
    };
    let sent_us = prefix[..6].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let length = usize::from(u16::from_be_bytes([prefix[6], prefix[7]]));
    // One plaintext, one encoding: exactly the padding that `seal` writes.
    let honest = padded.len() == length.max(BODY_BYTES_MIN) && padded[length..].iter().all(|byte| *byte == 0);
    if !honest {
        return Err(RefusedDatagram::Malformed);
    }
    sealed.truncate(PREFIX_BYTES + length);
    sealed.drain(..PREFIX_BYTES);
    Ok(Content { sent_us, body: sealed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{RunKeys, RunSecret};

    fn sealed(kind: Kind, addressee: Addressee, body: &[u8]) -> (LessSafeKey, RunId, Vec<u8>) {
        let run: RunId = "run".parse().unwrap();
        let sender = PeerId::from_bytes([1; 16]);
        let keys = RunKeys::derive(&RunSecret::generate(), &run);
        let key = keys.datagram_key(0, sender, BootId(5));
        let mut out = Vec::new();
        let header = Header { kind, sender, boot: BootId(5), counter: 9 };
        seal(&key, &run, header, addressee, 0x0102_0304_0506, body, &mut out);
        (key, run, out)
    }

    #[test]
    fn what_was_sealed_is_opened() {
        for length in [0, 1, 31, 32, 33, 500, PACKET_BYTES_MAX] {
            let body: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let (key, run, datagram) = sealed(Kind::Data, None, &body);
            assert!(datagram.len() >= DATAGRAM_BYTES_MIN && datagram.len() <= DATAGRAM_BYTES_MAX);
            let header = Header::read(&datagram).unwrap();
            assert_eq!((header.kind, header.boot, header.counter), (Kind::Data, BootId(5), 9));
            let content = open(&key, &run, &header, None, &datagram).unwrap();
            assert_eq!(content, Content { sent_us: 0x0102_0304_0506, body });
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (key, run, datagram) = sealed(Kind::Data, None, b"hello");
        for bit in 0..datagram.len() * 8 {
            let mut altered = datagram.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            let outcome = Header::read(&altered).and_then(|header| open(&key, &run, &header, None, &altered));
            assert!(outcome.is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_run_and_another_addressee_do_not_open_it() {
        let addressee = Some((PeerId::from_bytes([2; 16]), BootId(1)));
        let (key, run, datagram) = sealed(Kind::Echo, addressee, &[7; 32]);
        let header = Header::read(&datagram).unwrap();
        assert!(open(&key, &run, &header, addressee, &datagram).is_ok());
        let refused = Err(RefusedDatagram::Unauthentic);
        assert_eq!(open(&key, &"ruN".parse().unwrap(), &header, addressee, &datagram), refused);
        let other = Some((PeerId::from_bytes([2; 16]), BootId(2)));
        assert_eq!(open(&key, &run, &header, other, &datagram), refused);
        assert_eq!(open(&key, &run, &header, None, &datagram), refused);
    }
}
