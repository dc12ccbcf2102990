//! `outlast lab` as a person uses it: one command after the other, a lab that lives in between, and a
//! process that is killed. Needs root; says SKIPPED otherwise.

use serde_json::{Value, json};
use std::process::{Command, Output};

/// A lab's name that no other run of this test has; the lab goes down when the test ends, however it ends.
struct Named(String);

impl Named {
    fn outlast(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_outlast"))
            .args(["lab", "--name", &self.0])
            .args(words)
            .output()
            .expect("the program starts")
    }

    /// What the command says; it must succeed.
    fn says(&self, words: &[&str]) -> String {
        let output = self.outlast(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What the command complains about; it must fail.
    fn complains(&self, words: &[&str]) -> String {
        let output = self.outlast(words);
        assert!(!output.status.success(), "{words:?} should fail");
        String::from_utf8(output.stderr).unwrap()
    }

    fn status(&self) -> Value {
        let labs: Value = serde_json::from_str(&self.says(&["list", "--json"])).unwrap();
        labs[0].clone()
    }

    fn namespaces(&self) -> usize {
        let prefix = format!("olab-{}.", self.0);
        let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.outlast(&["down", &self.0]);
    }
}

fn named(label: &str) -> Option<Named> {
    let lab = Named(format!("{label}-{}", std::process::id()));
    let output = lab.outlast(&["list"]);
    if String::from_utf8_lossy(&output.stderr).contains("needs root") {
        eprintln!("SKIPPED {label}: the lab needs root");
        return None;
    }
    Some(lab)
}

#[test]
fn a_lab_lives_between_commands() {
    let Some(lab) = named("by-hand") else { return };
    lab.says(&["up", "--hosts", "3", "--rate", "1gbit", "--delay", "1ms"]);
    assert_eq!(lab.namespaces(), 3);
    assert_eq!(lab.says(&["exec", "b", "--", "hostname"]), "b\n");
    assert_eq!(lab.outlast(&["exec", "b", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));

    lab.says(&["link", "a", "b", "--delay", "20ms", "--loss", "1%", "--one-way"]);
    lab.says(&["cut", "a", "c"]);
    lab.says(&["block-udp", "c"]);
    lab.says(&["reject", "b", "--only", "tcp", "--with", "prohibited"]);
    let status = lab.status();
    let link = |from: &str, to: &str| {
        let links = status["links"].as_array().unwrap();
        links.iter().find(|link| link["from"] == from && link["to"] == to).unwrap().clone()
    };
    assert_eq!(link("a", "b")["delay_ms"], 20.0);
    assert_eq!(link("a", "b")["loss"], 0.01);
    assert_eq!(link("a", "b")["rate_bits_per_second"], 1_000_000_000);
    assert_eq!(link("b", "a")["delay_ms"], 1.0);
    assert_eq!((link("a", "c")["cut"].clone(), link("c", "a")["cut"].clone()), (true.into(), true.into()));
    assert_eq!(link("b", "c")["cut"], false);
    assert_eq!(status["hosts"][2]["udp_blocked"], true);
    assert_eq!(status["hosts"][1]["refusal"]["answer"], "prohibited");

    lab.says(&["uplink", "a", "b", "--rate", "50mbit"]);
    lab.says(&["uplink", "b", "c", "--rate", "200mbit", "--delay", "2ms"]);
    let uplinks = lab.status()["uplinks"].clone();
    assert_eq!(
        (&uplinks[0]["hosts"], &uplinks[1]["hosts"]),
        (&json!(["a"]), &json!(["b", "c"])),
        "b has moved"
    );
    assert_eq!(uplinks[1]["rate_bits_per_second"], 200_000_000);
    assert!(lab.says(&["list"]).contains("uplink of b, c: 200mbit, delay 2ms"), "{}", lab.says(&["list"]));

    lab.says(&["heal"]);
    assert!(lab.status()["links"].as_array().unwrap().iter().all(|link| link["cut"] == false));
    let table = lab.says(&["list"]);
    assert!(table.contains("10.77.0.3") && table.contains("rejects tcp (prohibited)"), "{table}");
    lab.says(&["down"]);
    assert_eq!(lab.namespaces(), 0);
}

#[test]
fn mistakes_are_named_with_their_remedy() {
    let Some(lab) = named("mistakes") else { return };
    assert!(lab.complains(&["cut", "a"]).contains(&format!("no lab '{}'", lab.0)));
    lab.says(&["up", "--hosts", "a,b"]);
    assert!(lab.complains(&["cut", "a", "x"]).contains("no host 'x'; hosts are a, b"));
    assert!(lab.complains(&["exec", "x", "--", "true"]).contains("no host 'x'; hosts are a, b"));
    assert!(lab.complains(&["link", "a", "b", "--rate", "1gbps"]).contains("100mbit"));
    assert!(lab.complains(&["link", "a", "b"]).contains("--rate"));
    assert!(lab.complains(&["uplink", "a"]).contains("--rate"));
    assert!(lab.complains(&["uplink", "x", "--rate", "1mbit"]).contains("no host 'x'; hosts are a, b"));
    assert!(lab.complains(&["up"]).contains("take another name"));
}

#[test]
fn a_killed_holder_is_cleaned_up_after() {
    let Some(lab) = named("killed") else { return };
    lab.says(&["up", "--hosts", "2"]);
    let holder = i32::try_from(lab.status()["pid"].as_i64().unwrap()).unwrap();
    let mut inside = Command::new(env!("CARGO_BIN_EXE_outlast"))
        .args(["lab", "--name", &lab.0, "exec", "a", "--", "sleep", "600"])
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while lab.status()["hosts"][0]["processes"] != 1 {
        assert!(std::time::Instant::now() < deadline, "the process never showed up in its host");
    }
    let killed = Command::new("kill").args(["-KILL", &holder.to_string()]).status().unwrap();
    assert!(killed.success());
    // Any lab that comes up on this machine removes leftovers as well, and may have been faster.
    let output = lab.outlast(&["down", &lab.0]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || error.contains("no lab"), "{error}");
    assert_eq!(lab.namespaces(), 0);
    while inside.try_wait().unwrap().is_none() {
        assert!(std::time::Instant::now() < deadline, "the process inside was not ended");
    }
}
