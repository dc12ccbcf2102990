//! `outlast bench hash` as a user calls it.

use assert_cmd::Command;

#[test]
fn every_number_of_threads_has_its_line() {
    let output = Command::cargo_bin("outlast")
        .unwrap()
        .args(["bench", "hash", "--bytes", "3MiB", "--threads", "1,3", "--seconds", "0.01", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<serde_json::Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.iter().map(|line| &line["threads"]).collect::<Vec<_>>(), [1, 3]);
    for line in lines {
        assert_eq!(line["bytes"], 3 << 20);
        for rate in ["read_gb_per_s", "twox_gb_per_s", "leaves_gb_per_s", "of_read"] {
            assert!(line[rate].as_f64().unwrap() > 0.0, "{rate} in {line}");
        }
    }
}
