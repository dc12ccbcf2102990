//! Training loops between real communicators: newcomers, losses, torn states, samples, checkpoints.
//!
//! The model of these tests adds up what its samples are worth, so that a sample that is used twice, or never, shows in
//! the sum: the state itself is the proof, and whole numbers leave no room for rounding.

mod peers;

use outlast::communicator::{Error, NextStep, SyncOptions};
use outlast::elastic::{Elastic, ElasticOptions, Step};
use outlast::state::SharedState;
use outlast::{Communicator, Coordinator};
use peers::{coordinator, each, peer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// The number of samples, their sum, and the sum of their squares.
fn fresh(value: f64) -> SharedState {
    let mut state = SharedState::new();
    state.insert("sums", vec![value; 3], &[3]).unwrap();
    state.set_revision(Some(0));
    state
}

fn worth(numbers: &[u64]) -> [f64; 3] {
    numbers
        .iter()
        .map(|number| *number as f64)
        .fold([0.0; 3], |[n, sum, squares], x| [n + 1.0, sum + x, squares + x * x])
}

fn options() -> ElasticOptions {
    ElasticOptions::new().timeout(PATIENCE)
}

/// One step that takes so many samples.
fn take(step: &mut Step<'_>, count: u64) -> Result<Vec<u64>, Error> {
    let numbers = step.samples(count)?;
    let mut sums = worth(&numbers);
    let receipt = step.average([&mut sums[..]], 1.0)?;
    let contributors = receipt.contributors.len() as f64;
    let state = step.state_mut()?.get_mut::<f64>("sums").unwrap();
    state.iter_mut().zip(sums).for_each(|(total, mean)| *total += (mean * contributors).round());
    Ok(numbers)
}

/// What the state must be if every number was used once, but for those that wait to be handed out again.
fn expected(elastic: &Elastic) -> Vec<f64> {
    let ledger = elastic.ledger();
    let holes = ledger.samples(0, 1, 0, ledger.open());
    let all: Vec<u64> =
        (0..ledger.consumed() + ledger.open()).filter(|number| !holes.contains(number)).collect();
    worth(&all).to_vec()
}

fn sums(elastic: &Elastic) -> Vec<f64> {
    elastic.state().get::<f64>("sums").unwrap().to_vec()
}

fn until(elastic: &mut Elastic, goal: u64) {
    while elastic.number() < goal {
        elastic.step(|step| take(step, 4)).expect("a step");
        assert_eq!(sums(elastic), expected(elastic), "after step {}", elastic.number());
    }
}

fn elastic(comm: Arc<Communicator>, state: SharedState, options: ElasticOptions) -> Elastic {
    Elastic::new(comm, state, options).expect("a loop")
}

fn commits(coordinator: &Coordinator) -> u64 {
    let status = coordinator.status(&"default".parse().unwrap()).unwrap().expect("the run is there");
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    status["commits"].as_u64().unwrap()
}

/// Waits until it is true.
fn wait(mut is_true: impl FnMut() -> bool, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_thousand_steps_without_a_fault_are_a_thousand_transactions_and_one_sync() {
    let coordinator = coordinator();
    let ends = each(&coordinator, 3, |_, comm| {
        let mut training = elastic(comm, fresh(0.0), options().min_world(3));
        until(&mut training, 1_000);
        (training.state().digest(), training.syncs(), training.ledger().consumed(), training.ledger().open())
    });
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    let (_, syncs, consumed, open) = ends[0];
    assert_eq!((syncs, consumed, open), (1, 12_000, 0));
    assert_eq!(commits(&coordinator), 1_000, "one transaction per step");
}

#[test]
fn a_newcomer_catches_up_and_the_trained_state_wins_over_fresh_ones() {
    let coordinator = coordinator();
    let progress = Arc::new(AtomicU64::new(0));
    let goal = 120;
    let train = move |comm: Arc<Communicator>, seen: Arc<AtomicU64>, start: f64| {
        let mut training = elastic(comm, fresh(start), options());
        while training.number() < goal {
            training.step(|step| take(step, 3)).expect("a step");
            assert_eq!(sums(&training), expected(&training));
            seen.fetch_max(training.number(), Ordering::SeqCst);
            thread::sleep(Duration::from_millis(2));
        }
        training.state().digest()
    };
    let (comm, seen) = (peer(&coordinator, "old"), Arc::clone(&progress));
    let first = thread::spawn(move || train(comm, seen, 0.0));
    wait(|| progress.load(Ordering::SeqCst) > 20, "the first steps");
    // Three who hold nonsense under revision 0.
    let others: Vec<_> = (0..3)
        .map(|number| {
            let (comm, seen) = (peer(&coordinator, &format!("new{number}")), Arc::clone(&progress));
            thread::spawn(move || train(comm, seen, 1e6))
        })
        .collect();
    let digest = first.join().unwrap();
    others.into_iter().for_each(|other| assert_eq!(other.join().unwrap(), digest));
}

/// Several who were let in together.
fn crew<T: Send + 'static>(
    coordinator: &Coordinator,
    count: usize,
    program: impl Fn(usize, Arc<Communicator>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    each(coordinator, count, move |number, comm| {
        comm.connect(count as u32).expect("admitted");
        program(number, comm)
    })
}

#[test]
fn samples_of_who_goes_are_handed_out_again_and_none_is_used_twice() {
    let ends = crew(&coordinator(), 4, |number, comm| {
        let mut training = elastic(Arc::clone(&comm), fresh(0.0), options());
        until(&mut training, 10);
        if number == 3 {
            // It takes samples and goes before their average.
            let gone = training.step(|step| {
                step.samples(5)?;
                comm.leave();
                Err::<(), _>(Error::InvalidArgument("gone".to_owned()))
            });
            assert!(gone.unwrap_err().to_string().contains("gone"));
            return None;
        }
        // Everybody takes another number of samples, so that holes come and go.
        while training.number() < 30 {
            training.step(|step| take(step, 1 + 2 * number as u64)).expect("a step");
            assert_eq!(sums(&training), expected(&training), "after step {}", training.number());
        }
        Some((training.state().digest(), training.ledger().clone()))
    });
    let ends: Vec<_> = ends.into_iter().flatten().collect();
    assert!(ends.len() == 3 && ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}

/// It was counted among those who hold the state, and the samples that were dealt to it became holes.
#[test]
fn who_deviates_is_dealt_no_samples() {
    let ends = crew(&coordinator(), 3, |number, comm| {
        let mut state = fresh(0.0);
        if number == 2 {
            state.insert("mine", vec![1.0_f64], &[1]).unwrap();
        }
        let mut training = elastic(Arc::clone(&comm), state, options());
        let first = training.step(|step| take(step, 4));
        if number == 2 {
            let error = first.expect_err("its keys are not those of the others");
            assert!(matches!(error, Error::StateMismatch(_)), "{error}");
            comm.leave();
            return None;
        }
        first.expect("a step");
        Some((training.ledger().consumed(), training.ledger().open()))
    });
    assert_eq!(ends[..], [Some((8, 0)), Some((8, 0)), None]);
}

#[test]
fn an_error_after_the_commit_tears_the_state_and_the_next_step_heals_it() {
    let ends = crew(&coordinator(), 3, |number, comm| {
        let mut training = elastic(comm, fresh(0.0), options());
        until(&mut training, 5);
        if number == 1 {
            let error = training.step(|step| {
                let mut sums = [1.0; 3];
                assert!(!step.committed());
                step.average([&mut sums[..]], 1.0)?;
                assert!(step.committed());
                step.state_mut()?.get_mut::<f64>("sums").unwrap()[1] = -1.0;
                Err::<(), _>(Error::InvalidArgument("a bug of the program".to_owned()))
            });
            assert!(error.unwrap_err().to_string().contains("a bug of the program"));
            assert!(training.state().is_torn() && training.state().revision().is_none());
            assert_eq!(training.number(), 6, "the step counts");
            let text = training.state().save("nowhere".as_ref()).unwrap_err().to_string();
            assert!(text.contains("no revision"), "{text}");
        } else {
            training.step(|step| take(step, 0)).expect("a step");
        }
        while training.number() < 25 {
            training.step(|step| take(step, 2)).expect("a step");
        }
        (training.state().digest(), training.ledger().consumed())
    });
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}

/// A training of one whose program failed after the commit of a step: its state is torn.
fn torn_alone(coordinator: &Coordinator) -> Elastic {
    let mut training = elastic(peer(coordinator, "alone"), fresh(0.0), options());
    until(&mut training, 2);
    let torn = training.step(|step| {
        step.average([&mut [0.0][..]], 1.0)?;
        Err::<(), _>(Error::InvalidArgument("now".to_owned()))
    });
    assert!(torn.is_err());
    training
}

#[test]
fn a_torn_state_without_a_donor_is_fatal() {
    let coordinator = coordinator();
    let mut training = torn_alone(&coordinator);
    let error = training.step(|step| take(step, 1)).unwrap_err();
    assert!(matches!(error, Error::NoDonor(_)) && error.action() == NextStep::Fatal, "{error}");
}

/// A loop that goes out to be healed means to come back. Its goodbye counted as the end of the training, and it was healed
/// with what a newcomer brought: nothing.
#[test]
fn who_goes_out_to_be_healed_is_not_healed_with_a_newcomers_nothing() {
    let coordinator = coordinator();
    let mut training = torn_alone(&coordinator);
    let late = peer(&coordinator, "late");
    let newcomer = thread::spawn(move || {
        let mut training = elastic(late, fresh(0.0), options());
        training.step(|step| take(step, 1)).map(|_| training.number())
    });
    let comm = Arc::clone(training.communicator());
    wait(|| comm.status().is_ok_and(|status| status.contains("late")), "the newcomer");
    let error = training.step(|step| take(step, 1)).unwrap_err();
    assert!(matches!(error, Error::NoDonor(_)) && training.state().is_torn(), "{error}");
    let error = newcomer.join().unwrap().expect_err("it has nothing that anybody agreed on");
    assert!(error.to_string().contains("last agreed on revision 3"), "{error}");
}

/// A newcomer came in and did not sync in time. The holders went out for it, and left the group to whatever it held.
#[test]
fn a_sync_that_times_out_does_not_send_the_holders_out() {
    let coordinator = coordinator();
    let (steps, timeouts, over) =
        (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let holders: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let comm = peer(&coordinator, name);
            let (steps, timeouts, over) = (Arc::clone(&steps), Arc::clone(&timeouts), Arc::clone(&over));
            thread::spawn(move || {
                let mut training = elastic(comm, fresh(0.0), options().timeout(Duration::from_secs(2)));
                while !over.load(Ordering::SeqCst) {
                    match training.step(|step| take(step, 1)) {
                        Ok(_) => steps.fetch_max(training.number(), Ordering::SeqCst),
                        Err(error) if error.action() == NextStep::Retry => {
                            timeouts.fetch_add(1, Ordering::SeqCst)
                        }
                        Err(error) => panic!("{name}: {error}"),
                    };
                }
            })
        })
        .collect();
    wait(|| steps.load(Ordering::SeqCst) > 10, "the first steps");
    let late = peer(&coordinator, "late");
    late.connect(3).expect("it is let in");
    let before = timeouts.load(Ordering::SeqCst);
    wait(|| timeouts.load(Ordering::SeqCst) >= before + 2, "holders that wait in vain");
    let mut state = fresh(1e6);
    let deadline = Instant::now() + PATIENCE;
    let report = loop {
        match late.sync_state(&mut state, &SyncOptions::new().timeout(PATIENCE)) {
            Ok(report) => break report,
            // It came in the very moment in which the others' time was over: they begin again, and so does it.
            Err(error) if error.action() == NextStep::Retry && Instant::now() < deadline => {}
            Err(error) => panic!("they are still here: {error}"),
        }
    };
    assert!(report.revision > 10 && report.members.len() == 3, "{report:?}");
    late.leave();
    over.store(true, Ordering::SeqCst);
    holders.into_iter().for_each(|holder| holder.join().expect("it went on"));
}

/// The bytes of a program replaced those of a state that had been trained before, and with them which samples it has used.
#[test]
fn extra_does_not_replace_the_ledger_of_a_loaded_state() {
    let (folder, coordinator) = (tempfile::tempdir().unwrap(), coordinator());
    let mut training = elastic(peer(&coordinator, "first"), fresh(0.0), options().extra(*b"mine"));
    until(&mut training, 3);
    let path = folder.path().join("3");
    training.state().save(&path).expect("a checkpoint");
    drop(training);
    let mut state = fresh(0.0);
    state.load(&path).expect("the same");
    let mut training = elastic(peer(&coordinator, "second"), state, options().extra(*b"other"));
    assert_eq!((training.number(), training.ledger().consumed(), training.extra()), (3, 12, &b"mine"[..]));
    until(&mut training, 5);
}

#[test]
fn means_are_weighted_and_a_sum_of_zero_is_an_error_for_all() {
    crew(&coordinator(), 3, |number, comm| {
        let mut training = elastic(comm, fresh(0.0), options());
        let mean = |training: &mut Elastic, weight: f64, value: f64| {
            training.step(|step| {
                let (mut wide, mut narrow) = ([value; 2], [value as f32; 5]);
                step.average(
                    [(&mut wide[..]).into(), (&mut narrow[..]).into()]
                        as [outlast::communicator::TensorMut<'_>; 2],
                    weight,
                )?;
                Ok::<_, Error>((wide[1], narrow[4]))
            })
        };
        for _ in 0..3 {
            // (1 * 6 + 2 * 60 + 3 * 600) / 6
            let place = number as i32;
            let (wide, narrow) = mean(&mut training, f64::from(place + 1), 6.0 * 10_f64.powi(place)).unwrap();
            assert!((wide - 321.0).abs() < 1e-9 && (narrow - 321.0).abs() < 1e-3, "{wide} {narrow}");
        }
        // Who has no data says so by its weight, whatever its tensor holds.
        let weight = if number == 1 { 2.0 } else { 0.0 };
        let value = if number == 1 { 5.0 } else { f64::NAN };
        assert_eq!(mean(&mut training, weight, value).unwrap(), (5.0, 5.0));
        let before = training.number();
        let error = mean(&mut training, 0.0, 1.0).unwrap_err();
        assert!(
            matches!(error, Error::InvalidArgument(_)) && error.to_string().contains("no mean"),
            "{error}"
        );
        assert_eq!(training.number(), before + 1, "it was committed, and changed nothing");
        assert_eq!(mean(&mut training, 1.0, 4.0).unwrap(), (4.0, 4.0), "and the loop goes on");
    });
    let coordinator = coordinator();
    let mut training = elastic(peer(&coordinator, "alone"), fresh(0.0), options());
    for weight in [f64::NAN, f64::INFINITY, -1.0] {
        let error = training.step(|step| step.average([&mut [0.0][..]], weight)).unwrap_err();
        assert!(error.to_string().contains("weight="), "{error}");
    }
    let error = training.step(|step| step.average([&mut [0_i32][..]], 1.0)).unwrap_err();
    assert!(error.to_string().contains("tensor 0 is i32"), "{error}");
    assert_eq!(training.number(), 0);
}

#[test]
fn a_step_averages_exactly_once_and_changes_its_state_only_then() {
    let coordinator = coordinator();
    let mut training = elastic(peer(&coordinator, "alone"), fresh(0.0), options());
    let none = training.step(|step| step.samples(1)).unwrap_err();
    assert!(none.to_string().contains("exactly once"), "{none}");
    let early = training.step(|step| step.state_mut().map(|_| ())).unwrap_err();
    assert!(early.to_string().contains("after the average"), "{early}");
    let late = training.step(|step| {
        let first = step.samples(2)?;
        assert_eq!((first, step.samples(1)?), (vec![0, 1], vec![2]), "a second helping goes on");
        step.average([&mut [0.0][..]], 1.0)?;
        step.samples(1)
    });
    assert!(late.unwrap_err().to_string().contains("before the average"));
    let many = training.step(|step| step.samples(1 << 40)).unwrap_err();
    assert!(matches!(many, Error::NoDonor(_)), "the state was torn, alone: {many}");
}

#[test]
fn too_few_members_wait_for_newcomers() {
    let coordinator = coordinator();
    let (first, second) = (peer(&coordinator, "a"), peer(&coordinator, "b"));
    let training = |comm: Arc<Communicator>, goal: u64| {
        let mut training = elastic(comm, fresh(0.0), options().min_world(2));
        until(&mut training, goal);
        training
    };
    let long = thread::spawn(move || training(first, 30).state().digest());
    let short = thread::spawn(move || training(second, 10).number());
    assert!(short.join().unwrap() >= 10);
    // One is left, and waits.
    thread::sleep(Duration::from_millis(300));
    assert!(!long.is_finished());
    let third = training(peer(&coordinator, "c"), 30);
    assert_eq!(long.join().unwrap(), third.state().digest());
}

#[test]
fn after_the_timeout_without_a_commit_it_raises() {
    let coordinator = coordinator();
    let short = ElasticOptions::new().min_world(2).timeout(Duration::from_millis(400));
    let mut training = elastic(peer(&coordinator, "alone"), fresh(0.0), short);
    let began = Instant::now();
    let error = training.step(|step| take(step, 1)).unwrap_err();
    assert_eq!(error.action(), NextStep::Retry, "{error}");
    assert!(began.elapsed() >= Duration::from_millis(400));
}

#[test]
fn a_silent_difference_is_found_named_and_healed() {
    let ends = crew(&coordinator(), 3, |number, comm| {
        let me = comm.peer_id();
        let mut training = elastic(comm, fresh(0.0), options().verify_every(10));
        until(&mut training, 10);
        training
            .step(|step| {
                let taken = take(step, 4)?;
                if number == 1 {
                    step.state_mut()?.get_mut::<f64>("sums").unwrap()[2] += 1.0;
                }
                Ok::<_, Error>(taken)
            })
            .unwrap();
        while training.number() < 21 {
            training.step(|step| take(step, 4)).unwrap();
        }
        let report = training.last_sync().unwrap();
        assert_eq!((report.revision, training.syncs()), (20, 3));
        assert_eq!(sums(&training), expected(&training), "it is what it should be, everywhere");
        (number, me, report.diverged.clone(), report.healed.clone())
    });
    let (_, culprit, ..) = ends.iter().find(|end| end.0 == 1).cloned().unwrap();
    for (_, _, diverged, healed) in ends {
        assert_eq!((diverged, healed), (vec![culprit], vec![(culprit, vec!["sums".to_owned()])]));
    }
}

#[test]
fn after_everything_died_the_newest_whole_checkpoint_goes_on_among_empty_members() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    crew(&coordinator(), 2, move |_, comm| {
        let mut training = elastic(comm, fresh(0.0), options().checkpoint(&path, 10).extra(*b"mine"));
        until(&mut training, 47);
        training.close();
        assert_eq!(training.saved().1, None);
    });
    // One by each of the writers at most; what is half-written or damaged is passed over.
    let path = folder.path().to_owned();
    std::fs::create_dir(path.join(".50.partial-0")).unwrap();
    std::fs::create_dir(path.join("50")).unwrap();
    std::fs::write(path.join("50/manifest.json"), "{").unwrap();
    let ends = each(&coordinator(), 4, move |number, comm| {
        let options = options().min_world(4);
        let options = if number == 2 { options.checkpoint(&path, 0) } else { options };
        let mut training = elastic(comm, fresh(0.0), options);
        assert_eq!(training.number(), if number == 2 { 40 } else { 0 });
        training.step(|step| take(step, 4)).unwrap();
        assert_eq!((training.number(), training.extra()), (41, &b"mine"[..]));
        until(&mut training, 60);
        (training.state().digest(), training.ledger().consumed())
    });
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    assert_eq!(ends[0].1, 40 * 2 * 4 + 20 * 4 * 4);
}

#[test]
fn a_folder_in_which_no_checkpoint_is_whole_is_an_error_and_not_a_fresh_start() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("50")).unwrap();
    std::fs::write(folder.path().join("50/manifest.json"), "{").unwrap();
    let coordinator = coordinator();
    let options = options().checkpoint(folder.path(), 10);
    let error = Elastic::new(peer(&coordinator, "alone"), fresh(0.0), options).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(_)) && error.to_string().contains("50"), "{error}");
}

