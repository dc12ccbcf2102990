//! Whom the program believes, as docs/security.md tells it, with its own commands: a secret that is rotated, certificates of one's
//! own authority, a coordinator's key.

mod common;

use common::{Member, SECOND};
use outlast::Communicator;
use outlast::communicator::{Call, Error};
use outlast::membership::Preset;
use outlast::security::RunSecret;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The program, with whatever it keeps in that folder.
fn outlast(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlast"));
    let ours = std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("OUTLAST_"));
    ours.for_each(|name| _ = command.env_remove(name));
    command.env("XDG_RUNTIME_DIR", folder).env("XDG_STATE_HOME", folder).stdin(Stdio::null());
    command
}

/// A file with a new secret, made by the program.
fn new_secret(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let made = outlast(folder).args(["secret", "new", "--file"]).arg(&path).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    path
}

fn text_of(secret: &Path) -> String {
    RunSecret::from_file(secret).unwrap().to_text()
}

/// An `outlast coordinator`.
struct Service {
    process: Child,
    address: String,
    said: Vec<String>,
}

impl Service {
    fn start(folder: &Path, listen: &str, options: &[&Path], variables: &[(&str, &Path)]) -> Self {
        let mut command = outlast(folder);
        command.args(["coordinator", "--preset", "local", "--listen", listen]).args(options);
        command.envs(variables.iter().copied()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut said = Vec::new();
        for line in BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok) {
            let is_last = line.starts_with("peers use:");
            said.push(line);
            if is_last {
                break;
            }
        }
        let usage = said.last().expect("how it is used");
        let address = usage.split(' ').find_map(|word| word.strip_prefix("OUTLAST_COORDINATOR="));
        let address = address.unwrap_or_else(|| panic!("no address in {said:?}")).to_owned();
        Self { process, address, said }
    }

    /// Killed, and its port is free.
    fn end(mut self) -> String {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.address.clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn status(folder: &Path, service: &Service, options: &[&Path]) -> Output {
    let mut command = outlast(folder);
    command.args(["status", "--json", "--coordinator", &service.address]).args(options).output().unwrap()
}

fn peer(service: &Service, secret: &Path) -> Communicator {
    Communicator::builder()
        .coordinator(&*service.address)
        .secret(RunSecret::from_file(secret).unwrap())
        .listen("127.0.0.1:0".parse().unwrap())
        .preset(Preset::Local)
        .timeout(20 * SECOND)
        .start()
        .unwrap()
}

/// Options and variables.
type Said<'a> = (&'a [&'a Path], &'a [(&'a str, &'a Path)]);

fn flag(name: &str) -> &Path {
    Path::new(name)
}

#[test]
fn a_secret_is_rotated_with_the_programs_own_commands() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (old, new) = (new_secret(folder, "old.secret"), new_secret(folder, "new.secret"));
    let key = folder.join("coordinator.key");
    let of_key = [flag("--key-file"), &key];
    let ask = |service: &Service, secret: &Path| status(folder, service, &[flag("--secret-file"), secret]);
    let start = |listen: &str, more: &[&Path], variables: &[(&str, &Path)]| {
        Service::start(folder, listen, &[&of_key[..], more].concat(), variables)
    };
    let service = start("127.0.0.1:0", &[flag("--secret-file"), &old], &[]);
    let comm = peer(&service, &old);
    comm.connect(1).unwrap();
    comm.barrier(&Call::default()).unwrap();
    assert!(!ask(&service, &new).status.success(), "nobody knows the new one yet");

    // 1. The coordinator is started again and takes both, however that is said: its peer notices a pause.
    let address = service.end();
    let both: [Said<'_>; 2] = [
        (&[flag("--secret-file"), &new, flag("--accept-secret-file"), &old], &[]),
        (&[], &[("OUTLAST_SECRET_FILE", &new), ("OUTLAST_ACCEPT_SECRET_FILE", &old)]),
    ];
    let mut last = None;
    for (options, variables) in both {
        drop(last.take());
        let service = start(&address, options, variables);
        comm.barrier(&Call::default()).unwrap();
        assert!(ask(&service, &old).status.success() && ask(&service, &new).status.success());
        last = Some(service);
    }

    // 3. Only the new one is left.
    drop(last);
    comm.leave();
    let service = start(&address, &[flag("--secret-file"), &new], &[]);
    let error = peer(&service, &old).connect(1).unwrap_err();
    assert!(matches!(error, Error::Unauthorized(_)), "{error:?}");
    assert!(ask(&service, &new).status.success() && !ask(&service, &old).status.success());
}

/// The second command of the recipe: members that are replaced one after the other.
#[test]
fn a_member_that_accepts_the_old_secret_meets_those_that_have_only_that() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (old, new) = (new_secret(folder, "old.secret"), new_secret(folder, "new.secret"));
    let first = Member::start("first", &text_of(&old), &["--preset", "local"]);
    let seed = first.address.to_string();
    let join = ["--preset", "local", "--join", &seed];
    let by_flag = Member::start(
        "flag",
        &text_of(&new),
        &[&join[..], &["--accept-secret-file", old.to_str().unwrap()]].concat(),
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlast"));
    command.env("OUTLAST_ACCEPT_SECRET_FILE", &old);
    let by_variable = Member::start_by(command, "variable", &text_of(&new), &join);
    let behind = Member::start("behind", &text_of(&new), &join);
    for member in [&first, &by_flag, &by_variable] {
        member.wait_settled(3, 20 * SECOND);
    }
    assert_eq!(behind.status()["active"], 1, "who does not say so does not accept it");
}

/// An authority as somebody might run it; its certificates are files, as an administrator hands them out.
struct Authority<'a> {
    folder: &'a Path,
    issuer: Issuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    fn new(folder: &'a Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = Issuer::new(params.clone(), KeyPair::generate().unwrap());
        let pem = params.self_signed(issuer.key()).unwrap().pem();
        std::fs::write(folder.join("ca.pem"), pem).unwrap();
        Self { folder, issuer }
    }

