use super::*;
use crate::state::TensorInfo;
use half::bf16;
use outlast_proto::collective::DataType;

fn state(value: f32) -> SharedState {
    let mut state = SharedState::new();
    state.insert("w", vec![value; (LEAF_BYTES + 400) / 4], &[(LEAF_BYTES as u64 + 400) / 4]).unwrap();
    state.insert("half", vec![bf16::from_f32(value); 6], &[2, 3]).unwrap();
    state.insert("none", Vec::<i64>::new(), &[4, 0]).unwrap();
    state.insert("own", vec![value > 1.0; 3], &[3]).unwrap();
    state.set_may_differ("own").unwrap();
    state.set_revision(Some(7));
    state.set_extra([1, 255]).unwrap();
    state
}

#[test]
fn what_was_saved_is_loaded_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er/7");
    let saved = state(1.5);
    saved.save(&path).unwrap();
    let mut loaded = state(0.0);
    loaded.set_revision(None);
    loaded.set_extra([]).unwrap();
    assert_eq!(loaded.load(&path).unwrap(), path);
    assert_eq!(
        (loaded.digest(), loaded.revision(), loaded.extra()),
        (saved.digest(), Some(7), &[1, 255][..])
    );
    assert_eq!(loaded.get::<f32>("w"), saved.get::<f32>("w"));
    assert_eq!(loaded.get::<bool>("own"), Some(&[true; 3][..]), "what may differ is part of a checkpoint");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left there");
}

/// Only the folder right above a checkpoint used to be forced to the disk: a loss of power could take those above with it.
#[test]
fn every_folder_that_was_made_is_listed_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let made = |path: PathBuf| {
        let mut synced = Vec::new();
        let mut sync = |path: &Path| {
            synced.push(path.to_owned());
            sync_folder(path)
        };
        make_folders(&path, &mut sync).unwrap();
        assert!(path.is_dir());
        synced
    };
    assert_eq!(
        made(at("a/b/c")),
        [at(""), at("a"), at("a/b")].map(|path| path.components().collect::<PathBuf>())
    );
    assert_eq!(made(at("a/b/d")), [at("a/b")]);
    assert_eq!(made(at("a/b/c")), Vec::<PathBuf>::new(), "what was there was listed before");
}

#[test]
fn a_checkpoint_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("7");
    state(1.5).save(&path).unwrap();
    assert!(matches!(state(2.5).save(&path), Err(CheckpointError::Exists(_))));
    let mut loaded = state(0.0);
    loaded.load(&path).unwrap();
    assert_eq!(loaded.digest(), state(1.5).digest());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the attempt left nothing behind");
    // Even where both looked at the same time.
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    assert_eq!(rename_to_new(&other, &path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn the_newest_whole_one_wins_beside_all_kinds_of_damage() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (revision, value) in [(9, 9.5), (10, 10.5), (11, 11.5), (12, 12.5), (13, 13.5), (14, 14.5)] {
        let mut state = state(value);
        state.set_revision(Some(revision));
        state.save(&at(&revision.to_string())).unwrap();
    }
    // One bit, somewhere in the tensors; a file that was cut; a digit of the revision; no manifest; half-written.
    let tensors = at("14").join(TENSORS);
    let mut bytes = fs::read(&tensors).unwrap();
    let middle = bytes.len() - 100;
    bytes[middle] ^= 4;
    fs::write(&tensors, bytes).unwrap();
    let cut = File::options().write(true).open(at("13").join(TENSORS)).unwrap();
    cut.set_len(1_000).unwrap();
    let manifest = at("12").join(MANIFEST);
    fs::write(&manifest, fs::read_to_string(&manifest).unwrap().replace("12", "92")).unwrap();
    fs::remove_file(at("11").join(MANIFEST)).unwrap();
    fs::create_dir(at(".15.partial-0000000000000000")).unwrap();
    fs::write(at("16"), "a file").unwrap();
    fs::create_dir(at("notes")).unwrap();
    let mut loaded = state(0.0);
    assert_eq!(loaded.load(folder.path()).unwrap(), at("10"));
    assert_eq!((loaded.revision(), loaded.get::<f32>("w").unwrap()[0]), (Some(10), 10.5));
    // Without the whole ones each is named with its reason, and the state is as it was.
    for whole in ["9", "10"] {
        fs::remove_dir_all(at(whole)).unwrap();
    }
    let before = loaded.digest();
    let text = loaded.load(folder.path()).unwrap_err().to_string();
    for reason in
        ["14: its contents", "13: tensors.safetensors holds", "12: manifest.json is damaged", "16: ", "11: "]
    {
        assert!(text.contains(reason), "{reason} in {text}");
    }
    assert_eq!((loaded.digest(), loaded.revision(), loaded.is_torn()), (before, Some(10), false));
}

/// Whatever the disk said of the newest one, an older one was loaded without a word: a process that was out of
/// descriptors for a moment threw away what was learned since.
#[test]
fn a_checkpoint_that_cannot_be_read_for_now_is_no_reason_to_load_an_older_one() {
    let folder = tempfile::tempdir().unwrap();
    for (revision, value) in [(8, 8.5), (9, 9.5)] {
        let mut state = state(value);
        state.set_revision(Some(revision));
        state.save(&folder.path().join(revision.to_string())).unwrap();
    }
    // A link to itself is nothing that a crash leaves behind, and even root cannot open it.
    let newest = folder.path().join("9");
    let (manifest, aside) = (newest.join(MANIFEST), newest.join("aside"));
    fs::rename(&manifest, &aside).unwrap();
    std::os::unix::fs::symlink(MANIFEST, &manifest).unwrap();
    let mut loaded = state(0.0);
    let before = loaded.digest();
    let error = loaded.load(folder.path()).unwrap_err();
    assert!(matches!(&error, CheckpointError::Disk { path, .. } if *path == newest), "{error}");
    assert_eq!((loaded.digest(), loaded.is_torn()), (before, false));
    assert!(matches!(loaded.load(&newest), Err(CheckpointError::Disk { .. })), "nor is it no checkpoint");
    // It was whole all the time.
    fs::rename(&aside, &manifest).unwrap();
    assert_eq!(loaded.load(folder.path()).unwrap(), newest);
}

#[test]
fn a_checkpoint_is_not_loaded_into_one_memory_where_it_has_two_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("7");
    let mut two = SharedState::new();
    two.insert("a", vec![1_u8], &[1]).unwrap();
    two.insert("b", vec![2_u8], &[1]).unwrap();
    two.set_revision(Some(7));
    two.save(&path).unwrap();
    let mut lent = [9_u8];
    let mut tied = SharedState::new();
    for key in ["a", "b"] {
        // SAFETY: `lent` outlives the state, and is not used while the state is.
        unsafe { tied.insert_raw(TensorInfo::new(key, DataType::U8, [1]), lent.as_mut_ptr(), Box::new(())) }
            .unwrap();
    }
    let text = tied.load(&path).unwrap_err().to_string();
    assert!(text.contains("\"a\" and \"b\" are the same memory here"), "{text}");
    assert!(!tied.is_torn());
    two.get_mut::<u8>("b").unwrap()[0] = 1;
    two.save(&folder.path().join("8")).unwrap();
    tied.load(&folder.path().join("8")).unwrap();
    assert_eq!(tied.get::<u8>("a"), Some(&[1][..]));
}