#[test]
fn a_member_that_left_comes_back_with_the_next_step() {
    let ends = crew(&coordinator(), 2, |number, comm| {
        let mut training = elastic(Arc::clone(&comm), fresh(0.0), options());
        until(&mut training, 5);
        if number == 0 {
            comm.leave();
        }
        while training.number() < 60 {
            training.step(|step| take(step, 4)).expect("a step");
            assert_eq!(sums(&training), expected(&training));
            thread::sleep(Duration::from_millis(2));
        }
        training.state().digest()
    });
    assert_eq!(ends[0], ends[1]);
}

/// One that was let in and got nothing fails, and is started again. Its end counted as the end of the training.
#[test]
fn a_fresh_member_that_gave_up_does_not_end_the_training_of_others() {
    let coordinator = coordinator();
    let mut training = elastic(peer(&coordinator, "old"), fresh(0.0), options());
    until(&mut training, 25);
    for name in ["new", "again"] {
        let mut alone = {
            let newcomer = peer(&coordinator, name);
            if name == "new" {
                let old = Arc::clone(training.communicator());
                let joining = Arc::clone(&newcomer);
                let joining = thread::spawn(move || joining.connect(1).map(|_| ()));
                wait(|| old.update_topology(1).unwrap().joined.len() == 1, "the newcomer");
                joining.join().unwrap().unwrap();
                old.leave();
            }
            elastic(newcomer, fresh(0.0), options())
        };
        let error = alone.step(|step| take(step, 1)).unwrap_err();
        assert!(error.to_string().contains("last agreed on revision 25"), "{name}: {error}");
        // The first ends in good order, and had nothing that it could end.
        alone.communicator().leave();
    }
}

