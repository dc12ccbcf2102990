//! The Rust of the lab's page compiles: the snippet stands here as well, letter by letter.

mod pages;

#[rustfmt::skip]
#[expect(dead_code, unused_variables, reason = "it is compiled, not run: there is no such server")]
#[expect(clippy::unit_arg, reason = "short on a page")]
fn lab() -> Result<(), Box<dyn std::error::Error>> {
// snippet
use outlast_lab::{Lab, LabError, Rate, Refusal, Rule};
use std::time::Duration;

let lab = match Lab::new("my-test", ["a", "b", "c"]) {
    Err(error @ LabError::NotRoot) => return Ok(eprintln!("SKIPPED: {error}")),
    lab => lab?,
};
let lan = Rule::perfect().rate(Rate::mbit(1_000)).delay(Duration::from_millis(1));
lab.set_all(lan)?;
lab.set("a", "b", lan.loss(0.1))?;                            // one way; set_both for both

let server = lab.host("b")?.command("my-server").spawn()?;    // std::process::Command, inside b
let socket = lab.host("a")?.enter(|| std::net::UdpSocket::bind("10.77.0.1:0"))??;  // a socket inside a, used from here

lab.cut("a", "b")?;                                           // returns once it is in force
lab.isolate("c")?;
lab.heal_all()?;
lab.host("b")?.freeze()?;
lab.thaw("b")?;
lab.reject("b", Some(Refusal::tcp()))?;
assert!(lab.counters("a", "b")?.cut > 0);                     // the fault has fired
// end
Ok(())
}

#[test]
fn the_labs_snippet_is_what_is_compiled_here() {
    pages::assert_compiled(include_str!("guide_snippets.rs"), "lab.md");
}
