//! Asking at a port: whether anything listens there, and, where that is disputed, who.
//!
//! A kernel's accept says that *some* process has the port. As a rule that is all there is to know, and it costs one packet
//! each way. But a process that died may have another one at its address, which registered there; and anybody who has the
//! run's secret may say that it is at somebody else's address. Neither word is taken for it (rule 45): whoever accepts shows
//! its certificate, and only one who is provably another peer speaks against the first.

use crate::port;
use crate::security::{Credentials, ProcessKey, TlsIdentity};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::membership::ConnectOutcome;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;

/// Asks a kernel.
pub(super) async fn knock(to: SocketAddr, timeout: Duration) -> ConnectOutcome {
    let connected = match tokio::time::timeout(timeout, TcpStream::connect(to)).await {
        Err(_) => return ConnectOutcome::Silent,
        Ok(connected) => connected.and_then(|stream| {
            // Closed by a reset, so that questions leave nothing behind.
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            Ok((stream.local_addr()?, stream.peer_addr()?))
        }),
    };
    ConnectOutcome::of(connected.map_err(|error| error.kind()))
}

/// Asks whether that peer has the port. If it is another one that proves itself there, the answer is `Refused`; if nobody
/// proves anything, it is what the kernel said.
pub(super) async fn knock_for(
    peer: PeerId,
    to: SocketAddr,
    identity: &TlsIdentity,
    timeout: Duration,
) -> ConnectOutcome {
    let outcome = knock(to, timeout).await;
    if outcome != ConnectOutcome::Accepted {
        return outcome;
    }
    match port::connect(to, port::PATH, identity, timeout).await {
        Ok(stream) if stream.peer != peer => ConnectOutcome::Refused,
        _ => ConnectOutcome::Accepted,
    }
}

/// How we show ourselves to peers of that run when we ask who they are. Whoever belongs to it may ask.
pub(super) fn identity_in(credentials: &Credentials, run: &RunId) -> Option<TlsIdentity> {
    let keys = credentials.keys(run)?;
    credentials.identity(&keys, &ProcessKey::generate()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{Port, Routes};
    use crate::security::RunSecret;
    use tokio::runtime::Handle;

    const PATIENCE: Duration = Duration::from_millis(500);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn only_who_proves_to_be_another_speaks_against_a_peer() {
        let (secret, run): (_, RunId) = (RunSecret::generate(), "disputed".parse().unwrap());
        let identity = || identity_in(&Credentials::from(&secret), &run).unwrap();
        let (there, asking) = (identity(), identity());
        let port = Port::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (listens, address) = (there.peer(), port.address());
        let serving = port.serve(&Handle::current(), there, Routes::new().route(port::PATH, drop)).unwrap();
        let other = PeerId::from_bytes([7; 16]);
        assert_eq!(knock_for(listens, address, &asking, PATIENCE).await, ConnectOutcome::Accepted);
        assert_eq!(knock_for(other, address, &asking, PATIENCE).await, ConnectOutcome::Refused);
        drop(serving);
        // A process that is stopped says nothing, and its kernel accepts.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        assert_eq!(knock_for(other, address, &asking, PATIENCE).await, ConnectOutcome::Accepted);
        drop(silent);
        assert_eq!(knock_for(other, address, &asking, PATIENCE).await, ConnectOutcome::Refused);
    }
}
