//! What the program makes of variables that make no sense: an error that says so, and never the default.

use assert_cmd::cargo::CommandCargoExt as _;
use std::process::{Command, Output};

fn outlast(run_id: &str, command: &[&str]) -> Output {
    let mut outlast = Command::cargo_bin("outlast").unwrap();
    outlast.env("OUTLAST_RUN_ID", run_id).args(command).output().unwrap()
}

#[test]
fn a_run_id_that_makes_no_sense_is_refused_with_its_variable_its_value_and_what_to_do() {
    for command in [&["status"][..], &["members", "--listen", "127.0.0.1:0"]] {
        let refused = outlast("a run", command);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success(), "{command:?}");
        for part in ["OUTLAST_RUN_ID", "'a run'", "unset"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        // What was typed is not blamed on the variable.
        let typed = [command, &["--run-id", "another run"]].concat();
        let text = String::from_utf8(outlast("good", &typed).stderr).unwrap();
        assert!(text.contains("another run") && !text.contains("OUTLAST_RUN_ID"), "{text}");
    }
}

#[test]
fn a_run_id_that_is_set_to_nothing_is_not_set() {
    // It gets as far as the secret, which nobody has given.
    let text = String::from_utf8(outlast("", &["status"]).stderr).unwrap();
    assert!(text.contains("secret") && !text.contains("run id"), "{text}");
}