    /// The options of a process with that name.
    fn certify(&self, name: &str) -> [String; 6] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())];
        let chain = params.signed_by(&key, &self.issuer).unwrap().pem();
        let (cert_path, key_path) =
            (self.folder.join(format!("{name}.pem")), self.folder.join(format!("{name}.key")));
        std::fs::write(&cert_path, chain).unwrap();
        std::fs::write(&key_path, key.serialize_pem()).unwrap();
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let (ca, cert, key) = (text(self.folder.join("ca.pem")), text(cert_path), text(key_path));
        ["--tls-ca".to_owned(), ca, "--tls-cert".to_owned(), cert, "--tls-key".to_owned(), key]
    }
}

#[test]
fn with_an_authority_of_ones_own_the_secret_alone_opens_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let secret = new_secret(folder, "run.secret");
    let authority = Authority::new(folder);
    let of_secret = [flag("--secret-file"), &secret];
    let ours = authority.certify("coordinator.example");
    let ours: Vec<_> = of_secret.into_iter().chain(ours.iter().map(Path::new)).collect();
    let service = Service::start(folder, "127.0.0.1:0", &ours, &[]);
    let theirs = authority.certify("admin.example");
    let theirs: Vec<_> = of_secret.into_iter().chain(theirs.iter().map(Path::new)).collect();
    let told = status(folder, &service, &theirs);
    assert!(told.status.success(), "{told:?}");
    let refused = status(folder, &service, &of_secret);
    assert!(!refused.status.success(), "{refused:?}");

    // Members, too: each needs a name of its own.
    let secret = text_of(&secret);
    let mut members: Vec<Member> = Vec::new();
    for name in ["one.example", "two.example"] {
        let certificate = authority.certify(name);
        let mut options = vec!["--preset", "local"];
        options.extend(certificate.iter().map(String::as_str));
        let seed = members.first().map(|first| first.address.to_string());
        options.extend(seed.iter().flat_map(|seed| ["--join", seed]));
        members.push(Member::start(name, &secret, &options));
    }
    members.iter().for_each(|member| member.wait_settled(2, 20 * SECOND));
    // The name in its certificate is who it is: a renewed one is the same member.
    let id = members.remove(0).id.clone();
    let renewed = authority.certify("one.example");
    let mut options = vec!["--preset", "local"];
    options.extend(renewed.iter().map(String::as_str));
    assert_eq!(Member::start("renewed", &secret, &options).id, id);

    // One of the three options alone makes no sense.
    let certificate = authority.certify("half.example");
    for command in ["coordinator", "status", "members"] {
        for option in certificate.chunks(2) {
            let refused = outlast(folder).arg(command).args(option).output().unwrap();
            assert_eq!(refused.status.code(), Some(64), "{command} {option:?}: {refused:?}");
        }
    }
}

#[test]
fn a_coordinators_key_is_kept_where_it_is_told_and_forgotten_if_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let secret = new_secret(folder, "run.secret");
    let of_secret = [flag("--secret-file"), &secret];
    let start =
        |listen: &str, more: &[&Path]| Service::start(folder, listen, &[&of_secret[..], more].concat(), &[]);
    let key_is_kept = |service: &Service| {
        let comm = peer(service, &secret);
        comm.connect(1).unwrap();
        let told: Value = serde_json::from_slice(&status(folder, service, &of_secret).stdout).unwrap();
        comm.leave();
        told["key_is_kept"].as_bool()
    };
    let path = folder.join("mine.key");
    let service = start("127.0.0.1:0", &[flag("--key-file"), &path]);
    assert!(service.said.iter().any(|line| line.ends_with(path.to_str().unwrap())), "{:?}", service.said);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(key_is_kept(&service), Some(true));
    let written = std::fs::read(&path).unwrap();
    // A peer that has met it goes on with it after a restart, and with nobody else.
    let comm = peer(&service, &secret);
    comm.connect(1).unwrap();
    let address = service.end();
    let service = start(&address, &[flag("--key-file"), &path]);
    comm.barrier(&Call::default()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), written, "the key is as it was");
    drop(service);
    let service = start(&address, &[flag("--forget-key")]);
    let error = comm.barrier(&Call::default().timeout(2 * SECOND)).unwrap_err();
    println!("{error}");
    assert_eq!(key_is_kept(&service), Some(false));
    drop(service);
    // By default it is kept for each port, if that was chosen by somebody.
    let service = start(&address, &[]);
    let port = address.rsplit(':').next().unwrap();
    let kept = folder.join(format!("outlast/coordinator-{port}.key"));
    assert_eq!(std::fs::metadata(&kept).unwrap().mode() & 0o777, 0o600);
    assert_eq!(key_is_kept(&service), Some(true));
    // What cannot be a key is not overwritten.
    drop(service);
    std::fs::write(&path, "no key").unwrap();
    let mut command = outlast(folder);
    command.args(["coordinator", "--listen", &address, "--key-file"]).arg(&path).args(of_secret);
    let refused = command.output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("mine.key"), "{said}");
    assert_eq!(std::fs::read(&path).unwrap(), b"no key");
}
