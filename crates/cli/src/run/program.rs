//! The program that `ferroce run` starts: where it is, and whether it can load libraries
//! of ours at all.
//!
//! Libraries reach a program through the dynamic linker of a 64-bit glibc, which reads
//! LD_LIBRARY_PATH and LD_PRELOAD. A program that has none, or another one, would run
//! without a word and find no link.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How often an interpreter may be a script itself, as in the kernel.
const DEEPEST: usize = 5;
/// The longest first line of a script that the kernel reads.
const FIRST_LINE: usize = 256;

/// The file of a program: itself if it has a slash, else the first of its name in a list of
/// directories.
pub(super) fn find(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Path::new(name).exists().then(|| name.into());
    }
    std::env::split_paths(path)
        .map(|dir| dir.join(name))
        .find(|file| {
            let is_program =
                |file: &fs::Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
            fs::metadata(file).is_ok_and(|file| is_program(&file))
        })
}

/// The reason why a program, or the interpreter of a script, cannot load our libraries: a line
/// for each reason, with its remedy. A file that cannot be read has none: to run it will
/// say more.
pub(super) fn warnings(program: &Path, path: &OsStr) -> Vec<String> {
    let mut file = program.to_owned();
    for _ in 0..DEEPEST {
        match interpreter(&file, path) {
            Ok(Some(next)) => file = next,
            _ => break,
        }
    }
    let mut reasons = Vec::new();
    if let Ok(Some(elf)) = Elf::read(&file) {
        reasons.extend(elf.reason());
    }
    if fs::metadata(&file).is_ok_and(|metadata| Privilege::of(&metadata).is_gained()) {
        reasons.push(
            "runs with the rights of another user (setuid or setgid), so the dynamic linker \
             ignores LD_LIBRARY_PATH and it will not see Ferroce's links; run a copy without that \
             right",
        );
    }
    let name = match file == program {
        true => program.display().to_string(),
        false => format!("{}, which runs {},", file.display(), program.display()),
    };
    let lines = reasons.into_iter();
    lines.map(|reason| format!("{name} {reason}")).collect()
}

/// The program that interprets a script.
fn interpreter(file: &Path, path: &OsStr) -> io::Result<Option<PathBuf>> {
    let mut start = Vec::new();
    File::open(file)?
        .take(FIRST_LINE as u64)
        .read_to_end(&mut start)?;
    let Some(line) = start.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let Some(first) = words.next().map(Path::new) else {
        return Ok(None);
    };
    // `#!/usr/bin/env python3`: the program that env will run.
    if first.file_name() == Some(OsStr::new("env")) {
        let is_program = |word: &&OsStr| !word.as_bytes().starts_with(b"-");
        let mut words = words.filter(|word| !word.as_bytes().contains(&b'='));
        return Ok(words.find(is_program).and_then(|name| find(name, path)));
    }
    Ok(Some(first.into()))
}

/// The dynamic linker that the headers of an executable name.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    is_64_bit: bool,
    /// The dynamic linker that it asks for.
    linker: Option<OsString>,
}

impl Elf {
    const CLASS: usize = 4;
    const CLASS_64: u8 = 2;
    const PROGRAM_HEADERS: usize = 0x20;
    const HEADER_SIZE: usize = 0x36;
    const HEADER_COUNT: usize = 0x38;
    const INTERPRETER: u32 = 3;

    /// Reads the headers; none if it is no executable of this machine's byte order.
    fn read(path: &Path) -> io::Result<Option<Elf>> {
        let file = File::open(path)?;
        let mut header = [0; 64];
        if file.read_exact_at(&mut header, 0).is_err() || !header.starts_with(b"\x7fELF") {
            return Ok(None);
        }
        if header[Elf::CLASS] != Elf::CLASS_64 {
            return Ok(Some(Elf {
                is_64_bit: false,
                linker: None,
            }));
        }
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let table = word(&header, Elf::PROGRAM_HEADERS);
        let mut linker = None;
        for index in 0..u64::from(half(Elf::HEADER_COUNT)) {
            let mut entry = [0; 56];
            let place = table + index * u64::from(half(Elf::HEADER_SIZE));
            file.read_exact_at(&mut entry, place)?;
            let kind = u32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
            if kind == Elf::INTERPRETER {
                let (offset, size) = (word(&entry, 8), word(&entry, 32));
                let mut name = vec![0; size.min(4096) as usize];
                file.read_exact_at(&mut name, offset)?;
                name.truncate(
                    name.iter()
                        .position(|byte| *byte == 0)
                        .unwrap_or(name.len()),
                );
                linker = Some(OsString::from_vec(name));
            }
        }
        Ok(Some(Elf {
            is_64_bit: true,
            linker,
        }))
    }

