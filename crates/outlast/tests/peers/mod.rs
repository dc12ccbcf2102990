//! A coordinator and its peers in one process, on loopback: what most tests of communicators begin with.
#![allow(dead_code, reason = "each test binary uses its part of this page")]
#![allow(clippy::allow_attributes, reason = "an expectation would have to name each unused function")]

use outlast::communicator::CommunicatorBuilder;
use outlast::membership::Preset;
use outlast::{Communicator, Coordinator};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub(crate) fn coordinator() -> Coordinator {
    let listen = "127.0.0.1:0".parse().expect("an address");
    Coordinator::builder().listen(listen).preset(Preset::Local).start().expect("a coordinator")
}

/// A communicator of that coordinator's run, to be started.
pub(crate) fn builder(coordinator: &Coordinator) -> CommunicatorBuilder {
    Communicator::builder()
        .coordinator(coordinator.address().to_string())
        .secret(coordinator.secret().clone())
        .listen("127.0.0.1:0".parse().expect("an address"))
        .preset(Preset::Local)
        .timeout(Duration::from_secs(20))
}

pub(crate) fn peer(coordinator: &Coordinator, name: &str) -> Arc<Communicator> {
    Arc::new(builder(coordinator).name(name).start().expect("a communicator"))
}

/// Runs `program` as that many peers at once and gives back what each returned, by number.
pub(crate) fn each<T: Send + 'static>(
    coordinator: &Coordinator,
    count: usize,
    program: impl Fn(usize, Arc<Communicator>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let program = Arc::new(program);
    let threads: Vec<_> = (0..count)
        .map(|number| {
            let (comm, program) = (peer(coordinator, &format!("p{number}")), Arc::clone(&program));
            thread::spawn(move || program(number, comm))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().expect("a peer's program")).collect()
}

/// The same with a coordinator of their own, and all of them connected.
pub(crate) fn together<T: Send + 'static>(
    count: usize,
    program: impl Fn(Arc<Communicator>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    each(&coordinator(), count, move |_, comm| {
        comm.connect(count as u32).expect("admitted");
        program(comm)
    })
}
