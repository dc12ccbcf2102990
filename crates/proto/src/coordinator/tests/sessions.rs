//! Sessions: rule 18.

use super::bench::*;
use crate::wire::InvalidMessage;

#[test]
fn a_second_process_with_the_same_id_is_refused() {
    let mut bench = Bench::of(&[1, 2]);
    let (at, now) = (bench.connection(), bench.now);
    let mut thief = registration(2, 0, 1);
    thief.session = SessionId([99; 16]);
    bench.run.handle_message(now, at, id(2), ToCoordinator::Register(thief.clone(), 1, 0));
    bench.drain();
    bench.at.insert(9, at);
    assert_eq!(bench.kicked(9).unwrap().0, KickReason::Duplicate);
    let mut stolen = resume(2, record(1, &[1, 2]));
    stolen.registration = thief;
    let at = bench.connection();
    bench.run.handle_message(now, at, id(2), ToCoordinator::Resume(stolen));
    bench.drain();
    bench.at.insert(9, at);
    assert_eq!(bench.kicked(9).unwrap().0, KickReason::Duplicate);
    // The one whose id it is goes on.
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.all_say(&[1, 2], &ToCoordinator::Complete { key: key(1, 0, 0) });
    bench.assert_told(&[1, 2], &[commit(key(1, 0, 0))]);
}

#[test]
fn a_stream_that_was_given_up_cannot_speak_for_the_one_that_replaced_it() {
    let mut bench = Bench::of(&[1, 2]);
    bench.close(2);
    bench.resume(2, Resume { generation: 5, ..resume(2, record(1, &[1, 2])) });
    let (late, now) = (bench.connection(), bench.now);
    let message = ToCoordinator::Resume(Resume { generation: 4, ..resume(2, record(1, &[1, 2])) });
    bench.run.handle_message(now, late, id(2), message);
    // A registration of before its admission, even later.
    let later = bench.connection();
    bench.run.handle_message(now, later, id(2), ToCoordinator::Register(registration(2, 0, 1), 1, 0));
    bench.drain();
    assert_eq!(bench.closed, [late, later]);
    assert_eq!(bench.lost(), []);
    bench.told(2);
    bench.say(2, initiate(key(1, 0, 0)));
    assert_eq!(bench.kicked(2), None);
}

#[test]
fn a_resume_over_a_stream_that_we_believe_open_closes_that_one_first() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    let old = bench.at[&2];
    let mut back = resume(2, record(1, &[1, 2]));
    back.tags = vec![open(key(1, 0, 0), false)];
    bench.resume(2, back);
    assert_eq!(bench.closed, [old]);
    let lost = AbortReason::PeersLost(vec![(id(2), LossReason::Disconnected)]);
    bench.assert_told(&[1], &[abort(key(1, 0, 0), lost), ToPeer::Proceed { group: 0, epoch: 1 }]);
    assert_eq!(bench.told(2).last(), Some(&ToPeer::Proceed { group: 0, epoch: 1 }));
}

#[test]
fn votes_stand_after_a_resume() {
    let mut bench = Bench::of(&[1, 2]);
    bench.close(2);
    // It called and completed while it had no connection.
    let mut back = resume(2, record(1, &[1, 2]));
    back.tags = vec![open(key(1, 0, 0), true)];
    bench.resume(2, back);
    bench.clear();
    bench.say(1, initiate(key(1, 0, 0)));
    bench.say(1, ToCoordinator::Complete { key: key(1, 0, 0) });
    bench.assert_told(&[1, 2], &[commit(key(1, 0, 0))]);
    // So do votes for newcomers.
    bench.close(2);
    bench.resume(2, Resume { generation: 3, ballots: standing(1), ..resume(2, record(1, &[1, 2])) });
    bench.clear();
    bench.say(1, vote(1, 2));
    bench.assert_told(&[1, 2], &[agreed(1, 2, 2)]);
}

#[test]
fn the_end_of_a_vote_that_was_missed_is_told_again() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &vote(1, 2));
    // The news went down with the connection; 1 is in a collective already.
    bench.say(1, initiate(key(1, 0, 0)));
    bench.close(2);
    bench.resume(2, Resume { ballots: standing(1), ..resume(2, record(1, &[1, 2])) });
    let told = bench.told(2);
    let done = agreed(1, 2, 2);
    assert!(told.contains(&done), "{told:?}");
    assert!(
        !told
            .iter()
            .any(|message| matches!(message, ToPeer::BallotEnded { end: BallotEnd::Mismatch { .. }, .. })),
        "{told:?}"
    );
}

