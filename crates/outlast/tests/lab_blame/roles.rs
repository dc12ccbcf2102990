//! What the processes of the lab do: a coordinator that serves, and workers that make the calls they are told to.

use outlast::communicator::{Call, Diagnosis, Error};
use outlast::{Communicator, Coordinator};
use std::io::Write as _;
use std::time::Duration;

pub(crate) const ROLE: &str = "OUTLAST_BLAME_ROLE";
pub(crate) const ADDRESS: &str = "OUTLAST_BLAME_ADDRESS";
pub(crate) const SECRET: &str = "OUTLAST_BLAME_SECRET";
pub(crate) const NAME: &str = "OUTLAST_BLAME_NAME";
pub(crate) const LISTEN: &str = "OUTLAST_BLAME_LISTEN";

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "\n@{line}\n");
    let _ = out.flush();
}

fn setting(name: &str) -> String {
    std::env::var(name).expect("a setting")
}

/// Serves until it is killed, or nobody is left who would do that.
pub(crate) fn coordinator() {
    let listen = setting(ADDRESS).parse().expect("an address");
    let secret = setting(SECRET).parse().expect("a secret");
    // With a key that was made just now nobody can have been here before, and nobody is waited for.
    let key = std::env::temp_dir().join(format!("outlast-blame-{}.key", std::process::id()));
    let builder = Coordinator::builder().listen(listen).secret(secret).key_file(&key);
    let _serving = builder.start().expect("a coordinator");
    let _ = std::fs::remove_file(&key);
    say("ready");
    std::io::stdin().lines().map_while(Result::ok).for_each(drop);
}

/// Makes the calls that it reads: `call MILLISECONDS ELEMENTS retry|once`.
pub(crate) fn worker() {
    let comm = Communicator::builder()
        .coordinator(setting(ADDRESS))
        .secret(setting(SECRET).parse().expect("a secret"))
        .listen(setting(LISTEN).parse().expect("an address"))
        .name(setting(NAME))
        .start()
        .expect("a communicator");
    comm.connect(3).expect("admitted");
    say("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        let ["call", millis, elements, retry] = words[..] else { panic!("what is {line:?}?") };
        let millis = millis.parse().expect("milliseconds");
        let mut data = vec![1.0_f32; elements.parse().expect("elements")];
        let call = Call::sum().timeout(Duration::from_millis(millis)).retry(retry == "retry");
        match comm.all_reduce(&mut data, &call) {
            Ok(_) => say("ok"),
            Err(error) => say(&blamed(&error)),
        }
    }
}

/// The word of the diagnosis, and the whole message on one line.
fn blamed(error: &Error) -> String {
    let word = error.diagnosis().map_or("none", Diagnosis::word);
    format!("error {word}: {}", error.to_string().replace('\n', " "))
}
