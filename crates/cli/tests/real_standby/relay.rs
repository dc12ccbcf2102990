//! A wire between one coordinator and one member of etcd that can be cut: then nothing passes, and nobody is told.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a wire looks whether it is cut.
const GLANCE: Duration = Duration::from_millis(10);

/// The wires of one coordinator.
pub(crate) struct Relay {
    cut: Arc<AtomicBool>,
    ports: Vec<u16>,
}

impl Relay {
    /// Wires to these ports of this machine.
    pub(crate) fn to(targets: &[u16]) -> Self {
        let cut = Arc::new(AtomicBool::new(false));
        let ports = targets.iter().map(|target| listen(*target, &cut)).collect();
        Self { cut, ports }
    }

    /// What a coordinator is given.
    pub(crate) fn url(&self) -> String {
        let endpoints: Vec<_> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("etcd:{}", endpoints.join(","))
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.cut.store(is_cut, Ordering::SeqCst);
    }
}

fn listen(target: u16, cut: &Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (port, cut) = (listener.local_addr().expect("an address").port(), Arc::clone(cut));
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { continue };
            let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { continue };
            let (there, back) = (Arc::clone(&cut), Arc::clone(&cut));
            std::thread::spawn(move || carry(near, far, &there));
            std::thread::spawn(move || carry(far_too, near_too, &back));
        }
    });
    port
}

fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let _ = (from.set_read_timeout(Some(GLANCE)), from.set_nodelay(true), to.set_nodelay(true));
    let mut bytes = [0; 8_192];
    loop {
        if cut.load(Ordering::SeqCst) {
            std::thread::sleep(GLANCE);
            continue;
        }
        match from.read(&mut bytes) {
            Ok(read) if read > 0 && to.write_all(&bytes[..read]).is_ok() => {}
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            _ => break,
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}
