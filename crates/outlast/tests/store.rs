//! Several members in one process, over real sockets: what the store promises, call by call.

use outlast::membership::Preset;
use outlast::security::RunSecret;
use outlast::store::StoreError;
use outlast::{Coordinator, Store};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

struct World {
    coordinator: Coordinator,
    secret: RunSecret,
}

impl World {
    fn new() -> Self {
        let secret = RunSecret::generate();
        let listen = "127.0.0.1:0".parse().unwrap();
        let builder = Coordinator::builder().listen(listen).preset(Preset::Local).secret(secret.clone());
        Self { coordinator: builder.start().unwrap(), secret }
    }

    fn join(&self, direct: bool) -> Store {
        self.builder(direct).join().unwrap()
    }

    fn builder(&self, direct: bool) -> outlast::store::StoreBuilder {
        Store::builder()
            .coordinator(self.coordinator.address().to_string())
            .secret(self.secret.clone())
            .listen("127.0.0.1:0".parse().unwrap())
            .preset(Preset::Local)
            .configure(|config| config.direct = direct)
            .timeout(PATIENCE)
    }

    fn members(&self, count: usize, direct: bool) -> Vec<Store> {
        thread::scope(|scope| {
            let joining: Vec<_> = (0..count).map(|_| scope.spawn(|| self.join(direct))).collect();
            joining.into_iter().map(|joining| joining.join().unwrap()).collect()
        })
    }
}

#[test]
fn what_one_member_writes_all_members_read() {
    let world = World::new();
    for (count, direct) in [(1, true), (3, true), (6, false)] {
        let stores = world.members(count, direct);
        for (at, store) in stores.iter().enumerate() {
            store.set(format!("key/{at}"), format!("value/{at}")).unwrap();
        }
        for store in &stores {
            for at in 0..count {
                assert_eq!(store.get(format!("key/{at}"), None).unwrap(), format!("value/{at}").into_bytes());
            }
            assert_eq!(store.num_keys().unwrap(), count as u64);
            assert_eq!(store.keys("key/").unwrap().len(), count);
            assert!(store.check(&["key/0"]).unwrap());
            assert!(!store.check(&["key/0", "none"]).unwrap());
            assert_eq!(store.look("none").unwrap(), None);
        }
        // One ends it for all.
        stores[0].shutdown().unwrap();
        for store in &stores[1..] {
            let deadline = Instant::now() + PATIENCE;
            let error = loop {
                match store.look("key/0") {
                    Err(error) => break error,
                    Ok(_) => assert!(Instant::now() < deadline, "the store goes on"),
                }
            };
            assert_eq!(error.to_string(), "the store was shut down");
        }
    }
}

#[test]
fn a_store_whose_handle_is_dropped_ends_for_all() {
    let world = World::new();
    let mut stores = world.members(3, true);
    let dropped = stores.pop().unwrap();
    thread::scope(|scope| {
        let waiting: Vec<_> =
            stores.iter().map(|store| scope.spawn(|| store.get("never", None).unwrap_err())).collect();
        let begun = Instant::now();
        drop(dropped);
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap().to_string(), "the store was shut down");
        }
        assert!(begun.elapsed() < PATIENCE, "they were not told, their time was over");
    });
}

#[test]
fn operations_do_what_their_names_say() {
    let world = World::new();
    let stores = world.members(3, true);
    let [a, b, _] = &stores[..] else { panic!("three") };
    assert_eq!((a.add("n", 5).unwrap(), b.add("n", -2).unwrap()), (5, 3));
    assert_eq!(a.get("n", None).unwrap(), b"3");
    assert_eq!(a.compare_set("c", "", "first").unwrap(), b"first");
    assert_eq!(b.compare_set("c", "other", "second").unwrap(), b"first");
    assert_eq!(b.compare_set("c", "first", "second").unwrap(), b"second");
    assert_eq!(b.compare_set("missing", "expected", "desired").unwrap(), b"expected");
    assert_eq!(b.look("missing").unwrap(), None);
    a.append("log", "one,").unwrap();
    b.append("log", "two").unwrap();
    assert_eq!(a.get("log", None).unwrap(), b"one,two");
    assert!(a.delete_key("log").unwrap());
    assert!(!b.delete_key("log").unwrap());
    a.multi_set([("x", "1"), ("y", "2")]).unwrap();
    assert_eq!(b.multi_get(&["x", "y"]).unwrap(), [b"1".to_vec(), b"2".to_vec()]);
    a.queue_push("q", "first").unwrap();
    b.queue_push("q", "second").unwrap();
    assert_eq!(a.queue_len("q").unwrap(), 2);
    assert_eq!(b.queue_pop("q", None).unwrap(), b"first");
    assert_eq!(a.queue_try_pop("q").unwrap(), Some(b"second".to_vec()));
    assert_eq!(a.queue_try_pop("q").unwrap(), None);
    let error = a.add("c", 1).unwrap_err().to_string();
    assert!(error.contains("not a whole number"), "{error}");
}

#[test]
fn a_wait_ends_when_the_key_comes_and_a_timeout_says_why_it_did_not() {
    let world = World::new();
    let stores = world.members(3, true);
    let (here, there) = (&stores[0], &stores[1]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| here.wait(&["late/1", "late/2"], None));
        let popping = scope.spawn(|| here.queue_pop("late", None));
        there.set("late/1", "").unwrap();
        there.set("late/2", "x").unwrap();
        there.queue_push("late", "element").unwrap();
        waiting.join().unwrap().unwrap();
        assert_eq!(popping.join().unwrap().unwrap(), b"element");
    });
    let begun = Instant::now();
    let error = here.get("absent", Some(Duration::from_millis(400))).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let text = error.to_string();
    assert!(text.contains("get of \"absent\" timed out after"), "{text}");
    assert!(text.contains("the key is absent"), "{text}");
    assert!(text.contains("owner rank") || text.contains("this member"), "{text}");
}

#[test]
fn keys_and_values_are_any_bytes_also_none_and_also_many() {
    let world = World::new();
    let stores = world.members(3, true);
    let every: Vec<u8> = (0..=255).collect();
    for key in [Vec::new(), every.clone(), vec![b'k'; 10_000]] {
        for value in [Vec::new(), every.clone(), vec![7; 200_000], vec![8; 5 << 20]] {
            stores[0].set(&key, value.clone()).unwrap();
            assert_eq!(stores[2].get(&key, None).unwrap(), value);
        }
    }
    let error = stores[0].set(vec![0; 70_000], "").unwrap_err();
    assert!(matches!(error, StoreError::TooLong { what: "a key", bytes: 70_000, .. }), "{error}");
}

#[test]
fn every_add_counts_once_while_members_come_and_go() {
    let world = World::new();
    for direct in [true, false] {
        let stores = world.members(4, direct);
        let (adders, each) = (3, 60);
        let together = Arc::new(Barrier::new(adders + 1));
        thread::scope(|scope| {
            for store in &stores[..adders] {
                let together = Arc::clone(&together);
                scope.spawn(move || {
                    together.wait();
                    (0..each).for_each(|_| {
                        store.add("count", 1).unwrap();
                    });
                });
            }
            together.wait();
            // Every change of members moves keys; nothing may be lost or done twice on the way.
            stores[3].leave().unwrap();
            let newcomer = world.join(direct);
            newcomer.leave().unwrap();
        });
        assert_eq!(stores[0].add("count", 0).unwrap(), (adders * each) as i64);
        drop(stores);
    }
}
