//! `outlast bench state` as a user calls it.

use assert_cmd::Command;

#[test]
fn what_differs_is_what_moves() {
    let output = Command::cargo_bin("outlast")
        .unwrap()
        .args([
            "bench",
            "state",
            "--bytes",
            "5MiB",
            "--donors",
            "2",
            "--differs",
            "100,1,0",
            "--times",
            "1",
            "--json",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<serde_json::Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let told = |key: &str| lines.iter().map(|line| line[key].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(told("donors"), [1, 2, 1, 2, 1, 2]);
    assert_eq!(told("leaves"), [5, 5, 1, 1, 0, 0]);
    let list = 5 * 16;
    let (all, one) = ((5 << 20) + list, (1 << 20) + list);
    assert_eq!(told("received"), [all, all, one, one, 0, 0]);
}
