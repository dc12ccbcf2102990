//! Questions in the middle of a call. One that panics: nobody touches the caller's memory afterwards. One that takes its
//! time: nobody else waits for it.

mod peers;

use outlast::communicator::Call;
use outlast::watch::watched;
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
