//! What is wrong with an etcd, and what to do about it.

use std::time::Duration;
use tonic::{Code, Status};

/// Why etcd did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// Nobody there.
    #[error("etcd at {endpoint} cannot be reached: {cause}")]
    Unreachable {
        /// Where it should be.
        endpoint: String,
        /// What the operating system said.
        cause: String,
    },
    /// No answer in time: stopped, overloaded, or without a majority.
    #[error(
        "etcd did not answer within {0:?}; it may be overloaded, stopped, or without a majority of its members"
    )]
    Slow(Duration),
    /// The member has no leader: it was cut off from the others, or they elect one.
    #[error("etcd has no leader at the moment ({0}): most of its members are away, or they elect one")]
    NoLeader(String),
    /// The connection broke, or etcd is about to stop. What was asked may have been done.
    #[error("the connection to etcd broke: {0}")]
    Broken(String),
    /// Somebody else answers there, or an etcd of long ago.
    #[error(
        "{endpoint} does not speak etcd's v3 API ({cause}); check the address, and use etcd 3.4 or later"
    )]
    NotEtcd {
        /// Where.
        endpoint: String,
        /// What it did instead.
        cause: String,
    },
    /// TLS failed.
    #[error(
        "no TLS with etcd at {endpoint}: {cause}; check --etcd-ca, --etcd-cert and --etcd-key, and that the name is in its \
         certificate"
    )]
    Tls {
        /// Where.
        endpoint: String,
        /// What TLS said.
        cause: String,
    },
    /// The user, the password or the rights are wrong.
    #[error("etcd does not let us in: {0}; check --etcd-user, and its role's rights to the prefix")]
    Unauthorized(String),
    /// Its quota is used up.
    #[error(
        "etcd is full: {0}; compact and defragment it (etcdctl compact, etcdctl defrag), then etcdctl alarm disarm, or give \
         it more with --quota-backend-bytes"
    )]
    Full(String),
    /// The history that was asked for is gone; look at the present instead.
    #[error("etcd has compacted the history that was asked for")]
    Compacted,
    /// The lease has run out.
    #[error("the lease at etcd has run out")]
    LeaseGone,
    /// Anything else that will not work like this.
    #[error("etcd refused: {0}")]
    Refused(String),
}

impl EtcdError {
    /// Whether trying again may help.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Slow(_)
            | Self::NoLeader(_)
            | Self::Broken(_)
            | Self::Compacted
            | Self::LeaseGone => true,
            Self::NotEtcd { .. }
            | Self::Tls { .. }
            | Self::Unauthorized(_)
            | Self::Full(_)
            | Self::Refused(_) => false,
        }
    }

    pub(super) fn slow(endpoint: &str, timeout: Duration) -> Self {
        Self::Unreachable { endpoint: endpoint.to_owned(), cause: format!("no answer within {timeout:?}") }
    }

    pub(super) fn from_status(status: &Status) -> Self {
        let text = status.message().to_owned();
        match status.code() {
            Code::Unauthenticated | Code::PermissionDenied => Self::Unauthorized(text),
            Code::InvalidArgument if text.contains("authentication") || text.contains("user name") => {
                Self::Unauthorized(text)
            }
            Code::FailedPrecondition if text.contains("authentication is not enabled") => {
                Self::Unauthorized(format!("{text}: leave the user out, or enable it"))
            }
            Code::ResourceExhausted if text.contains("space exceeded") => Self::Full(text),
            Code::ResourceExhausted => Self::Broken(text),
            Code::Unavailable if text.contains("no leader") || text.contains("leader changed") => {
                Self::NoLeader(text)
            }
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal | Code::Aborted => {
                Self::Broken(text)
            }
            Code::DeadlineExceeded => Self::Broken(text),
            Code::OutOfRange if text.contains("compacted") => Self::Compacted,
            Code::NotFound if text.contains("lease") => Self::LeaseGone,
            Code::Unimplemented => Self::NotEtcd { endpoint: "the server".to_owned(), cause: text },
            code => Self::Refused(format!("{text} ({code:?})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_says_becomes_what_a_person_can_do_something_about() {
        let error = |code, text: &str| EtcdError::from_status(&Status::new(code, text));
        let full = error(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(!full.may_pass() && full.to_string().contains("defrag"), "{full}");
        let cut_off = error(Code::Unavailable, "etcdserver: no leader");
        assert!(cut_off.may_pass() && cut_off.to_string().contains("no leader"), "{cut_off}");
        let wrong = "etcdserver: authentication failed, invalid user ID or password";
        let wrong = error(Code::InvalidArgument, wrong);
        assert!(matches!(wrong, EtcdError::Unauthorized(_)) && !wrong.may_pass(), "{wrong}");
        let large = error(Code::InvalidArgument, "etcdserver: request is too large");
        assert!(matches!(&large, EtcdError::Refused(text) if text.contains("too large")), "{large}");
        let odd = error(Code::Unimplemented, "");
        assert!(!odd.may_pass() && odd.to_string().contains("v3 API"), "{odd}");
        assert_eq!(error(Code::NotFound, "etcdserver: requested lease not found"), EtcdError::LeaseGone);
        assert!(error(Code::Unavailable, "transport is closing").may_pass());
    }
}
