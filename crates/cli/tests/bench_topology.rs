//! `outlast bench topology` as a user calls it.

use assert_cmd::Command;

fn outlast(arguments: &[&str]) -> std::process::Output {
    Command::cargo_bin("outlast").unwrap().args(["bench", "topology"]).args(arguments).output().unwrap()
}

#[test]
fn a_square_of_costs_is_ordered_and_told_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("links.txt");
    // The cheapest sum uses the one dear link; the ring with the fastest slowest link does not.
    std::fs::write(&path, "- 1 9 5\n5 - 1 9\n9 5 - 1\n8 9 5 -\n").unwrap();
    let output = outlast(&["--json", "--moonshot", "0.1", path.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&value["name"], &value["n"]), (&"links".into(), &4.into()));
    assert_eq!((&value["quick_cost"], &value["moonshot_cost"]), (&11.into(), &11.into()));
    assert_eq!(value["bottleneck"], 5);
}

#[test]
fn where_there_is_no_ring_it_says_so_and_what_is_no_square_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("links.txt");
    std::fs::write(&path, "- 1 1\n1 - -\n1 - -\n").unwrap();
    let output = outlast(&[path.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("no ring"), "{output:?}");
    std::fs::write(&path, "1 2 3").unwrap();
    let output = outlast(&[path.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("links.txt is not a square of costs"), "{error}");
}
