//! Devices, protection domains and regions that another context has made.
