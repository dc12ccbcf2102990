//! Our own stalls, what kernels are worth, and coming, going and coming back.

use super::*;

#[test]
fn after_a_stall_of_our_own_we_accuse_nobody() {
    let mut stage = Stage::new(7);
    stage.run(ms(2_000));
    stage.freeze(ms(5_000));
    stage.run(ms(5_000));
    assert!(stage.events.is_empty(), "{:?}", stage.events);
    assert_eq!(stage.machine.stalls(), 1);
}

#[test]
fn a_stall_of_our_own_restarts_the_waits_against_others() {
    let mut stage = Stage::new(1);
    stage.script(1, CUT);
    stage.run(ms(8_000));
    stage.freeze(ms(5_000));
    stage.run(ms(5_000));
    assert_eq!(stage.died(1), None, "we were away for most of dead_after");
    stage.run(ms(8_000));
    assert_eq!(stage.died(1), Some(DeathReason::SilentTooLong));
}

#[test]
fn what_lay_in_the_socket_while_we_stood_still_is_not_judged_by_the_leapt_clock() {
    let mut stage = Stage::new(7);
    stage.script(1, CUT);
    stage.run(ms(9_000));
    stage.freeze(ms(6_000));
    // The driver hands in what arrived before it runs the late timers.
    stage.accuse(1, 2, Silence::Silent);
    assert_eq!(stage.died(1), None, "we were away for most of dead_after");
}

#[test]
fn who_was_heard_before_a_stall_of_our_own_still_talks_after_it() {
    // Behind a rejecting firewall: refused by everybody, and heard.
    let mut stage = Stage::new(7);
    stage.script(1, KILLED);
    for _ in 0..20 {
        stage.run(ms(200));
        stage.say(1, None, vec![]);
        stage.accuse(1, 2, Silence::Refused);
        stage.accuse(1, 3, Silence::Refused);
    }
    stage.freeze(ms(6_000));
    stage.run(ms(900));
    assert_eq!(stage.died(1), None, "we have not listened long enough: {:?}", stage.events);
}

#[test]
fn the_claim_of_an_old_stall_is_not_taken_over_by_who_would_have_seen_it() {
    let mut stage = Stage::new(7);
    stage.now += ms(20_000);
    stage.script(1, STOPPED);
    let (member, voucher, kind) = (peer(1), peer(2), SignOfLife::Kernel);
    let record = Record::Vouch { member, incarnation: 0, voucher, kind, age_ms: 0, silent_ms: 9_000 };
    stage.say(2, None, vec![record]);
    stage.run(ms(12_000));
    assert_eq!(stage.died(1), None, "{:?}", stage.events);
}

#[test]
fn a_stall_is_not_dated_by_who_alone_missed_the_answers() {
    // Its answers did not reach us for five seconds. Then it is stopped in truth, and others say since when.
    let stalled = |voucher, kind, age_ms, silent_ms| {
        let (member, voucher) = (peer(1), peer(voucher));
        Record::Vouch { member, incarnation: 0, voucher, kind, age_ms, silent_ms }
    };
    let dies_at = |words: &[Record]| {
        let mut stage = Stage::new(7);
        stage.script(1, STOPPED);
        let start = stage.now;
        stage.run(ms(5_000));
        words.iter().for_each(|word| stage.say(2, None, vec![word.clone()]));
        stage.run(ms(18_000));
        let (at, reason) = stage.death(1).expect("a death");
        assert_eq!(reason, DeathReason::StalledTooLong);
        at.since(start).as_millis()
    };
    let kernel = SignOfLife::Kernel;
    assert!((15_000..17_500).contains(&dies_at(&[])));
    let others = [2, 3, 4].map(|voucher| stalled(voucher, kernel, 0, 400));
    assert!((19_500..21_500).contains(&dies_at(&others)));
    // With one who agrees with us we are not alone.
    let agrees = [stalled(5, kernel, 0, 4_900), stalled(2, kernel, 0, 400), stalled(3, kernel, 0, 400)];
    assert!((15_000..17_500).contains(&dies_at(&agrees)));
    // An answer to somebody else counts, though it is older than our own last question.
    assert!((18_000..20_500).contains(&dies_at(&[stalled(2, SignOfLife::Acked, 2_000, 0)])));
}

