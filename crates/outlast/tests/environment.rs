//! What a builder makes of variables that make no sense: an error that says so, and never the default.

use outlast::Communicator;
use outlast::security::RunSecret;
use std::process::Command;

const INSIDE: &str = "OUTLAST_TEST_INSIDE";

/// Starts a communicator in a process of its own with that variable, and returns what it says.
fn start_with(variable: &str, value: &str) -> String {
    let test = "a_variable_that_makes_no_sense_is_an_error_and_never_the_default";
    let mut process = Command::new(std::env::current_exe().unwrap());
    for other in ["OUTLAST_RUN_ID", "OUTLAST_GROUP", "OUTLAST_PORT"] {
        process.env_remove(other);
    }
    let process = process.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").env(variable, value);
    let output = process.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_variable_that_makes_no_sense_is_an_error_and_never_the_default() {
    if std::env::var_os(INSIDE).is_some() {
        let builder = Communicator::builder().coordinator("127.0.0.1:1").secret(RunSecret::generate());
        return match builder.start() {
            Ok(_) => println!("started"),
            Err(error) => println!("refused: {error}"),
        };
    }
    for (variable, value) in [
        ("OUTLAST_RUN_ID", "a run"),
        ("OUTLAST_GROUP", "two"),
        ("OUTLAST_GROUP", "-1"),
        ("OUTLAST_PORT", "http"),
        ("OUTLAST_PORT", "65536"),
    ] {
        let said = start_with(variable, value);
        let expected = format!("refused: {variable}={value:?}: ");
        assert!(said.contains(&expected) && said.contains("unset it"), "{expected} is not in: {said}");
    }
    for (variable, value) in [("OUTLAST_RUN_ID", ""), ("OUTLAST_RUN_ID", "good"), ("OUTLAST_GROUP", "7")] {
        let said = start_with(variable, value);
        assert!(said.contains("started"), "{variable}={value:?}: {said}");
    }
}
