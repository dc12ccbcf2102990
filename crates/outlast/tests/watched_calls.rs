//! Questions in the middle of a call. One that panics: nobody touches the caller's memory afterwards. One that takes its
//! time: nobody else waits for it.

mod peers;

use outlast::communicator::{Call, Error};
use outlast::watch::watched;
use outlast::{Communicator, Coordinator};
use outlast_proto::session::CallError;
use peers::{coordinator, peer};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const COUNT: usize = 1_000;

#[test]
fn nobody_touches_the_memory_after_a_call_has_unwound_while_another_drives() {
    let coordinator = coordinator();
    let (a, b) = (peer(&coordinator, "a"), peer(&coordinator, "b"));
    let other = Arc::clone(&b);
    let joining = thread::spawn(move || other.connect(2).expect("admitted"));
    a.connect(2).expect("admitted");
    joining.join().unwrap();
    let call = |tag: u64| Call::sum().tag(tag).timeout(Duration::from_secs(3)).retry(false);
    thread::scope(|scope| {
        let (a, b) = (&a, &b);
        // Somebody drives: a call that the other never makes.
        scope.spawn(move || a.all_reduce(&mut vec![1.0_f32; COUNT], &call(0)).map(drop));
        thread::sleep(Duration::from_millis(200));
        let mut tensor = vec![1.0_f32; COUNT];
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let stop = || panic!("a handler that panics");
            watched(Duration::from_millis(50), stop, || a.all_reduce(&mut tensor, &call(1)))
        }));
        assert!(unwound.is_err(), "{unwound:?}");
        // The call is over: the memory is ours again, whatever the other does.
        tensor.fill(-1.0);
        let late = scope.spawn(move || b.all_reduce(&mut vec![1.0_f32; COUNT], &call(1)).map(drop));
        assert!(late.join().unwrap().is_err(), "the first has left it");
        assert_eq!(tensor, [-1.0; COUNT], "nothing was written after the call had returned");
        // And it is a member like any other.
        let again = scope.spawn(move || b.all_reduce(&mut vec![1.0_f32; COUNT], &call(2)));
        a.all_reduce(&mut tensor, &call(2)).unwrap();
        again.join().unwrap().unwrap();
        assert_eq!(tensor, [0.0; COUNT]);
    });
}

#[test]
fn a_handler_that_takes_its_time_on_the_driving_thread_holds_up_no_other_call() {
    let coordinator = coordinator();
    let (a, b) = (peer(&coordinator, "a"), peer(&coordinator, "b"));
    let other = Arc::clone(&b);
    let joining = thread::spawn(move || other.connect(2).expect("admitted"));
    a.connect(2).expect("admitted");
    joining.join().unwrap();
    let call = |tag: u64| Call::sum().tag(tag).timeout(Duration::from_secs(30)).retry(false);
    let (asked, released) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let until = |flag: &AtomicBool| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !flag.load(Ordering::SeqCst) && Instant::now() < deadline {
            thread::yield_now();
        }
        flag.load(Ordering::SeqCst)
    };
    thread::scope(|scope| {
        let (a, b) = (&a, &b);
        let (is_asked, is_released) = (Arc::clone(&asked), Arc::clone(&released));
        // It drives: no other call is under way. It is asked, and the answer comes after the other call.
        let slow = scope.spawn(move || {
            let stop = move || {
                is_asked.store(true, Ordering::SeqCst);
                assert!(until(&is_released), "the other call never ended");
                false
            };
            let mut tensor = vec![1.0_f32; COUNT];
            watched(Duration::from_millis(20), stop, || a.all_reduce(&mut tensor, &call(0))).map(drop)
        });
        assert!(until(&asked), "nobody was asked");
        let theirs = scope.spawn(move || b.all_reduce(&mut vec![1.0_f32; COUNT], &call(1)).map(drop));
        let ours = a.all_reduce(&mut vec![1.0_f32; COUNT], &call(1)).map(drop);
        assert!(!slow.is_finished());
        released.store(true, Ordering::SeqCst);
        ours.unwrap();
        theirs.join().unwrap().unwrap();
        b.all_reduce(&mut vec![1.0_f32; COUNT], &call(0)).unwrap();
        slow.join().unwrap().unwrap();
    });
}

/// Two members of a run.
fn pair() -> (Coordinator, Arc<Communicator>, Arc<Communicator>) {
    let coordinator = coordinator();
    let (a, b) = (peer(&coordinator, "a"), peer(&coordinator, "b"));
    let other = Arc::clone(&b);
    let joining = thread::spawn(move || other.connect(2).expect("admitted"));
    a.connect(2).expect("admitted");
    joining.join().unwrap();
    (coordinator, a, b)
}

#[test]
fn a_closure_in_the_background_that_panics_gives_its_data_back_and_costs_no_other_call() {
    let (_coordinator, a, b) = pair();
    let call = |tag: u64| Call::sum().tag(tag).timeout(Duration::from_secs(30));
    let closing = a.in_background(vec![1.0_f32; COUNT], move |comm, data| {
        comm.all_reduce(data, &call(0))?;
        panic!("a closure that panics")
    });
    let (there, receipt) =
        b.in_background(vec![2.0_f32; COUNT], move |comm, data| comm.all_reduce(data, &call(0))).wait();
    assert!(receipt.is_ok() && there == [3.0; COUNT], "{receipt:?}");
    let (data, outcome) = closing.wait();
    assert_eq!(data, [3.0; COUNT], "what it had done is done");
    assert!(matches!(&outcome, Err(Error::Panicked(text)) if text == "a closure that panics"), "{outcome:?}");
    let handles = [&a, &b].map(|comm| comm.in_background((), move |comm, ()| comm.barrier(&call(0))));
    for ((), receipt) in handles.map(outlast::communicator::Handle::wait) {
        receipt.expect("the tag is free, and both are members like any others");
    }
}

/// The second call took the first one's place, whose caller then waited until long after its deadline.
#[test]
fn of_two_votes_at_once_the_second_is_refused_and_the_first_ends() {
    let (coordinator, a, b) = pair();
    let voter = Arc::clone(&a);
    let first = thread::spawn(move || voter.update_topology_within(2, Duration::from_secs(30)));
    let deadline = Instant::now() + Duration::from_secs(20);
    let run = "default".parse().expect("a run id");
    while !coordinator.status(&run).unwrap().is_some_and(|status| status.contains("VoteAcceptNewPeers")) {
        assert!(Instant::now() < deadline && !first.is_finished(), "the first votes, and waits for b");
        thread::sleep(Duration::from_millis(5));
    }
    let second = a.update_topology_within(2, Duration::from_secs(20));
    let refused = second.as_ref().err().and_then(Error::cause);
    assert_eq!(refused, Some(&CallError::VoteInFlight { name: "update_topology" }), "{second:?}");
    b.update_topology_within(2, Duration::from_secs(20)).expect("a's first vote stands");
    first.join().unwrap().expect("it ends with b's");
}
