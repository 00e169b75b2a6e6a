//! The list of devices; opening and closing them.
