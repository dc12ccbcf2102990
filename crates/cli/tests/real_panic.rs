//! The program around a coordinator that panics (rule 40): it ends with an error, so that whoever supervises it starts
//! another one.
//!
//! The panic is planted in a process that is this test's own program: it runs the command as the real one does.

#[path = "common/exit.rs"]
mod exit;

use exit::wait_exit;
use outlast::planted::{Place, plant};
use outlast::security::RunSecret;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ROLE: &str = "OUTLAST_PANIC_ARGUMENTS";
const PATIENCE: Duration = Duration::from_secs(40);

/// Not a test by itself: the program, in whose clerk a panic is planted as soon as its input says something.
#[test]
fn role() {
    let Ok(arguments) = std::env::var(ROLE) else { return };
    std::thread::spawn(|| {
        if std::io::stdin().read_exact(&mut [0]).is_ok() {
            plant(Place::Clerk(None));
        }
    });
    let arguments = std::iter::once("outlast").chain(arguments.split('\n')).map(Into::into);
    std::process::exit(outlast_cli::run(arguments).number().into());
}

/// A process that ends with this one.
struct Program(Child);

impl Program {
    fn start(mut command: Command, secret: &RunSecret) -> Self {
        command.env("OUTLAST_SECRET", secret.to_text()).env_remove("OUTLAST_SECRET_FILE");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: the closure makes one system call and touches no memory. It does not outlive a test that is killed.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        Self(command.spawn().expect("the program starts"))
    }

    /// One that can be struck.
    fn fragile(arguments: &[&str], secret: &RunSecret) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["role", "--exact", "--nocapture"]).env(ROLE, arguments.join("\n"));
        Self::start(command, secret)
    }

    fn wait_for_line(&mut self, words: &str) {
        let lines = BufReader::new(self.0.stdout.as_mut().expect("its output")).lines().map_while(Result::ok);
        assert!(lines.into_iter().any(|line| line.contains(words)), "it never says {words:?}");
    }

    fn strike(&mut self) {
        self.0.stdin.as_mut().expect("its input").write_all(b"!").expect("it reads");
    }

    /// What it ended with, and what it said about it.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut errors = self.0.stderr.take().expect("its errors");
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            text
        });
        let status = wait_exit(&mut self.0, "the program", PATIENCE);
        (status.code(), reading.join().expect("its errors"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_coordinator_whose_clerk_panics_ends_the_program_with_an_error() {
    let secret = RunSecret::generate();
    let mut program = Program::fragile(&["coordinator", "--listen", "127.0.0.1:0"], &secret);
    program.wait_for_line("peers use:");
    program.strike();
    let (code, errors) = program.ended();
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("outlast: the coordinator has ended: its clerk panicked"), "{errors}");
    assert!(errors.contains("Start it again with the same address and secret"), "{errors}");
}

#[test]
fn a_standalone_run_whose_coordinator_panics_ends_and_says_why() {
    let secret = RunSecret::generate();
    let arguments = ["run", "--standalone", "--no-python", "--", "sh", "-c", "echo at work; exec sleep 1000"];
    let mut program = Program::fragile(&arguments, &secret);
    program.wait_for_line("at work");
    program.strike();
    let mut output = program.0.stdout.take().expect("its output");
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = output.read_to_string(&mut text);
        text
    });
    let (code, errors) = program.ended();
    let said = reading.join().expect("its output");
    assert_eq!(code, Some(69), "{said}{errors}");
    assert!(
        format!("{said}{errors}").contains("the coordinator has ended: its clerk panicked"),
        "{said}{errors}"
    );
}
