//! Findings: a check that a program has failed, with the numbers of the case.

use crate::Check;

/// The weight of a finding.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Severity {
    /// Worth knowing: goes to the log at level info, and never makes a verb fail.
    Note,
    /// A mistake: a warning, or the failure of the verb.
    Warning,
}

/// A mistake of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The rule that the program breaks.
    pub check: Check,
    /// The weight.
    pub severity: Severity,
    /// The case in words: the object, the value and the limit.
    pub what: String,
}

impl Finding {
    /// Returns a warning.
    pub fn warning(check: Check, what: impl Into<String>) -> Finding {
        Finding {
            check,
            severity: Severity::Warning,
            what: what.into(),
        }
    }

    /// Returns a note.
    pub fn note(check: Check, what: impl Into<String>) -> Finding {
        Finding {
            check,
            severity: Severity::Note,
            what: what.into(),
        }
    }

    /// Returns the text of a warning: the case, the places in the program from the innermost
    /// outwards, those of an earlier post, the behaviour of hardware, and the remedy.
    pub fn text(
        &self,
        verb: &str,
        failure: Option<&str>,
        places: &[String],
        posted: &[String],
    ) -> String {
        let (name, what) = (self.check.name(), &self.what);
        let level = match failure {
            Some(_) => "error",
            None => "warning",
        };
        let mut text = format!("strict: {level} [{name}] {verb}: {what}\n");
        if let Some(failure) = failure {
            text += &format!("    here:      {failure}\n");
        }
        for (word, places) in [("called by:", places), ("posted by:", posted)] {
            for (number, place) in places.iter().enumerate() {
                let word = if number == 0 { word } else { "" };
                text += &format!("    {word:<10} {place}\n");
            }
        }
        text += &format!("    hardware:  {}\n", self.check.hardware());
        text += &format!("    fix:       {}\n", self.check.fix());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_case_place_hardware_and_fix() {
        let finding = Finding::warning(Check::Atomic, "address 0x1001");
        let places = ["test+0x10".into(), "libc.so.6+0x20".into()];
        let text = finding.text("ibv_post_send", None, &places, &[]);
        let start = "strict: warning [unaligned-atomic] ibv_post_send: address 0x1001\n";
        assert!(text.starts_with(start), "{text}");
        assert!(text.contains("called by: test+0x10\n"), "{text}");
        assert!(
            text.contains("hardware: ") && text.contains("fix: "),
            "{text}"
        );
        let text = finding.text("ibv_post_send", Some("it fails with EINVAL"), &[], &places);
        assert!(
            text.contains("error [") && text.contains("EINVAL"),
            "{text}"
        );
        assert!(text.contains("posted by: test+0x10\n"), "{text}");
    }
}
