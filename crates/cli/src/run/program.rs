//! The program that `ferroce run` starts: its file, and whether it can load Ferroce's
//! libraries.
//!
//! The dynamic linker of a 64-bit glibc loads the libraries: it reads LD_LIBRARY_PATH and
//! LD_PRELOAD. A program without it, or with another one, finds no link and gives no reason.
//! So `ferroce run` warns.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Nesting limit of scripts whose interpreter is a script. The kernel has the same.
const DEEPEST: usize = 5;
/// Bytes of a script's first line that the kernel reads.
const FIRST_LINE: usize = 256;

/// Finds the file of a program. A name with a slash is a path; any other name is looked up
/// in the directories of `path`.
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

/// Returns the reasons why a program, or the interpreter of a script, cannot load Ferroce's
/// libraries, each with its remedy. A file that cannot be read gets none: running it fails
/// with the cause.
pub(super) fn warnings(program: &Path, path: &OsStr) -> Vec<String> {
    let file = executable(program, path);
    let mut reasons = Vec::new();
    if let Ok(Some(elf)) = Elf::read(&file) {
        reasons.extend(elf.reason());
    }
    if fs::metadata(&file).is_ok_and(|metadata| Privilege::of(&metadata).is_gained()) {
        reasons.push(
            "runs with the rights of another user (setuid or setgid), so the dynamic linker \
             ignores LD_LIBRARY_PATH and the program will not see Ferroce's links; run a copy \
             without the setuid and setgid bits",
        );
    }
    let name = match file == program {
        true => program.display().to_string(),
        false => format!("{}, which runs {},", file.display(), program.display()),
    };
    let lines = reasons.into_iter();
    lines.map(|reason| format!("{name} {reason}")).collect()
}

/// Returns true if a program, or the interpreter of a script, would not start with a library in
/// LD_PRELOAD: musl's dynamic linker ends a program whose preloaded library needs glibc, where
/// others print a line and go on.
pub(super) fn ends_with_preload(program: &Path, path: &OsStr) -> bool {
    let elf = Elf::read(&executable(program, path));
    elf.is_ok_and(|elf| elf.is_some_and(|elf| elf.is_musl()))
}

/// Returns the file that the kernel loads: the program, or the interpreter of a script.
fn executable(program: &Path, path: &OsStr) -> PathBuf {
    let mut file = program.to_owned();
    for _ in 0..DEEPEST {
        match interpreter(&file, path) {
            Ok(Some(next)) => file = next,
            _ => break,
        }
    }
    file
}

/// Returns the interpreter of a script, and `None` for other files.
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
    // `#!/usr/bin/env python3`: the interpreter is the program that env runs.
    if first.file_name() == Some(OsStr::new("env")) {
        let is_program = |word: &&OsStr| !word.as_bytes().starts_with(b"-");
        let mut words = words.filter(|word| !word.as_bytes().contains(&b'='));
        return Ok(words.find(is_program).and_then(|name| find(name, path)));
    }
    Ok(Some(first.into()))
}

/// The ELF headers of an executable, as far as they matter for loading libraries.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    is_64_bit: bool,
    /// The dynamic linker that the headers name. A static program has none.
    linker: Option<OsString>,
}

impl Elf {
    const CLASS: usize = 4;
    const CLASS_64: u8 = 2;
    const PROGRAM_HEADERS: usize = 0x20;
    const HEADER_SIZE: usize = 0x36;
    const HEADER_COUNT: usize = 0x38;
    const INTERPRETER: u32 = 3;

    /// Reads the headers. Returns `None` if the file is not an ELF file.
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

    fn is_musl(&self) -> bool {
        let linker = self.linker.as_ref().map(|linker| linker.to_string_lossy());
        linker.is_some_and(|linker| linker.contains("musl"))
    }

    /// Returns the reason why the executable cannot load Ferroce's libraries.
    fn reason(&self) -> Option<&'static str> {
        match self.linker {
            _ if !self.is_64_bit => Some(
                "is a 32-bit program, which cannot load Ferroce's 64-bit libraries and will not \
                 see its links; build it for 64 bits",
            ),
            None => Some(
                "is linked statically, so it loads no library and will not see Ferroce's links; \
                 link it dynamically",
            ),
            Some(_) if self.is_musl() => Some(
                "is linked with musl, which cannot load Ferroce's libraries, and will not see its \
                 links; build it for glibc",
            ),
            Some(_) => None,
        }
    }
}

/// Reads eight bytes of a header as a number.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

/// The owner of a program's file, beside the user and group that start it.
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

    /// Returns true if the program runs as another user or group (setuid, setgid).
    fn is_gained(&self) -> bool {
        let user = self.mode & 0o4000 != 0 && self.owner.0 != self.starter.0;
        let group = self.mode & 0o2010 == 0o2010 && self.owner.1 != self.starter.1;
        user || group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is removed on drop.
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
    fn dynamic_glibc_programs_get_no_warning() {
        let exe = std::env::current_exe().unwrap();
        assert_eq!(warnings(&exe, OsStr::new("")), [""; 0]);
        let script = Scratch::new("script", b"#!/bin/sh\nexit\n");
        assert_eq!(warnings(&script.0, OsStr::new("")), [""; 0]);
    }

    #[test]
    fn programs_that_cannot_load_the_libraries_get_a_warning() {
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
        let musl = Scratch::new("musl", &bytes);
        let said = only_warning(&musl);
        assert!(said.contains("is linked with musl"), "{said}");
        let script = Scratch::new("of-musl", format!("#!{}\n", musl.0.display()).as_bytes());
        for (file, ends) in [(&musl, true), (&script, true), (&file, false)] {
            assert_eq!(ends_with_preload(&file.0, OsStr::new("")), ends);
        }

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

        // The interpreter of a script counts.
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
    fn setuid_counts_only_for_other_users() {
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
        assert!(
            !gained(0o102745, (0, 0), (0, 1000)),
            "not executable by the group"
        );
    }
}
