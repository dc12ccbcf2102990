//! `outlast secret` as a user calls it.

use assert_cmd::Command;
use outlast::security::RunSecret;
use std::os::unix::fs::PermissionsExt as _;

fn outlast(arguments: &[&str]) -> std::process::Output {
    Command::cargo_bin("outlast").unwrap().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn each_secret_is_valid_and_new() {
    let secrets = [0, 1].map(|_| {
        let output = outlast(&["secret", "new"]);
        assert!(output.status.success());
        text(&output.stdout).parse::<RunSecret>().unwrap()
    });
    assert_ne!(secrets[0], secrets[1]);
}

#[test]
fn json_is_one_line() {
    let line = text(&outlast(&["secret", "new", "--json"]).stdout);
    assert_eq!(line.lines().count(), 1);
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    value["secret"].as_str().unwrap().parse::<RunSecret>().unwrap();
}

#[test]
fn a_file_is_private_and_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.secret");
    let output = outlast(&["secret", "new", "--file", path.to_str().unwrap()]);
    assert!(output.status.success());
    let secret = RunSecret::from_file(&path).unwrap();
    assert!(!text(&output.stdout).contains(&secret.to_text()), "the secret is in the file alone");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let again = outlast(&["secret", "new", "--file", path.to_str().unwrap()]);
    assert!(!again.status.success());
    assert!(text(&again.stderr).contains("never overwritten"), "{}", text(&again.stderr));
    assert_eq!(RunSecret::from_file(&path).unwrap(), secret);
}

#[test]
fn help_shows_an_example() {
    let help = text(&outlast(&["secret", "new", "--help"]).stdout);
    assert!(help.contains("export OUTLAST_SECRET=$(outlast secret new)"), "{help}");
}