#[test]
fn a_checkpoint_of_another_state_names_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("7");
    state(1.5).save(&path).unwrap();
    let mut other = state(0.0);
    other.insert("more", vec![1_u8], &[1]).unwrap();
    let text = other.load(&path).unwrap_err().to_string();
    assert!(text.contains("no tensor of the key \"more\""), "{text}");
    assert!(matches!(other.load(&folder.path().join("nowhere")), Err(CheckpointError::Nothing(_))));
}

#[test]
fn what_nobody_could_name_is_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = state(1.5);
    state.set_revision(None);
    assert!(matches!(state.save(&folder.path().join("a")), Err(CheckpointError::NoRevision(false))));
    state.torn = true;
    let text = state.save(&folder.path().join("a")).unwrap_err().to_string();
    assert!(text.contains("aborted"), "{text}");
    state.set_revision(Some(3));
    assert!(!state.is_torn());
    state.save(&folder.path().join("a")).unwrap();
}

#[test]
fn memory_that_is_lent_is_used_where_it_is() {
    let mut lent = vec![1_u16, 2, 3];
    let mut state = SharedState::new();
    let info = TensorInfo::new("lent", DataType::U16, [3]);
    // SAFETY: `lent` outlives the state, and is not used while the state is.
    unsafe { state.insert_raw(info, lent.as_mut_ptr().cast(), Box::new(())).unwrap() };
    state.get_mut::<u16>("lent").unwrap()[1] = 9;
    assert_eq!(state.get::<u16>("lent"), Some(&[1, 9, 3][..]));
    assert_eq!((state.get::<i16>("lent"), state.get::<u16>("borrowed")), (None, None));
    drop(state);
    assert_eq!(lent, [1, 9, 3]);
}

#[test]
fn a_byte_that_is_no_truth_value_is_not_shown_as_one() {
    let mut lent = vec![0_u8, 1];
    let mut state = SharedState::new();
    // SAFETY: as above.
    unsafe {
        state.insert_raw(TensorInfo::new("b", DataType::Bool, [2]), lent.as_mut_ptr(), Box::new(())).unwrap();
    }
    assert_eq!(state.get::<bool>("b"), Some(&[false, true][..]));
    state.memory[0].bytes_mut()[0] = 2;
    assert_eq!(state.get::<bool>("b"), None);
    drop(state);
    drop(lent);
}

#[test]
fn shapes_that_do_not_fit_and_keys_that_are_there_are_refused() {
    let mut state = state(1.5);
    let text = state.insert("x", vec![1_u8; 5], &[2, 3]).unwrap_err().to_string();
    assert!(text.contains("6 elements, and there are 5"), "{text}");
    assert!(state.insert("w", vec![1_u8], &[1]).unwrap_err().to_string().contains("twice"));
    assert!(state.set_may_differ("nobody").unwrap_err().to_string().contains("\"nobody\""));
    assert!(state.set_extra(vec![0; STATE_EXTRA_BYTES_MAX + 1]).is_err());
}
