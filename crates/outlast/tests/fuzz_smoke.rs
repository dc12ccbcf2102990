//! The fuzz targets on a stable compiler: the whole corpus, and mutations of it from a fixed seed.
//!
//! Long hunts belong to libFuzzer (`fuzz/README.md`); this run takes seconds and is part of every test run. It
//! also watches the allocator: no input may make a decoder hold more memory than a small multiple of itself.

mod seeds;
#[path = "../../../fuzz/targets.rs"]
mod targets;

use outlast_proto::rng::Rng;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

/// Mutations for each target.
const MUTATIONS: usize = 20_000;
/// A decoder may hold this much, and [`BYTES_PER_BYTE`] for each byte of input. Sealing keys and the guard's
/// tables take the constant part.
const BYTES_BASE: usize = 64 * 1_024;
const BYTES_PER_BYTE: usize = 64;

/// Counts what the current thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator; the counters are plain cells of this thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.get().wrapping_add(layout.size());
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // Memory of another thread may be given back here; then the count is low, never high.
        HELD.set(HELD.get().saturating_sub(layout.size()));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most that the current thread held during `call`, beyond what it held before.
fn peak_of(call: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    call();
    PEAK.get() - before
}

fn corpus_of(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut seeds: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("no corpus in {}: {error}", folder.display()))
        .map(|entry| entry.expect("the folder can be read"))
        .map(|entry| {
            let name = entry.file_name().into_string().expect("a plain name");
            (name, fs::read(entry.path()).expect("a seed"))
        })
        .collect();
    seeds.sort();
    seeds
}

/// Seeds are what earlier versions sent: those named `valid-` must stay readable, those named `invalid-` must
/// stay refused, and others (found by libFuzzer, or `retired-` with a version that is not spoken any more) must only not
/// panic.
#[test]
fn the_corpus_is_read_as_its_names_say() {
    for (name, target) in targets::TARGETS {
        let (mut valid, mut invalid) = (0, 0);
        for (seed, bytes) in &corpus_of(name) {
            let accepted = target(bytes);
            if seed.starts_with("valid-") {
                assert!(accepted, "{name}/{seed} is not read any more");
                valid += 1;
            } else if seed.starts_with("invalid-") {
                assert!(!accepted, "{name}/{seed} is accepted");
                invalid += 1;
            }
        }
        assert!(valid >= 2 && invalid >= 1, "{name} has {valid} valid and {invalid} invalid seeds");
    }
}

#[test]
fn no_mutation_makes_a_decoder_panic_or_hoard() {
    for (index, (name, target)) in targets::TARGETS.iter().enumerate() {
        let seeds: Vec<_> = corpus_of(name).into_iter().map(|(_, bytes)| bytes).collect();
        let mut rng = Rng::from_seed(0x0f0f_0000 + index as u64);
        target(&seeds[0]);
        let mut accepted = 0;
        for round in 0..MUTATIONS {
            let input = mutated(&mut rng, &seeds);
            let peak = peak_of(|| accepted += u32::from(target(&input)));
            let bound = BYTES_BASE + BYTES_PER_BYTE * input.len();
            assert!(peak <= bound, "{name}, round {round}: held {peak} bytes for {} of input", input.len());
        }
        println!("{name}: {MUTATIONS} mutations, {accepted} of them accepted");
    }
}

/// A few random changes to a random seed.
fn mutated(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[rng.below(seeds.len())].clone();
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        match rng.below(9) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.next_u64() as u8),
            2 => drop(bytes.drain(at..(at + rng.below(8)).min(bytes.len()))),
            3 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            4 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
            // Heads of CBOR items that announce much or never end, and lengths at which additions overflow.
            5 => {
                let heads: [&[u8]; 6] = [
                    &[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                    &[0x5a, 0xff, 0xff, 0xff, 0xff],
                    &[0x7b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                    &[0x9f],
                    &[0x7f],
                    &[0xff, 0xff, 0xff, 0xff],
                ];
                let head = heads[rng.below(heads.len())];
                let end = (at + head.len()).min(bytes.len());
                bytes.splice(at..end, head.iter().copied());
            }
            // Nested deeply.
            6 => drop(bytes.splice(at..at, vec![0x81; rng.below(1_500)])),
            7 => {
                let other = &seeds[rng.below(seeds.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[rng.below(other.len() + 1)..]);
            }
            _ => bytes = (0..rng.below(2_000)).map(|_| rng.next_u64() as u8).collect(),
        }
    }
    bytes
}

#[test]
#[ignore = "writes the seeds; run it by hand after adding a message, and never change an old seed"]
fn write_the_seeds() {
    seeds::write();
}