#[test]
fn that_somebody_is_deaf_is_not_believed_before_our_own_wait_is_over() {
    let mut stage = Stage::new(7);
    stage.script(1, CUT);
    stage.run(ms(3_000));
    let (member, reason) = (peer(1), DeathReason::Deaf);
    for _ in 0..20 {
        stage.say(1, None, vec![]);
        stage.say(2, None, vec![Record::Dead { member, incarnation: 0, reason, accusers: vec![peer(2)] }]);
        stage.run(ms(200));
    }
    assert_eq!(stage.died(1), None, "{:?}", stage.events);
    for _ in 0..40 {
        stage.say(1, None, vec![]);
        stage.run(ms(200));
    }
    assert_eq!(stage.died(1), Some(DeathReason::Deaf));
}

#[test]
fn a_stalled_member_does_not_die_of_deafness_that_somebody_remembers() {
    let mut stage = Stage::new(7);
    stage.script(1, STOPPED);
    stage.run(ms(2_000));
    let (member, reason) = (peer(1), DeathReason::Deaf);
    stage.say(2, None, vec![Record::Dead { member, incarnation: 0, reason, accusers: vec![peer(2)] }]);
    stage.run(ms(11_000));
    assert_eq!(stage.died(1), None, "{:?}", stage.events);
}

#[test]
fn a_member_that_nobody_answers_goes_on_talking() {
    let mut stage = Stage::new(3);
    (1..=3).for_each(|number| stage.script(number, CUT));
    stage.run(ms(3_000));
    for _ in 0..12 {
        stage.sent.clear();
        stage.run(ms(410));
        let pings =
            stage.sent.iter().filter(|(_, _, _, packet)| matches!(packet.body, Some(Body::Ping { .. })));
        assert!(pings.count() > 0, "silent for two intervals at {:?}", stage.now);
    }
}

#[test]
fn an_untried_kernel_proves_nothing() {
    // A newcomer whose closed port accepts: something between us answers for others (rule 22).
    let mut stage = Stage::new(3);
    stage.script(9, Script { closed: ConnectOutcome::Accepted, ..LIVE });
    stage.say(9, None, vec![Record::Alive { info: info(9), incarnation: 0 }]);
    stage.run(ms(3_000));
    let member = stage.machine.active(stage.now).into_iter().find(|m| m.info.id == peer(9)).unwrap();
    assert_eq!(member.kernel_trusted, Some(false));
    stage.script(9, STOPPED);
    stage.run(ms(3_000));
    assert_eq!(stage.health(9), "suspect", "not stalled: the kernel's accept is worth nothing");
}

#[test]
fn a_tried_kernel_is_believed() {
    let mut stage = Stage::new(3);
    stage.script(9, LIVE);
    stage.say(9, None, vec![Record::Alive { info: info(9), incarnation: 0 }]);
    stage.run(ms(3_000));
    stage.script(9, STOPPED);
    stage.run(ms(3_000));
    assert_eq!(stage.health(9), "stalled");
}

#[test]
fn who_was_stalled_before_we_came_does_not_die_of_an_old_list() {
    // We know member 9 by hearsay only; a side that was cut off remembers it as dead, and it cannot object.
    let mut stage = Stage::new(7);
    stage.script(9, STOPPED);
    stage.say(2, None, vec![Record::Alive { info: info(9), incarnation: 0 }]);
    let (member, reason) = (peer(9), DeathReason::SilentTooLong);
    stage.say(3, None, vec![Record::Dead { member, incarnation: 0, reason, accusers: vec![peer(3)] }]);
    stage.run(ms(3_000));
    assert_eq!(stage.died(9), None);
    assert_eq!(stage.health(9), "stalled");
}

/// Somebody whom we have not met, and who is said to be where member 1 is.
fn at_the_address_of_1() -> Arc<MemberInfo> {
    Arc::new(MemberInfo { id: peer(40), ..(*info(1)).clone() })
}

#[test]
fn a_port_that_another_member_took_over_no_longer_speaks_for_the_first() {
    let mut stage = Stage::new(3);
    stage.script(1, STOPPED);
    let alive = Record::Alive { info: at_the_address_of_1(), incarnation: 0 };
    stage.say(2, None, vec![alive]);
    // It speaks from there.
    let source = Source { id: peer(40), address: info(1).address, path: Path::Datagram };
    stage.machine.handle_packet(stage.now, source, Packet { body: None, records: vec![] });
    stage.carry_out();
    stage.run(ms(500));
    stage.accuse(1, 2, Silence::Refused);
    stage.run(ms(200));
    assert_eq!(stage.died(1), Some(DeathReason::Refused));
}