/// Whoever has finished says so, and the next training begins from nothing.
#[test]
fn a_training_that_ended_gives_way_to_another_and_one_that_was_dropped_does_not() {
    let coordinator = coordinator();
    let train = |name: &str, goal| {
        let mut training = elastic(peer(&coordinator, name), fresh(0.0), options());
        training.step(|step| take(step, 4)).map(|_| {
            until(&mut training, goal);
            training
        })
    };
    train("first", 5).unwrap().communicator().leave();
    drop(train("second", 3).unwrap());
    let error = train("third", 1).map(|training| training.number()).unwrap_err();
    assert!(error.to_string().contains("last agreed on revision 3"), "{error}");
}

#[test]
fn a_fresh_member_never_trains_in_the_place_of_a_model_whose_holders_died() {
    let coordinator = coordinator();
    let folder = tempfile::tempdir().unwrap();
    {
        let mut training =
            elastic(peer(&coordinator, "old"), fresh(0.0), options().checkpoint(folder.path(), 10));
        until(&mut training, 25);
        training.close();
        let old = Arc::clone(training.communicator());
        // A newcomer is let in, and the only one who has the model is gone before it could give it.
        let newcomer = peer(&coordinator, "new");
        let joining = {
            let newcomer = Arc::clone(&newcomer);
            thread::spawn(move || newcomer.connect(1).map(|_| ()))
        };
        wait(|| old.update_topology(1).unwrap().joined.len() == 1, "the newcomer");
        joining.join().unwrap().unwrap();
        old.leave();
        let mut alone = elastic(newcomer, fresh(0.0), options());
        let error = alone.step(|step| take(step, 1)).unwrap_err();
        assert!(matches!(error, Error::NoDonor(_)), "{error}");
        assert!(error.to_string().contains("last agreed on revision 25"), "{error}");
        // Whoever has a checkpoint goes on, though it is older; the one without gets it.
        let path = folder.path().to_owned();
        let third = peer(&coordinator, "third");
        let resumed = thread::spawn(move || {
            let mut training = elastic(third, fresh(0.0), options().checkpoint(path, 0));
            training.step(|step| take(step, 4)).map(|_| training.number())
        });
        // It is in already, so it lets the other in and then syncs.
        wait(|| alone.communicator().update_topology(2).unwrap().joined.len() == 1, "the third");
        alone.step(|step| take(step, 4)).unwrap();
        assert_eq!((resumed.join().unwrap().unwrap(), alone.number()), (21, 21));
        assert_eq!(sums(&alone), expected(&alone));
    }
}
