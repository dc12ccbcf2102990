//! `outlast bench all-reduce` as a person uses it: small, because what it measures is not judged here.

use assert_cmd::cargo::CommandCargoExt as _;
use serde_json::Value;
use std::process::Command;

fn bench(arguments: &[&str]) -> String {
    let mut command = Command::cargo_bin("outlast").unwrap();
    command.args(["bench", "all-reduce", "--seconds", "0.05"]).args(arguments);
    // What the user has set for a run of theirs is not the secret of a measurement.
    command.env("OUTLAST_SECRET_FILE", "/nowhere/run.secret");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn it_measures_with_votes_and_without_in_both_encryptions() {
    for encryption in ["on", "off"] {
        let text = bench(&["--world", "3", "--bytes", "4,64KiB", "--encryption", encryption, "--json"]);
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let what: Vec<_> = lines
            .iter()
            .map(|line| (line["bytes"].as_u64().unwrap(), line["what"].as_str().unwrap()))
            .collect();
        assert_eq!(what, [(4, "votes"), (4, "ring"), (65_536, "votes"), (65_536, "ring")]);
        for line in &lines {
            let (best, median) = (line["best"].as_f64().unwrap(), line["median"].as_f64().unwrap());
            assert!(0.0 < best && best <= median, "{line}");
            assert_eq!(line["encryption"], encryption);
        }
    }
}

#[test]
fn the_bare_ring_alone_makes_a_table() {
    let text = bench(&["--no-votes", "--bytes", "1KiB"]);
    let rows: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 2, "{text}");
    assert_eq!(rows[1][..5], ["1", "KiB", "-", "-", "-"], "{text}");
}

#[test]
fn a_size_without_a_known_unit_is_refused() {
    let mut command = Command::cargo_bin("outlast").unwrap();
    let output = command.args(["bench", "all-reduce", "--bytes", "3furlongs"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("furlongs"));
}

#[test]
fn a_killed_member_is_known_to_all_and_a_stopped_one_keeps_its_place() {
    let mut command = Command::cargo_bin("outlast").unwrap();
    command.args(["bench", "membership", "--members", "3", "--rounds", "1", "--preset", "local"]);
    let output = command.args(["--stop", "0.5", "--quiet", "0.5", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["members"], &line["kills"], &line["wrongly_dead"]), (&3.into(), &1.into(), &0.into()));
    for figure in ["together_ms", "kill_known_to_all_ms", "packets_per_second"] {
        assert!(line[figure].as_f64().unwrap() > 0.0, "{figure} in {line}");
    }
}

#[test]
fn the_store_is_measured_by_operation_over_direct_links_and_over_the_mesh() {
    for more in [&[][..], &["--no-direct"]] {
        let mut command = Command::cargo_bin("outlast").unwrap();
        command.args([
            "bench",
            "store",
            "--members",
            "3",
            "--seconds",
            "0.05",
            "--barriers",
            "5",
            "--turns",
            "2",
        ]);
        let output = command.arg("--json").args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let measured: Vec<_> = lines.iter().map(|line| line["operation"].as_str().unwrap()).collect();
        assert_eq!(measured, ["pairs", "get", "add", "check", "barrier"]);
        for line in &lines {
            let [p50, p99, rate] =
                ["p50_us", "p99_us", "per_second"].map(|name| line[name].as_f64().unwrap());
            assert!(rate > 0.0 && 0.0 < p50 && p50 <= p99, "{line}");
            assert_eq!(
                (line["store"].as_str(), line["direct"].as_bool()),
                (Some("outlast"), Some(more.is_empty()))
            );
        }
    }
}
