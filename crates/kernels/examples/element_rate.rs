//! How fast the kernels are beside `memcpy`, on the same buffers, in the same minute, on one thread.
//!
//! A rate alone says as much about the machine as about the kernel. So each round runs `memcpy` and then the
//! kernel, and what counts is the ratio of the two: bytes that a kernel reads and writes per second, over bytes
//! that `memcpy` reads and writes per second. In cache the buffers are of 32 KiB, from memory of 256 MiB.
//!
//! Ratios are given as the median of the rounds' ratios and as the best rate over the best `memcpy`, which is what
//! remains when other programs take their share of the machine now and then. The last column compares elements
//! instead of bytes: how many the kernel finishes for each that `memcpy` copies.
//!
//! ```sh
//! cargo run --release -p outlast-kernels --example element_rate -- [--json] [--mib 256] [--rounds 15] [--only int8]
//! ```

use outlast_kernels::{
    Element, Quantisation, Reduction, accumulate, combine, combine_assign, copy_aside, dequantise,
    finish_assign, level, quantise, quantised_len,
};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// A kernel under the clock.
struct Case {
    name: &'static str,
    element: Element,
    work: Work,
}

#[derive(Clone, Copy)]
enum Work {
    /// out = a + b
    Sum,
    /// a += b
    SumInPlace,
    /// saved = a, then a += b, one after the other on blocks of 32 KiB
    SaveThenSum,
    /// The same as one kernel.
    Finish,
    Quantise(Quantisation),
    Dequantise(Quantisation),
    Accumulate(Quantisation),
}

const CASES: [Case; 16] = {
    use Quantisation::{Int4, Int8};
    const fn case(name: &'static str, element: Element, work: Work) -> Case {
        Case { name, element, work }
    }
    [
        case("f32 sum", Element::F32, Work::Sum),
        case("f32 sum in place", Element::F32, Work::SumInPlace),
        case("f32 save, then sum", Element::F32, Work::SaveThenSum),
        case("f32 save and sum", Element::F32, Work::Finish),
        case("bf16 sum", Element::BF16, Work::Sum),
        case("bf16 sum in place", Element::BF16, Work::SumInPlace),
        case("f16 sum", Element::F16, Work::Sum),
        case("f16 sum in place", Element::F16, Work::SumInPlace),
        case("int8 quantise f32", Element::F32, Work::Quantise(Int8)),
        case("int8 dequantise f32", Element::F32, Work::Dequantise(Int8)),
        case("int8 accumulate f32", Element::F32, Work::Accumulate(Int8)),
        case("int8 quantise bf16", Element::BF16, Work::Quantise(Int8)),
        case("int8 dequantise bf16", Element::BF16, Work::Dequantise(Int8)),
        case("int4 quantise f32", Element::F32, Work::Quantise(Int4)),
        case("int4 dequantise f32", Element::F32, Work::Dequantise(Int4)),
        case("int4 accumulate f32", Element::F32, Work::Accumulate(Int4)),
    ]
};

struct Buffers {
    a: Vec<u8>,
    b: Vec<u8>,
    out: Vec<u8>,
    packed: Vec<u8>,
    /// What is accumulated next: `a` or `b`, by turns.
    turn: bool,
}

impl Buffers {
    /// Ordinary numbers of `element`: neither subnormal nor special.
    fn new(bytes: usize, element: Element) -> Self {
        let one = |index: usize, sign: f32| {
            let value = sign * (((index * 2_654_435_761) % 2003) as f32 / 1001.0 - 1.0);
            match element {
                Element::F32 => value.to_le_bytes().to_vec(),
                Element::BF16 => value.to_le_bytes()[2..].to_vec(),
                // Around one half: the exponent of f16 is narrower, its numbers are made by hand.
                _ => (0x3800 | (index as u16 & 0x83ff)).to_le_bytes().to_vec(),
            }
        };
        let list = |sign| (0..2003).flat_map(|index| one(index, sign)).collect::<Vec<_>>();
        let [a, b] = [1.0, -1.0].map(|sign| {
            let list = list(sign);
            let mut bytes_of_it = list.repeat(bytes / list.len() + 1);
            bytes_of_it.truncate(bytes);
            bytes_of_it
        });
        let mut packed = vec![0; quantised_len(Quantisation::Int8, bytes / element.size())];
        quantise(Quantisation::Int8, element, &a, &mut packed);
        Self { out: vec![1; bytes], a, b, packed, turn: false }
    }

    /// Runs it once; says how many bytes it read and wrote.
    fn run(&mut self, case: &Case) -> usize {
        let Self { a, b, out, packed, turn } = self;
        let bytes = a.len();
        let packed_bytes = |quantisation| quantised_len(quantisation, bytes / case.element.size());
        match case.work {
            Work::Sum => {
                combine(case.element, Reduction::Sum, out, a, b);
                3 * bytes
            }
            Work::SumInPlace => {
                combine_assign(case.element, Reduction::Sum, out, b);
                3 * bytes
            }
            Work::SaveThenSum => {
                let blocks = a.chunks_mut(32 << 10).zip(out.chunks_mut(32 << 10));
                for ((saved, into), other) in blocks.zip(b.chunks(32 << 10)) {
                    copy_aside(saved, into);
                    combine_assign(case.element, Reduction::Sum, into, other);
                }
                4 * bytes
            }
            Work::Finish => {
                finish_assign(case.element, Reduction::Sum, out, b, None, Some(a));
                4 * bytes
            }
            Work::Quantise(quantisation) => {
                let packed = &mut packed[..packed_bytes(quantisation)];
                quantise(quantisation, case.element, a, packed);
                bytes + packed.len()
            }
            Work::Dequantise(quantisation) => {
                let packed = &packed[..packed_bytes(quantisation)];
                dequantise(quantisation, case.element, packed, out);
                bytes + packed.len()
            }
            Work::Accumulate(quantisation) => {
                let packed = &mut packed[..packed_bytes(quantisation)];
                // By turns one and its negative: sums would run away over the rounds.
                *turn = !*turn;
                accumulate(quantisation, case.element, packed, if *turn { a } else { b }, None);
                bytes + 2 * packed.len()
            }
        }
    }
}

