use super::*;
use crate::membership::Preset;
use crate::port::{Port, Routes, Serving};
use crate::security::{ProcessKey, RunKeys, RunSecret, TlsIdentity};
use outlast_proto::wire::control::{Encryption, KickReason, Registration, SessionId};
use outlast_proto::wire::membership::MemberInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

fn clerk(fresh_after: Option<Instant>) -> (Clerk, Serving, mpsc::Sender<Inbox>, mpsc::Receiver<Inbox>) {
    let (inbox, letters) = mpsc::channel(4 * LETTERS_MAX);
    let secret = RunSecret::generate();
    let keys = RunKeys::derive(&secret, &"flooded".parse().unwrap());
    let port = Port::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let identity = TlsIdentity::derived(&keys, &ProcessKey::generate());
    let serving = port.serve(&Handle::current(), identity, Routes::new()).unwrap();
    let health = HealthSettings { preset: Preset::Local, stall_budget: None, dead_after: None };
    let config = Config::preset(Preset::Local);
    let address = port.address();
    let (inbox_of_clerk, watch) = (inbox.downgrade(), serving.watch());
    let credentials = Credentials::from(&secret);
    let clerk = Clerk::new(
        config,
        health,
        credentials,
        address,
        fresh_after,
        inbox_of_clerk,
        (watch, Arc::default()),
    );
    (clerk, serving, inbox, letters)
}

/// A timer of the machine must fire although somebody keeps the inbox full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_letters_does_not_keep_timers_and_health_waiting() {
    let (clerk, _serving, inbox, letters) = clerk(Some(clock::now() + Duration::from_millis(200)));
    let run: RunId = "flooded".parse().unwrap();
    let (queue, mut told) = mpsc::channel(64);
    let (id, peer) = (ConnectionId(1), PeerId::from_bytes([1; 16]));
    inbox.send(Inbox::Opened { run: run.clone(), id, peer, queue }).await.unwrap();
    let info = MemberInfo {
        id: peer,
        address: ([127, 0, 0, 1], 9).into(),
        closed_port: 0,
        name: "newcomer".to_owned(),
        meta: Vec::new(),
    };
    let registration = Registration {
        info,
        group: 0,
        session: SessionId([1; 16]),
        min_world: 1,
        encryption: Encryption::On,
        witness: None,
    };
    let message = Box::new(ToCoordinator::Register(registration, 1, 0));
    let share = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
    inbox.send(Inbox::Message { run: run.clone(), id, peer, message: Ok(message), share }).await.unwrap();
    // Letters that mean nothing, as fast as they are taken.
    let over = Arc::new(AtomicBool::new(false));
    let (flood, flooding, name) = (inbox.clone(), Arc::clone(&over), run.clone());
    let flooder = std::thread::spawn(move || {
        while !flooding.load(Ordering::Relaxed) {
            let letter = Inbox::Connected {
                run: name.clone(),
                token: (1, ConnectToken(u64::MAX)),
                outcome: ConnectOutcome::NotAsked,
            };
            if flood.blocking_send(letter).is_err() {
                return;
            }
        }
    });
    while inbox.capacity() > 2 * LETTERS_MAX {
        tokio::task::yield_now().await;
    }
    let ((stop, stopped), (_registrars, lives)) = (oneshot::channel(), oneshot::channel());
    let working = tokio::spawn(clerk.run(letters, stopped, lives));
    // It is admitted when the timer fires that waits for old members of the run.
    let admitted = tokio::time::timeout(Duration::from_secs(20), async {
        while let Some(message) = told.recv().await {
            if matches!(message, ToPeer::Epoch(_)) {
                return true;
            }
        }
        false
    })
    .await;
    assert_eq!(admitted, Ok(true), "the flood kept the timer from firing");
    over.store(true, Ordering::Relaxed);
    drop(stop);
    drop(inbox);
    assert_eq!(working.await.unwrap(), Ended::Told);
    flooder.join().unwrap();
}

/// A peer of the future says something that this coordinator has never heard of, on a real connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_cannot_be_read_is_told_why_before_the_line_is_closed() {
    let (clerk, _serving, inbox, letters) = clerk(None);
    let ((_stop, stopped), (_registrars, lives)) = (oneshot::channel(), oneshot::channel());
    let working = tokio::spawn(clerk.run(letters, stopped, lives));
    let secret = RunSecret::generate();
    let keys = RunKeys::derive(&secret, &"flooded".parse().unwrap());
    let port = Port::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let identity = TlsIdentity::derived(&keys, &ProcessKey::generate());
    let (me, lines) = (identity.peer(), inbox.clone());
    let routes = Routes::new().route(crate::port::CONTROL, move |stream| {
        drop(tokio::spawn(super::super::line::serve(stream, me, false, Post::default(), lines.clone())));
    });
    let _serving = port.serve(&Handle::current(), identity, routes).unwrap();
    let identity = TlsIdentity::derived(&keys, &ProcessKey::generate());
    let patience = Duration::from_secs(20);
    let address = port.address().to_string();
    let dialled = crate::coordinator::dial(&address, &identity, None, patience, patience);
    let mut frames = dialled.await.unwrap().frames;
    frames.send(&[0x82, 0x18, 250, 0x80]).await.unwrap();
    let answer = tokio::time::timeout(patience, frames.next()).await.unwrap().unwrap().expect("an answer");
    let answer: ToPeer = outlast_proto::wire::decode(&answer).unwrap();
    let ToPeer::Kicked { reason: KickReason::Breach, text, .. } = answer else { panic!("{answer:?}") };
    assert!(text.contains("variant 250") && text.contains("update the older side"), "{text}");
    let end = tokio::time::timeout(patience, frames.next()).await.unwrap();
    assert!(matches!(end, Ok(None)), "{end:?}");
    working.abort();
}