/// Verdicts that fell before the newest epoch are told behind it, and the connection may break in between (rule 43).
#[test]
fn to_know_an_epoch_does_not_prove_that_what_is_told_behind_it_was_heard() {
    let missed = abort(key(2, 0, 0), AbortReason::PeersLost(vec![(id(2), LossReason::Disconnected)]));
    let again = |generation, record| Resume { generation, ..resume(2, record) };
    let third = || EpochRecord { founder: founder(1), ..record(3, &[1, 2]) };
    // Its links are up, and what came behind the news of the epoch was lost.
    let broken_twice = || {
        let mut bench = Bench::of(&[1, 2, 3, 4]);
        bench.close(2);
        bench.say(3, ToCoordinator::Leave { for_good: false });
        bench.say(1, initiate(key(2, 0, 0)));
        bench.say(4, ToCoordinator::Leave { for_good: false });
        bench.resume(2, resume(2, record(1, &[1, 2, 3, 4])));
        for generation in 3..5 {
            let told = bench.told(2);
            assert!(told.contains(&missed), "{told:?}");
            bench.say(2, ToCoordinator::Connected { group: 0, epoch: 3 });
            bench.close(2);
            bench.resume(2, Resume { behind_from: Some(2), ..again(generation, third()) });
        }
        assert!(bench.told(2).contains(&missed));
        bench
    };
    // In the next epoch it hears everything in its order again.
    let mut next = broken_twice();
    next.register(5, 0, 1);
    next.all_say(&[1, 2], &vote(1, 3));
    next.say(2, ToCoordinator::Connected { group: 0, epoch: 4 });
    next.close(2);
    next.resume(2, again(5, record(4, &[1, 2, 5])));
    assert!(!next.told(2).contains(&missed));
    // Its vote proves it too: it was told to go on, and that is told last.
    let mut votes = broken_twice();
    votes.all_say(&[1, 2], &ToCoordinator::Connected { group: 0, epoch: 3 });
    votes.say(2, initiate(key(3, 1, 0)));
    votes.close(2);
    votes.resume(2, again(5, third()));
    assert!(!votes.told(2).contains(&missed));
}

#[test]
fn who_was_evicted_while_it_was_away_is_told() {
    let mut bench = Bench::of(&[1, 2]);
    bench.close(2);
    bench.wait(ms(10_000));
    bench.resume(2, resume(2, record(1, &[1, 2])));
    assert_eq!(bench.kicked(2).unwrap().0, KickReason::Evicted);
    // Whatever it says after that, too.
    bench.say(2, initiate(key(1, 0, 0)));
    assert_eq!(bench.kicked(2).unwrap().0, KickReason::Evicted);
}

#[test]
fn a_session_that_starts_from_the_beginning_leaves_what_it_was_in() {
    // It was admitted, and the news was lost with its connection.
    let mut bench = Bench::of(&[1, 2]);
    let (at, now) = (bench.connection(), bench.now);
    bench.run.handle_message(now, at, id(2), ToCoordinator::Register(registration(2, 0, 1), 2, 0));
    bench.drain();
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1)]);
    bench.at.insert(2, at);
    bench.say(1, vote(1, 2));
    assert_eq!(members(&bench.epoch(2).unwrap()), [id(1), id(2)]);
}

#[test]
fn a_flapping_connection_leaves_nothing_behind() {
    let mut bench = Bench::of(&[1, 2]);
    for generation in 2..500 {
        bench.close(2);
        bench.resume(2, Resume { generation, ..resume(2, record(1, &[1, 2])) });
    }
    assert!(bench.run.timers() <= 4, "{} timers", bench.run.timers());
    assert_eq!(bench.run.connections(), 2);
}

/// Registers peer 9 with plaintext data links.
fn register_plain(bench: &mut Bench) {
    let (at, now) = (bench.connection(), bench.now);
    bench.at.insert(9, at);
    let plain = Registration { encryption: Encryption::Off, ..registration(9, 0, 2) };
    bench.run.handle_message(now, at, id(9), ToCoordinator::Register(plain, 1, 0));
    bench.drain();
}