/// Seconds of one call, from enough calls to be seen by the clock.
fn seconds(calls: usize, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    start.elapsed().as_secs_f64() / calls as f64
}

struct Row {
    name: &'static str,
    place: &'static str,
    elements_per_second: f64,
    bytes_per_second: f64,
    memcpy_bytes_per_second: f64,
    ratio_of_bests: f64,
    ratio_median: f64,
    element_ratio_median: f64,
}

fn measure(case: &Case, place: &'static str, bytes: usize, rounds: usize) -> Row {
    let mut buffers = Buffers::new(bytes, case.element);
    let mut moved = buffers.run(case);
    // About a millisecond each where one call is shorter than that: others are then seldom in between.
    let once = seconds(1, || moved = buffers.run(case));
    let calls = (Duration::from_millis(1).as_secs_f64() / once).ceil().clamp(1.0, 1e6) as usize;
    let (mut rates, mut memcpys, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let memcpy = 2.0 * bytes as f64
            / seconds(calls, || {
                buffers.out.copy_from_slice(black_box(&buffers.a));
                black_box(&mut buffers.out);
            });
        let rate = moved as f64
            / seconds(calls, || {
                black_box(buffers.run(case));
            });
        rates.push(rate);
        memcpys.push(memcpy);
        ratios.push(rate / memcpy);
    }
    for list in [&mut rates, &mut memcpys, &mut ratios] {
        list.sort_by(f64::total_cmp);
    }
    let bytes_per_second = rates[rounds / 2];
    Row {
        name: case.name,
        place,
        elements_per_second: bytes_per_second / moved as f64 * (bytes / case.element.size()) as f64,
        bytes_per_second,
        memcpy_bytes_per_second: memcpys[rounds / 2],
        ratio_of_bests: rates[rounds - 1] / memcpys[rounds - 1],
        ratio_median: ratios[rounds / 2],
        element_ratio_median: ratios[rounds / 2] * (2 * bytes) as f64 / moved as f64,
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, default: usize| {
        let place = arguments.iter().position(|argument| argument == name);
        let value = place.and_then(|place| arguments.get(place + 1)).and_then(|value| value.parse().ok());
        value.unwrap_or(default).max(1)
    };
    let json = arguments.iter().any(|argument| argument == "--json");
    let (mib, rounds) = (number("--mib", 256), number("--rounds", 15));
    let only = arguments.iter().position(|argument| argument == "--only");
    let only = only.and_then(|place| arguments.get(place + 1)).map_or("", String::as_str);
    let mut rows = Vec::new();
    if !json {
        println!("level {}, one thread, median of {rounds} rounds; GB/s are bytes read and written", level());
        println!(
            "{:<22}{:<8}{:>12}{:>9}{:>13}{:>13}{:>15}{:>10}",
            "kernel",
            "from",
            "Gelement/s",
            "GB/s",
            "memcpy GB/s",
            "ratio median",
            "ratio of bests",
            "elements"
        );
    }
    // Short rounds are cheap: many of them find the quiet moments.
    for (place, bytes, rounds) in [("cache", 32 << 10, 20 * rounds), ("memory", mib << 20, rounds)] {
        for case in CASES.iter().filter(|case| case.name.contains(only)) {
            let row = measure(case, place, bytes, rounds);
            if !json {
                println!(
                    "{:<22}{:<8}{:>12.2}{:>9.1}{:>13.1}{:>13.2}{:>15.2}{:>10.2}",
                    row.name,
                    row.place,
                    row.elements_per_second / 1e9,
                    row.bytes_per_second / 1e9,
                    row.memcpy_bytes_per_second / 1e9,
                    row.ratio_median,
                    row.ratio_of_bests,
                    row.element_ratio_median,
                );
            }
            rows.push(row);
        }
    }
    if json {
        let rows = rows.iter().map(|row| {
            format!(
                "{{\"kernel\":\"{}\",\"from\":\"{}\",\"elements_per_second\":{:.0},\"bytes_per_second\":{:.0},\"memcpy_bytes_per_second\":{:.0},\"ratio_median\":{:.3},\"ratio_of_bests\":{:.3},\"element_ratio_median\":{:.3}}}",
                row.name,
                row.place,
                row.elements_per_second,
                row.bytes_per_second,
                row.memcpy_bytes_per_second,
                row.ratio_median,
                row.ratio_of_bests,
                row.element_ratio_median,
            )
        });
        println!(
            "{{\"level\":\"{}\",\"rounds\":{rounds},\"rows\":[{}]}}",
            level(),
            rows.collect::<Vec<_>>().join(",")
        );
    }
}
