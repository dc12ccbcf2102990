//! Which program a command means.
//!
//! A name that ends in `.py`, and everything after `-m`, runs under Python: the interpreter that this package is
//! installed in, or the first on the path if this program came without one. Output is not buffered there (`-u`, as with
//! torchrun): a worker that is killed should not take its last words with it.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) name: OsString,
    pub(super) arguments: Vec<OsString>,
}

/// How a command is to be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// By its name.
    Guess,
    /// `-m`.
    Module,
    /// `--no-python`.
    Plain,
}

/// What is executed for a command.
pub(super) fn program(command: &[OsString], style: Style, interpreter: &OsStr) -> Program {
    let python = |options: &[&str]| {
        let options = options.iter().map(OsString::from);
        let arguments = options.chain(command.iter().cloned()).collect();
        Program { name: interpreter.to_owned(), arguments }
    };
    match style {
        Style::Module => python(&["-u", "-m"]),
        Style::Guess if script(command).is_some() => python(&["-u"]),
        Style::Guess | Style::Plain => {
            let (name, arguments) = command
                .split_first()
                .map_or_else(Default::default, |(name, rest)| (name.clone(), rest.to_vec()));
            Program { name, arguments }
        }
    }
}

/// A script that is not there: no restart would find it.
pub(super) fn missing_script(command: &[OsString], style: Style) -> Option<&Path> {
    script(command).filter(|script| style == Style::Guess && !script.exists())
}

fn script(command: &[OsString]) -> Option<&Path> {
    command.first().map(Path::new).filter(|name| name.extension() == Some(OsStr::new("py")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn scripts_and_modules_run_under_the_interpreter_and_programs_as_they_are() {
        let shown = |text: &str, style| {
            let program = program(&words(text), style, OsStr::new("/env/bin/python"));
            let all: Vec<_> = std::iter::once(program.name).chain(program.arguments).collect();
            all.join(OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(shown("train.py --lr 1", Style::Guess), "/env/bin/python -u train.py --lr 1");
        assert_eq!(shown("my.module -x", Style::Module), "/env/bin/python -u -m my.module -x");
        assert_eq!(shown("python train.py", Style::Guess), "python train.py");
        assert_eq!(shown("./tool.py a", Style::Plain), "./tool.py a");
    }
}