    /// Why it cannot load our libraries.
    fn reason(&self) -> Option<&'static str> {
        let linker = self.linker.as_ref().map(|linker| linker.to_string_lossy());
        match linker {
            _ if !self.is_64_bit => Some(
                "is a 32-bit program, which cannot load Ferroce's 64-bit libraries and will not \
                 see its links; build it for 64 bits",
            ),
            None => Some(
                "is linked statically, so it loads no library and will not see Ferroce's links; \
                 link it dynamically",
            ),
            Some(linker) if linker.contains("musl") => Some(
                "is linked with musl, which cannot load Ferroce's libraries, and will not see its \
                 links; build it for glibc",
            ),
            Some(_) => None,
        }
    }
}

/// Eight bytes of a header as a number.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

/// The user and group that a program would run as, beside those who start it.
#[derive(Debug)]
struct Privilege {
    mode: u32,
    owner: (u32, u32),
    starter: (u32, u32),
}

impl Privilege {
    fn of(file: &fs::Metadata) -> Privilege {
        Privilege {
            mode: file.mode(),
            owner: (file.uid(), file.gid()),
            starter: (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
        }
    }

    fn is_gained(&self) -> bool {
        let user = self.mode & 0o4000 != 0 && self.owner.0 != self.starter.0;
        let group = self.mode & 0o2010 == 0o2010 && self.owner.1 != self.starter.1;
        user || group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is gone at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, contents: &[u8]) -> Scratch {
            let name = format!("ferroce-program-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::write(&path, contents).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _gone = fs::remove_file(&self.0);
        }
    }

    fn ourselves() -> Vec<u8> {
        fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    fn only_warning(file: &Scratch) -> String {
        let mut all = warnings(&file.0, OsStr::new("/usr/bin:/bin"));
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn a_program_of_this_machine_is_fine() {
        let exe = std::env::current_exe().unwrap();
        assert_eq!(warnings(&exe, OsStr::new("")), [""; 0]);
        let script = Scratch::new("script", b"#!/bin/sh\nexit\n");
        assert_eq!(warnings(&script.0, OsStr::new("")), [""; 0]);
    }

    #[test]
    fn programs_without_our_dynamic_linker_are_named() {
        let mut bytes = ourselves();
        bytes[Elf::CLASS] = 1;
        let file = Scratch::new("32", &bytes);
        let said = only_warning(&file);
        assert!(said.contains("is a 32-bit program"), "{said}");
        assert!(said.starts_with(&file.0.display().to_string()), "{said}");

        let mut bytes = ourselves();
        let linker = Elf::read(&std::env::current_exe().unwrap()).unwrap();
        let linker = linker.unwrap().linker.expect("a dynamic linker");
        let linker = linker.as_bytes();
        let at = bytes.windows(linker.len()).position(|part| part == linker);
        let at = at.expect("its name");
        bytes[at..at + 13].copy_from_slice(b"/lib/ld-musl\0");
        let said = only_warning(&Scratch::new("musl", &bytes));
        assert!(said.contains("is linked with musl"), "{said}");

        let mut bytes = ourselves();
        let table = word(&bytes, Elf::PROGRAM_HEADERS) as usize;
        let size = usize::from(bytes[Elf::HEADER_SIZE]);
        for entry in 0..usize::from(bytes[Elf::HEADER_COUNT]) {
            let at = table + entry * size;
            if bytes[at..at + 4] == Elf::INTERPRETER.to_ne_bytes() {
                bytes[at] = 0;
            }
        }
        let file = Scratch::new("static", &bytes);
        let said = only_warning(&file);
        assert!(said.contains("is linked statically"), "{said}");

        // A script is as good as its interpreter.
        let line = format!("#!{}\n", file.0.display());
        let script = Scratch::new("of-static", line.as_bytes());
        let said = only_warning(&script);
        assert!(said.contains("which runs"), "{said}");
        assert!(said.contains("is linked statically"), "{said}");
        let name = file.0.file_name().unwrap().to_str().unwrap();
        fs::set_permissions(&file.0, fs::Permissions::from_mode(0o755)).unwrap();
        let script = Scratch::new("of-env", format!("#!/usr/bin/env {name}\n").as_bytes());
        let all = warnings(&script.0, std::env::temp_dir().as_os_str());
        assert!(all[0].contains("is linked statically"), "{all:?}");
    }

    #[test]
    fn rights_are_gained_from_another_user_only() {
        let gained = |mode, owner, starter| {
            let privilege = Privilege {
                mode,
                owner,
                starter,
            };
            privilege.is_gained()
        };
        assert!(gained(0o104755, (0, 0), (1000, 1000)));
        assert!(gained(0o102755, (0, 0), (0, 1000)));
        assert!(!gained(0o104755, (0, 0), (0, 0)));
        assert!(!gained(0o100755, (0, 0), (1000, 1000)));
        assert!(!gained(0o102745, (0, 0), (0, 1000)), "no group may run it");
    }
}
