//! `ferroce generate`: writes man pages and shell completions, for packages.

mod man;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{rdma, rxe_cfg};

/// Write man pages and shell completions into a directory
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// The `share` directory: receives man/, bash-completion/ and so on
    dir: PathBuf,
}

/// Completion scripts, with their paths. They call `ferroce complete`.
const SCRIPTS: [(&str, &str); 3] = [
    (
        "bash-completion/completions/ferroce",
        r#"# Completion of ferroce for bash.
_ferroce() {
    local IFS=$'\n'
    COMPREPLY=($("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _ferroce ferroce
"#,
    ),
    (
        "zsh/vendor-completions/_ferroce",
        r#"#compdef ferroce
# Completion of ferroce for zsh.
local -a found
found=(${(f)"$(${words[1]} complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
if (( $#found )); then
    compadd -a found
else
    _files
fi
"#,
    ),
    (
        "fish/vendor_completions.d/ferroce.fish",
        r#"# Completion of ferroce for fish.
function __ferroce_next
    set -l words (commandline -opc)
    ferroce complete -- $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c ferroce -f -a '(__ferroce_next)'
complete -c ferroce -n '__fish_seen_subcommand_from run' -F
"#,
    ),
];

impl GenerateArgs {
    pub(crate) fn run(self, ferroce: &clap::Command) -> Result<()> {
        self.write_pages(ferroce)?;
        for (place, script) in SCRIPTS {
            let file = self.dir.join(place);
            make(file.parent().context("a script has a directory")?)?;
            fs::write(&file, script).with_context(|| format!("cannot write {}", file.display()))?;
        }
        let mut ferroced = ferroce_daemon::Options::command();
        for (shell, place) in [
            (Shell::Bash, "bash-completion/completions"),
            (Shell::Zsh, "zsh/vendor-completions"),
            (Shell::Fish, "fish/vendor_completions.d"),
        ] {
            let dir = self.dir.join(place);
            let file = clap_complete::generate_to(shell, &mut ferroced, "ferroced", &dir)
                .context("cannot write completions")?;
            // bash looks for a file without a suffix.
            if shell == Shell::Bash {
                fs::rename(file, dir.join("ferroced"))?;
            }
        }
        Ok(())
    }

    fn write_pages(&self, ferroce: &clap::Command) -> Result<()> {
        let dir = self.dir.join("man/man1");
        make(&dir)?;
        man::write_all(ferroce, &dir)?;
        man::write_all(&ferroce_daemon::Options::command(), &dir)?;
        // The pages have the prefix ferroce-: iproute2 has a page rdma(8).
        let pages = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let also: Vec<String> = pages(&["ferroce(1)", "ferroce-link(1)", "ferroce-config(1)"]);
        man::write_page(&rxe_cfg::command(), "ferroce-rxe_cfg", &dir, &also)?;
        let also: Vec<String> = pages(&[
            "ferroce(1)",
            "ferroce-link(1)",
            "ferroce-resource(1)",
            "ferroce-stat(1)",
            "rdma(8)",
            "rdma-link(8)",
            "rdma-resource(8)",
            "rdma-statistic(8)",
        ]);
        man::write_page(&rdma::command(), "ferroce-rdma", &dir, &also)
    }
}

fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}
