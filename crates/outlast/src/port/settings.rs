//! How much strangers and members may take, by how much there is.
//!
//! Descriptors are what runs out first: a shell gives a process 1,024 of them, and a training program wants most
//! of these for itself. So the port measures itself by the limit it finds.

use std::time::Duration;

/// Handshakes at once, however many files may be open.
const HANDSHAKES_MAX: usize = 256;
const HANDSHAKES_MIN: usize = 8;
/// Streams of one peer: a link with all its streams in both directions, health and control, twice over because an
/// old one may not have ended.
const STREAMS_PER_PEER_MAX: usize = 64;
/// What is assumed where the system does not say.
const FILES_UNKNOWN: usize = 1_024;

/// How much strangers and members may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeSettings {
    /// From the connect to the first byte. Our diallers speak at once.
    pub first_byte_timeout: Duration,
    /// From the connect to the end of the handshake.
    pub handshake_timeout: Duration,
    /// Handshakes at once.
    pub handshakes_max: usize,
    /// Of these, never given to strangers: kept for the addresses of members.
    pub handshakes_kept: usize,
    /// Handshakes at once from one strange address, or IPv6 network of 64 bits. A host may carry many members, so
    /// it is not small.
    pub handshakes_per_source_max: usize,
    /// Streams that were handed over and are not closed yet.
    pub streams_max: usize,
    /// Of these, of one peer.
    pub streams_per_peer_max: usize,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self::for_files(files_max())
    }
}

impl ServeSettings {
    /// An eighth of the files for handshakes, half of them for streams.
    pub fn for_files(files_max: usize) -> Self {
        let handshakes_max = (files_max / 8).clamp(HANDSHAKES_MIN, HANDSHAKES_MAX);
        Self {
            first_byte_timeout: Duration::from_secs(2),
            handshake_timeout: Duration::from_secs(10),
            handshakes_max,
            handshakes_kept: handshakes_max / 4,
            handshakes_per_source_max: handshakes_max / 2,
            streams_max: (files_max / 2).max(HANDSHAKES_MIN),
            streams_per_peer_max: STREAMS_PER_PEER_MAX,
        }
    }
}

/// How many files this process may have open.
fn files_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    // None is no limit: then memory is, and the caller has bounds of its own.
    limit.map_or(usize::MAX >> 1, |limit| usize::try_from(limit).unwrap_or(FILES_UNKNOWN))
}

/// Raises this process's soft limit of open files to its hard one. For programs of our own only: a library has no
/// business changing what its host's `select` and children see.
pub fn raise_files_max() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if raised != limit
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(%error, limit = ?limit.current, "cannot raise the limit of open files");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_takes_less_than_two_thirds_of_the_files_however_many_there_are() {
        for files in [64, 256, 1_024, 4_096, 1 << 20, usize::MAX >> 1] {
            let settings = ServeSettings::for_files(files);
            assert!(settings.handshakes_max + settings.streams_max <= files / 3 * 2, "{files}: {settings:?}");
            assert!(settings.handshakes_kept < settings.handshakes_max, "{settings:?}");
        }
        assert_eq!(ServeSettings::for_files(1_024).handshakes_max, 128);
    }
}