#[test]
fn a_peer_that_asks_for_another_encryption_is_told_so_and_disturbs_nobody() {
    let mut bench = Bench::of(&[1, 2]);
    register_plain(&mut bench);
    let (reason, text) = bench.kicked(9).unwrap();
    assert_eq!(reason, KickReason::Encryption);
    assert!(text.contains("encryption on") && text.contains("encryption off"), "{text}");
    bench.assert_told(&[1, 2], &[]);
    assert!(bench.run.status(bench.now).to_json().contains(r#""encryption":"on""#));
}

#[test]
fn whoever_comes_first_says_whether_links_are_encrypted_and_a_run_that_comes_back_says_it_again() {
    let mut bench = Bench::new();
    register_plain(&mut bench);
    assert!(bench.run.status(bench.now).to_json().contains(r#""encryption":"off""#));
    bench.register(1, 0, 1);
    assert_eq!(bench.kicked(1).unwrap().0, KickReason::Encryption);
    // This coordinator was restarted: the members of before come back, and their word counts.
    bench.resume(2, resume(2, record(3, &[2, 3])));
    assert_eq!(bench.kicked(9).unwrap().0, KickReason::Encryption);
    assert!(bench.run.status(bench.now).to_json().contains(r#""encryption":"on""#));
    let mut deviating = resume(3, record(3, &[2, 3]));
    deviating.registration.encryption = Encryption::Off;
    bench.resume(3, deviating);
    assert_eq!(bench.kicked(3).unwrap().0, KickReason::Encryption);
    assert_eq!(bench.kicked(2), None);
}

/// The registration of a later session of the same process.
fn again(number: u8, sessions: u8) -> Registration {
    let mut registration = registration(number, 0, 1);
    for _ in 0..sessions {
        registration.session = registration.session.next();
    }
    registration
}

fn register_again(bench: &mut Bench, number: u8, sessions: u8) {
    let at = bench.connection();
    bench.at.insert(number, at);
    let now = bench.now;
    bench.run.handle_message(now, at, id(number), ToCoordinator::Register(again(number, sessions), 1, 0));
    bench.drain();
}

#[test]
fn what_health_says_of_an_earlier_session_does_not_touch_the_next() {
    let mut bench = Bench::of(&[1, 2]);
    let declared = bench.now;
    bench.health(2, Sign::Dead(DeathReason::Silent));
    bench.wait(ms(5_000)); // Half of two are silent at once: it waits (rule 21).
    bench.health(2, Sign::Dead(DeathReason::Silent));
    assert_eq!(bench.lost(), [(id(2), LossReason::Dead(DeathReason::Silent))]);
    // It is back. The health plane has not noticed yet, and repeats what it said.
    bench.wait(ms(1_000));
    bench.clear();
    register_again(&mut bench, 2, 1);
    for sign in [Sign::Dead(DeathReason::Silent), Sign::Suspect, Sign::Stalled] {
        let now = bench.now;
        bench.run.handle_health_since(now, id(2), sign, declared);
        bench.drain();
    }
    bench.wait(ms(1_000));
    assert_eq!((bench.lost(), bench.kicked(2)), (vec![], None), "that was another session (rule 45)");
    // What is declared now is about this one.
    let now = bench.now;
    bench.run.handle_health_since(now, id(2), Sign::Dead(DeathReason::Exited), now);
    bench.drain();
    assert_eq!(bench.lost(), [(id(2), LossReason::Dead(DeathReason::Exited))]);
}

#[test]
fn a_later_session_of_the_same_process_takes_the_place_of_the_one_before() {
    let mut bench = Bench::of(&[1, 2]);
    register_again(&mut bench, 2, 1);
    assert_eq!(bench.kicked(2), None);
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1)], "what it was in before is over");
    // An earlier one does not come back, neither anew nor by resuming.
    let (late, later) = (bench.connection(), bench.connection());
    let now = bench.now;
    bench.run.handle_message(now, late, id(2), ToCoordinator::Register(registration(2, 0, 1), 9, 0));
    let old = Resume { generation: 9, ..resume(2, record(1, &[1, 2])) };
    bench.run.handle_message(now, later, id(2), ToCoordinator::Resume(old));
    bench.drain();
    assert!(bench.closed.contains(&late) && bench.closed.contains(&later));
    assert_eq!(bench.kicked(2), None);
}

#[test]
fn who_was_evicted_again_and_again_is_admitted_later_each_time() {
    let mut bench = Bench::of(&[1, 2, 3]);
    let mut pauses = Vec::new();
    for session in 1..=8 {
        bench.health(2, Sign::Dead(DeathReason::Exited));
        let state = &bench.run.groups[0];
        let (epoch, number) = (state.epoch, state.ballots.current(ADMISSION).number);
        bench.confirm(&[1, 3], epoch);
        bench.all_say(&[1, 3], &vote(3, number));
        bench.clear();
        let since = bench.now;
        register_again(&mut bench, 2, session);
        let admitted = |notes: &[Note]| notes.contains(&Note::Accepted(id(2)));
        while !admitted(&bench.notes) {
            bench.wait(ms(50));
            assert!(bench.now.since(since) < ms(6_000), "{pauses:?}");
        }
        pauses.push(bench.now.since(since).as_millis());
        let epoch = bench.run.groups[0].epoch;
        bench.confirm(&[1, 2, 3], epoch);
    }
    assert_eq!(pauses, [200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000]);
    // A commit in which it takes part makes it like anybody else.
    let epoch = bench.run.groups[0].epoch;
    bench.all_say(&[1, 2, 3], &initiate(key(epoch, 0, 0)));
    bench.all_say(&[1, 2, 3], &ToCoordinator::Complete { key: key(epoch, 0, 0) });
    assert_eq!(bench.run.gate.footprint(), 0);
}

/// 1, 2 and 3, who all have answered the health plane and whose kernels' word counts; and 4, who registers as being at 2's
/// address.
fn with_another_at_the_address_of_2() -> Bench {
    let mut bench = Bench::of(&[1, 2, 3]);
    for (_, peer) in bench.run.office.peers.iter_mut() {
        (peer.accepts, peer.refuses) = (Some(true), Some(true));
    }
    bench.wait(ms(1));
    for number in [1, 2, 3] {
        bench.health(number, Sign::Alive { acked: Some(bench.now) });
    }
    let mut newcomer = registration(4, 0, 1);
    newcomer.info.address = info(2).address;
    let (at, now) = (bench.connection(), bench.now);
    bench.at.insert(4, at);
    bench.run.handle_message(now, at, id(4), ToCoordinator::Register(newcomer, 1, 0));
    bench.drain();
    bench.knocks.clear();
    bench
}

#[test]
fn a_new_process_at_a_dead_peers_address_does_not_vouch_for_it() {
    let mut bench = with_another_at_the_address_of_2();
    bench.close(2);
    // The health plane, which hears the kernel of the newcomer, calls it stalled.
    bench.health(2, Sign::Stalled);
    let asked: Vec<_> = bench.disputes.iter().map(|(_, peer)| *peer).collect();
    assert_eq!(asked, [id(2)], "who accepts there is to prove who it is (rule 45)");
    // It proved to be 4, so 2 does not listen there.
    bench.answer_knocks(ConnectOutcome::Refused);
    bench.wait(ms(50));
    assert_eq!(bench.lost(), [(id(2), LossReason::Killed)], "who answers there is the newcomer (rule 45)");
}

#[test]
fn who_says_to_be_at_anothers_address_takes_nothing_from_it() {
    let mut bench = with_another_at_the_address_of_2();
    // The other one's connection breaks for a moment. Its kernel accepts, and nobody else proved to be there.
    bench.close(2);
    for _ in 0..20 {
        bench.answer_knocks(ConnectOutcome::Accepted);
        bench.wait(ms(60));
    }
    assert_eq!(bench.lost(), []);
    bench.resume(2, resume(2, record(1, &[1, 2, 3])));
    bench.wait(ms(60_000));
    assert_eq!(bench.lost(), []);
    // A peer whose address nobody else claims is asked for by its kernel alone.
    (bench.knocks, bench.disputes) = (Vec::new(), Vec::new());
    bench.close(3);
    assert_eq!((bench.knocks.len(), bench.disputes.len()), (1, 0));
}

#[test]
fn whoever_cannot_be_read_hears_why_and_goes() {
    let error = InvalidMessage::Newer("unknown enum variant 250".to_owned());
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2, 3], &initiate(key(1, 0, 0)));
    bench.clear();
    bench.run.handle_unreadable(bench.now, bench.at[&2], id(2), &error);
    bench.drain();
    assert_eq!(bench.lost(), [(id(2), LossReason::Kicked)], "with every resume it would say the same again");
    let (reason, text) = bench.kicked(2).expect("it is told");
    assert_eq!(reason, KickReason::Breach);
    assert!(text.contains("unknown enum variant 250") && text.contains("update the older side"), "{text}");
    assert_eq!(members(&bench.epoch(1).expect("the others go on")), [id(1), id(3)]);
    // A stranger, or a connection that its peer has given up, costs nobody its place.
    let (at, now) = (bench.connection(), bench.now);
    bench.clear();
    bench.run.handle_unreadable(now, at, id(3), &error);
    bench.drain();
    assert_eq!((bench.lost(), bench.closed.clone()), (Vec::new(), vec![at]));
    bench.at.insert(9, at);
    assert_eq!(bench.kicked(9).map(|(reason, _)| reason), Some(KickReason::Breach));
}