#[test]
fn who_is_only_said_to_be_at_anothers_address_takes_nothing_from_it() {
    // One holder of the secret can say so by datagram, and register so; the other one is stopped and cannot object.
    for by_registration in [false, true] {
        let mut stage = Stage::new(3);
        stage.script(1, STOPPED);
        if by_registration {
            stage.machine.handle_registration(stage.now, (*at_the_address_of_1()).clone());
            stage.carry_out();
        } else {
            stage.say(2, None, vec![Record::Alive { info: at_the_address_of_1(), incarnation: 0 }]);
        }
        stage.run(ms(500));
        stage.accuse(1, 2, Silence::Refused);
        stage.run(ms(2_000));
        assert_eq!((stage.died(1), stage.health(1)), (None, "stalled"), "by registration: {by_registration}");
    }
}

#[test]
fn a_member_that_stopped_before_it_said_a_word_is_found_stalled_if_the_roster_named_it() {
    let mut stage = Stage::new(3);
    stage.script(9, STOPPED);
    stage.run(ms(500));
    assert_eq!(stage.health(9), "unknown");
    stage.machine.handle_roster(stage.now, &[(*info(1)).clone(), (*info(9)).clone(), (*info(0)).clone()]);
    stage.carry_out();
    stage.run(ms(3_000));
    assert_eq!((stage.health(9), stage.health(1)), ("stalled", "alive"));
    assert_eq!(stage.machine.size(), 5, "four who were there before");
}

#[test]
fn a_roster_is_no_sign_of_life() {
    let mut stage = Stage::new(3);
    stage.script(1, KILLED);
    stage.run(ms(2_000));
    stage.accuse(1, 2, Silence::Refused);
    stage.run(ms(300));
    assert_eq!(stage.health(1), "dead");
    // Of who is dead it changes nothing; and of who was never there we find out the same.
    stage.script(9, CUT);
    stage.machine.handle_roster(stage.now, &[(*info(1)).clone(), (*info(9)).clone()]);
    stage.carry_out();
    assert_eq!(stage.health(1), "dead");
    stage.run(ms(15_000));
    assert_eq!((stage.health(1), stage.died(9)), ("dead", Some(DeathReason::SilentTooLong)));
}

#[test]
fn what_is_said_against_us_is_refuted_with_a_higher_incarnation() {
    let member = peer(0);
    let kernel = SignOfLife::Kernel;
    let words = [
        Record::Suspect { member, incarnation: 0, accuser: peer(2), kind: Silence::Silent, age_ms: 0 },
        Record::Vouch { member, incarnation: 0, voucher: peer(2), kind: kernel, age_ms: 0, silent_ms: 9 },
        Record::Dead { member, incarnation: 0, reason: DeathReason::Silent, accusers: vec![] },
        Record::Leave { member, incarnation: 0 },
    ];
    for word in words {
        let mut stage = Stage::new(3);
        stage.say(1, None, vec![word.clone()]);
        let alive = Record::Alive { info: info(0), incarnation: 1 };
        assert!(stage.sent.iter().any(|(.., packet)| packet.records.contains(&alive)), "{word:?}");
    }
}

#[test]
fn who_refuted_a_suspicion_too_late_still_learns_that_it_was_given_up() {
    let mut stage = Stage::new(3);
    let (member, reason) = (peer(0), DeathReason::StalledTooLong);
    let suspect =
        Record::Suspect { member, incarnation: 0, accuser: peer(2), kind: Silence::Silent, age_ms: 0 };
    let dead = Record::Dead { member, incarnation: 0, reason, accusers: vec![] };
    stage.say(1, None, vec![suspect]);
    stage.say(1, None, vec![dead.clone()]);
    stage.say(2, None, vec![dead]);
    let told: Vec<_> = stage.events.iter().map(|(_, event)| event.clone()).collect();
    assert!(
        matches!(told[..], [Event::Rejoined { incarnation: 1, reason: why, .. }] if why == reason),
        "{told:?}"
    );
}

