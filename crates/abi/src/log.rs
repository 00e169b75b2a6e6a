//! Messages, if `FERROCE_LOG` asks for them.