#[test]
fn who_comes_back_before_it_was_told_that_it_was_out_is_told_since_when_and_why() {
    // A stopped process finds the suspicion in its socket when it wakes, and refutes it with its first word: by then
    // the others have given it up.
    for body in [Some(Body::Ping { probe: 9, wants_table: false }), None] {
        let mut stage = Stage::new(3);
        stage.script(1, KILLED);
        stage.run(ms(2_000));
        stage.accuse(1, 2, Silence::Refused);
        stage.run(ms(300));
        assert_eq!(stage.health(1), "dead");
        stage.run(ms(4_000));
        stage.sent.clear();
        stage.say(1, body, vec![Record::Alive { info: info(1), incarnation: 1 }]);
        assert_eq!(stage.health(1), "alive");
        let told = stage.sent.iter().filter(|(_, to, ..)| *to == info(1).address);
        let told: Vec<_> = told.flat_map(|(.., packet)| packet.records.clone()).collect();
        let (member, reason) = (peer(1), DeathReason::Refused);
        let out = |record: &Record| match record {
            Record::Out { member: who, incarnation: 0, reason: why, age_ms } => {
                (*who, *why) == (member, reason) && (4_000..5_000).contains(age_ms)
            }
            _ => false,
        };
        assert!(told.iter().any(out), "{told:?}");
    }
    // And this is how it hears of it.
    let mut stage = Stage::new(3);
    let (member, reason) = (peer(0), DeathReason::StalledTooLong);
    let kernel = SignOfLife::Kernel;
    let vouch =
        Record::Vouch { member, incarnation: 0, voucher: peer(2), kind: kernel, age_ms: 0, silent_ms: 9 };
    stage.say(1, None, vec![vouch]);
    let since = stage.now - ms(700);
    stage.say(1, None, vec![Record::Out { member, incarnation: 0, reason, age_ms: 700 }]);
    let told: Vec<_> = stage.events.iter().map(|(_, event)| event.clone()).collect();
    assert_eq!(told, [Event::Rejoined { incarnation: 1, reason, since }]);
}

#[test]
fn a_member_at_our_own_address_is_not_vouched_for_by_our_own_kernel() {
    let mut stage = Stage::new(3);
    // Its process is gone, and we have its port. Whoever connects there connects to us.
    let dead = Arc::new(MemberInfo { address: info(0).address, ..(*info(9)).clone() });
    stage.script(9, STOPPED);
    stage.script(0, STOPPED);
    stage.say(2, None, vec![Record::Alive { info: dead, incarnation: 0 }]);
    stage.run(ms(1_500));
    stage.accuse(9, 2, Silence::Refused);
    stage.run(ms(1_500));
    assert_eq!(stage.died(9), Some(DeathReason::Refused));
    let vouches = |record: &Record| matches!(record, Record::Vouch { member, .. } if *member == peer(9));
    assert!(!stage.sent.iter().any(|(.., packet)| packet.records.iter().any(vouches)));
}

#[test]
fn who_speaks_from_an_address_has_it_whatever_the_order_of_the_news() {
    let mut stage = Stage::new(3);
    // The news of the dead one, who was at 1's address before, comes late.
    let dead = Arc::new(MemberInfo { address: info(1).address, ..(*info(9)).clone() });
    stage.script(9, STOPPED);
    stage.say(2, None, vec![Record::Alive { info: dead, incarnation: 0 }]);
    stage.run(ms(1_500));
    stage.accuse(9, 2, Silence::Refused);
    stage.run(ms(1_500));
    assert_eq!(stage.died(9), Some(DeathReason::Refused));
    assert_eq!(stage.health(1), "alive");
}

#[test]
fn a_registration_ends_what_was_held_against_the_member_before() {
    let mut stage = Stage::new(3);
    stage.script(1, CUT);
    stage.run(ms(2_000));
    stage.accuse(1, 2, Silence::Silent);
    stage.accuse(1, 3, Silence::Silent);
    stage.run(ms(12_000));
    assert_eq!(stage.health(1), "dead");
    // It is back and has registered, before any of its datagrams came.
    stage.script(1, LIVE);
    stage.machine.handle_registration(stage.now, (*info(1)).clone());
    stage.carry_out();
    assert_eq!(stage.health(1), "alive");
    let dead =
        Record::Dead { member: peer(1), incarnation: 0, reason: DeathReason::Evicted, accusers: vec![] };
    stage.say(2, None, vec![dead]);
    stage.accuse(1, 2, Silence::Silent);
    stage.accuse(1, 3, Silence::Silent);
    stage.run(ms(3_000));
    assert_eq!(stage.health(1), "alive", "that was said of its earlier life (rule 45)");
}

#[test]
fn the_dead_return_under_a_higher_incarnation_and_not_under_the_old_one() {
    let mut stage = Stage::new(2);
    stage.script(1, KILLED);
    stage.run(ms(2_000));
    stage.accuse(1, 2, Silence::Refused);
    stage.run(ms(300));
    assert_eq!(stage.health(1), "dead");
    stage.script(1, LIVE);
    stage.say(2, None, vec![Record::Alive { info: info(1), incarnation: 0 }]);
    assert_eq!(stage.health(1), "dead");
    stage.say(1, None, vec![Record::Alive { info: info(1), incarnation: 1 }]);
    assert_eq!(stage.health(1), "alive");
    assert!(stage.machine.failed().is_empty());
}

#[test]
fn who_says_goodbye_is_not_vouched_for_by_that_word() {
    let leave = || vec![Record::Leave { member: peer(1), incarnation: 0 }];
    // Others may have heard it a moment before us.
    for passed_on in [false, true] {
        let mut stage = Stage::new(5);
        stage.script(1, KILLED);
        if passed_on {
            stage.say(2, None, leave());
            stage.run(ms(5));
        }
        stage.say(1, None, leave());
        stage.run(ms(300));
        let vouches = |record: &Record| matches!(record, Record::Vouch { member, .. } if *member == peer(1));
        let vouched = stage.sent.iter().find(|(.., packet)| packet.records.iter().any(vouches));
        assert!(vouched.is_none(), "{vouched:?}");
        assert_eq!(stage.about(1), [Event::Left(info(1))], "not suspected meanwhile");
    }
}

#[test]
fn a_goodbye_is_not_a_death() {
    let mut stage = Stage::new(3);
    stage.script(1, KILLED);
    stage.say(2, None, vec![Record::Leave { member: peer(1), incarnation: 0 }]);
    stage.run(ms(5_000));
    assert_eq!(stage.about(1), [Event::Left(info(1))]);
    assert_eq!(stage.health(1), "left");
}

#[test]
fn the_failed_list_is_pinged_so_that_halves_find_each_other_again() {
    let mut stage = Stage::new(3);
    let (member, reason) = (peer(1), DeathReason::Evicted);
    let dead = Record::Dead { member, incarnation: 0, reason, accusers: vec![] };
    stage.machine.handle_eviction(stage.now, member);
    stage.carry_out();
    stage.sent.clear();
    stage.run(ms(5_000));
    let told = |(_, to, _, packet): &(Instant, SocketAddr, Path, Packet)| {
        *to == info(1).address && packet.records.contains(&dead)
    };
    assert!(stage.sent.iter().any(told), "it must hear what is said of it");
}

#[test]
fn a_newcomer_gets_the_whole_table() {
    let mut stage = Stage::new(100);
    stage.script(200, LIVE);
    let records = vec![Record::Alive { info: info(200), incarnation: 0 }];
    stage.say(200, Some(Body::Ping { probe: 1, wants_table: true }), records);
    stage.run(ms(500));
    let mut told: Vec<_> = stage
        .sent
        .iter()
        .filter(|(_, to, ..)| *to == info(200).address)
        .flat_map(|(.., packet)| packet.records.iter())
        .filter(|record| matches!(record, Record::Alive { .. }))
        .map(Record::member)
        .collect();
    told.sort();
    told.dedup();
    assert!(told.len() >= 101, "a hundred members and ourselves, got {}", told.len());
}

#[test]
fn joining_tries_streams_too_until_somebody_answers() {
    let now = Instant::ORIGIN;
    let config = Config::preset(Preset::Lan);
    let mut stage = Stage::new(0);
    stage.machine = Membership::new(now, config, (*info(0)).clone(), Rng::from_seed(1));
    stage.script(5, Script { answers: false, ..LIVE });
    stage.machine.handle_join(stage.now, &[info(5).address]);
    stage.run(ms(2_000));
    let by = |path| stage.sent.iter().filter(|(_, to, by, _)| *to == info(5).address && *by == path).count();
    assert!(by(Path::Datagram) >= 3 && by(Path::Stream) >= 1, "{} {}", by(Path::Datagram), by(Path::Stream));
}

#[test]
fn after_leaving_the_machine_says_and_wants_nothing() {
    let mut stage = Stage::new(3);
    stage.machine.handle_leave(stage.now);
    stage.carry_out();
    let goodbye = Record::Leave { member: peer(0), incarnation: 0 };
    assert_eq!(stage.sent.iter().filter(|(.., packet)| packet.records == [goodbye.clone()]).count(), 3);
    stage.sent.clear();
    stage.say(1, Some(Body::Ping { probe: 1, wants_table: false }), vec![]);
    assert!(stage.sent.is_empty() && stage.machine.poll_timeout().is_none());
}
